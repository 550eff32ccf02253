//! The values that cross the engine's border: arrivals, transmits, events, errors, figures.

use core::time::Duration;

use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::Repr;

use crate::chain::Slices;

/// What is known of a segment besides its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The flow label of the tunnel record; [`FlowLabel::NONE`] where the network node did not know one.
    pub label: FlowLabel,
    /// The addresses of a segment that came with its IP header; `None` for compacted ones.
    pub tuple: Option<FourTuple>,
    /// When the network node received the segment, on the same clock as `now`; later than `now` counts as `now`.
    pub ingress: Instant,
    /// Which network node it came through: opaque here, remembered per connection (the latest wins), told back in
    /// [`Transmit::via`].
    pub via: u32,
    /// The ECN field of the IP header, 0 to 3; of coalesced packets, which carry the same one.
    pub ecn: u8,
    /// Payload bytes of each packet (but the last) that was coalesced into the segment; 0 where it is one packet.
    pub segment_size: u16,
}

/// One thing to be sent to a network node.
#[derive(Debug)]
pub struct Transmit<'a> {
    /// The connection's label; [`FlowLabel::NONE`] for answers to segments that belong to no connection.
    pub label: FlowLabel,
    /// The addresses: `local` is the source.
    pub tuple: FourTuple,
    /// Which network node it goes through.
    pub via: u32,
    /// The TCP header of the segment; `None`: there is no segment, the network node just forgets the flow (a
    /// `flow-end` record).
    pub header: Option<Repr>,
    /// Bytes of payload in [`Transmit::payload`].
    pub payload_len: usize,
    /// Payload bytes per segment on the wire: the network node splits by this (0 without payload).
    pub segment_size: u16,
    /// The network node does not know (label, tuple) yet: carry the whole IP packet.
    pub flow_new: bool,
    /// This is the flow's last record.
    pub flow_end: bool,
    /// Whether some of the payload was sent before.
    pub retransmission: bool,
    /// The ECN field that the packets' IP headers are to carry: 0, or 2 for ECT(0).
    pub ecn: u8,
    pub(crate) slices: Slices<'a>,
}

impl<'a> Transmit<'a> {
    /// The payload, slice by slice; `payload_len` bytes altogether, none of the slices empty.
    pub fn payload(&self) -> Slices<'a> {
        self.slices.clone()
    }
}

/// What a connection tells its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The handshake is complete.
    Established {
        /// Whether the other side opened the connection.
        passive: bool,
        /// What `listen` or `connect` were given.
        service: u32,
        /// The addresses.
        tuple: FourTuple,
    },
    /// There are bytes to read.
    Readable,
    /// There is room to write again, after `write` had taken less than it was given.
    Writable,
    /// FIN arrived in order: no bytes follow those that are readable now.
    PeerFinished,
    /// Both sides finished, everything was delivered and read. The label is invalid from here on.
    Closed,
    /// The connection is gone; unread bytes are discarded. The label is invalid from here on.
    Failed(FailReason),
}

/// Why a connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FailReason {
    /// The other side sent RST.
    Reset,
    /// The other side answered our SYN with RST.
    Refused,
    /// Retransmissions, keepalive probes or the user timeout ran out.
    TimedOut,
    /// We sent RST: data was unread at `close`, or arrived after it (RFC 9293 §3.6.1).
    DataAfterClose,
}

/// Why a segment was dropped; each has a counter of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum DropReason {
    /// The label is of no live connection, and without addresses nobody can be answered.
    #[error("stale label")]
    StaleLabel,
    /// Neither label nor addresses.
    #[error("no addresses")]
    NoAddresses,
    /// The ports of the header are not those of the connection or of the IP packet's flow.
    #[error("ports differ")]
    PortsDiffer,
    /// No connection and no listener; RST was sent where allowed.
    #[error("no connection")]
    NoConnection,
    /// No SYN, no ACK, no RST, or flags that contradict each other.
    #[error("bad flags")]
    BadFlags,
    /// The connection table is full.
    #[error("connection table full")]
    TableFull,
    /// As many connections of the service wait for a server as may; the client sends its segment again.
    #[error("backlog full")]
    BacklogFull,
    /// Outside the receive window (RFC 9293 §3.10.7.4).
    #[error("outside window")]
    OutsideWindow,
    /// An old duplicate by its timestamp (RFC 7323 §5.3).
    #[error("old timestamp (PAWS)")]
    Paws,
    /// The acknowledgement is of data never sent, or is too old (RFC 5961 §5.2).
    #[error("unacceptable acknowledgement")]
    BadAck,
    /// SYN in a synchronised state (RFC 5961 §4.2).
    #[error("unexpected SYN")]
    UnexpectedSyn,
    /// RST that is not exactly in sequence (RFC 5961 §3.2).
    #[error("unacceptable RST")]
    BadReset,
    /// Data arrived after the application had gone; RST was sent.
    #[error("data after close")]
    DataAfterClose,
    /// Belongs to a connection in TIME-WAIT.
    #[error("in TIME-WAIT")]
    TimeWait,
}

