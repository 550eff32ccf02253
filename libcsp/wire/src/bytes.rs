//! Bounded reading and writing: the only functions of this crate that slice by numbers from outside.

use crate::WireError;

/// The `N` bytes at `offset`. [`WireError::Truncated`] with `what` if they are not there.
pub(crate) fn array_at<'a, const N: usize>(
    bytes: &'a [u8],
    offset: usize,
    what: &'static str,
) -> Result<&'a [u8; N], WireError> {
    let truncated = WireError::Truncated { what, offset, needed: offset.saturating_add(N) };
    bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>()).ok_or(truncated)
}

/// The `len` bytes at `offset`. [`WireError::Truncated`] with `what` if they are not there.
pub(crate) fn slice_at<'a>(
    bytes: &'a [u8],
    offset: usize,
    len: usize,
    what: &'static str,
) -> Result<&'a [u8], WireError> {
    let end = offset.saturating_add(len);
    bytes.get(offset..end).ok_or(WireError::Truncated { what, offset, needed: end })
}

/// The first `needed` bytes of an output buffer. [`WireError::NoSpace`] with `what` if it is shorter.
pub(crate) fn room<'a>(
    out: &'a mut [u8],
    needed: usize,
    what: &'static str,
) -> Result<&'a mut [u8], WireError> {
    out.get_mut(..needed).ok_or(WireError::NoSpace { what, needed })
}

/// Returns an error if the padding is not all zero.
pub(crate) fn check_padding(padding: &[u8], offset: usize, what: &'static str) -> Result<(), WireError> {
    match padding.iter().position(|&b| b != 0) {
        Some(at) => Err(WireError::Reserved { what, offset: offset + at }),
        None => Ok(()),
    }
}

/// Appends to a caller's buffer, never past its end. An append that fails writes nothing.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// A writer at the start of `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Writer { out, len: 0 }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that still fit.
    pub fn remaining(&self) -> usize {
        self.out.len() - self.len
    }

    /// What was written so far.
    pub fn written(&self) -> &[u8] {
        &self.out[..self.len]
    }

    /// Reserves the next `len` bytes, which the caller fills. [`WireError::NoSpace`] with `what` if they do
    /// not fit.
    pub fn take(&mut self, len: usize, what: &'static str) -> Result<&mut [u8], WireError> {
        let end = self.len.saturating_add(len);
        let part = self.out.get_mut(self.len..end).ok_or(WireError::NoSpace { what, needed: end })?;
        self.len = end;
        Ok(part)
    }

    /// Appends `bytes`.
    pub fn put(&mut self, bytes: &[u8], what: &'static str) -> Result<(), WireError> {
        self.take(bytes.len(), what)?.copy_from_slice(bytes);
        Ok(())
    }
}
