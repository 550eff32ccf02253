//! The ABI between a module and its host, version 1. `include/csp_handler.h` and the crate `csp-guest` are
//! its other two copies.

use thiserror::Error;

/// The version of the ABI.
pub const VERSION: i32 = 1;
/// The name of the module that a guest imports from.
pub const IMPORTS: &str = "csp";
/// What an import returns if it did what it was asked to, and what a guest's function returns when it is
/// done.
pub const OK: i32 = 0;
/// An output has no room. The guest returns it from `on_message` or `on_timer` to be called again with the
/// same.
pub const FULL: i32 = 1;
/// There is no such frame, field or format.
pub const NONE: i32 = -1;

/// Bytes of the declaration in a guest's memory.
pub const DECLARATION_LEN: usize = 40;
/// Bytes of a piece of a new message in a guest's memory: where its bytes are (0: the guest's memory, 1: the
/// message), address or offset, and length.
pub const PIECE_LEN: usize = 12;
/// Most pieces of a new message.
pub const PIECES_MAX: usize = 32;
/// Most frames of a new message.
pub const FRAMES_MAX: usize = 16;
/// Bytes of what `locate` writes: offset, size, kind and flags of a field.
pub const FIELD_LEN: usize = 16;
/// Longest path of a field, and longest reason with which parameters are refused, in bytes.
pub const TEXT_MAX: usize = 256;
/// Longest parameters in bytes.
pub const PARAMETERS_MAX: usize = 16 << 10;

/// What becomes of a handler's state when another version of its module takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StateKind {
    /// Nothing is kept: the new one begins with zeros.
    #[default]
    Dropped,
    /// The block at the host stays as it is, if both declare the same layout and length.
    Kept,
    /// The former one's `csp_state_export` names bytes in its memory, which are copied to where the new one's
    /// `csp_state_import` says.
    HandedOver,
}

/// What a module declares of itself, at the address that its `csp_declaration` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// Outputs, from 0 on.
    pub outputs: u8,
    /// Length in bytes of the longest message that it makes; 0: none.
    pub new_len_max: u32,
    /// How often `on_timer` is called, in milliseconds; 0: never.
    pub period_ms: u32,
    /// Address and length of the buffer into which the host copies a message before the call if it fits; 0,
    /// 0: none.
    pub buffer: (u32, u32),
    /// What becomes of the state.
    pub state: StateKind,
    /// Bytes of the state block at the host.
    pub state_len: u32,
    /// The version of the state's layout.
    pub layout: u32,
}

impl Default for Declaration {
    /// What a module without a declaration has: one output, makes no messages, no timer, no buffer, no state.
    fn default() -> Self {
        Declaration {
            outputs: 1,
            new_len_max: 0,
            period_ms: 0,
            buffer: (0, 0),
            state: StateKind::Dropped,
            state_len: 0,
            layout: 0,
        }
    }
}

/// Why a declaration is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DeclarationError {
    /// It does not lie in the module's memory.
    #[error("lies outside the module's memory, at {0}")]
    Outside(u32),
    /// Its own length is another one.
    #[error("has {0} bytes, and version 1 has {DECLARATION_LEN}")]
    Len(u32),
    /// The outputs.
    #[error("names {0} outputs; there are 1 to {max}", max = csp_handlers::OUTPUTS_MAX)]
    Outputs(u32),
    /// The buffer does not lie in the memory.
    #[error("has a buffer of {1} bytes at {0}, outside the module's memory")]
    Buffer(u32, u32),
    /// The kind of state.
    #[error("has state of kind {0}, which is none of 0 (dropped), 1 (kept), 2 (handed over)")]
    State(u32),
    /// A reserved number is not 0.
    #[error("has {0} in a reserved field, which is 0")]
    Reserved(u32),
}

impl Declaration {
    /// Reads the declaration at an address of a module's memory: ten numbers of 4 bytes, little-endian.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(memory: &[u8], at: u32) -> Result<Self, DeclarationError> {
        let from = at as usize;
        let bytes = memory.get(from..).and_then(|rest| rest.get(..DECLARATION_LEN));
        let bytes = bytes.ok_or(DeclarationError::Outside(at))?;
        let mut numbers = [0; DECLARATION_LEN / 4];
        for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *number = u32::from_le_bytes(*bytes);
        }
        let [len, outputs, new_len_max, period_ms, buffer, buffer_len, kind, state_len, layout, reserved] =
            numbers;
        if len as usize != DECLARATION_LEN {
            return Err(DeclarationError::Len(len));
        }
        let outputs = u8::try_from(outputs).ok().filter(|it| (1..=csp_handlers::OUTPUTS_MAX).contains(it));
        let outputs = outputs.ok_or(DeclarationError::Outputs(numbers[1]))?;
        if u64::from(buffer) + u64::from(buffer_len) > memory.len() as u64 {
            return Err(DeclarationError::Buffer(buffer, buffer_len));
        }
        let state = match kind {
            0 => StateKind::Dropped,
            1 => StateKind::Kept,
            2 => StateKind::HandedOver,
            _ => return Err(DeclarationError::State(kind)),
        };
        if reserved != 0 {
            return Err(DeclarationError::Reserved(reserved));
        }
        Ok(Declaration {
            outputs,
            new_len_max,
            period_ms,
            buffer: (buffer, buffer_len),
            state,
            state_len,
            layout,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(numbers: [u32; 10]) -> Vec<u8> {
        let mut memory = vec![0; 8];
        numbers.iter().for_each(|number| memory.extend(number.to_le_bytes()));
        memory
    }

    #[test]
    fn a_declaration_is_read_and_each_wrong_number_is_named() {
        let good = [40, 2, 100, 5, 0, 16, 1, 8, 3, 0];
        let read = Declaration::read(&memory(good), 8).unwrap();
        assert_eq!((read.outputs, read.state, read.buffer, read.layout), (2, StateKind::Kept, (0, 16), 3));
        let with = |at: usize, number| {
            let mut numbers = good;
            numbers[at] = number;
            Declaration::read(&memory(numbers), 8).unwrap_err()
        };
        assert_eq!(with(0, 36), DeclarationError::Len(36));
        assert_eq!(with(1, 0), DeclarationError::Outputs(0));
        assert_eq!(with(1, 257), DeclarationError::Outputs(257));
        assert_eq!(with(5, u32::MAX), DeclarationError::Buffer(0, u32::MAX));
        assert_eq!(with(6, 3), DeclarationError::State(3));
        assert_eq!(with(9, 1), DeclarationError::Reserved(1));
        assert_eq!(Declaration::read(&memory(good), 9).unwrap_err(), DeclarationError::Outside(9));
        assert_eq!(Declaration::read(&[], u32::MAX).unwrap_err(), DeclarationError::Outside(u32::MAX));
    }
}
