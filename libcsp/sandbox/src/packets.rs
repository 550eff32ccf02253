//! Supplied packet plug-ins: WebAssembly modules behind the interface of built-in plug-ins
//! (`docs/plugins.md`).
//!
//! ```text
//!   frame ─ copied ─▶ [ struct csp_packet | frame ] in the module's buffer ─▶ on_packet() ─▶ verdict
//!                                              │ changed: copied back, with its length
//! ```
//! Engine, fuel, memory and epochs are those of supplied handlers; the bounds of a call are a packet's. The
//! ABI is another one: a module is a handler or a plug-in. `include/csp_packet.h` and `csp_guest::packet` are
//! the ABI's other two copies.

mod instance;
mod module;
mod plugin;

pub use module::PacketModule;
pub use plugin::PacketPlugin;

use csp_classify::multifield::{Direction, Fragment};
use csp_plugins::{OUTPUTS_MAX, Packet};
use csp_types::Instant;

use crate::engine::Limits;
use crate::module::ModuleError;

/// The version of the packet ABI.
pub const VERSION: i32 = 1;
/// Bytes of the declaration in a module's memory: six numbers.
pub const DECLARATION_LEN: usize = 24;
/// Bytes of what the host writes in front of a frame.
pub const HEAD_LEN: usize = 40;
/// Shortest buffer: head and Ethernet header.
const BUFFER_MIN: u32 = HEAD_LEN as u32 + 14;
/// Longest buffer: head and the longest frame.
const BUFFER_MAX: u32 = HEAD_LEN as u32 + 14 + 65_535;
/// Fuel of a packet beside [`FUEL_PER_BYTE`], about an instruction each.
pub const FUEL: u64 = 8_000;
/// Fuel for each byte of a frame that is copied into the buffer.
pub const FUEL_PER_BYTE: u64 = 16;

const NEXT: u32 = 0;
const DROP: u32 = 1;
const TRANSMIT: u32 = 2;
const CHANGED: u32 = 1 << 8;

const FLAG_CHECKSUM_PARTIAL: u8 = 1;
const FLAG_RESIZABLE: u8 = 2;
const FLAG_LATER_FRAGMENT: u8 = 4;

/// Returns the bounds of an engine for packet plug-ins: short calls, small memories, many instances (one for
/// each worker).
#[must_use]
pub fn limits() -> Limits {
    Limits {
        instances_max: 512,
        memory_max: 2 << 20,
        fuel: FUEL,
        fuel_start: 200_000,
        copied_max: 64 << 10,
        ..Limits::default()
    }
}

/// What a module for packets declares of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketDeclaration {
    /// Outputs, from 1 on.
    pub outputs: u8,
    /// Address and length of the buffer.
    pub buffer: (u32, u32),
}

impl PacketDeclaration {
    /// Reads the declaration at an address: its length (24), outputs, address and length of the buffer, and
    /// two zeros.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(memory: &[u8], at: u32) -> Result<Self, ModuleError> {
        let wrong = |what: String| ModuleError::PacketDeclaration(what);
        let bytes = memory.get(at as usize..).and_then(|rest| rest.get(..DECLARATION_LEN));
        let bytes = bytes.ok_or_else(|| wrong(format!("lies outside the module's memory, at {at}")))?;
        let mut numbers = [0; DECLARATION_LEN / 4];
        for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *number = u32::from_le_bytes(*bytes);
        }
        let [size, outputs, buffer, len, reserved, reserved_too] = numbers;
        if size as usize != DECLARATION_LEN {
            return Err(wrong(format!("has {size} bytes, and version {VERSION} has {DECLARATION_LEN}")));
        }
        let count =
            u8::try_from(outputs).ok().filter(|count| (1..=OUTPUTS_MAX).contains(&usize::from(*count)));
        let Some(outputs) = count else {
            return Err(wrong(format!("names {outputs} outputs; there are 1 to {OUTPUTS_MAX}")));
        };
        if !(BUFFER_MIN..=BUFFER_MAX).contains(&len) {
            let bounds = format!("{BUFFER_MIN} to {BUFFER_MAX}");
            return Err(wrong(format!("has a buffer of {len} bytes; allowed are {bounds}")));
        }
        if u64::from(buffer) + u64::from(len) > memory.len() as u64 {
            return Err(wrong(format!(
                "has a buffer of {len} bytes at {buffer}, outside the module's memory"
            )));
        }
        if reserved != 0 || reserved_too != 0 {
            return Err(wrong("has another number than 0 in a reserved field".to_owned()));
        }
        Ok(PacketDeclaration { outputs, buffer: (buffer, len) })
    }
}

