//! Counters of an endpoint; the owner exports them.

/// Totals since the endpoint was created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Links that came up.
    pub links_up: u64,
    /// Links that ended cleanly.
    pub links_closed: u64,
    /// Links whose VI broke and that waited for another VI.
    pub links_interrupted: u64,
    /// Links that resumed over another VI.
    pub links_resumed: u64,
    /// Messages retransmitted over the new VI, control messages included.
    pub messages_reposted: u64,
    /// Links that ended because the peer hung up without CLOSE.
    pub died_hang_up: u64,
    /// Links that ended because the peer was silent.
    pub died_silent: u64,
    /// Links that were broken for a protocol violation.
    pub died_protocol: u64,
    /// Links that were broken for a credit violation.
    pub died_credit: u64,
    /// Links that the owner failed because of a message's body.
    pub died_owner: u64,
    /// Outgoing links without an answer.
    pub unreachable: u64,
    /// Outgoing links that the acceptor refused.
    pub refused_by_peer: u64,
    /// Requests rejected because this side accepts no links or has no free slot.
    pub requests_rejected: u64,
    /// Unauthenticated peers (without a HELLO yet) that were disconnected to free slots for later ones.
    pub strangers_evicted: u64,
    /// HELLOs refused: the user's processes hold their share of the links already.
    pub refused_share: u64,
    /// Accepted VIs on which no valid HELLO arrived in time, or which broke before it.
    pub hello_failed: u64,
    /// HELLOs refused: version or sizes.
    pub refused_parameters: u64,
    /// HELLOs refused: the token's MAC or form.
    pub refused_bad_token: u64,
    /// HELLOs refused: the token's time.
    pub refused_expired: u64,
    /// HELLOs refused: role, node, process or user does not match.
    pub refused_identity: u64,
    /// HELLOs refused: the token is in use.
    pub refused_replay: u64,
    /// HELLOs refused: the link to be resumed is unknown, or its unacknowledged messages are no longer
    /// available.
    pub refused_session: u64,
    /// Messages sent, control included.
    pub messages_sent: u64,
    /// Messages received, control included.
    pub messages_received: u64,
    /// Body bytes of data messages sent.
    pub bytes_sent: u64,
    /// Body bytes of data messages received.
    pub bytes_received: u64,
    /// Data messages not sent for lack of descriptor credit.
    pub no_credit: u64,
    /// PINGs sent.
    pub pings_sent: u64,
    /// CREDIT messages sent.
    pub credits_sent: u64,
    /// Messages truncated because the caller's buffer was too short.
    pub receive_cut: u64,
}
