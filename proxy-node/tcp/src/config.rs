//! The engine's configuration. It contains the capacity of every table; capacities are fixed at start-up.

use core::time::Duration;

use crate::cookies::SynCookies;
use crate::ecn::EcnMode;

pub use csp_types::options::CongestionControl;

/// Sizes and times of a [`crate::Stack`].
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// First label index that this stack allocates; its labels cover `first_label_index ..
    /// first_label_index + connections`. 0 is replaced by 1, because label 0 means "no label".
    pub first_label_index: u32,
    /// Most simultaneous connections, half-open ones included; at most 2²² − 1.
    pub connections: usize,
    /// Most passive connections in SYN-RECEIVED. At the limit a further SYN is answered with a SYN cookie, or
    /// evicts the oldest half-open connection ([`StackConfig::syn_cookies`]).
    pub half_open: usize,
    /// Most TIME-WAIT entries; when the table is full, a new entry evicts the oldest.
    pub time_wait_entries: usize,
    /// Most listeners.
    pub listeners: usize,
    /// Most queued replies to segments without a connection.
    pub replies: usize,
    /// Most such replies per second.
    pub replies_per_second: u32,
    /// When SYNs are answered with cookies instead of a connection block (RFC 4987 §3.6).
    pub syn_cookies: SynCookies,
    /// Most queued SYN cookies. The value should cover the SYNs that can arrive between two rounds of
    /// [`crate::Stack::poll_transmit`]. There is no limit per second, because each cookie replies to one SYN
    /// of about the same size.
    pub cookie_replies: usize,
    /// Payload blocks for all connections and both directions.
    pub blocks: usize,
    /// Share of the blocks that is reserved for written data, in percent, 1 to 99; the remaining blocks are
    /// for received data. Neither direction uses the blocks of the other.
    pub send_blocks_percent: u8,
    /// Length of a block in bytes; rounded up to a power of two, at least 512.
    pub block_len: usize,
    /// Longest message that a buffer for receiving ([`crate::Stack::lend`]) holds, in bytes; at most 64
    /// blocks. If it is larger, no buffers are lent and payload is copied.
    pub receive_message_len: usize,
    /// Longest message that a buffer for writing holds, in bytes; at most 64 blocks.
    pub send_message_len: usize,
    /// Range sets, each with up to [`crate::RANGES_PER_SET`] ranges of out-of-order data. A connection
    /// occupies one set while it has out-of-order data.
    pub range_sets: usize,
    /// Transmission records shared by all connections. A record describes one transmission of up to 64 KB, or
    /// the part of one that shares a delivery state (in flight, SACKed, lost). Each connection has one more
    /// record of its own.
    pub records: usize,
    /// Most records of one connection. When they are used up, several transmissions share a record, or
    /// transmission waits.
    pub records_per_connection: u32,
    /// Largest receive window of a connection in bytes.
    pub receive_window_max: u32,
    /// Receive window at the start of a connection and while memory is short, in bytes. The window grows to
    /// twice what the application reads per round trip.
    pub receive_window_initial: u32,
    /// Largest send buffer of a connection in bytes; sent and unacknowledged bytes count.
    pub send_buffer_max: u32,
    /// Send buffer at the start of a connection, and while less than a quarter of the memory for sending is
    /// free, in bytes. The buffer grows to twice the congestion window.
    pub send_buffer_min: u32,
    /// MSS announced to IPv4 peers, and upper bound of the MSS used towards them, in bytes without options
    /// (RFC 9293 §3.7.1).
    pub mss_v4: u16,
    /// Smallest path MTU towards IPv4 hosts that an ICMP error can set, in bytes with IP header. Smaller
    /// values only serve attackers (RFC 5927 §7.1).
    pub path_mtu_min_v4: u16,
    /// How long a lowered path MTU is kept before a larger one is tried (RFC 1191 §6.3, RFC 8201 §4).
    pub path_mtu_age: Duration,
    /// Destinations whose path MTU is cached for new connections.
    pub path_entries: usize,
    /// MSS announced to IPv6 peers, and upper bound of the MSS used towards them, in bytes without options.
    pub mss_v6: u16,
    /// Initial congestion window in segments (RFC 6928).
    pub initial_window_segments: u32,
    /// Congestion control algorithm of new connections.
    pub congestion: CongestionControl,
    /// Whether data is paced at the rate that congestion control computes, instead of being sent a window at
    /// a time.
    pub pacing: bool,
    /// Whether connections use explicit congestion notification (RFC 3168).
    pub ecn: EcnMode,
    /// Secret key for initial sequence numbers, timestamp offsets and hash tables. Must be random for each
    /// start (RFC 6528).
    pub isn_secret: [u8; 16],
    /// Retransmission timeout before the first RTT sample, SYNs included (RFC 6298 §2.1).
    pub rto_initial: Duration,
    /// Smallest retransmission timeout.
    pub rto_min: Duration,
    /// Largest retransmission timeout, exponential back-off included.
    pub rto_max: Duration,
    /// How often the SYN of an active open is retransmitted before the connection fails. The default adds up
    /// to over three minutes (RFC 9293 §3.8.3, MUST-23).
    pub syn_retries: u8,
    /// How often a SYN/ACK is retransmitted before the half-open connection is released.
    pub syn_ack_retries: u8,
    /// How often in succession data, FIN or a window probe may stay unanswered before the connection fails.
    pub retries: u8,
    /// How long a peer may keep its window closed before its connection fails. Applies only while at most a
    /// quarter of the blocks for sending is free.
    pub zero_window_when_short: Duration,
    /// Longest delay of an acknowledgement (RFC 9293 §3.8.6.3).
    pub delayed_ack: Duration,
    /// How many segments are acknowledged immediately at the start of a connection and after a loss was
    /// repaired.
    pub quick_acks: u8,
    /// How long TIME-WAIT lasts: twice the maximum segment lifetime (RFC 9293 §3.4.2).
    pub time_wait: Duration,
    /// How long FIN-WAIT-2 lasts after [`crate::Stack::close`].
    pub fin_wait_2: Duration,
    /// How long a reset waits for the written data to be acknowledged ([`crate::Stack::reset`]).
    pub reset_wait: Duration,
    /// How long a reset waits while the peer acknowledges nothing.
    pub reset_stall: Duration,
    /// Idle time after which keepalive probes start; `None` disables them (RFC 9293 §3.8.4).
    pub keepalive_idle: Option<Duration>,
    /// Time between unanswered keepalive probes.
    pub keepalive_interval: Duration,
    /// Unanswered keepalive probes after which the connection fails.
    pub keepalive_probes: u8,
    /// Shortest time between two challenge ACKs of one connection (RFC 5961 §7).
    pub challenge_interval: Duration,
    /// Whether Nagle's algorithm delays small segments while others are in flight (RFC 9293 §3.7.4). Off by
    /// default: a proxy forwards data that the application has already gathered.
    pub nagle: bool,
}

