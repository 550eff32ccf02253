//! Text into a buffer of fixed size.

use super::TooLong;
use crate::head::{Field, FieldText};

/// Appends to a buffer. What does not fit is counted, so that the error is known at the end.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Writer { out, len: 0 }
    }

    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let end = self.len.saturating_add(bytes.len());
        if let Some(room) = self.out.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
        }
        self.len = end;
    }

    /// Appends `NAME: VALUE` and CRLF.
    #[inline]
    pub(super) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.put(name);
        self.put(b": ");
        self.put(value);
        self.put(b"\r\n");
    }

    pub(super) fn number(&mut self, number: u64) {
        let (mut digits, mut at, mut left) = ([0; 20], 20, number);
        while at > 0 {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.put(&digits[at..]);
    }

    pub(super) fn hex(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
            self.put(&[digit(byte >> 4), digit(byte & 15)]);
        }
    }

    /// Copies the field lines that `is_kept` names; lines that follow each other as one range.
    pub(super) fn fields(
        &mut self,
        bytes: &[u8],
        fields: &[Field],
        mut is_kept: impl FnMut(FieldText<'_>) -> bool,
    ) {
        let mut run: Option<(u16, u16)> = None;
        for field in fields {
            let text = field.text(bytes);
            let kept = is_kept(text);
            match &mut run {
                Some((_, end)) if kept && field.is_plain => *end = field.line_end,
                _ => {
                    self.range(bytes, run.take());
                    match (kept, field.is_plain) {
                        (true, true) => run = Some((field.name.start, field.line_end)),
                        (true, false) => self.field(text.name, text.value),
                        _ => {}
                    }
                }
            }
        }
        self.range(bytes, run);
    }

    fn range(&mut self, bytes: &[u8], range: Option<(u16, u16)>) {
        if let Some((start, end)) = range {
            self.put(bytes.get(usize::from(start)..usize::from(end)).unwrap_or_default());
        }
    }

    /// Returns the number of bytes written.
    pub(super) fn finish(self) -> Result<usize, TooLong> {
        if self.len > self.out.len() { Err(TooLong(self.out.len())) } else { Ok(self.len) }
    }
}