/// Why `connect` did not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The addresses are of different families, a port is 0, or a group address was given. The caller erred.
    #[error("the addresses cannot be the two ends of a connection")]
    BadAddress,
    /// A connection with these addresses exists or is in TIME-WAIT.
    #[error("the addresses are in use")]
    InUse,
    /// The connection table is full.
    #[error("the connection table is full")]
    TableFull,
}

/// Why `listen` did not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListenError {
    /// The port is 0.
    #[error("port 0 cannot be listened on")]
    BadAddress,
    /// The address is listened on already.
    #[error("the address is listened on already")]
    InUse,
    /// The listener table is full.
    #[error("the listener table is full")]
    TableFull,
}

/// What an ICMP error tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathError {
    /// The packet did not fit; packets of up to `mtu` bytes, IP header included, do.
    PacketTooBig {
        /// The next hop's MTU in bytes.
        mtu: u16,
    },
    /// The host, network, protocol or port cannot be reached.
    Unreachable,
}

/// The states of RFC 9293 §3.3.2. LISTEN, CLOSED and TIME-WAIT have no connection block here.
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
    /// The protocol is done (closed, reset or in TIME-WAIT); the block only waits for its owner or a last transmit.
    Done,
}

/// What one connection looks like now.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionInfo {
    /// Its label.
    pub label: FlowLabel,
    /// Its addresses.
    pub tuple: FourTuple,
    /// Its state.
    pub state: State,
    /// What `listen` or `connect` were given.
    pub service: u32,
    /// Which network node it goes through.
    pub via: u32,
    /// Smoothed round-trip time in microseconds; 0 before the first sample.
    pub srtt_us: u64,
    /// Current retransmission timeout.
    pub rto: Duration,
    /// What controls congestion.
    pub congestion: crate::CongestionControl,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes.
    pub ssthresh: u32,
    /// Whether both sides agreed on ECN.
    pub ecn: bool,
    /// Bytes per second at which data may leave; `None`: not limited.
    pub pacing_rate: Option<u64>,
    /// Bytes per second that were delivered most recently; 0 before the first measurement.
    pub delivery_rate: u64,
    /// Sequence numbers sent and not acknowledged.
    pub in_flight: u32,
    /// The other side's window in bytes.
    pub send_window: u32,
    /// Payload bytes per segment we send.
    pub mss: u16,
    /// Bytes written and not acknowledged.
    pub send_queue: usize,
    /// Bytes readable.
    pub receive_queue: usize,
    /// Bytes that arrived out of order.
    pub out_of_order: usize,
    /// Retransmitted records (up to 64 KB each).
    pub retransmits: u32,
    /// When a timer of the connection is due next.
    pub deadline: Option<Instant>,
}

/// How full the tables are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    /// Connection blocks in use, and how many there are.
    pub connections: (usize, usize),
    /// Passive connections in SYN-RECEIVED.
    pub half_open: (usize, usize),
    /// TIME-WAIT entries.
    pub time_wait: (usize, usize),
    /// Payload blocks, of both directions.
    pub blocks: (usize, usize),
    /// Payload blocks for what was written.
    pub send_blocks: (usize, usize),
    /// Range sets.
    pub range_sets: (usize, usize),
    /// Records of what is in flight; how many there are includes one for each connection.
    pub records: (usize, usize),
    /// Listeners.
    pub listeners: (usize, usize),
    /// Answers that wait to be transmitted.
    pub replies: (usize, usize),
    /// SYN cookies that wait to be transmitted.
    pub cookie_replies: (usize, usize),
    /// Destinations whose path MTU is remembered.
    pub paths: (usize, usize),
}