/// What a module wants done with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Next(u8),
    Drop,
    Transmit(u16),
}

/// Reads a verdict: bits 0 to 7 what is done, bit 8 whether the buffer is copied back, bits 16 to 31 the
/// output or interface.
fn verdict(code: i32) -> Option<(Wanted, bool)> {
    let code = code.cast_unsigned();
    let (number, changed) = ((code >> 16) as u16, code & CHANGED != 0);
    let wanted = match code & 0xffff & !CHANGED {
        NEXT => Wanted::Next(u8::try_from(number).ok()?),
        DROP if number == 0 => Wanted::Drop,
        TRANSMIT => Wanted::Transmit(number),
        _ => return None,
    };
    Some((wanted, changed))
}

/// Returns what the host writes in front of a frame of which it copies `captured` bytes; `room` bounds the
/// frame's length afterwards.
fn head(now: Instant, packet: &Packet<'_>, captured: usize, room: usize) -> [u8; HEAD_LEN] {
    let mut bytes = [0; HEAD_LEN];
    let metadata = &packet.metadata;
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let number = |value: usize| (value as u32).to_le_bytes();
    put(0, &number(packet.bytes().len()));
    put(4, &number(captured));
    put(8, &now.as_nanos().to_le_bytes());
    put(28, &metadata.interface.to_le_bytes());
    put(30, &metadata.coalesced.to_le_bytes());
    let mut flags = if metadata.checksum_partial { FLAG_CHECKSUM_PARTIAL } else { 0 };
    flags |= if metadata.resizable { FLAG_RESIZABLE } else { 0 };
    if let Ok(parsed) = packet.parsed() {
        put(16, &number(parsed.ip));
        put(20, &number(parsed.transport));
        put(24, &number(parsed.end));
        let version = if parsed.fields.source.is_ipv4() { 4 } else { 6 };
        put(32, &[version, parsed.fields.protocol]);
        flags |= if parsed.fragment == Fragment::Later { FLAG_LATER_FRAGMENT } else { 0 };
    }
    put(34, &[u8::from(metadata.direction == Direction::Egress), flags]);
    put(36, &number(room));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_is_read_and_each_wrong_number_is_named() {
        let memory = |numbers: [u32; 6]| {
            let mut memory = vec![0; 8];
            numbers.iter().for_each(|number| memory.extend(number.to_le_bytes()));
            memory.resize(4096, 0);
            memory
        };
        let good = [24, 2, 64, 1600, 0, 0];
        assert_eq!(
            PacketDeclaration::read(&memory(good), 8),
            Ok(PacketDeclaration { outputs: 2, buffer: (64, 1600) })
        );
        for (at, number, expected) in [
            (0, 20, "has 20 bytes"),
            (1, 0, "names 0 outputs"),
            (1, 9, "names 9 outputs"),
            (3, 53, "has a buffer of 53 bytes"),
            (3, 70_000, "has a buffer of 70000 bytes"),
            (2, 4000, "outside the module's memory"),
            (2, u32::MAX, "outside the module's memory"),
            (5, 1, "in a reserved field"),
        ] {
            let mut numbers = good;
            numbers[at] = number;
            let error = PacketDeclaration::read(&memory(numbers), 8).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(PacketDeclaration::read(&[], u32::MAX).is_err());
    }

    #[test]
    fn what_is_no_verdict_is_none() {
        assert_eq!(verdict(0), Some((Wanted::Next(0), false)));
        assert_eq!(verdict(3 << 16 | 256), Some((Wanted::Next(3), true)));
        assert_eq!(verdict(1), Some((Wanted::Drop, false)));
        assert_eq!(verdict(2 | 0x7fff_0000), Some((Wanted::Transmit(0x7fff), false)));
        for code in [3, 1 << 9, 1 | 1 << 16, 256 << 16, -1, i32::MIN | 1] {
            assert_eq!(verdict(code), None, "{code:#x}");
        }
    }
}
