//! The one error of this crate: what was wrong with some bytes, and where.

use thiserror::Error;

/// Why bytes are not what their place says they are, or why a value could not be written.
///
/// `what` names the field or format in the words of its source; `offset` counts bytes from the start of the slice that
/// was handed to the parser (for lists of records: of the whole list).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WireError {
    /// Fewer bytes than the format needs: `needed` is the length, counted from the start, that would have sufficed.
    #[error("{what} at byte {offset}: {needed} bytes are needed, fewer are there")]
    Truncated {
        /// What did not fit.
        what: &'static str,
        /// Where it starts.
        offset: usize,
        /// Bytes from the start of the slice to its end, had it been whole.
        needed: usize,
    },
    /// A version this code does not speak.
    #[error("{what} at byte {offset}: version {found} is not spoken here")]
    Version {
        /// Whose version.
        what: &'static str,
        /// Where the version stands.
        offset: usize,
        /// The version that was found.
        found: u32,
    },
    /// A type, kind or code that the format does not define.
    #[error("{what} at byte {offset}: {found} is not defined")]
    Kind {
        /// Which type field.
        what: &'static str,
        /// Where it stands.
        offset: usize,
        /// Its value.
        found: u32,
    },
    /// A length field that contradicts the format or the bytes around it.
    #[error("{what} at byte {offset}: a length of {found} is impossible")]
    Length {
        /// Which length.
        what: &'static str,
        /// Where the length field stands.
        offset: usize,
        /// Its value.
        found: usize,
    },
    /// Bits or padding that must be zero are not.
    #[error("{what} at byte {offset}: reserved bits are set")]
    Reserved {
        /// Which bits.
        what: &'static str,
        /// Where they stand.
        offset: usize,
    },
    /// A field whose value the format forbids.
    #[error("{what} at byte {offset}: the value is not allowed")]
    Value {
        /// Which field.
        what: &'static str,
        /// Where it stands.
        offset: usize,
    },
    /// A checksum that does not match.
    #[error("{what} at byte {offset}: the checksum is wrong")]
    Checksum {
        /// Whose checksum.
        what: &'static str,
        /// Where the checksum field stands.
        offset: usize,
    },
    /// Legal, but not implemented here.
    #[error("{what} at byte {offset}: not supported")]
    Unsupported {
        /// What is not supported.
        what: &'static str,
        /// Where it starts.
        offset: usize,
    },
    /// The caller's buffer is too small to emit into: `needed` bytes would do.
    #[error("{what}: does not fit into the buffer, {needed} bytes are needed")]
    NoSpace {
        /// What was to be written.
        what: &'static str,
        /// Bytes the buffer must have.
        needed: usize,
    },
    /// The caller's value does not fit the field that would carry it.
    #[error("{what}: the value is larger than its field")]
    TooLarge {
        /// Which field.
        what: &'static str,
    },
}

impl WireError {
    /// The field or format that is wrong; a short fixed text that can name a counter.
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

    /// Where the fault is, in bytes; 0 for errors of emission.
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

    /// The same error, seen from a slice that starts `base` bytes earlier.
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
