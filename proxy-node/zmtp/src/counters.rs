//! Counters of the connections of a worker. The caller owns them; the daemon's telemetry exposes them.

use crate::error::{Excess, ZmtpError};
use crate::message::Refusal;

/// Monotonic counts since start. A connection that fails counts once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // the names say it; those that do not have a line of their own
pub struct Counters {
    pub handshakes_completed: u64,
    pub messages_received: u64,
    /// Messages of peers that may not send any to this socket type.
    pub messages_ignored: u64,
    /// Messages of too many frames that were refused without their connections.
    pub messages_refused_frames: u64,
    /// The same of messages whose frames were too long together.
    pub messages_refused_length: u64,
    pub subscriptions_received: u64,
    pub cancellations_received: u64,
    pub pings_received: u64,
    pub pongs_received: u64,
    pub pings_sent: u64,
    pub pongs_sent: u64,
    /// PINGs that arrived before the PONG to an earlier one was sent; one PONG answers both.
    pub pings_coalesced: u64,
    /// Commands that ZMTP 3.1 does not define.
    pub commands_ignored: u64,
    pub failed_signature: u64,
    pub failed_version: u64,
    /// Another mechanism, or a peer that wants to be the server.
    pub failed_mechanism: u64,
    /// Flags or lengths of frames.
    pub failed_frame: u64,
    pub failed_message_too_long: u64,
    pub failed_command_too_long: u64,
    pub failed_topic_too_long: u64,
    pub failed_too_many_frames: u64,
    pub failed_malformed: u64,
    pub failed_unexpected: u64,
    pub failed_socket_type: u64,
    /// Boxes that do not open, and keys of small order.
    pub failed_sealed: u64,
    pub failed_nonce: u64,
    pub failed_denied: u64,
    pub failed_peer_error: u64,
    pub failed_handshake_timeout: u64,
    pub failed_heartbeat_timeout: u64,
    pub failed_ttl_timeout: u64,
    /// Mistakes of the caller.
    pub failed_gap: u64,
    pub prefixed_received: u64,
    /// Lengths smaller than the header that they count.
    pub prefixed_failed_short: u64,
    pub prefixed_failed_too_long: u64,
    /// Messages of other peers that a length-prefixed peer did not get: shorter than the header that they are
    /// to begin with, or longer than its length field can say.
    pub prefixed_unwritable: u64,
}

impl Counters {
    /// Returns how many messages were refused without their connections.
    pub fn messages_refused(&self) -> u64 {
        self.messages_refused_frames + self.messages_refused_length
    }

    /// Counts a message that was refused without its connection.
    pub(crate) fn refused(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Frames => self.messages_refused_frames += 1,
            Refusal::Length => self.messages_refused_length += 1,
        }
    }

    /// Counts the end of a connection by `error`.
    pub(crate) fn failed(&mut self, error: ZmtpError) {
        let counter = match error {
            ZmtpError::Signature { .. } => &mut self.failed_signature,
            ZmtpError::Version { .. } => &mut self.failed_version,
            ZmtpError::Mechanism { .. } | ZmtpError::AsServer { .. } => &mut self.failed_mechanism,
            ZmtpError::Flags { .. } | ZmtpError::Length { .. } => &mut self.failed_frame,
            ZmtpError::TooLong { what: Excess::Message, .. } => &mut self.failed_message_too_long,
            ZmtpError::TooLong { what: Excess::Command, .. } => &mut self.failed_command_too_long,
            ZmtpError::TooLong { what: Excess::Topic, .. } => &mut self.failed_topic_too_long,
            ZmtpError::TooManyFrames { .. } => &mut self.failed_too_many_frames,
            ZmtpError::Malformed { .. } => &mut self.failed_malformed,
            ZmtpError::Unexpected { .. } => &mut self.failed_unexpected,
            ZmtpError::SocketType { .. } => &mut self.failed_socket_type,
            ZmtpError::Sealed { .. } | ZmtpError::WeakKey { .. } => &mut self.failed_sealed,
            ZmtpError::Nonce { .. } => &mut self.failed_nonce,
            ZmtpError::Denied => &mut self.failed_denied,
            ZmtpError::PeerError { .. } => &mut self.failed_peer_error,
            ZmtpError::HandshakeTimeout => &mut self.failed_handshake_timeout,
            ZmtpError::HeartbeatTimeout => &mut self.failed_heartbeat_timeout,
            ZmtpError::TtlTimeout => &mut self.failed_ttl_timeout,
            ZmtpError::Gap { .. } => &mut self.failed_gap,
        };
        *counter += 1;
    }
}