impl Default for StackConfig {
    fn default() -> Self {
        StackConfig {
            first_label_index: 1,
            connections: 16_384,
            half_open: 4_096,
            time_wait_entries: 16_384,
            listeners: 256,
            replies: 256,
            replies_per_second: 1_000,
            syn_cookies: SynCookies::Auto,
            cookie_replies: 4_096,
            blocks: 32_768,
            send_blocks_percent: 50,
            block_len: 4_096,
            receive_message_len: csp_types::limits::TUNNEL_MESSAGE_LEN_MAX,
            send_message_len: csp_types::limits::CHANNEL_MESSAGE_LEN_MAX,
            range_sets: 8_192,
            records: 65_536,
            records_per_connection: 8_192,
            receive_window_max: 1 << 20,
            receive_window_initial: 1 << 20,
            send_buffer_max: 1 << 20,
            send_buffer_min: 1 << 16,
            mss_v4: 1_460,
            mss_v6: 1_440,
            path_mtu_min_v4: 552,
            path_mtu_age: Duration::from_secs(600),
            path_entries: 4_096,
            initial_window_segments: 10,
            congestion: CongestionControl::default(),
            pacing: true,
            ecn: EcnMode::default(),
            isn_secret: [0; 16],
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(60),
            syn_retries: 7,
            syn_ack_retries: 5,
            retries: 12,
            zero_window_when_short: Duration::from_secs(60),
            delayed_ack: Duration::from_millis(40),
            quick_acks: 16,
            time_wait: Duration::from_secs(60),
            fin_wait_2: Duration::from_secs(60),
            reset_wait: csp_types::limits::RESET_WAIT,
            reset_stall: csp_types::limits::RESET_STALL,
            keepalive_idle: Some(Duration::from_secs(7_200)),
            keepalive_interval: Duration::from_secs(75),
            keepalive_probes: 9,
            challenge_interval: Duration::from_millis(500),
            nagle: false,
        }
    }
}

impl StackConfig {
    /// Number of payload blocks for written data.
    pub fn send_blocks(&self) -> usize {
        (self.blocks * usize::from(self.send_blocks_percent) / 100).clamp(1, self.blocks.max(2) - 1)
    }

    /// Number of payload blocks for received data.
    pub fn receive_blocks(&self) -> usize {
        self.blocks.saturating_sub(self.send_blocks())
    }

    /// The options that new connections start with.
    pub fn connection_options(&self) -> ConnectionOptions {
        ConnectionOptions {
            nagle: self.nagle,
            congestion: self.congestion,
            pacing: self.pacing,
            ecn: self.ecn,
            keepalive_idle: self.keepalive_idle,
            keepalive_interval: self.keepalive_interval,
            keepalive_probes: self.keepalive_probes,
            user_timeout: None,
            mss: None,
        }
    }

