//! What the operator can choose about the engine. Every table's capacity is here, and is fixed at start-up.

use core::time::Duration;

use crate::cookies::SynCookies;
use crate::ecn::EcnMode;

/// Sizes and times of a [`crate::Stack`].
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// First label index this stack gives out; labels cover `first_label_index .. first_label_index + connections`.
    /// 0 is moved up to 1, because label 0 means "none".
    pub first_label_index: u32,
    /// Most connections at once, half-open ones included; at most 2²² − 1.
    pub connections: usize,
    /// Most passive connections in SYN-RECEIVED; one more is answered with a SYN cookie, or drops the oldest of them
    /// ([`StackConfig::syn_cookies`]).
    pub half_open: usize,
    /// Most connections remembered in TIME-WAIT; one more drops the oldest.
    pub time_wait_entries: usize,
    /// Most listening addresses.
    pub listeners: usize,
    /// Most answers to segments without a connection that wait to be transmitted.
    pub replies: usize,
    /// Most such answers per second.
    pub replies_per_second: u32,
    /// When SYNs are answered without keeping state (RFC 4987 §3.6).
    pub syn_cookies: SynCookies,
    /// Most SYN cookies that wait to be transmitted: as many as SYNs can arrive between two rounds of
    /// [`crate::Stack::poll_transmit`]. There is no limit per second, because each answers one SYN of about its size.
    pub cookie_replies: usize,
    /// Payload blocks of all connections, both directions together.
    pub blocks: usize,
    /// How many of the blocks are for what is written, in percent, 1 to 99; the others are for what arrives. Neither
    /// direction takes the other's.
    pub send_blocks_percent: u8,
    /// Length of a block in bytes; rounded up to a power of two, 512 at least.
    pub block_len: usize,
    /// Longest message that lands in a buffer for receiving ([`crate::Stack::lend`]), in bytes; at most 64 blocks.
    pub receive_message_len: usize,
    /// Longest message with bytes to be written that lands in a buffer, in bytes; at most 64 blocks.
    pub send_message_len: usize,
    /// Sets of up to [`crate::RANGES_PER_SET`] ranges for data out of order; a connection takes one while it has such.
    pub range_sets: usize,
    /// Records of what is in flight, one per transmission of up to 64 KB or part of it with a fate of its own, shared by
    /// all connections. Each connection has one more of its own.
    pub records: usize,
    /// Most records of one connection: with all of them in use, transmissions share one, or wait.
    pub records_per_connection: u32,
    /// Most bytes a connection receives ahead of its reader.
    pub receive_window_max: u32,
    /// How many it receives at first, and while memory is short; the window grows to twice what is read per round trip.
    pub receive_window_initial: u32,
    /// Most bytes a connection keeps for sending, unacknowledged ones included.
    pub send_buffer_max: u32,
    /// How many it keeps at first, and while less than a quarter of the memory for sending is free; the buffer grows to
    /// twice the congestion window.
    pub send_buffer_min: u32,
    /// MSS told to and used towards IPv4 peers, in bytes without options (RFC 9293 §3.7.1).
    pub mss_v4: u16,
    /// Smallest path MTU towards IPv4 hosts that an ICMP error brings about, in bytes with IP header. What is smaller
    /// would serve an attacker (RFC 5927 §7.1).
    pub path_mtu_min_v4: u16,
    /// How long a lowered path MTU stays before a larger one is tried (RFC 1191 §6.3, RFC 8201 §4).
    pub path_mtu_age: Duration,
    /// Destinations whose path MTU is remembered for new connections.
    pub path_entries: usize,
    /// MSS told to and used towards IPv6 peers.
    pub mss_v6: u16,
    /// Initial congestion window in segments (RFC 6928).
    pub initial_window_segments: u32,
    /// How connections control congestion.
    pub congestion: CongestionControl,
    /// Whether data leaves at the rate that congestion control says instead of a window at once.
    pub pacing: bool,
    /// Whether connections use explicit congestion notification (RFC 3168).
    pub ecn: EcnMode,
    /// Key of the initial sequence numbers, timestamps offsets and tables; must be random per start (RFC 6528).
    pub isn_secret: [u8; 16],
    /// Retransmission timeout before the first RTT sample, SYNs included (RFC 6298 §2.1).
    pub rto_initial: Duration,
    /// Smallest retransmission timeout.
    pub rto_min: Duration,
    /// Largest retransmission timeout, backed off.
    pub rto_max: Duration,
    /// How often the SYN of an active open is retransmitted before it fails; over three minutes altogether by default
    /// (RFC 9293 §3.8.3, MUST-23).
    pub syn_retries: u8,
    /// How often a SYN/ACK is retransmitted before the half-open connection is forgotten.
    pub syn_ack_retries: u8,
    /// How often in succession data, FIN or a window probe goes without any answer before the connection fails.
    pub retries: u8,
    /// How long a peer may keep its window closed, while no more than a quarter of the blocks for sending is free, before
    /// its connection fails.
    pub zero_window_when_short: Duration,
    /// How long an acknowledgement may wait for company (RFC 9293 §3.8.6.3).
    pub delayed_ack: Duration,
    /// How many segments at the start of a connection, and after a loss was made good, are acknowledged at once.
    pub quick_acks: u8,
    /// How long TIME-WAIT lasts: twice the maximum segment lifetime (RFC 9293 §3.4.2).
    pub time_wait: Duration,
    /// How long FIN-WAIT-2 lasts once the application is gone ([`crate::Stack::close`]).
    pub fin_wait_2: Duration,
    /// Idle time after which keepalive probes start; `None` sends none (RFC 9293 §3.8.4).
    pub keepalive_idle: Option<Duration>,
    /// Time between unanswered keepalive probes.
    pub keepalive_interval: Duration,
    /// Unanswered keepalive probes after which the connection fails.
    pub keepalive_probes: u8,
    /// Least time between two challenge ACKs of one connection (RFC 5961 §7).
    pub challenge_interval: Duration,
    /// Whether small segments wait while others are in flight (RFC 9293 §3.7.4); a proxy does without.
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
            keepalive_idle: Some(Duration::from_secs(7_200)),
            keepalive_interval: Duration::from_secs(75),
            keepalive_probes: 9,
            challenge_interval: Duration::from_millis(500),
            nagle: false,
        }
    }
}

