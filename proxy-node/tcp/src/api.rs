//! The types of the engine's interface: arrivals, transmits, events, errors, connection and table figures.

use core::time::Duration;

use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::Repr;

use crate::chain::Slices;

/// Metadata of an arriving segment.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The flow label of the tunnel record; [`FlowLabel::NONE`] if the network node had no label for the
    /// flow.
    pub label: FlowLabel,
    /// The addresses, from the IP header of an uncompacted record; `None` if the record was compacted.
    pub tuple: Option<FourTuple>,
    /// When the network node received the segment, on the same clock as `now`. A time later than `now` is
    /// replaced by `now`.
    pub ingress: Instant,
    /// The network node that the segment came through. The engine does not interpret the value; each
    /// connection stores that of the latest segment that had an effect and returns it in [`Transmit::via`].
    pub via: u32,
    /// The ECN field of the IP header, 0 to 3. Packets are coalesced only if they carry the same one.
    pub ecn: u8,
    /// Payload bytes of each packet that was coalesced into the segment, except the last, which may be
    /// shorter; 0 if the segment is one packet.
    pub segment_size: u16,
}

/// One record to be sent to a network node.
#[derive(Debug)]
pub struct Transmit<'a> {
    /// The connection's label; [`FlowLabel::NONE`] for replies to segments that belong to no connection.
    pub label: FlowLabel,
    /// The addresses; `local` is the source.
    pub tuple: FourTuple,
    /// The network node to send the record to.
    pub via: u32,
    /// The TCP header of the segment. `None` if there is no segment: the record is a `flow-end` record, by
    /// which the network node releases the flow.
    pub header: Option<Repr>,
    /// Bytes of payload in [`Transmit::payload`].
    pub payload_len: usize,
    /// Payload bytes per segment on the wire: the network node splits the payload into segments of this size.
    /// 0 if there is no payload.
    pub segment_size: u16,
    /// The network node has no entry for (label, tuple) yet: the record must carry the whole IP packet.
    pub flow_new: bool,
    /// This is the last record of the flow.
    pub flow_end: bool,
    /// Whether the payload, or part of it, was sent before.
    pub retransmission: bool,
    /// The ECN field for the IP headers of the packets: 0, or 2 for ECT(0).
    pub ecn: u8,
    pub(crate) slices: Slices<'a>,
}

impl<'a> Transmit<'a> {
    /// The payload as a sequence of non-empty slices, `payload_len` bytes in total.
    pub fn payload(&self) -> Slices<'a> {
        self.slices.clone()
    }
}

/// A change of a connection that the engine reports to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The handshake is complete.
    Established {
        /// Whether the peer opened the connection.
        passive: bool,
        /// The `service` argument of `listen` or `connect`.
        service: u32,
        /// The addresses.
        tuple: FourTuple,
    },
    /// Bytes became readable.
    Readable,
    /// The connection accepts bytes again, after `write` had accepted fewer than it was given.
    Writable,
    /// The peer's FIN arrived in order: no bytes follow those that are readable now.
    PeerFinished,
    /// Both sides finished, and all data was delivered and read. The label is invalid from here on.
    Closed,
    /// The connection has failed and bytes are unread. They remain readable, as in a kernel's receive queue;
    /// [`Event::Failed`] follows once they are read.
    Broken(FailReason),
    /// The connection failed, and all received bytes were read. The label is invalid from here on.
    Failed(FailReason),
    /// The reset that [`crate::Stack::reset`] delayed is due. The label is invalid from here on.
    Reset,
}

/// Why a connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FailReason {
    /// The peer sent RST.
    Reset,
    /// The peer answered the SYN with RST, or an ICMP error reported it as unreachable (RFC 5927 §5.2).
    Refused,
    /// The peer did not respond: the retries of retransmissions, window or keepalive probes were used up, the
    /// user timeout or the limit of FIN-WAIT-2 expired, or the window stayed closed while memory was short.
    TimedOut,
    /// The engine sent RST, because data was unread at `close` or arrived after it (RFC 9293 §3.6.1).
    DataAfterClose,
}

/// Why a segment was dropped. Each reason has a counter of the same name in [`crate::Counters`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum DropReason {
    /// The label belongs to no live connection, and the record has no addresses to which a reply could be
    /// sent.
    #[error("stale label")]
    StaleLabel,
    /// The record has no usable label and no addresses, or the addresses cannot be those of a TCP connection.
    #[error("no addresses")]
    NoAddresses,
    /// The ports in the TCP header differ from those of the connection or of the arrival's addresses.
    #[error("ports differ")]
    PortsDiffer,
    /// There is no connection and no listener for the addresses, or the connection has ended. A RST may have
    /// been sent.
    #[error("no connection")]
    NoConnection,
    /// None of SYN, ACK and RST is set, or the flags contradict each other or the connection's state.
    #[error("bad flags")]
    BadFlags,
    /// The connection table is full.
    #[error("connection table full")]
    TableFull,
    /// The service's backlog is full ([`crate::Stack::set_backlog_full`]). No reply is sent; the client
    /// retransmits.
    #[error("backlog full")]
    BacklogFull,
    /// Outside the receive window (RFC 9293 §3.10.7.4).
    #[error("outside window")]
    OutsideWindow,
    /// An old duplicate by its timestamp (RFC 7323 §5.3).
    #[error("old timestamp (PAWS)")]
    Paws,
    /// The segment acknowledges data that was never sent, or is older than RFC 5961 §5.2 permits.
    #[error("unacceptable acknowledgement")]
    BadAck,
    /// SYN in a synchronised state (RFC 5961 §4.2).
    #[error("unexpected SYN")]
    UnexpectedSyn,
    /// RST whose sequence number is not exactly RCV.NXT (RFC 5961 §3.2), or, in SYN-SENT, RST without ACK.
    #[error("unacceptable RST")]
    BadReset,
    /// Data arrived after `close`; RST was sent (RFC 9293 §3.6.1).
    #[error("data after close")]
    DataAfterClose,
    /// The segment belongs to a connection in TIME-WAIT.
    #[error("in TIME-WAIT")]
    TimeWait,
}