    /// Returns the configuration with every value clamped to the range that the engine relies on.
    pub(crate) fn clamped(mut self) -> Self {
        self.first_label_index = self.first_label_index.max(1);
        let room = (1usize << csp_types::INDEX_BITS) - self.first_label_index as usize;
        self.connections = self.connections.clamp(1, room);
        self.half_open = self.half_open.max(1);
        self.time_wait_entries = self.time_wait_entries.max(1);
        self.replies = self.replies.max(1);
        self.replies_per_second = self.replies_per_second.max(1);
        self.cookie_replies = self.cookie_replies.max(1);
        self.blocks = self.blocks.clamp(8, 1 << 28);
        self.send_blocks_percent = self.send_blocks_percent.clamp(1, 99);
        self.block_len = self.block_len.clamp(512, 1 << 16).next_power_of_two();
        self.records = self.records.min(1 << 30);
        self.records_per_connection = self.records_per_connection.max(8);
        // RFC 7323 §2.3: a window never exceeds 2³⁰.
        self.receive_window_max = self.receive_window_max.clamp(2_048, 1 << 30);
        self.receive_window_initial = self.receive_window_initial.clamp(2_048, self.receive_window_max);
        self.send_buffer_max = self.send_buffer_max.clamp(2_048, 1 << 30);
        self.send_buffer_min = self.send_buffer_min.clamp(2_048, self.send_buffer_max);
        self.mss_v4 = self.mss_v4.max(crate::MSS_MIN);
        self.mss_v6 = self.mss_v6.max(crate::MSS_MIN);
        self.path_mtu_min_v4 = self.path_mtu_min_v4.max(crate::MSS_MIN + 40);
        self.initial_window_segments = self.initial_window_segments.clamp(1, 1_000);
        self.rto_min = self.rto_min.max(Duration::from_millis(1));
        self.rto_max = self.rto_max.max(self.rto_min);
        self.rto_initial = self.rto_initial.clamp(self.rto_min, self.rto_max);
        self
    }
}

/// Options of one connection, in place of the defaults in [`StackConfig`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionOptions {
    /// See [`StackConfig::nagle`].
    pub nagle: bool,
    /// See [`StackConfig::congestion`].
    pub congestion: CongestionControl,
    /// See [`StackConfig::pacing`].
    pub pacing: bool,
    /// See [`StackConfig::ecn`]. Has no effect once the handshake has begun.
    pub ecn: EcnMode,
    /// See [`StackConfig::keepalive_idle`].
    pub keepalive_idle: Option<Duration>,
    /// See [`StackConfig::keepalive_interval`].
    pub keepalive_interval: Duration,
    /// See [`StackConfig::keepalive_probes`].
    pub keepalive_probes: u8,
    /// How long sent data may stay unacknowledged, or the peer's window closed, before the connection fails
    /// (RFC 5482). `None`: only the number of retries limits it.
    pub user_timeout: Option<Duration>,
    /// Largest segment to advertise to the peer and to send, in bytes of payload and TCP options, if smaller
    /// than [`StackConfig::mss_v4`] or [`StackConfig::mss_v6`]. Has no effect once the handshake has begun.
    pub mss: Option<u16>,
}

/// [`ConnectionOptions`] in compact form: times are whole milliseconds, and 0 means `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptOptions {
    pub nagle: bool,
    pub pacing: bool,
    pub ecn: EcnMode,
    pub keepalive_probes: u8,
    keepalive_idle_ms: u32,
    keepalive_interval_ms: u32,
    user_timeout_ms: u32,
    /// [`ConnectionOptions::mss`]; `u16::MAX` for `None`.
    pub mss_max: u16,
}

impl From<ConnectionOptions> for KeptOptions {
    fn from(options: ConnectionOptions) -> Self {
        let kept = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1);
        KeptOptions {
            nagle: options.nagle,
            pacing: options.pacing,
            ecn: options.ecn,
            keepalive_probes: options.keepalive_probes,
            keepalive_idle_ms: options.keepalive_idle.map_or(0, kept),
            keepalive_interval_ms: kept(options.keepalive_interval),
            user_timeout_ms: options.user_timeout.map_or(0, kept),
            mss_max: options.mss.map_or(u16::MAX, |mss| mss.max(crate::MSS_MIN)),
        }
    }
}

impl KeptOptions {
    /// Converts back to [`ConnectionOptions`]; times are rounded to milliseconds.
    pub fn with(&self, congestion: CongestionControl) -> ConnectionOptions {
        ConnectionOptions {
            nagle: self.nagle,
            congestion,
            pacing: self.pacing,
            ecn: self.ecn,
            keepalive_idle: self.keepalive_idle(),
            keepalive_interval: self.keepalive_interval(),
            keepalive_probes: self.keepalive_probes,
            user_timeout: self.user_timeout(),
            mss: (self.mss_max < u16::MAX).then_some(self.mss_max),
        }
    }

    pub fn keepalive_idle(&self) -> Option<Duration> {
        (self.keepalive_idle_ms > 0).then(|| Duration::from_millis(self.keepalive_idle_ms.into()))
    }

    pub fn keepalive_interval(&self) -> Duration {
        Duration::from_millis(self.keepalive_interval_ms.into())
    }

    pub fn user_timeout(&self) -> Option<Duration> {
        (self.user_timeout_ms > 0).then(|| Duration::from_millis(self.user_timeout_ms.into()))
    }
}
