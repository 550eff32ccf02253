//! What supplied packet plug-ins cost a packet. Prints medians of 31 rounds; `cargo run --release -p
//! csp-sandbox --example packet-cost`.
// A bench has a clock.
#![allow(clippy::disallowed_types)]

use std::hint::black_box;
use std::time::Instant as Clock;

use csp_classify::multifield::Direction;
use csp_plugins::{Action, Call, Effects, HashKey, Metadata, Packet, Plugin, Settings, builtin};
use csp_sandbox::Engine;
use csp_sandbox::packets::{PacketModule, PacketPlugin, limits};
use csp_types::Instant;

const ROUNDS: usize = 31;
const CALLS: u32 = 20_000;

struct None;

impl Effects for None {
    fn copy(&mut self, _: u16, _: &[u8]) {}

    fn call(&mut self, _: Call) -> bool {
        false
    }
}

/// Text of a module with a buffer for so many bytes of a frame.
fn text(frame: u32, body: &str) -> String {
    let declared: String = [24, 1, 64, 40 + frame, 0, 0]
        .iter()
        .flat_map(|number: &u32| number.to_le_bytes())
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    format!(
        r#"(module (memory (export "memory") 2) (data (i32.const 16) "{declared}")
        (func (export "csp_packet_abi") (result i32) i32.const 1)
        (func (export "csp_packet_declaration") (result i32) i32.const 16)
        (func (export "on_packet") (result i32) {body}))"#
    )
}

/// Nanoseconds of a packet of `len` bytes: the median of all rounds. Parsing the packet is part of it.
fn measure(mut plugin: Box<dyn Plugin>, len: usize) -> f64 {
    let mut frame = vec![0; len];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[14] = 0x60;
    frame[18..20].copy_from_slice(&((len - 54) as u16).to_be_bytes());
    frame[20] = 59;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Clock::now();
            for at in 0..CALLS {
                let mut packet = Packet::new(&mut frame, Metadata::new(0, Direction::Ingress));
                let action = plugin.process(Instant::from_nanos(at.into()), &mut packet, &mut None);
                assert_eq!(black_box(action), Action::Next(0));
            }
            begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    let engine = Engine::new(limits()).expect("an engine");
    let supplied = |frame: u32, body: &str| -> Box<dyn Plugin> {
        let bytes = wat::parse_str(text(frame, body)).expect("the text is a module");
        let module = PacketModule::compile(&engine, &bytes).expect("it follows the ABI");
        Box::new(PacketPlugin::new(&module, &Settings::default()).expect("it starts"))
    };
    let built_in = || (builtin::NO_OP.make)(&Settings::default(), HashKey::default()).expect("a no-op");
    println!("| plug-in | 72 B | 1,460 B | 64 KiB |\n|---|---|---|---|");
    for (name, make) in [
        ("built-in no-op, with the packet parsed", &built_in as &dyn Fn() -> Box<dyn Plugin>),
        ("no-op that looks at 62 bytes", &|| supplied(62, "i32.const 0")),
        ("no-op that looks at all", &|| supplied(65_549, "i32.const 0")),
        ("the same, copied back", &|| supplied(65_549, "i32.const 0x100")),
    ] {
        let [short, long, longest] = [72, 1460, 65_535].map(|len| measure(make(), len));
        println!("| {name} | {short:.0} ns | {long:.0} ns | {longest:.0} ns |");
    }
}
