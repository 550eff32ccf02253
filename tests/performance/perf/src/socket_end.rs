//! An end over a stream socket of the kernel: each message is preceded by its length and tag.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Result, ensure};

use crate::end::{End, MESSAGE_LEN_MAX, Waiting};

const HEADER_LEN: usize = 8;

/// A stream of the kernel.
pub trait Stream: Read + Write + Send {
    fn set_blocking(&self, blocking: bool) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_blocking(&self, blocking: bool) -> io::Result<()> {
        self.set_nonblocking(!blocking)
    }
}

impl Stream for UnixStream {
    fn set_blocking(&self, blocking: bool) -> io::Result<()> {
        self.set_nonblocking(!blocking)
    }
}

/// A connected stream. Bytes read beyond a message wait in `buffer`.
pub struct SocketEnd {
    stream: Box<dyn Stream>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl SocketEnd {
    fn new(stream: Box<dyn Stream>) -> Self {
        SocketEnd { stream, buffer: vec![0; 2 * (HEADER_LEN + MESSAGE_LEN_MAX)].into(), start: 0, end: 0 }
    }

    /// Creates an end over a connected TCP stream, without Nagle's algorithm.
    pub fn tcp(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::new(Box::new(stream)))
    }

    /// Creates an end over a connected Unix stream.
    pub fn unix(stream: UnixStream) -> Self {
        Self::new(Box::new(stream))
    }

    /// Listens on a path that a former server may have left behind.
    pub fn listen_unix(path: &Path) -> io::Result<UnixListener> {
        let _ = std::fs::remove_file(path);
        UnixListener::bind(path)
    }

    /// Reads until `wanted` bytes are in the buffer. Returns `false` if the peer has ended.
    fn fill(&mut self, wanted: usize) -> Result<bool> {
        while self.end - self.start < wanted {
            if self.start + wanted > self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            match self.stream.read(self.buffer.get_mut(self.end..).unwrap_or(&mut [])) {
                Ok(0) => return Ok(false),
                Ok(len) => self.end += len,
                Err(error) if is_transient(&error) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl End for SocketEnd {
    fn send(&mut self, tag: u32, bytes: &[u8]) -> Result<()> {
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&u32::try_from(bytes.len())?.to_le_bytes());
        header[4..].copy_from_slice(&tag.to_le_bytes());
        let mut parts = [IoSlice::new(&header), IoSlice::new(bytes)];
        let mut left = &mut parts[..];
        while !left.is_empty() {
            match self.stream.write_vectored(left) {
                Ok(len) => IoSlice::advance_slices(&mut left, len),
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error.into()),
            }
            // A part without bytes would be written for ever.
            while left.first().is_some_and(|part| part.is_empty()) {
                left = &mut left[1..];
            }
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<(usize, u32)>> {
        if !self.fill(HEADER_LEN)? {
            return Ok(None);
        }
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&self.buffer[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        let (len, tag) = (word(self.start) as usize, word(self.start + 4));
        ensure!(len <= MESSAGE_LEN_MAX && len <= into.len(), "a message of {len} bytes is too long");
        if !self.fill(HEADER_LEN + len)? {
            return Ok(None);
        }
        let from = self.start + HEADER_LEN;
        into[..len].copy_from_slice(&self.buffer[from..from + len]);
        self.start = from + len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        Ok(Some((len, tag)))
    }

    fn set_waiting(&mut self, waiting: Waiting) -> Result<()> {
        Ok(self.stream.set_blocking(waiting == Waiting::Block)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_all_lengths_arrive_whole_and_in_order() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut near, mut far) = (SocketEnd::unix(near), SocketEnd::unix(far));
        let lens = [0, 1, 64, MESSAGE_LEN_MAX, 5, MESSAGE_LEN_MAX, 0];
        let sender = std::thread::spawn(move || {
            for (n, len) in lens.into_iter().enumerate() {
                near.send(n as u32, &vec![n as u8; len]).unwrap();
            }
        });
        let mut bytes = vec![0; MESSAGE_LEN_MAX];
        for (n, len) in lens.into_iter().enumerate() {
            assert_eq!(far.receive(&mut bytes).unwrap(), Some((len, n as u32)));
            assert!(bytes[..len].iter().all(|&byte| byte == n as u8));
        }
        sender.join().unwrap();
        assert_eq!(far.receive(&mut bytes).unwrap(), None);
    }
}
