//! Heads and bodies of messages (RFC 9112): how bodies are delimited, and what was received of one.

/// Longest head in bytes.
const HEAD_LEN_MAX: usize = 8 * 1024;
/// Longest line of a chunked body's framing in bytes.
const LINE_LEN_MAX: usize = 64;

/// How a body is delimited (RFC 9112 §6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    /// By `Content-Length`; 0 without a body.
    Length(u64),
    /// In chunks.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

/// A head that was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// The first line.
    pub(crate) line: String,
    /// `Content-Length` or `Transfer-Encoding`.
    pub(crate) framing: Option<Framing>,
    /// The connection ends after this message.
    pub(crate) closes: bool,
}

/// Moves bytes of a head from the front of `bytes` to `head`; returns the head when it is complete.
pub(crate) fn take_head(head: &mut Vec<u8>, bytes: &mut &[u8]) -> Result<Option<Head>, String> {
    while let Some((byte, rest)) = bytes.split_first() {
        head.push(*byte);
        *bytes = rest;
        if head.ends_with(b"\r\n\r\n") {
            return parse(&std::mem::take(head)).map(Some);
        }
        if head.len() > HEAD_LEN_MAX {
            return Err("a head without an end".to_owned());
        }
    }
    Ok(None)
}

fn parse(bytes: &[u8]) -> Result<Head, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "a head that is no text".to_owned())?;
    let mut lines = text.split("\r\n").take_while(|line| !line.is_empty());
    let mut head = Head { line: lines.next().unwrap_or("").to_owned(), framing: None, closes: false };
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or_else(|| format!("the line {line:?} of a head"))?;
        let framing = match (name.to_ascii_lowercase().as_str(), value) {
            ("content-length", length) => {
                Framing::Length(length.parse().map_err(|_| format!("the length {length:?}"))?)
            }
            ("transfer-encoding", "chunked") => Framing::Chunked,
            ("transfer-encoding", other) => return Err(format!("the encoding {other:?}")),
            ("connection", value) => {
                head.closes |= value.eq_ignore_ascii_case("close");
                continue;
            }
            _ => continue,
        };
        if head.framing.replace(framing).is_some() {
            return Err("a body that is delimited twice".to_owned());
        }
    }
    Ok(head)
}

/// Writes `payload` as one chunk.
pub(crate) fn put_chunk(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend(format!("{:x}\r\n", payload.len()).into_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// The end of a chunked body without trailers.
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// What is expected of a chunked body next.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Chunks {
    Size(Vec<u8>),
    Payload(u64),
    PayloadEnd(Vec<u8>),
    Trailer(Vec<u8>),
}

/// A body that is received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Body {
    framing: Framing,
    /// Of a body with a length: what is missing.
    missing: u64,
    chunks: Chunks,
    complete: bool,
}

impl Body {
    pub(crate) fn new(framing: Framing) -> Self {
        let missing = if let Framing::Length(length) = framing { length } else { 0 };
        let complete = framing == Framing::Length(0);
        Body { framing, missing, chunks: Chunks::Size(Vec::new()), complete }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Removes framing and payload from the front of `bytes`, and returns the next piece of payload, if there
    /// is one.
    pub(crate) fn take<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, String> {
        match self.framing {
            Framing::UntilClose => Ok(Some(std::mem::take(bytes)).filter(|payload| !payload.is_empty())),
            Framing::Length(_) => {
                let payload = split(bytes, self.missing);
                self.missing -= payload.len() as u64;
                self.complete = self.missing == 0;
                Ok(Some(payload).filter(|payload| !payload.is_empty()))
            }
            Framing::Chunked => self.take_chunks(bytes),
        }
    }

    fn take_chunks<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, String> {
        while !self.complete && !bytes.is_empty() {
            self.chunks = match &mut self.chunks {
                Chunks::Payload(missing) => {
                    let payload = split(bytes, *missing);
                    *missing -= payload.len() as u64;
                    if *missing == 0 {
                        self.chunks = Chunks::PayloadEnd(Vec::new());
                    }
                    return Ok(Some(payload));
                }
                Chunks::Size(line) | Chunks::PayloadEnd(line) | Chunks::Trailer(line) => {
                    line.push(bytes[0]);
                    *bytes = &bytes[1..];
                    if line.len() > LINE_LEN_MAX {
                        return Err("the framing of a chunk".to_owned());
                    }
                    let Some(line) = line.strip_suffix(b"\r\n").map(<[u8]>::to_vec) else { continue };
                    self.after(&line)?
                }
            };
        }
        Ok(None)
    }

    /// Returns what follows a line of the framing.
    fn after(&mut self, line: &[u8]) -> Result<Chunks, String> {
        let text = String::from_utf8_lossy(line);
        match &self.chunks {
            Chunks::Size(_) => match u64::from_str_radix(&text, 16) {
                Ok(0) => Ok(Chunks::Trailer(Vec::new())),
                Ok(size) => Ok(Chunks::Payload(size)),
                Err(_) => Err(format!("the chunk's size {text:?}")),
            },
            Chunks::PayloadEnd(_) if line.is_empty() => Ok(Chunks::Size(Vec::new())),
            Chunks::Trailer(_) if line.is_empty() => {
                self.complete = true;
                Ok(Chunks::Size(Vec::new()))
            }
            _ => Err(format!("{text:?} in the framing of a body")),
        }
    }
}

fn split<'a>(bytes: &mut &'a [u8], most: u64) -> &'a [u8] {
    let (payload, rest) = bytes.split_at(bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX)));
    *bytes = rest;
    payload
}
