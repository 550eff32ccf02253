//! Reads heads and bodies that arrive in pieces, as a connection would.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it")]

pub mod proxy;

use csp_http::body::{BodyReader, Piece, trailer_fields};
use csp_http::head::{Framing, HeadReader, Scratch};
use csp_http::{Fault, Limits, Refusal};

/// A body that was read to its end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Body {
    pub payload: Vec<u8>,
    pub chunks: Vec<u64>,
    pub trailers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes behind the body.
    pub rest: usize,
}

/// The unread bytes of a stream that has come up to `end`, in slices of at most `size` bytes.
fn slices(unread: &[u8], size: usize) -> Vec<&[u8]> {
    unread.chunks(size.max(1)).collect()
}

/// Positions up to which a stream has come, step by step: the lengths of `cuts` again and again.
fn steps(len: usize, cuts: &[usize]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 0;
    for cut in cuts.iter().cycle() {
        at = (at + cut).min(len);
        ends.push(at);
        if at == len {
            break;
        }
    }
    if ends.is_empty() {
        ends.push(len);
    }
    ends
}

/// Reads a body that arrives in steps of the lengths `cuts`, at once if there are none.
pub fn read_body(framing: Framing, text: &[u8], cuts: &[usize], limits: &Limits) -> Result<Body, Fault> {
    let (mut reader, mut body, mut at) = (BodyReader::new(framing), Body::default(), 0);
    for end in steps(text.len(), cuts) {
        let size = cuts.first().copied().unwrap_or(usize::MAX);
        loop {
            let finished = end == text.len();
            match reader.next(&slices(&text[at..end], size), finished, limits)? {
                Piece::Payload(len) => {
                    // As if the receiving end had little room.
                    let len = if cuts.is_empty() { len } else { len.div_ceil(2) };
                    body.payload.extend(&text[at..at + len]);
                    reader.moved(len);
                    at += len;
                }
                Piece::Framing { len, chunk } => {
                    body.chunks.extend(chunk);
                    at += len;
                }
                Piece::Trailers(len) => {
                    let fields = trailer_fields(&text[at..at + len]);
                    body.trailers.extend(fields.map(|field| (field.name.to_vec(), field.value.to_vec())));
                    reader.moved(len);
                    at += len;
                }
                Piece::More => break,
                Piece::End => {
                    body.rest = text.len() - at;
                    return Ok(body);
                }
            }
        }
    }
    panic!("a body neither ends nor fails");
}

/// Reads a request head that arrives in steps of the lengths `cuts`, and passes it to `f`. `None`: the stream
/// ended without a request.
pub fn with_request<T>(
    text: &[u8],
    cuts: &[usize],
    limits: &Limits,
    f: impl FnOnce(csp_http::head::Request<'_>) -> T,
) -> Result<Option<T>, Refusal> {
    let (mut reader, mut scratch) = (HeadReader::default(), Scratch::new(limits));
    let ends = steps(text.len(), cuts);
    let size = cuts.first().copied().unwrap_or(usize::MAX);
    for end in &ends {
        let is_last = *end == text.len();
        if let Some(request) = reader.request(&slices(&text[..*end], size), is_last, limits, &mut scratch)? {
            return Ok(Some(f(request)));
        }
    }
    Ok(None)
}

/// Reads a response head, as [`with_request`] does.
pub fn with_response<T>(
    text: &[u8],
    cuts: &[usize],
    limits: &Limits,
    f: impl FnOnce(csp_http::head::Response<'_>) -> T,
) -> Result<Option<T>, Refusal> {
    let (mut reader, mut scratch) = (HeadReader::default(), Scratch::new(limits));
    let ends = steps(text.len(), cuts);
    let size = cuts.first().copied().unwrap_or(usize::MAX);
    for end in &ends {
        let is_last = *end == text.len();
        if let Some(response) =
            reader.response(&slices(&text[..*end], size), is_last, limits, &mut scratch)?
        {
            return Ok(Some(f(response)));
        }
    }
    Ok(None)
}

/// One line of a corpus.
pub struct Case {
    pub name: String,
    pub outcome: String,
    pub bytes: Vec<u8>,
}

/// Reads a corpus: lines of the form `NAME | OUTCOME | BYTES`.
pub fn corpus(text: &str) -> Vec<Case> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let cases = lines.map(|line| {
        let mut parts = line.splitn(3, " | ");
        let mut part = || parts.next().unwrap_or_else(|| panic!("{line}: NAME | OUTCOME | BYTES"));
        Case { name: part().to_owned(), outcome: part().to_owned(), bytes: unescaped(part()) }
    });
    cases.collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.chars());
    while let Some(char) = rest.next() {
        match (char, char == '\\') {
            (_, true) => match rest.next() {
                Some('r') => bytes.push(b'\r'),
                Some('n') => bytes.push(b'\n'),
                Some('t') => bytes.push(b'\t'),
                Some('0') => bytes.push(0),
                Some('\\') => bytes.push(b'\\'),
                Some('x') => {
                    let digits: String = rest.by_ref().take(2).collect();
                    bytes.push(
                        u8::from_str_radix(&digits, 16).unwrap_or_else(|_| panic!("{text}: \\x{digits}")),
                    );
                }
                other => panic!("{text}: \\{other:?}"),
            },
            (char, false) => bytes.extend(char.to_string().bytes()),
        }
    }
    bytes
}

/// Returns an outcome as a corpus writes it: what was accepted, or the fault and its line.
pub fn outcome(result: Result<Option<(Framing, bool)>, Refusal>) -> (String, u16) {
    match result {
        Err(refusal) => (refusal.fault.code().to_owned(), refusal.line),
        Ok(None) => ("ok nothing".to_owned(), 0),
        Ok(Some((framing, keep))) => {
            let framing = match framing {
                Framing::None => "none".to_owned(),
                Framing::Length(length) => format!("length={length}"),
                Framing::Chunked => "chunked".to_owned(),
                Framing::UntilClose => "close-ended".to_owned(),
            };
            (format!("ok {framing} {}", if keep { "keep" } else { "close" }), 0)
        }
    }
}
