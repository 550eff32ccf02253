//! What a connection receives.

use std::sync::Arc;

use csp_types::Instant;

use super::{Connection, REASON_SOCKET_TYPE, Security, State};
use crate::command::{Command, TOPIC_COMMAND_LEN};
use crate::config::Config;
use crate::counters::Counters;
use crate::cursor::Cursor;
use crate::error::{Excess, ZmtpError};
use crate::frame::FRAME_HEADER_LEN_MAX;
use crate::greeting::Mechanism;
use crate::message::{Item, Message};
use crate::metadata;
use crate::output::Reply;
use crate::reader::{Allowed, Unit};
use crate::sealed::SealedReader;

/// Most steps of one call that find nothing to return, such as commands that are answered or ignored.
const STEPS_MAX: usize = 256;

/// What was found, without its contents.
#[derive(Clone, Copy)]
enum Found {
    Authorise,
    Ready,
    /// The topic starts at this offset of the command buffer.
    Subscribe(usize),
    Cancel(usize),
    Message,
}

impl Connection {
    /// Examines received bytes up to the end of the next item; `None`: more bytes, or a decision about the
    /// peer's key, are needed. The item before is released.
    ///
    /// `input` starts at or before the position up to which bytes have been examined, and at or before the
    /// start of bytes that the caller has consumed. An error ends the connection, and is returned by every
    /// later call.
    pub fn next<'a, I>(
        &mut self,
        now: Instant,
        input: &mut Cursor<'a, I>,
        counters: &mut Counters,
    ) -> Result<Option<Item<'_>>, ZmtpError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        if let State::Failed(error) = self.state {
            return Err(error);
        }
        if std::mem::take(&mut self.delivered) {
            self.message.clear();
        }
        self.paused = false;
        let found = self.advance(now, input, counters).map_err(|error| self.fail(error, counters))?;
        Ok(found.and_then(|found| self.item(found)))
    }

    /// Returns the position in the stream before which the connection needs no bytes. Under NULL these are
    /// the bytes before the message that is incomplete, or before the one that was delivered last: the caller
    /// consumes up to here when it has no further use for that message. It may consume more, up to
    /// [`examined`](Self::examined), if it keeps the bytes.
    pub fn released(&self) -> u64 {
        if self.delivered || !matches!(self.security, Security::Null) {
            return self.position;
        }
        let pending = self.frames.pending_start(self.position);
        self.message.start().or(pending).unwrap_or(self.position)
    }

    /// Returns the message that [`next`](Self::next) returned last, until it is called again: for a caller
    /// that has no room for it yet.
    pub fn delivered(&self) -> Option<Message<'_>> {
        self.delivered.then(|| self.message.message())
    }

    /// Returns the number of bytes of the stream that have been examined.
    pub fn examined(&self) -> u64 {
        self.position
    }

    /// Returns a position in the stream up to which bytes are needed at least before [`next`](Self::next) can
    /// return another item, so that the caller need not examine a long body again for each segment.
    pub fn needed(&self) -> u64 {
        let lacks = match (&self.security, self.state) {
            (_, State::Greeting) => self.greeting.lacks().min(1) as u64,
            (Security::Session(_, reader), State::Traffic) => reader.lacks(),
            _ => self.frames.lacks(&self.command),
        };
        self.position + lacks
    }

    fn advance<'a, I>(
        &mut self,
        now: Instant,
        input: &mut Cursor<'a, I>,
        counters: &mut Counters,
    ) -> Result<Option<Found>, ZmtpError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        let Some(known) = self.position.checked_sub(input.position()) else {
            return Err(ZmtpError::Gap { at: self.position, found: input.position() });
        };
        if input.skip(known) < known {
            return Ok(None);
        }
        if !input.slice().is_empty() {
            self.timers.received();
        }
        for _ in 0..STEPS_MAX {
            let step = self.step(now, input, counters);
            self.position = input.position();
            match step? {
                Step::Again => {}
                Step::Wait => return Ok(None),
                Step::Found(found) => return Ok(Some(found)),
            }
        }
        self.paused = true;
        Ok(None)
    }

    /// Returns whether [`next`](Self::next) has returned `None` for the number of commands that it processes
    /// at once, although more bytes are there.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Records that bytes have arrived that [`next`](Self::next) is not called for yet: any traffic is a sign
    /// of life.
    pub fn heard(&mut self) {
        self.timers.received();
    }

    /// Takes one step of the state machine.
    fn step<'a, I>(
        &mut self,
        now: Instant,
        input: &mut Cursor<'a, I>,
        counters: &mut Counters,
    ) -> Result<Step, ZmtpError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        match self.state {
            State::Failed(error) => Err(error),
            State::Verdict => Ok(Step::Wait),
            State::Greeting => {
                let accepted = [self.mechanism, Mechanism::Null];
                let accepted = &accepted[..1 + usize::from(self.or_null)];
                let Some((minor, mechanism)) = self.greeting.read(input, accepted)? else {
                    return Ok(Step::Wait);
                };
                self.minor = minor;
                self.decide(mechanism);
                self.state = if self.mechanism == Mechanism::Null { State::Ready } else { State::Hello };
                Ok(Step::Again)
            }
            State::Ready | State::Hello | State::Initiate => {
                let (command, message) = (&mut self.command, &mut self.message);
                let unit = self.frames.next(input, &self.config, Allowed::Commands, command, message)?;
                if unit.is_none() {
                    return Ok(Step::Wait);
                }
                self.handshake(input.position())
            }
            State::Announce => {
                self.timers.established(now, self.config.heartbeat.filter(|_| self.minor > 0));
                self.state = State::Traffic;
                counters.handshakes_completed += 1;
                Ok(Step::Found(Found::Ready))
            }
            State::Traffic => {
                let (command, message) = (&mut self.command, &mut self.message);
                let unit = match &mut self.security {
                    Security::Session(session, reader) => {
                        reader.next(input, &self.config, session, command, message)?
                    }
                    _ => self.frames.next(input, &self.config, Allowed::All, command, message)?,
                };
                unit.map_or(Ok(Step::Wait), |unit| self.traffic(unit, input.position(), now, counters))
            }
        }
    }

    /// The peer has named its mechanism, which is accepted.
    fn decide(&mut self, mechanism: Mechanism) {
        if mechanism == Mechanism::Null {
            self.security = Security::Null;
        }
        self.mechanism = mechanism;
        self.output.decided();
    }

    /// Processes the command of a handshake in the command buffer, which ends at position `at`.
    fn handshake(&mut self, at: u64) -> Result<Step, ZmtpError> {
        self.check_command_len(at)?;
        let command = Command::parse(self.command.as_bytes(), at)?;
        let unexpected = ZmtpError::Unexpected { what: command.name(), at };
        match (self.state, command, &mut self.security) {
            (_, Command::Error, _) => return Err(ZmtpError::PeerError { at }),
            (State::Ready, Command::Ready(data), _) => {
                let peer = metadata::parse(data, at, self.config.local, self.minor, None);
                self.accept(peer)?;
                if self.or_null {
                    self.state = State::Verdict;
                    return Ok(Step::Found(Found::Authorise));
                }
                self.output.reply(Reply::Ready);
                self.state = State::Announce;
            }
            (State::Hello, Command::Hello(body), Security::Handshake(handshake)) => {
                handshake.hello(body, at)?;
                self.output.reply(Reply::Welcome);
                self.state = State::Initiate;
            }
            (State::Initiate, Command::Initiate, Security::Handshake(handshake)) => {
                let (session, key, data) = handshake.initiate(self.command.as_mut(), at)?;
                let peer = metadata::parse(data, at, self.config.local, self.minor, Some(key));
                self.accept(peer)?;
                self.security = Security::Session(Box::new(session), SealedReader::new());
                self.state = State::Verdict;
                return Ok(Step::Found(Found::Authorise));
            }
            _ => return Err(unexpected),
        }
        Ok(Step::Again)
    }

    /// Keeps what the peer said about itself. A socket type that does not fit is answered by ERROR (37/ZMTP,
    /// "The Socket-Type Property").
    fn accept(&mut self, peer: Result<metadata::Peer, ZmtpError>) -> Result<(), ZmtpError> {
        if let Err(ZmtpError::SocketType { .. }) = peer {
            self.output.reply(Reply::Error(REASON_SOCKET_TYPE));
        }
        let peer = self.peer.insert(peer?);
        let local = self.config.local.towards(peer.socket_type);
        if local != self.config.local {
            self.config = Arc::new(Config { local, ..*self.config });
        }
        Ok(())
    }

    /// Processes what was received after the handshake and ends at position `at`.
    fn traffic(
        &mut self,
        unit: Unit,
        at: u64,
        now: Instant,
        counters: &mut Counters,
    ) -> Result<Step, ZmtpError> {
        match unit {
            Unit::Command => return self.command(at, now, counters),
            Unit::Topic { subscribe } => return Ok(Step::Found(topic(subscribe, 0, counters))),
            Unit::Message => {}
            Unit::Refused => {
                self.message.refused().into_iter().for_each(|refusal| counters.refused(refusal));
                self.message.clear();
                return Ok(Step::Again);
            }
        }
        if !self.config.local.receives() {
            counters.messages_ignored += 1;
            self.message.clear();
            return Ok(Step::Again);
        }
        counters.messages_received += 1;
        self.delivered = true;
        Ok(Step::Found(Found::Message))
    }

    /// Processes the command in the command buffer.
    fn command(&mut self, at: u64, now: Instant, counters: &mut Counters) -> Result<Step, ZmtpError> {
        self.check_span(at)?;
        let body = self.command.as_bytes();
        let command = Command::parse(body, at)?;
        match command {
            Command::Subscribe(data) | Command::Cancel(data) => {
                if !self.config.local.is_publisher() {
                    return Err(ZmtpError::Unexpected { what: command.name(), at });
                }
                let most = self.config.topic_len_max;
                if data.len() > most {
                    let (what, found) = (Excess::Topic, data.len() as u64);
                    return Err(ZmtpError::TooLong { what, at: at - body.len() as u64, found, most });
                }
                let from = body.len() - data.len();
                return Ok(Step::Found(topic(matches!(command, Command::Subscribe(_)), from, counters)));
            }
            _ => self.check_command_len(at)?,
        }
        match command {
            Command::Ping { ttl, context } => {
                counters.pings_received += 1;
                if !ttl.is_zero() {
                    self.timers.ttl_received(now, ttl);
                }
                counters.pings_coalesced += u64::from(self.output.pong(context));
            }
            Command::Pong => counters.pongs_received += 1,
            Command::Other => counters.commands_ignored += 1,
            Command::Error => return Err(ZmtpError::PeerError { at }),
            _ => return Err(ZmtpError::Unexpected { what: command.name(), at }),
        }
        Ok(Step::Again)
    }

    /// Checks how far a message reaches that is not complete, with the commands between its frames: the
    /// caller keeps all of it.
    fn check_span(&self, at: u64) -> Result<(), ZmtpError> {
        let Some(start) = self.message.start() else { return Ok(()) };
        let frames = self.config.frames_max as u64 * FRAME_HEADER_LEN_MAX as u64;
        let most = self.config.message_len_max as u64 + frames + self.command.len_max() as u64;
        let found = at.saturating_sub(start);
        if found > most {
            let (what, most) = (Excess::Message, usize::try_from(most).unwrap_or(usize::MAX));
            return Err(ZmtpError::TooLong { what, at: start, found, most });
        }
        Ok(())
    }

    /// Checks the length of a command that carries no topic: the buffer has room for the longest topic, too.
    fn check_command_len(&self, at: u64) -> Result<(), ZmtpError> {
        let (found, most) = (self.command.as_bytes().len() as u64, self.config.command_len_max);
        if found > most as u64 {
            return Err(ZmtpError::TooLong { what: Excess::Command, at: at - found, found, most });
        }
        Ok(())
    }

    fn item(&self, found: Found) -> Option<Item<'_>> {
        let topic = |from| self.command.as_bytes().get(from..);
        match found {
            Found::Authorise => self.peer.as_ref().map(Item::Authorise),
            Found::Ready => self.peer.as_ref().map(Item::Ready),
            Found::Subscribe(from) => topic(from).map(Item::Subscribe),
            Found::Cancel(from) => topic(from).map(Item::Cancel),
            Found::Message => Some(Item::Message(self.message.message())),
        }
    }
}

/// The outcome of a step.
enum Step {
    /// The next step follows.
    Again,
    /// More bytes or a decision are needed.
    Wait,
    Found(Found),
}

/// A subscription or its end, counted.
fn topic(subscribe: bool, from: usize, counters: &mut Counters) -> Found {
    debug_assert!(from <= TOPIC_COMMAND_LEN);
    if subscribe {
        counters.subscriptions_received += 1;
        Found::Subscribe(from)
    } else {
        counters.cancellations_received += 1;
        Found::Cancel(from)
    }
}
