//! The frames of a CURVE peer after the handshake: each is a MESSAGE, with the real flags inside the box.
//!
//! ```text
//!  [Header] ──▶ [Prefix] name, nonce, authenticator ──▶ [Text] flags and body ──▶ decrypted in place ──▶ [Header]
//! ```
//! The encrypted bytes are copied from the stream to the connection's buffer, behind the bodies that the
//! message already has, and decrypted there. Commands and topics are copied on to the command buffer.

use crate::command::CommandBuffer;
use crate::config::Config;
use crate::cursor::Cursor;
use crate::curve::{MESSAGE_PREFIX_LEN, SEALED_COMMAND, Session};
use crate::error::{Excess, ZmtpError};
use crate::frame::{HeaderReader, MORE};
use crate::message::Assembly;
use crate::reader::Unit;

#[derive(Clone, Copy, Debug)]
enum Step {
    Header,
    Prefix { have: usize },
    Text { have: usize },
}

/// Reads sealed frames, whatever the slices that they arrive in.
#[derive(Clone, Debug)]
pub(crate) struct SealedReader {
    header: HeaderReader,
    step: Step,
    prefix: [u8; MESSAGE_PREFIX_LEN],
    /// Start of the frame in the stream.
    at: u64,
    /// Length of its encrypted flags and body.
    text_len: usize,
}

impl SealedReader {
    pub fn new() -> Self {
        let prefix = [0; MESSAGE_PREFIX_LEN];
        SealedReader { header: HeaderReader::default(), step: Step::Header, prefix, at: 0, text_len: 0 }
    }

    /// Reads until a unit is complete; `None`: more bytes are needed.
    pub fn next<'a, I>(
        &mut self,
        input: &mut Cursor<'a, I>,
        config: &Config,
        session: &mut Session,
        command: &mut CommandBuffer,
        message: &mut Assembly,
    ) -> Result<Option<Unit>, ZmtpError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        loop {
            match self.step {
                Step::Header => {
                    if !self.begin(input, config, command, message)? {
                        return Ok(None);
                    }
                    self.step = Step::Prefix { have: 0 };
                }
                Step::Prefix { have } => {
                    let have = have + self.prefix.get_mut(have..).map_or(0, |room| input.copy(room));
                    self.step = Step::Prefix { have };
                    if have < MESSAGE_PREFIX_LEN {
                        return Ok(None);
                    }
                    session.begin(&self.prefix, input.position())?;
                    self.step = Step::Text { have: 0 };
                }
                Step::Text { have } => {
                    let from = message.filled;
                    let room = message.scratch.get_mut(from + have..from + self.text_len);
                    let have = have + room.map_or(0, |room| input.copy(room));
                    self.step = Step::Text { have };
                    if have < self.text_len {
                        return Ok(None);
                    }
                    self.step = Step::Header;
                    if let Some(unit) = self.complete(config, session, command, message, input.position())? {
                        return Ok(Some(unit));
                    }
                }
            }
        }
    }

    /// Reads the header of a frame; returns whether it is complete.
    fn begin<'a, I>(
        &mut self,
        input: &mut Cursor<'a, I>,
        config: &Config,
        command: &CommandBuffer,
        message: &mut Assembly,
    ) -> Result<bool, ZmtpError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        let Some(header) = self.header.read(input)? else { return Ok(false) };
        let at = header.at;
        if header.has_more() {
            return Err(ZmtpError::Flags { at, found: header.flags });
        }
        let text_len = header.body_len.checked_sub(MESSAGE_PREFIX_LEN as u64).filter(|len| *len > 0);
        let text_len = text_len.ok_or(ZmtpError::Malformed { what: "MESSAGE", at: input.position() })?;
        // Whether it is a command or a frame of the message is known after decryption; the buffer has room
        // for either.
        let body_len = text_len - 1;
        if body_len > command.len_max() as u64 {
            message.admit(at, body_len, config.local.refuses_alone())?;
        }
        (self.at, self.text_len) = (at, usize::try_from(text_len).unwrap_or(usize::MAX));
        Ok(true)
    }

    /// Decrypts a frame that is complete.
    fn complete(
        &mut self,
        config: &Config,
        session: &Session,
        command: &mut CommandBuffer,
        message: &mut Assembly,
        end: u64,
    ) -> Result<Option<Unit>, ZmtpError> {
        let sealed = ZmtpError::Sealed { what: "MESSAGE", at: end };
        let from = message.filled;
        let text = message.scratch.get_mut(from..from + self.text_len).ok_or(sealed)?;
        session.open(&self.prefix, text, end)?;
        let (&mut flags, body) = text.split_first_mut().ok_or(sealed)?;
        let (first, body_len) = (body.first().copied(), body.len());
        if flags & !(MORE | SEALED_COMMAND) != 0 || flags == MORE | SEALED_COMMAND {
            return Err(ZmtpError::Flags { at: self.at, found: flags });
        }
        if flags & SEALED_COMMAND != 0 {
            return self.command(body, command).map(|()| Some(Unit::Command));
        }
        let single = message.is_empty() && flags & MORE == 0;
        if let Some(first @ (0 | 1)) = first.filter(|_| single && config.local.is_publisher()) {
            let found = body_len as u64 - 1;
            if found > config.topic_len_max as u64 {
                let (what, most) = (Excess::Topic, config.topic_len_max);
                return Err(ZmtpError::TooLong { what, at: self.at, found, most });
            }
            let topic = message.scratch.get(from + 2..from + self.text_len).unwrap_or_default();
            return self.command(topic, command).map(|()| Some(Unit::Topic { subscribe: first == 1 }));
        }
        if message.admit(self.at, body_len as u64, config.local.refuses_alone())? {
            message.push_decrypted(self.at, body_len);
        }
        if flags & MORE != 0 {
            return Ok(None);
        }
        message.complete(end);
        Ok(Some(if message.refused().is_some() { Unit::Refused } else { Unit::Message }))
    }

    fn command(&self, body: &[u8], command: &mut CommandBuffer) -> Result<(), ZmtpError> {
        if command.store(body) {
            return Ok(());
        }
        let (what, found, most) = (Excess::Command, body.len() as u64, command.len_max());
        Err(ZmtpError::TooLong { what, at: self.at, found, most })
    }

    /// Bytes that a frame's header or its body certainly lacks; at least one.
    pub fn lacks(&self) -> u64 {
        let lacks = match self.step {
            Step::Header => self.header.lacks(),
            Step::Prefix { have } => MESSAGE_PREFIX_LEN - have + self.text_len,
            Step::Text { have } => self.text_len - have,
        };
        lacks.max(1) as u64
    }
}