impl StackConfig {
    /// Blocks for what is written.
    pub fn send_blocks(&self) -> usize {
        (self.blocks * usize::from(self.send_blocks_percent) / 100).clamp(1, self.blocks.max(2) - 1)
    }

    /// Blocks for what arrives.
    pub fn receive_blocks(&self) -> usize {
        self.blocks.saturating_sub(self.send_blocks())
    }

    /// What connections begin with.
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
        }
    }

    /// The configuration with every value brought into the range the engine relies on.
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

/// How a connection finds out what the path carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum CongestionControl {
    /// Additive increase by a segment a round trip, half at loss (RFC 5681, RFC 6582).
    NewReno,
    /// Growth by a cubic function of the time since the last loss (RFC 9438), as Linux does.
    #[default]
    Cubic,
}

/// What one connection does differently from the [`StackConfig`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionOptions {
    /// See [`StackConfig::nagle`].
    pub nagle: bool,
    /// See [`StackConfig::congestion`].
    pub congestion: CongestionControl,
    /// See [`StackConfig::pacing`].
    pub pacing: bool,
    /// See [`StackConfig::ecn`]; without effect once the handshake has begun.
    pub ecn: EcnMode,
    /// See [`StackConfig::keepalive_idle`].
    pub keepalive_idle: Option<Duration>,
    /// See [`StackConfig::keepalive_interval`].
    pub keepalive_interval: Duration,
    /// See [`StackConfig::keepalive_probes`].
    pub keepalive_probes: u8,
    /// How long sent data may stay unacknowledged, or a window closed, before the connection fails (RFC 5482);
    /// `None` leaves it to the number of retries.
    pub user_timeout: Option<Duration>,
}

/// [`ConnectionOptions`] as a connection keeps them: times are whole milliseconds, 0 stands for none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptOptions {
    pub nagle: bool,
    pub pacing: bool,
    pub ecn: EcnMode,
    pub keepalive_probes: u8,
    keepalive_idle_ms: u32,
    keepalive_interval_ms: u32,
    user_timeout_ms: u32,
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
        }
    }
}

impl KeptOptions {
    /// As they were given, but for what was rounded.
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
