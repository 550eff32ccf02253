//! One connection of a peer, from its greeting to its end.
//!
//! ```text
//!             greeting        READY: metadata accepted
//!  [Greeting] ── NULL ──▶ [Ready] ─────────────────────────────────┐
//!      │                                                           ▼
//!      └─ CURVE ─▶ [Hello] ─▶ [Initiate] ─▶ [Verdict] ─ allow ─▶ [Announce] ─ Item::Ready ─▶ [Traffic]
//!                    HELLO       INITIATE        │
//!                                                └─ deny ─▶ [Failed]   ◀── any error, any deadline, from every state
//! ```
//! A connection that accepts either mechanism asks for a verdict under NULL, too.

mod encode;
mod receive;

use std::sync::Arc;

use csp_types::Instant;

use crate::command::CommandBuffer;
use crate::config::Config;
use crate::counters::Counters;
use crate::curve::{CurveKeys, ENTROPY_LEN, Handshake, Session};
use crate::error::ZmtpError;
use crate::greeting::{GreetingReader, Mechanism};
use crate::message::Assembly;
use crate::metadata::Peer;
use crate::output::{Output, Reply};
use crate::reader::{FrameReader, command_room};
use crate::sealed::SealedReader;
use crate::timers::Timers;

/// Reason of ERROR for a key that the caller denies: the status of 27/ZAP that libzmq sends in this case.
const REASON_DENIED: &str = "400";
/// Reason of ERROR for a socket type that the local one does not talk to.
const REASON_SOCKET_TYPE: &str = "Socket-Type";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The peer's greeting is incomplete.
    Greeting,
    /// NULL: READY is next.
    Ready,
    /// CURVE: HELLO is next.
    Hello,
    /// CURVE: INITIATE is next.
    Initiate,
    /// CURVE, or a peer that could have used it: the caller decides about the peer.
    Verdict,
    /// The handshake is complete, the caller does not know it yet.
    Announce,
    /// Messages.
    Traffic,
    /// Nothing is received any more.
    Failed(ZmtpError),
}

/// Encryption, by the state of the handshake.
enum Security {
    Null,
    Handshake(Box<Handshake>),
    Session(Box<Session>, SealedReader),
}

/// A connection to a peer.
pub struct Connection {
    config: Arc<Config>,
    state: State,
    /// Bytes of the stream that have been examined.
    position: u64,
    mechanism: Mechanism,
    /// NULL is accepted beside CURVE; [`mechanism`](Self::mechanism) is CURVE until the peer has named its
    /// own.
    or_null: bool,
    minor: u8,
    peer: Option<Peer>,
    greeting: GreetingReader,
    frames: FrameReader,
    command: CommandBuffer,
    message: Assembly,
    /// The message was delivered; its frames are released by the next call.
    delivered: bool,
    /// The last call has processed as many commands as one may.
    paused: bool,
    security: Security,
    output: Output,
    timers: Timers,
}

impl Connection {
    /// Creates a connection of a peer that connects at `now`, without encryption.
    pub fn null(config: Arc<Config>, now: Instant) -> Self {
        Self::new(config, Mechanism::Null, false, Security::Null, now)
    }

    /// Creates a connection of a peer that connects at `now`, encrypted by CURVE. `entropy` must come from a
    /// cryptographic generator and be used for this connection alone.
    pub fn curve(
        config: Arc<Config>,
        keys: Arc<CurveKeys>,
        entropy: &[u8; ENTROPY_LEN],
        now: Instant,
    ) -> Self {
        let handshake = Handshake::new(keys, entropy);
        Self::new(config, Mechanism::Curve, false, Security::Handshake(Box::new(handshake)), now)
    }

    /// As [`curve`](Self::curve), of a peer that may also connect without encryption.
    /// [`Item::Authorise`](crate::Item::Authorise) is returned in either case; such a peer has no key.
    pub fn curve_or_null(
        config: Arc<Config>,
        keys: Arc<CurveKeys>,
        entropy: &[u8; ENTROPY_LEN],
        now: Instant,
    ) -> Self {
        let handshake = Handshake::new(keys, entropy);
        Self::new(config, Mechanism::Curve, true, Security::Handshake(Box::new(handshake)), now)
    }

    fn new(
        config: Arc<Config>,
        mechanism: Mechanism,
        or_null: bool,
        security: Security,
        now: Instant,
    ) -> Self {
        Connection {
            state: State::Greeting,
            position: 0,
            mechanism,
            or_null,
            minor: 0,
            peer: None,
            greeting: GreetingReader::new(),
            frames: FrameReader::new(),
            command: CommandBuffer::new(command_room(&config)),
            message: Assembly::new(&config),
            delivered: false,
            paused: false,
            security,
            output: Output::new(or_null),
            timers: Timers::new(now + config.handshake_timeout),
            config,
        }
    }

    /// Returns the connection's mechanism; of one that accepts two, that of its peer as soon as it is known.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Returns what the peer has said about itself, when its metadata was accepted.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Returns whether the handshake is complete and the connection has not failed.
    pub fn is_ready(&self) -> bool {
        self.state == State::Traffic
    }

    /// Returns why the connection has failed. The caller sends what [`transmit`](Self::transmit) still
    /// returns, an ERROR, and closes.
    pub fn failure(&self) -> Option<ZmtpError> {
        match self.state {
            State::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Accepts the peer of [`Item::Authorise`](crate::Item::Authorise). Allocates the memory for decrypted
    /// messages. Has no effect when no peer waits for a decision.
    pub fn allow(&mut self) {
        if self.state != State::Verdict {
            return;
        }
        if self.mechanism == Mechanism::Curve {
            self.message.allocate(self.command.len_max());
        }
        self.output.reply(Reply::Ready);
        self.state = State::Announce;
    }

    /// Denies the peer of [`Item::Authorise`](crate::Item::Authorise): it gets ERROR. Has no effect when no
    /// peer waits for a decision.
    pub fn deny(&mut self, counters: &mut Counters) {
        if self.state == State::Verdict {
            self.output.reply(Reply::Error(REASON_DENIED));
            self.fail(ZmtpError::Denied, counters);
        }
    }

    /// Returns when [`on_timeout`](Self::on_timeout) is due; `None`: no deadline runs.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Processes deadlines that have passed: a PING becomes due, or the peer has been silent for too long.
    pub fn on_timeout(&mut self, now: Instant, counters: &mut Counters) -> Result<(), ZmtpError> {
        match self.timers.expire(now, self.config.heartbeat) {
            Ok(true) => self.output.ping(),
            Ok(false) => {}
            Err(error) => return Err(self.fail(error, counters)),
        }
        Ok(())
    }

    /// Ends the connection by `error`, which is counted.
    fn fail(&mut self, error: ZmtpError, counters: &mut Counters) -> ZmtpError {
        self.state = State::Failed(error);
        self.timers.stop();
        self.output.fail();
        counters.failed(error);
        error
    }
}

impl core::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut out = formatter.debug_struct("Connection");
        out.field("state", &self.state).field("position", &self.position).field("peer", &self.peer);
        out.finish_non_exhaustive()
    }
}
