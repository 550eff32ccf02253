//! One end of a VI: its connection, both halves of its stream, its flow control and its state.

use super::frame::{Header, Kind, Setup};
use super::incoming::Incoming;
use super::outgoing::{self, Outgoing};
use super::sys::Connection;
use crate::receives::{Receives, Window, check_memory};
use crate::regions::Regions;
use crate::reports::Reported;
use crate::{Piece, ViConfig, ViError};

/// Bytes received after which this end sends its counts, so that the peer can release the messages.
const CONFIRM_LEN: usize = 128 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The connection is not established, or the request is not answered.
    Connecting,
    /// Accepted; `Established` has not been polled.
    Opening,
    /// In use.
    Open,
    /// The caller has polled the end of the VI.
    Closed,
    /// The caller has released it; the peer has not closed its end.
    Lingering,
}

pub(super) struct End {
    pub stage: Stage,
    /// `None` once closed.
    pub connection: Option<Connection>,
    pub config: ViConfig,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub receives: Receives,
    pub window: Window,
    pub reported: Reported,
    /// Bound of the peer's outstanding messages.
    peer_send_depth: u32,
    /// The count of received messages in the last frame to the peer, and the bytes received since.
    told: u32,
    untold_len: usize,
    /// The peer asked for the confirmation of a message.
    asked: bool,
    /// The kernel has not reported that the connection is established.
    pub is_pending: bool,
    /// The kernel takes no more until it says so.
    pub is_blocked: bool,
    /// The kernel may have bytes, or the end of the stream.
    pub is_readable: bool,
    /// The kernel has reported the end of the stream, behind the bytes that it may have.
    pub has_hung_up: bool,
    /// In the list of ends that have something to send.
    pub is_dirty: bool,
}

impl End {
    pub(super) fn new(
        stage: Stage,
        connection: Option<Connection>,
        config: ViConfig,
    ) -> Result<Self, ViError> {
        check_memory(outgoing::memory_len(&config), &config)?;
        Ok(End {
            stage,
            connection,
            config,
            incoming: Incoming::default(),
            outgoing: Outgoing::new(&config),
            receives: Receives::new(&config),
            window: Window::default(),
            reported: Reported::default(),
            peer_send_depth: config.send_depth,
            told: 0,
            untold_len: 0,
            asked: false,
            is_pending: false,
            is_blocked: false,
            is_readable: false,
            has_hung_up: false,
            is_dirty: false,
        })
    }

    /// Stores the peer's part of the set-up.
    pub(super) fn set_peer(&mut self, config: &ViConfig) {
        self.window = Window::new(config.receive_depth);
        self.peer_send_depth = config.send_depth;
    }

    /// Appends a frame with the counts of this end. `None`: there is no room.
    pub(super) fn push(
        &mut self,
        kind: Kind,
        immediate: u32,
        gather: &[&[u8]],
        pieces: (&[Piece], Option<&Regions>),
        signal: Option<u64>,
    ) -> Option<()> {
        (self.told, self.untold_len, self.asked) = (self.receives.received(), 0, false);
        let header = Header {
            confirm: signal.is_some(),
            posted: self.receives.advertise(),
            received: self.told,
            ..Header::new(kind, 0, immediate)
        };
        self.outgoing.push(header, gather, pieces, signal)?;
        if kind == Kind::Data {
            self.window.count();
        }
        Some(())
    }

    /// Appends a frame of the provider.
    pub(super) fn push_own(&mut self, kind: Kind, immediate: u32, body: &[u8]) -> Option<()> {
        self.push(kind, immediate, &[body], (&[], None), None)
    }

    /// Appends this end's set-up.
    pub(super) fn push_setup(&mut self, kind: Kind, private_data: &[u8]) -> Option<()> {
        let setup = Setup::write(&self.config, private_data);
        self.push_own(kind, 0, &setup)
    }

    /// Records a message of `len` bytes.
    pub(super) fn count_received(&mut self, len: usize, confirm: bool) {
        self.untold_len += len;
        self.asked |= confirm;
    }

    /// Whether this end should send its counts of posted receives and received messages now, without waiting
    /// for a message that carries them.
    pub(super) fn are_counts_due(&self) -> bool {
        if !matches!(self.stage, Stage::Opening | Stage::Open) || self.reported.has_ended() {
            return false;
        }
        let untold = self.receives.received().wrapping_sub(self.told);
        let many = untold * 2 >= self.config.receive_depth.min(self.peer_send_depth);
        let confirm = untold > 0 && (self.asked || many || self.untold_len >= CONFIRM_LEN);
        confirm || self.receives.is_credit_due()
    }
}
