//! Where a head ends in bytes that arrive piece by piece, and the memory for heads that are split.

use memchr::memchr;

use super::{Field, Request, Response, request, response};
use crate::fault::{Fault, Refusal};
use crate::limits::{FIELDS_MAX, Limits};

/// Memory of a worker for the head that it examines: the fields' places, and the bytes of a head that is
/// split. It is allocated once.
#[derive(Debug)]
pub struct Scratch {
    gathered: Vec<u8>,
    fields: Vec<Field>,
}

impl Scratch {
    /// Allocates memory for heads within `limits`.
    pub fn new(limits: &Limits) -> Self {
        Scratch {
            gathered: Vec::with_capacity(limits.bounded().head_len_max),
            fields: Vec::with_capacity(FIELDS_MAX),
        }
    }
}

/// What has been examined of a head that is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeadReader {
    /// Bytes in which the head's end has been sought.
    scanned: u32,
    /// Bytes that have been parsed without a complete head.
    attempted: u32,
    /// What was scanned last.
    last: Last,
}

/// The end of the bytes that have been scanned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Last {
    /// Nothing but empty lines before the first line.
    #[default]
    Start,
    Other,
    Lf,
    LfCr,
}

/// Parses a whole head from bytes; `None` if the head is not complete.
type Parse<P> = fn(&[u8], &Limits, &mut Vec<Field>) -> Result<Option<P>, Refusal>;

impl HeadReader {
    /// Reads a request head from the start of `slices`, which hold the connection's readable bytes, or at
    /// least [`Limits::head_len_max`] of them. `finished`: no further bytes follow. Returns `None` if more
    /// bytes are needed; the caller then leaves the bytes where they are and calls again with more of them.
    pub fn request<'a>(
        &mut self,
        slices: &[&'a [u8]],
        finished: bool,
        limits: &Limits,
        scratch: &'a mut Scratch,
    ) -> Result<Option<Request<'a>>, Refusal> {
        let Scratch { gathered, fields } = scratch;
        let found = self.read(slices, finished, limits, gathered, fields, request::parse)?;
        Ok(found.map(|(bytes, parts)| Request::new(bytes, fields, parts)))
    }

    /// Reads a response head, as [`request`](Self::request) does.
    pub fn response<'a>(
        &mut self,
        slices: &[&'a [u8]],
        finished: bool,
        limits: &Limits,
        scratch: &'a mut Scratch,
    ) -> Result<Option<Response<'a>>, Refusal> {
        let Scratch { gathered, fields } = scratch;
        let found = self.read(slices, finished, limits, gathered, fields, response::parse)?;
        Ok(found.map(|(bytes, parts)| Response::new(bytes, fields, parts)))
    }

    fn read<'a, P>(
        &mut self,
        slices: &[&'a [u8]],
        finished: bool,
        limits: &Limits,
        gathered: &'a mut Vec<u8>,
        fields: &mut Vec<Field>,
        parse: Parse<P>,
    ) -> Result<Option<(&'a [u8], P)>, Refusal> {
        let limits = &limits.bounded();
        let most = limits.head_len_max;
        let first = slices.first().map_or(&[][..], |first| &first[..first.len().min(most)]);
        let readable = slices.iter().map(|slice| slice.len()).sum::<usize>().min(most);
        // The usual case: the head has come at once.
        if self.attempted == 0 && !first.is_empty() {
            self.attempted = first.len() as u32;
            if let Some(parts) = parse(first, limits, fields)? {
                *self = HeadReader::default();
                return Ok(Some((first, parts)));
            }
            if readable == first.len() && readable < most && !finished {
                return Ok(None);
            }
        }
        let end = self.scan(slices, readable);
        let doubled = readable >= 2 * self.attempted as usize;
        if readable == 0 || !(end.is_some() || readable == most || finished || doubled) {
            return Ok(None);
        }
        self.attempted = readable as u32;
        let len = end.unwrap_or(readable);
        let bytes = if first.len() >= len { &first[..len] } else { gather(slices, len, gathered) };
        if let Some(parts) = parse(bytes, limits, fields)? {
            *self = HeadReader::default();
            return Ok(Some((bytes, parts)));
        }
        incomplete(bytes, readable == most, finished)
    }

    /// Seeks an empty line in the bytes that were not scanned before, up to `readable`. Returns the position
    /// behind it.
    fn scan(&mut self, slices: &[&[u8]], readable: usize) -> Option<usize> {
        let mut start = 0;
        for slice in slices {
            let slice = &slice[..slice.len().min(readable - start)];
            let mut at = (self.scanned as usize).saturating_sub(start).min(slice.len());
            while let Some(byte) = slice.get(at) {
                match (self.last, byte) {
                    (Last::Start, b'\r' | b'\n') => at += 1,
                    (Last::Lf | Last::LfCr, b'\n') => {
                        (self.scanned, self.last) = ((start + at + 1) as u32, Last::Lf);
                        return Some(start + at + 1);
                    }
                    (_, b'\n') => (self.last, at) = (Last::Lf, at + 1),
                    (Last::Lf, b'\r') => (self.last, at) = (Last::LfCr, at + 1),
                    _ => {
                        self.last = Last::Other;
                        at = memchr(b'\n', &slice[at..]).map_or(slice.len(), |next| at + next);
                    }
                }
            }
            start += slice.len();
            self.scanned = self.scanned.max(start as u32);
        }
        None
    }
}

/// Returns what is wrong with a head of which no more bytes can come.
fn incomplete<T>(bytes: &[u8], is_full: bool, finished: bool) -> Result<Option<T>, Refusal> {
    match (is_full, finished) {
        (true, _) if memchr(b'\n', bytes).is_none() => Err(Refusal::at(Fault::TargetTooLong, 1)),
        (true, _) => Err(Refusal::whole(Fault::HeadTooLong)),
        // Empty lines alone are no request.
        (_, true) if bytes.iter().any(|byte| !matches!(byte, b'\r' | b'\n')) => {
            Err(Refusal::whole(Fault::TruncatedHead))
        }
        _ => Ok(None),
    }
}

/// Copies the first `len` bytes of `slices` to `gathered`.
fn gather<'a>(slices: &[&[u8]], len: usize, gathered: &'a mut Vec<u8>) -> &'a [u8] {
    gathered.clear();
    for slice in slices {
        let part = slice.len().min(len - gathered.len());
        gathered.extend_from_slice(&slice[..part]);
    }
    gathered
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static PARSED: Cell<usize> = const { Cell::new(0) };
    }

    fn counting(bytes: &[u8], limits: &Limits, fields: &mut Vec<Field>) -> Result<Option<()>, Refusal> {
        PARSED.set(PARSED.get() + bytes.len());
        Ok(request::parse(bytes, limits, fields)?.map(|_| ()))
    }

    /// A peer that sends a head byte by byte must not cost the square of its bytes.
    #[test]
    fn bytes_parsed_are_linear_in_bytes_sent() {
        let limits = Limits { head_len_max: 60_000, line_len_max: 60_000, ..Limits::default() };
        let text = format!("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(50_000));
        let (mut reader, mut scratch) = (HeadReader::default(), Scratch::new(&limits));
        for end in 1..=text.len() {
            let (a, b) = text.as_bytes()[..end].split_at(end / 2);
            let Scratch { gathered, fields } = &mut scratch;
            let found = reader.read(&[a, b], false, &limits, gathered, fields, counting).unwrap();
            assert_eq!(found.is_some(), end == text.len(), "{end} bytes");
        }
        assert!(PARSED.get() < 4 * text.len(), "{} bytes were parsed of {}", PARSED.get(), text.len());
    }
}
