//! Supplied packet plug-ins: the examples of docs/plugins.md in the fixtures of built-in ones, the ABI, and
//! hostile modules.
#![allow(clippy::unwrap_used)]

mod build;
#[path = "../../plugins/tests/fixture/mod.rs"]
mod fixture;

use std::collections::HashMap;
use std::sync::Arc;

use csp_classify::multifield::{Direction, InstanceId, RuleHandle};
use csp_plugins::{
    Action, Answer, Binding, Command, EnvironmentId, Fallback, Graph, Level, Metadata, Packet, Plugin,
    PluginError, Settings, Supply, Value, Verdict, WORKERS,
};
use csp_sandbox::packets::{FUEL, FUEL_PER_BYTE, PacketModule, PacketPlugin, limits};
use csp_sandbox::{Engine, ModuleError};
use csp_types::Instant;

use build::{c, crate_dir, has_target, rust};
use fixture::{Copies, WorkerLevel, build as frame, run_with};

#[derive(Debug, Default)]
struct Modules(HashMap<String, Arc<PacketModule>>);

impl Supply for Modules {
    fn outputs(&self, module: &str) -> Option<u8> {
        self.0.get(module).map(|module| module.outputs())
    }

    fn make(&self, _: &str, module: &str, settings: &Settings) -> Result<Box<dyn Plugin>, PluginError> {
        let module = self.0.get(module).ok_or(PluginError::Supplied("not here".to_owned()))?;
        Ok(Box::new(PacketPlugin::new(module, settings)?))
    }
}

fn engine() -> Engine {
    Engine::new(limits()).unwrap()
}

/// Runs a fixture in which `word` stands for a module.
fn run(text: &str, word: &str, bytes: &[u8]) {
    let module = PacketModule::compile(&engine(), bytes).unwrap();
    let hash = module.sha256().to_string();
    let text = text.replace(word, &hash);
    let supply: Arc<dyn Supply> = Arc::new(Modules(HashMap::from([(hash, module)])));
    run_with(&text, (WORKERS, Level::Worker), Some(supply), WorkerLevel::new);
}

#[test]
fn a_module_of_c_drops_packets_that_come_from_afar() {
    let Some(bytes) = c(&crate_dir().join("modules/hop-limit.c"), 1 << 20) else { return };
    run(include_str!("packets/hop-limit.txt"), "HOP-LIMIT", &bytes);
    run(include_str!("packets/hop-limit-plain.txt"), "HOP-LIMIT", &bytes);
}

#[test]
fn a_module_of_rust_blanks_words_and_keeps_checksums_right() {
    if !has_target() {
        return;
    }
    let bytes = rust(&crate_dir().join("modules/redact.rs"), 1 << 20);
    run(include_str!("packets/redact.txt"), "REDACT", &bytes);
    // A checksum that the device completes stays as it is.
    let module = PacketModule::compile(&engine(), &bytes).unwrap();
    let mut plugin = PacketPlugin::new(&module, &parameters("secret")).unwrap();
    let words = "ipv4 192.0.2.1 > 198.51.100.2 tcp 1000 > 80 A text secret";
    let (before, _) = frame(&words.split(' ').collect::<Vec<_>>());
    let mut bytes = before.clone();
    let mut packet = Packet::new(&mut bytes, Metadata { checksum_partial: true, ..received() });
    assert_eq!(plugin.process(at(1), &mut packet, &mut Nothing), Action::Next(0));
    assert_eq!((&bytes[..54], &bytes[54..]), (&before[..54], &b"******"[..]));
}

fn parameters(text: &str) -> Settings {
    let mut settings = Settings::default();
    settings.put("parameters", Value::Text(text.into()));
    settings
}

fn received() -> Metadata {
    Metadata { rule: Some(RuleHandle { slot: 0, generation: 0 }), ..Metadata::new(3, Direction::Ingress) }
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// What no supplied plug-in uses.
struct Nothing;

impl csp_plugins::Effects for Nothing {
    fn copy(&mut self, _: u16, _: &[u8]) {
        panic!("a copy");
    }

    fn call(&mut self, _: csp_plugins::Call) -> bool {
        panic!("a call");
    }
}

/// Text of a module with a buffer of 1,640 bytes at 64; `rest` has `on_packet`.
fn with(rest: &str) -> String {
    let imports = rest.find("(import").map_or("", |_| rest.split("(;end;)").next().unwrap());
    let rest = &rest[imports.len()..];
    let declared: String = [24u32, 2, 64, 1640, 0, 0]
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    format!(
        r#"(module {imports} (memory (export "memory") 1) (data (i32.const 16) "{declared}")
        (func (export "csp_packet_abi") (result i32) i32.const 1)
        (func (export "csp_packet_declaration") (result i32) i32.const 16) {rest})"#
    )
}

