//! What a connection sends.
//!
//! Order matters: nonces of CURVE count up in the order of the stream, and a command must not split a frame.
//! The caller writes the bytes of [`transmit`](Connection::transmit), [`subscribe`](Connection::subscribe)
//! and [`encrypt`](Connection::encrypt) to the stream in the order of the calls, and calls `transmit` between
//! messages only.

use csp_types::Instant;

use super::{Connection, Security, State};
use crate::counters::Counters;
use crate::curve::{SEALED_COMMAND, write};
use crate::error::EncodeError;
use crate::frame::{COMMAND, FrameHeader, MORE};
use crate::greeting;
use crate::metadata::Own;
use crate::output::{CONTROL_LEN_MAX, Due, Reply};

impl Connection {
    /// Returns whether [`transmit`](Self::transmit) has something to write.
    pub fn has_output(&self) -> bool {
        self.output.first().is_some()
    }

    /// Writes the next part of greeting, handshake and heartbeats to `out`, which has at least
    /// [`CONTROL_LEN_MAX`] bytes; returns its length, 0 if nothing is due. The caller calls again until it
    /// is 0.
    pub fn transmit(
        &mut self,
        now: Instant,
        out: &mut [u8],
        counters: &mut Counters,
    ) -> Result<usize, EncodeError> {
        let no_space = EncodeError::NoSpace { needed: CONTROL_LEN_MAX };
        let out = out.get_mut(..CONTROL_LEN_MAX).ok_or(no_space)?;
        let Some(due) = self.output.first() else { return Ok(0) };
        let written = match due {
            Due::Greeting | Due::Version | Due::Mechanism => {
                let greeting = greeting::emit(self.mechanism);
                let (version, mechanism) = greeting.split_at(greeting::MECHANISM_AT);
                let parts: &[&[u8]] = match due {
                    Due::Version => &[version],
                    Due::Mechanism => &[mechanism],
                    _ => &[version, mechanism],
                };
                write(out, parts).ok_or(no_space)?
            }
            Due::Reply(reply) => self.reply(reply, out)?,
            Due::Pong(context) => self.emit_command(b"\x04PONG", context.as_bytes(), out)?,
            Due::Ping => self.ping(out)?,
        };
        self.output.sent();
        match due {
            Due::Ping => {
                counters.pings_sent += 1;
                let timeout = self.config.heartbeat.map(|heartbeat| heartbeat.timeout);
                self.timers.ping_sent(now, timeout.unwrap_or_default());
            }
            Due::Pong(_) => counters.pongs_sent += 1,
            _ => {}
        }
        Ok(written)
    }

    fn reply(&mut self, reply: Reply, out: &mut [u8]) -> Result<usize, EncodeError> {
        let own = Own::new(self.config.local);
        let no_space = EncodeError::NoSpace { needed: CONTROL_LEN_MAX };
        match (reply, &mut self.security) {
            (Reply::Error(reason), _) => {
                // 37/ZMTP, "The NULL Security Mechanism", and 26/CURVEZMQ: in clear text.
                let header = FrameHeader::with_flags(7 + reason.len(), COMMAND);
                let parts = [header.as_bytes(), b"\x05ERROR", &[reason.len() as u8], reason.as_bytes()];
                write(out, &parts).ok_or(no_space)
            }
            (Reply::Welcome, Security::Handshake(handshake)) => {
                handshake.welcome(out).ok_or(EncodeError::NotReady)
            }
            (Reply::Welcome, _) | (Reply::Ready, Security::Handshake(_)) => Err(EncodeError::NotReady),
            (Reply::Ready, Security::Session(session, _)) => session.ready(own.as_bytes(), out),
            (Reply::Ready, Security::Null) => {
                let header = FrameHeader::with_flags(6 + own.as_bytes().len(), COMMAND);
                write(out, &[header.as_bytes(), b"\x05READY", own.as_bytes()]).ok_or(no_space)
            }
        }
    }

    fn ping(&mut self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let ttl = self.config.heartbeat.map_or(0, |heartbeat| heartbeat.ttl.as_millis() / 100);
        let ttl = u16::try_from(ttl).unwrap_or(u16::MAX).to_be_bytes();
        self.emit_command(b"\x04PING", &ttl, out)
    }

    /// Writes a command after the handshake: in clear text, or sealed.
    fn emit_command(&mut self, name: &[u8], data: &[u8], out: &mut [u8]) -> Result<usize, EncodeError> {
        if let Security::Session(session, _) = &mut self.security {
            return session.seal(SEALED_COMMAND, &[name, data], out);
        }
        let header = FrameHeader::with_flags(name.len() + data.len(), COMMAND);
        let needed = header.as_bytes().len() + name.len() + data.len();
        write(out, &[header.as_bytes(), name, data]).ok_or(EncodeError::NoSpace { needed })
    }

    /// Writes a subscription to `topic`, or its cancellation, in the form that the peer knows: a command for
    /// ZMTP 3.1, a message for 3.0. Returns the length. `out` has room for the topic and [`CONTROL_LEN_MAX`]
    /// bytes.
    pub fn subscribe(&mut self, topic: &[u8], subscribe: bool, out: &mut [u8]) -> Result<usize, EncodeError> {
        if self.state != State::Traffic {
            return Err(EncodeError::NotReady);
        }
        if self.minor > 0 {
            let name: &[u8] = if subscribe { b"\x09SUBSCRIBE" } else { b"\x06CANCEL" };
            return self.emit_command(name, topic, out);
        }
        let first = [u8::from(subscribe)];
        if let Security::Session(session, _) = &mut self.security {
            return session.seal(0, &[&first, topic], out);
        }
        let header = FrameHeader::message(1 + topic.len(), false);
        let needed = header.as_bytes().len() + 1 + topic.len();
        write(out, &[header.as_bytes(), &first, topic]).ok_or(EncodeError::NoSpace { needed })
    }

    /// Encrypts a frame of a message for a CURVE peer: the bytes of `parts`, one after the other, in
    /// [`sealed_len`](crate::sealed_len) bytes of `out`; returns that length. `more`: another frame of the
    /// message follows. For a NULL peer the caller sends [`FrameHeader::message`] and the bytes themselves.
    pub fn encrypt(&mut self, parts: &[&[u8]], more: bool, out: &mut [u8]) -> Result<usize, EncodeError> {
        let len = parts.iter().map(|part| part.len()).sum();
        self.encrypt_parts(len, parts.iter().copied(), more, out)
    }

    /// As [`encrypt`](Self::encrypt), for parts that have `len` bytes in all and lie in no slice.
    pub fn encrypt_parts<'p>(
        &mut self,
        len: usize,
        parts: impl Iterator<Item = &'p [u8]>,
        more: bool,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        match (&mut self.security, self.state) {
            (Security::Null, _) => Err(EncodeError::Mechanism),
            (Security::Session(session, _), State::Traffic) => {
                session.seal_parts(if more { MORE } else { 0 }, len, parts, out)
            }
            _ => Err(EncodeError::NotReady),
        }
    }
}
