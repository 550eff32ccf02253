//! The error type of this crate: what is wrong with some bytes, and where.

use thiserror::Error;

/// Why bytes are not a valid message, or why a value could not be emitted.
///
/// `what` names the field or format in the terms of its specification. `offset` counts bytes from the start
/// of the slice passed to the parser (for lists of records: of the whole list).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WireError {
    /// The bytes end too early. `needed` is the length, counted from the start, that the format requires.
    #[error("{what} at byte {offset}: truncated, {needed} bytes are required")]
    Truncated {
        /// The field or format that is truncated.
        what: &'static str,
        /// Where it starts.
        offset: usize,
        /// Required length in bytes, counted from the start of the slice.
        needed: usize,
    },
    /// A version that this code does not support.
    #[error("{what} at byte {offset}: version {found} is not supported")]
    Version {
        /// The format whose version it is.
        what: &'static str,
        /// Offset of the version field.
        offset: usize,
        /// The version found.
        found: u32,
    },
    /// A type, kind or code that the format does not define.
    #[error("{what} at byte {offset}: {found} is not defined")]
    Kind {
        /// The type field.
        what: &'static str,
        /// Offset of the type field.
        offset: usize,
        /// Its value.
        found: u32,
    },
    /// A length field that contradicts the format or the surrounding bytes.
    #[error("{what} at byte {offset}: invalid length {found}")]
    Length {
        /// The length field.
        what: &'static str,
        /// Offset of the length field.
        offset: usize,
        /// Its value.
        found: usize,
    },
    /// Reserved bits or padding that are not zero.
    #[error("{what} at byte {offset}: reserved bits must be zero")]
    Reserved {
        /// The field with the reserved bits.
        what: &'static str,
        /// Offset of the reserved bits.
        offset: usize,
    },
    /// A field value that the format does not permit.
    #[error("{what} at byte {offset}: the value is not allowed")]
    Value {
        /// The field.
        what: &'static str,
        /// Offset of the field.
        offset: usize,
    },
    /// A checksum that does not match.
    #[error("{what} at byte {offset}: the checksum is wrong")]
    Checksum {
        /// The format whose checksum it is.
        what: &'static str,
        /// Offset of the checksum field.
        offset: usize,
    },
    /// A valid value that this code does not implement.
    #[error("{what} at byte {offset}: not supported")]
    Unsupported {
        /// What is not supported.
        what: &'static str,
        /// Offset of the value.
        offset: usize,
    },
    /// The caller's buffer is too small; `needed` bytes are required.
    #[error("{what}: the buffer is too small, {needed} bytes are required")]
    NoSpace {
        /// What was to be written.
        what: &'static str,
        /// Bytes the buffer must have.
        needed: usize,
    },
    /// The caller's value does not fit its field.
    #[error("{what}: the value is larger than its field")]
    TooLarge {
        /// The field.
        what: &'static str,
    },
}

impl WireError {
    /// The field or format that is wrong: a short constant text, which can be the name of a counter.
    pub const fn what(&self) -> &'static str {
        match self {
            WireError::Truncated { what, .. }
            | WireError::Version { what, .. }
            | WireError::Kind { what, .. }
            | WireError::Length { what, .. }
            | WireError::Reserved { what, .. }
            | WireError::Value { what, .. }
            | WireError::Checksum { what, .. }
            | WireError::Unsupported { what, .. }
            | WireError::NoSpace { what, .. }
            | WireError::TooLarge { what } => what,
        }
    }

    /// Offset of the error in bytes; 0 for errors of emission.
    pub const fn offset(&self) -> usize {
        match self {
            WireError::Truncated { offset, .. }
            | WireError::Version { offset, .. }
            | WireError::Kind { offset, .. }
            | WireError::Length { offset, .. }
            | WireError::Reserved { offset, .. }
            | WireError::Value { offset, .. }
            | WireError::Checksum { offset, .. }
            | WireError::Unsupported { offset, .. } => *offset,
            WireError::NoSpace { .. } | WireError::TooLarge { .. } => 0,
        }
    }

    /// The same error, relative to a slice that starts `base` bytes earlier.
    #[must_use]
    pub const fn shifted(mut self, base: usize) -> Self {
        match &mut self {
            WireError::Truncated { offset, needed, .. } => {
                *offset += base;
                *needed += base;
            }
            WireError::Version { offset, .. }
            | WireError::Kind { offset, .. }
            | WireError::Length { offset, .. }
            | WireError::Reserved { offset, .. }
            | WireError::Value { offset, .. }
            | WireError::Checksum { offset, .. }
            | WireError::Unsupported { offset, .. } => *offset += base,
            WireError::NoSpace { .. } | WireError::TooLarge { .. } => {}
        }
        self
    }
}