/// A module whose `on_packet` has this body.
fn on_packet(body: &str) -> String {
    with(&format!(r#"(func (export "on_packet") (result i32) (local i32) {body})"#))
}

fn compile(engine: &Engine, text: &str) -> Result<Arc<PacketModule>, ModuleError> {
    PacketModule::compile(engine, &wat::parse_str(text).unwrap())
}

/// A graph with one instance of a module.
fn graph(engine: &Engine, text: &str) -> Graph {
    let plugin = PacketPlugin::new(&compile(engine, text).unwrap(), &Settings::default()).unwrap();
    let (id, environment, level) = (InstanceId(0), EnvironmentId(0), Level::Worker);
    let mut graph = Graph::new(1, 1);
    graph.apply(Command::Create { id, environment, level, plugin: Some(Box::new(plugin)) });
    graph.apply(Command::Run(environment, true));
    graph
}

fn send(graph: &mut Graph, millis: u64, fallback: Fallback, frame: &mut [u8], metadata: Metadata) -> Verdict {
    let binding = Binding { instance: InstanceId(0), fallback };
    let mut packet = Packet::new(frame, metadata);
    graph.run(at(millis), binding, &mut packet, &mut Copies::default())
}

fn read(graph: &mut Graph) -> HashMap<&'static str, u64> {
    let Ok(Answer::Rows(rows)) = graph.call(at(0), InstanceId(0), "read", &Settings::default()) else {
        panic!()
    };
    rows[0].numbers.iter().copied().collect()
}

#[test]
fn a_module_decides_on_packets_and_changes_them_with_their_length() {
    let engine = engine();
    let metadata = Metadata { coalesced: 9, ..received() };
    let process = |body: &str, metadata: Metadata, room: usize| {
        let module = compile(&engine, &on_packet(body)).unwrap();
        let mut plugin = PacketPlugin::new(&module, &Settings::default()).unwrap();
        let mut bytes = vec![7; room];
        let mut packet = Packet::with_room(&mut bytes, 100, metadata);
        let action = plugin.process(at(1), &mut packet, &mut Nothing);
        (action, packet.bytes().to_vec())
    };
    let same = vec![7; 100];
    assert_eq!(process("i32.const 0x10000", metadata, 100), (Action::Next(1), same.clone()));
    assert_eq!(process("i32.const 1", metadata, 100), (Action::Drop, same.clone()));
    assert_eq!(process("i32.const 0x50002", metadata, 100), (Action::Transmit(5), same.clone()));
    // The head: its length, what is captured, interface and count, the room.
    for (place, value) in [(64, 100), (68, 100), (92, 3 | 9 << 16), (100, 100)] {
        let body =
            format!("(i32.shl (i32.eq (i32.load (i32.const {place})) (i32.const {value})) (i32.const 16))");
        assert_eq!(process(&body, metadata, 100).0, Action::Next(1), "at {place}");
    }
    // Bytes are copied back only if the module says so.
    let store = "(i32.store8 (i32.const 105) (i32.const 9))";
    assert_eq!(process(&format!("{store} i32.const 0"), metadata, 100).1, same);
    let mut changed = same.clone();
    changed[1] = 9;
    assert_eq!(process(&format!("{store} i32.const 0x100"), metadata, 100), (Action::Next(0), changed));
    // Another length, where that is possible.
    let resized = |len| format!("(i32.store (i32.const 64) (i32.const {len})) i32.const 0x100");
    let resizable = Metadata { resizable: true, coalesced: 1, ..metadata };
    assert_eq!(process(&resized(60), resizable, 100), (Action::Next(0), vec![7; 60]));
    let (action, longer) = process(&resized(104), resizable, 200);
    assert_eq!((action, &longer[..100], longer.len()), (Action::Next(0), &same[..], 104));
    for (len, metadata, room) in [
        (60, metadata, 100),
        (101, resizable, 100),
        (13, resizable, 100),
        (1601, resizable, 4000),
        (-1, resizable, 200),
    ] {
        assert_eq!(process(&resized(len), metadata, room), (Action::FallBack, same.clone()), "{len}");
    }
}

#[test]
fn a_long_frame_is_captured_in_part_and_changed_there() {
    let engine = engine();
    let body = "(i32.store8 (i32.const 1703) (i32.const 9))
        (i32.or (i32.const 0x100) (i32.shl (i32.eq (i32.load (i32.const 68)) (i32.const 1600)) (i32.const 16)))";
    let module = compile(&engine, &on_packet(body)).unwrap();
    let mut plugin = PacketPlugin::new(&module, &Settings::default()).unwrap();
    let mut bytes = vec![7; 60_000];
    let mut packet = Packet::with_room(&mut bytes, 50_000, Metadata { resizable: true, ..received() });
    assert_eq!(plugin.process(at(1), &mut packet, &mut Nothing), Action::Next(1));
    assert_eq!(
        (packet.bytes().len(), packet.bytes()[1598], packet.bytes()[1599], packet.bytes()[1600]),
        (50_000, 7, 9, 7)
    );
    // Its length stays.
    let same = packet.bytes().to_vec();
    for len in [13, 30, 1000, 1599, 1600, 1601, 49_999, 50_001, 60_000, -1] {
        let body = format!("(i32.store (i32.const 64) (i32.const {len})) i32.const 0x100");
        let module = compile(&engine, &on_packet(&body)).unwrap();
        let mut plugin = PacketPlugin::new(&module, &Settings::default()).unwrap();
        assert_eq!(plugin.process(at(1), &mut packet, &mut Nothing), Action::FallBack, "{len}");
        assert_eq!(packet.bytes(), same, "{len}");
    }
}

#[test]
fn an_instance_that_refuses_what_a_new_one_accepts_is_replaced() {
    let engine = engine();
    // Counts packets in its verdict; has no parameters any more once there was one.
    let text = with(
        r#"(global $seen (mut i32) (i32.const 0))
        (func (export "configure") (param i32) (result i32) (global.get $seen))
        (func (export "on_packet") (result i32) (local i32)
            (local.set 0 (i32.shl (global.get $seen) (i32.const 16))) (global.set $seen (i32.const 1)) (local.get 0))"#,
    );
    let mut plugin = PacketPlugin::new(&compile(&engine, &text).unwrap(), &parameters("one")).unwrap();
    let next = |plugin: &mut PacketPlugin| {
        let mut bytes = vec![7; 60];
        plugin.process(at(1), &mut Packet::new(&mut bytes, received()), &mut Nothing)
    };
    assert_eq!((next(&mut plugin), next(&mut plugin)), (Action::Next(0), Action::Next(1)));
    assert!(plugin.configure(&parameters("two")).is_err());
    assert_eq!((next(&mut plugin), next(&mut plugin)), (Action::Next(0), Action::Next(1)));
}

#[test]
fn hostile_modules_are_stopped_counted_and_the_fallback_applies() {
    let engine = engine();
    let grow = "(loop (drop (memory.grow (i32.const 1))) (br 0)) unreachable";
    for (body, reason) in [
        ("(loop (br 0)) unreachable", "stops_fuel"),
        (grow, "stops_memory"),
        ("unreachable", "stops_trap"),
        ("(i32.load (i32.const 0x7fffffff))", "stops_trap"),
        ("(i32.div_u (i32.const 1) (local.get 0))", "stops_trap"),
        ("i32.const 3", "stops_abi"),
        ("i32.const -1", "stops_abi"),
        ("i32.const 0x20000", "stops_output"),
        ("(i32.store (i32.const 64) (i32.const 99999)) i32.const 0x100", "stops_output"),
        ("(i32.store8 (i32.const 104) (i32.const 9)) unreachable", "stops_trap"),
    ] {
        let mut graph = graph(&engine, &on_packet(body));
        let mut frame = vec![7; 100];
        assert_eq!(send(&mut graph, 1, Fallback::Pass, &mut frame, received()), Verdict::Pass, "{body}");
        assert_eq!(frame, vec![7; 100], "{body}: the packet is as it was");
        // It waits 100 ms, then 200 ms.
        assert_eq!(send(&mut graph, 50, Fallback::Drop, &mut frame, received()), Verdict::Drop);
        assert_eq!(send(&mut graph, 102, Fallback::Drop, &mut frame, received()), Verdict::Drop);
        assert_eq!(send(&mut graph, 250, Fallback::Drop, &mut frame, received()), Verdict::Drop);
        let numbers = read(&mut graph);
        let stops: Vec<_> =
            numbers.iter().filter(|(name, count)| name.starts_with("stops") && **count > 0).collect();
        assert_eq!(stops, [(&reason, &2)], "{body}");
        assert_eq!((numbers["restarts"], numbers["not_run"], numbers["calls"]), (1, 2, 0), "{body}");
        let counters = graph.counters();
        assert_eq!((counters.fallback_passed, counters.fallback_dropped, counters.dropped), (1, 3, 0));
    }
    assert_eq!(engine.usage(), csp_sandbox::Usage::default(), "all memory is back");
}

#[test]
fn fuel_grows_with_what_is_captured_of_the_frame() {
    let engine = engine();
    // Counts down from what the frame's third byte says, in hundreds.
    let body = "(local.set 0 (i32.mul (i32.load8_u (i32.const 106)) (i32.const 100)))
        (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))) i32.const 0";
    let mut long = graph(&engine, &on_packet(body));
    let count = |graph: &mut Graph, len: usize, hundreds: u8| {
        let mut frame = vec![hundreds; len];
        send(graph, 1, Fallback::Drop, &mut frame, received())
    };
    assert_eq!(count(&mut long, 60, 10), Verdict::Pass);
    assert_eq!(count(&mut long, 1500, 55), Verdict::Pass);
    let used = read(&mut long)["fuel"];
    assert!(used > FUEL && FUEL_PER_BYTE > 0, "{used}");
    let mut short = graph(&engine, &on_packet(body));
    assert_eq!(count(&mut short, 60, 55), Verdict::Drop);
    assert_eq!(read(&mut short)["stops_fuel"], 1);
}