/// Why `connect` failed. Nothing was sent and no state is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The caller passed addresses of different families, two equal addresses, a port 0, or an unspecified or
    /// multicast address.
    #[error("the addresses must be two different unicast addresses of one family with ports other than 0")]
    BadAddress,
    /// A connection with these addresses exists, or is in TIME-WAIT for less than a second, or without
    /// timestamps.
    #[error("a connection with these addresses exists or is in TIME-WAIT")]
    InUse,
    /// The connection table is full.
    #[error("the connection table is full")]
    TableFull,
}

/// Why `listen` failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListenError {
    /// The port is 0.
    #[error("port 0 cannot be listened on; valid ports are 1 to 65535")]
    BadAddress,
    /// The address already has a listener.
    #[error("the address already has a listener")]
    InUse,
    /// The listener table is full.
    #[error("the listener table is full")]
    TableFull,
}

/// What an ICMP error reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathError {
    /// The packet was larger than the next hop's MTU.
    PacketTooBig {
        /// The next hop's MTU in bytes, IP header included.
        mtu: u16,
    },
    /// The host, network, protocol or port cannot be reached.
    Unreachable,
}

/// The states of RFC 9293 §3.3.2. In LISTEN, CLOSED and TIME-WAIT there is no connection block, so they are
/// not listed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[allow(missing_docs)] // the RFC's names
pub enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    /// A reset waits until the peer has acknowledged what was written before ([`crate::Stack::reset`]).
    Resetting,
    /// The protocol has ended (closed, reset, or handed over to the TIME-WAIT table). The block remains until
    /// its last events are reported and its last record is transmitted.
    Done,
}

/// Figures of a connection for a log of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Smoothed round-trip time in microseconds; 0: none was measured.
    pub srtt_us: u32,
    /// Retransmissions.
    pub retransmits: u32,
}

/// A snapshot of one connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionInfo {
    /// Its label.
    pub label: FlowLabel,
    /// Its addresses.
    pub tuple: FourTuple,
    /// Its state.
    pub state: State,
    /// The `service` argument of `listen` or `connect`.
    pub service: u32,
    /// The network node that the connection uses.
    pub via: u32,
    /// Smoothed round-trip time in microseconds; 0 before the first sample.
    pub srtt_us: u64,
    /// Current retransmission timeout.
    pub rto: Duration,
    /// The congestion control algorithm in use.
    pub congestion: crate::CongestionControl,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes.
    pub ssthresh: u32,
    /// Whether ECN was negotiated.
    pub ecn: bool,
    /// The pacing rate in bytes per second; `None` if the connection is not paced.
    pub pacing_rate: Option<u64>,
    /// The latest delivery rate sample in bytes per second; 0 before the first one.
    pub delivery_rate: u64,
    /// Sequence numbers sent and not yet acknowledged.
    pub in_flight: u32,
    /// SND.WND: the window that the peer advertises, in bytes.
    pub send_window: u32,
    /// Largest payload of a segment that the engine sends, in bytes.
    pub mss: u16,
    /// Bytes written and not yet acknowledged, unsent ones included.
    pub send_queue: usize,
    /// Bytes readable.
    pub receive_queue: usize,
    /// Bytes received out of order and stored.
    pub out_of_order: usize,
    /// Records retransmitted; each carries up to 64 KB.
    pub retransmits: u32,
    /// The connection's earliest deadline; `None` if no timer runs.
    pub deadline: Option<Instant>,
}

/// How full the engine's tables are: pairs of (entries in use, capacity).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    /// Connection blocks.
    pub connections: (usize, usize),
    /// Passive connections in SYN-RECEIVED.
    pub half_open: (usize, usize),
    /// TIME-WAIT entries.
    pub time_wait: (usize, usize),
    /// Payload blocks, of both directions.
    pub blocks: (usize, usize),
    /// Payload blocks for written data.
    pub send_blocks: (usize, usize),
    /// Range sets.
    pub range_sets: (usize, usize),
    /// Transmission records ([`crate::StackConfig::records`]); the capacity includes one for each connection.
    pub records: (usize, usize),
    /// Listeners.
    pub listeners: (usize, usize),
    /// Queued replies to segments without a connection.
    pub replies: (usize, usize),
    /// Queued SYN cookies.
    pub cookie_replies: (usize, usize),
    /// Destinations with a cached path MTU.
    pub paths: (usize, usize),
}
