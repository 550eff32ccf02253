//! Idle connections: opened, asked once, and held.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Opens so many connections, has each answered once, creates `ready`, and holds them until standard input
/// ends or has a line.
///
/// # Errors
/// A connection cannot be opened or is not answered, or one of them has ended meanwhile.
pub fn run(server: SocketAddr, path: &str, count: u32, ready: &Path) -> Result<()> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n");
    let mut held = Vec::with_capacity(count as usize);
    for at in 0..count {
        let mut stream = TcpStream::connect(server).with_context(|| format!("connection {at}"))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = [0; 4096];
        let len = stream.read(&mut answer).with_context(|| format!("connection {at}"))?;
        if !answer[..len].starts_with(b"HTTP/1.1 200") {
            bail!("connection {at}: {:?}", String::from_utf8_lossy(&answer[..len.min(40)]));
        }
        held.push(stream);
    }
    std::fs::write(ready, b"")?;
    std::io::stdin().read_line(&mut String::new())?;
    for (at, stream) in held.iter_mut().enumerate() {
        stream.write_all(request.as_bytes()).with_context(|| format!("idle connection {at}"))?;
        if stream.read(&mut [0; 4096]).with_context(|| format!("idle connection {at}"))? == 0 {
            bail!("idle connection {at} has ended");
        }
    }
    Ok(())
}
