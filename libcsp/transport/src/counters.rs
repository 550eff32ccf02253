//! What an endpoint counts; the owner exports it.

/// Totals since the endpoint was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Links that came up.
    pub links_up: u64,
    /// Links that ended cleanly.
    pub links_closed: u64,
    /// Links whose VI broke, and that waited for another one.
    pub links_interrupted: u64,
    /// Links that went on over another VI.
    pub links_resumed: u64,
    /// Messages sent again over the other VI, control included.
    pub messages_reposted: u64,
    /// Links that ended because the peer hung up without CLOSE.
    pub died_hang_up: u64,
    /// Links that ended because the peer was silent.
    pub died_silent: u64,
    /// Links that were broken for a protocol violation.
    pub died_protocol: u64,
    /// Links that were broken for a credit violation.
    pub died_credit: u64,
    /// Links that the owner failed for what was in a body.
    pub died_owner: u64,
    /// Outgoing links that nobody answered.
    pub unreachable: u64,
    /// Outgoing links that the acceptor refused.
    pub refused_by_peer: u64,
    /// Requests rejected since this side does not accept or has no room.
    pub requests_rejected: u64,
    /// Peers without a HELLO yet that were disconnected to make room for later ones.
    pub strangers_evicted: u64,
    /// HELLOs refused: the user's processes have their share of the links.
    pub refused_share: u64,
    /// Accepted VIs that gave no valid HELLO in time or broke before it.
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
    /// HELLOs refused: the link to be resumed is not known, or its messages are not there any more.
    pub refused_session: u64,
    /// Messages sent, control included.
    pub messages_sent: u64,
    /// Messages received, control included.
    pub messages_received: u64,
    /// Body bytes of data messages sent.
    pub bytes_sent: u64,
    /// Body bytes of data messages received.
    pub bytes_received: u64,
    /// Data messages not sent for want of descriptor credit.
    pub no_credit: u64,
    /// PINGs sent.
    pub pings_sent: u64,
    /// CREDIT messages sent.
    pub credits_sent: u64,
    /// Messages cut since the caller's scratch was too short.
    pub receive_cut: u64,
}
