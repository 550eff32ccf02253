//! The frames between host and guest: kind, program number and payload.

use std::io::{self, Read, Write};

/// Largest payload of a frame, in bytes.
pub const PAYLOAD_LEN_MAX: usize = 64 << 10;
const HEADER_LEN: usize = 12;

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// Guest: the agent accepts commands.
    Ready,
    /// Host: start a program. NUL-terminated strings: working directory, program, arguments.
    Start(Vec<u8>),
    /// Host: send this signal to the program's process group.
    Signal(u32),
    /// Guest: output of the program on standard output.
    Output(Vec<u8>),
    /// Guest: output of the program on standard error.
    Error(Vec<u8>),
    /// Guest: the program ended with this exit code: 128 + n after signal n, 127 if it could not be started.
    Exited(u32),
}

impl Frame {
    fn kind(&self) -> u32 {
        match self {
            Frame::Ready => 0,
            Frame::Start(_) => 1,
            Frame::Signal(_) => 2,
            Frame::Output(_) => 3,
            Frame::Error(_) => 4,
            Frame::Exited(_) => 5,
        }
    }

    /// Writes the frame for `program` in one call.
    pub fn write(&self, program: u32, to: &mut impl Write) -> io::Result<()> {
        let word;
        let payload: &[u8] = match self {
            Frame::Ready => &[],
            Frame::Start(bytes) | Frame::Output(bytes) | Frame::Error(bytes) => bytes,
            Frame::Signal(number) | Frame::Exited(number) => {
                word = number.to_le_bytes();
                &word
            }
        };
        if payload.len() > PAYLOAD_LEN_MAX {
            return Err(io::Error::other("a frame's payload is too long"));
        }
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        for field in [self.kind(), program, payload.len() as u32] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(payload);
        to.write_all(&bytes)
    }

    /// Reads a frame and its program number. `UnexpectedEof` if the other end has disconnected.
    pub fn read(from: &mut impl Read) -> io::Result<(u32, Frame)> {
        let mut header = [0; HEADER_LEN];
        from.read_exact(&mut header)?;
        let field =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (kind, program, len) = (field(0), field(4), field(8) as usize);
        if len > PAYLOAD_LEN_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a frame of {len} bytes exceeds the limit"),
            ));
        }
        let mut payload = vec![0; len];
        from.read_exact(&mut payload)?;
        let word = || match payload[..] {
            [a, b, c, d] => Ok(u32::from_le_bytes([a, b, c, d])),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the payload of a frame must have 4 bytes")),
        };
        let frame = match kind {
            0 => Frame::Ready,
            1 => Frame::Start(payload),
            2 => Frame::Signal(word()?),
            3 => Frame::Output(payload),
            4 => Frame::Error(payload),
            5 => Frame::Exited(word()?),
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("a frame of unknown kind {kind}"),
                ));
            }
        };
        Ok((program, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_written() {
        let frames = [
            Frame::Ready,
            Frame::Start(b"/\0true\0".to_vec()),
            Frame::Signal(15),
            Frame::Output(vec![7; PAYLOAD_LEN_MAX]),
            Frame::Error(Vec::new()),
            Frame::Exited(137),
        ];
        let mut bytes = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            frame.write(at as u32, &mut bytes).expect("write");
        }
        let mut rest = &bytes[..];
        for (at, frame) in frames.into_iter().enumerate() {
            assert_eq!(Frame::read(&mut rest).expect("read"), (at as u32, frame));
        }
        assert_eq!(Frame::read(&mut rest).expect_err("end").kind(), io::ErrorKind::UnexpectedEof);
    }
}
