//! What supplied modules declare in their memory.

use csp_sandbox::packets::{DECLARATION_LEN as PACKET_LEN, PacketDeclaration};
use csp_sandbox::{Declaration, StateKind, abi};

use crate::{Bounds, Check, Target};

/// An address in four bytes, and the memory of a module: a declaration lies in it with all that it names.
pub static DECLARATIONS: Target = Target {
    name: "declarations",
    check: Check::Parser(check),
    examples,
    words: &[],
    len_max: 4_096,
    bounds: Bounds { held: (4 << 10, 1), allocated: (8 << 10, 1) },
};

fn check(bytes: &[u8]) -> bool {
    let Some((at, memory)) = bytes.split_first_chunk() else { return false };
    let at = u32::from_le_bytes(*at);
    let (handler, packets) = (Declaration::read(memory, at), PacketDeclaration::read(memory, at));
    let lies_within = |(from, len): (u32, u32)| u64::from(from) + u64::from(len) <= memory.len() as u64;
    match &handler {
        Ok(declaration) => {
            assert!(lies_within((at, abi::DECLARATION_LEN as u32)) && lies_within(declaration.buffer));
            assert!((1..=csp_handlers::OUTPUTS_MAX).contains(&declaration.outputs));
            assert_eq!(emitted(declaration), memory[at as usize..][..abi::DECLARATION_LEN]);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match &packets {
        Ok(declaration) => {
            assert!(lies_within((at, PACKET_LEN as u32)) && lies_within(declaration.buffer));
            assert!((1..=csp_plugins::OUTPUTS_MAX).contains(&usize::from(declaration.outputs)));
            assert!(declaration.buffer.1 as usize >= csp_sandbox::packets::HEAD_LEN);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    handler.is_ok() || packets.is_ok()
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn emitted(declaration: &Declaration) -> Vec<u8> {
    let state = match declaration.state {
        StateKind::Dropped => 0,
        StateKind::Kept => 1,
        StateKind::HandedOver => 2,
    };
    let (buffer, buffer_len) = declaration.buffer;
    numbers(&[
        abi::DECLARATION_LEN as u32,
        declaration.outputs.into(),
        declaration.new_len_max,
        declaration.period_ms,
        buffer,
        buffer_len,
        state,
        declaration.state_len,
        declaration.layout,
        0,
    ])
}

fn examples() -> Vec<Vec<u8>> {
    let with = |at: u32, declaration: &[u32], memory_len: usize| {
        let mut memory = vec![0; memory_len.max(at as usize)];
        let declaration = numbers(declaration);
        memory.splice(at as usize..(at as usize + declaration.len()).min(memory_len), declaration);
        [&at.to_le_bytes()[..], &memory].concat()
    };
    vec![
        with(8, &[40, 2, 1_000, 250, 64, 100, 2, 4_096, 3, 0], 200),
        with(0, &[40, 1, 0, 0, 0, 0, 0, 0, 0, 0], 40),
        with(16, &[24, 8, 40, 128, 0, 0], 200),
    ]
}