#[test]
fn what_does_not_follow_the_abi_is_refused_with_the_reason() {
    let engine = engine();
    let no_op = r#"(func (export "on_packet") (result i32) i32.const 0)"#;
    let refused = |text: &str, expected: &str| {
        let error = compile(&engine, text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(&with(""), "does not export `on_packet`");
    refused("(module)", "does not export `csp_packet_abi`");
    refused(
        &with(r#"(func (export "on_packet") (param i32) (result i32) i32.const 0)"#),
        "`on_packet`, which should be",
    );
    refused(&with(no_op).replace("i32.const 1)", "i32.const 2)"), "follows version 2 of the packet ABI");
    refused(
        &with(no_op)
            .replace("i32.const 16)\n", "i32.const 70000)\n")
            .replace("(result i32) i32.const 16)", "(result i32) i32.const 70000)"),
        "lies outside the module's memory",
    );
    // The imports of message handlers, and the system's.
    for (module, name) in [
        ("csp", "emit_same"),
        ("csp", "state_write"),
        ("wasi_snapshot_preview1", "fd_write"),
        ("csp", "exec"),
    ] {
        let import = format!(r#"(import "{module}" "{name}" (func (param i32) (result i32)))(;end;){no_op}"#);
        refused(&with(&import), &format!("imports `{module}.{name}`, which is not offered"));
    }
    refused(&with(no_op).replace("1)", "99)"), "not valid");
    assert!(matches!(PacketModule::compile(&engine, &[0; 2 << 20]), Err(ModuleError::Len(..))));
    let endless = r#"(func $start (loop (br 0))) (start $start)"#;
    refused(&with(&format!("{no_op} {endless}")), "it used the fuel of a call");
    // A handler of messages is no packet plug-in.
    assert!(csp_sandbox::Module::compile(&engine, &wat::parse_str(with(no_op)).unwrap()).is_err());
}

#[test]
fn seeded_bytes_are_no_module_and_seeded_frames_do_no_harm() {
    let engine = engine();
    let mut good = wat::parse_str(on_packet("i32.const 0x100")).unwrap();
    let mut random = csp_support::Random::new(20);
    for _ in 0..300 {
        let (place, byte) = (random.below(good.len() as u64) as usize, random.below(256) as u8);
        let former = std::mem::replace(&mut good[place], byte);
        // Whatever it is, it neither panics nor runs on.
        if let Ok(module) = PacketModule::compile(&engine, &good)
            && let Ok(mut plugin) = PacketPlugin::new(&module, &Settings::default())
        {
            let mut frame = vec![byte; 60];
            plugin.process(at(1), &mut Packet::new(&mut frame, received()), &mut Nothing);
        }
        good[place] = former;
    }
    assert_eq!(engine.usage(), csp_sandbox::Usage::default());
}
