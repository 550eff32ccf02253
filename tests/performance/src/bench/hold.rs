//! Idle connections: opened, asked once, and held.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::secure::{self, Tls};

/// What the connections speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS.
    Http2,
}

impl Protocol {
    /// Returns its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Http1 => "HTTP/1.1",
            Protocol::Tls => "HTTP/1.1 over TLS",
            Protocol::Http2 => "HTTP/2 over TLS",
        }
    }

    /// Returns the word that chooses it on the command line.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Protocol::Http1 => "http1",
            Protocol::Tls => "tls",
            Protocol::Http2 => "http2",
        }
    }
}

/// Opens so many connections, has each answered once, creates `ready`, and holds them until standard input
/// ends or has a line.
///
/// # Errors
/// A connection cannot be opened or is not answered, or one of them has ended meanwhile.
pub fn run(server: SocketAddr, path: &str, count: u32, ready: &Path, protocol: Protocol) -> Result<()> {
    let tls = secure::client(secure::Kind::Full, protocol == Protocol::Http2)?;
    let mut held: Vec<Box<dyn Stream>> = Vec::with_capacity(count as usize);
    for at in 0..count {
        let stream = TcpStream::connect(server).with_context(|| format!("connection {at}"))?;
        let mut stream: Box<dyn Stream> = match protocol {
            Protocol::Http1 => Box::new(stream),
            Protocol::Tls | Protocol::Http2 => Box::new(Tls::open(&tls, stream)?),
        };
        ask(&mut stream, server, path, protocol, true).with_context(|| format!("connection {at}"))?;
        held.push(stream);
    }
    std::fs::write(ready, b"")?;
    std::io::stdin().read_line(&mut String::new())?;
    for (at, stream) in held.iter_mut().enumerate() {
        ask(stream, server, path, protocol, false).with_context(|| format!("idle connection {at}"))?;
    }
    Ok(())
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn ask(
    stream: &mut Box<dyn Stream>,
    server: SocketAddr,
    path: &str,
    protocol: Protocol,
    is_first: bool,
) -> Result<()> {
    match protocol {
        Protocol::Http1 | Protocol::Tls => ask_http1(stream, server, path),
        Protocol::Http2 => ask_http2(stream, path, is_first),
    }
}

fn ask_http1(stream: &mut Box<dyn Stream>, server: SocketAddr, path: &str) -> Result<()> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n").as_bytes())?;
    stream.flush()?;
    let mut answer = [0; 4096];
    let len = stream.read(&mut answer)?;
    if !answer[..len].starts_with(b"HTTP/1.1 200") {
        bail!("{:?}", String::from_utf8_lossy(&answer[..len.min(40)]));
    }
    Ok(())
}

/// Asks by one stream (RFC 9113): fields by HPACK's static table, strings without Huffman's code.
fn ask_http2(stream: &mut Box<dyn Stream>, path: &str, is_first: bool) -> Result<()> {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    let frame = |kind: u8, flags: u8, id: u32, payload: &[u8]| {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
    };
    let id: u32 = if is_first { 1 } else { 3 };
    // :method GET, :scheme https, :path and :authority as literals without indexing.
    let mut block = vec![0x82, 0x87, 0x04, path.len() as u8];
    block.extend(path.as_bytes());
    block.extend([0x01, secure::NAME.len() as u8]);
    block.extend(secure::NAME.as_bytes());
    let mut out = Vec::new();
    if is_first {
        out.extend(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        out.extend(frame(SETTINGS, 0, 0, &[]));
    }
    out.extend(frame(HEADERS, 5, id, &block));
    stream.write_all(&out)?;
    stream.flush()?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload)?;
        let of = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match (head[3], head[4]) {
            (SETTINGS, flags) if flags & 1 == 0 => {
                stream.write_all(&frame(SETTINGS, 1, 0, &[]))?;
                stream.flush()?;
            }
            (HEADERS, _) if of == id && payload.first() != Some(&0x88) => bail!("not 200: {payload:?}"),
            (DATA | HEADERS, flags) if of == id && flags & 1 == 1 => return Ok(()),
            (GOAWAY, _) => bail!("GOAWAY: {payload:?}"),
            _ => {}
        }
    }
}
