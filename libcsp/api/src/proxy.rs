//! Bodies of the proxy node.

use std::net::{IpAddr, SocketAddr};

use csp_types::FlowLabel;
use serde::{Deserialize, Serialize};

use crate::Text;

/// A connection: an element of `/v1/flows`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Flow {
    /// Label.
    #[serde(with = "crate::label")]
    pub label: FlowLabel,
    /// Client's address; of a connection that an application opened, the destination's.
    pub client: SocketAddr,
    /// Virtual address and port; of a connection that an application opened, the egress address.
    pub server: SocketAddr,
    /// Service; `egress` for connections that applications opened, `(removed)` when policy no longer names
    /// it.
    pub service: Text,
    /// App node of the process that the connection was given to, or address of the plain server; empty
    /// before.
    pub member: Text,
    /// That process; empty before.
    pub process: Text,
    /// State of TCP and stage towards the application, such as `Established/open`. Stages are `pending`,
    /// `offered`, `open`, `connecting`, `handed over` and `finishing`.
    pub state: Text,
    /// Payload bytes from the client to the application.
    pub bytes_in: u64,
    /// Payload bytes from the application to the client.
    pub bytes_out: u64,
    /// Milliseconds in this stage.
    pub age_ms: u64,
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: u64,
    /// Congestion control: `newreno` or `cubic`.
    pub congestion: Text,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Slow start threshold in bytes.
    pub ssthresh_bytes: u64,
    /// Whether both ends use ECN (RFC 3168).
    pub ecn: bool,
    /// Bytes per second that may leave; `null` where the connection is not paced.
    pub pacing_bytes_per_s: Option<u64>,
    /// Bytes per second that were delivered lately.
    pub delivery_bytes_per_s: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Bytes that wait at the proxy for the application.
    pub queued_in: u64,
    /// Bytes that wait at the proxy for the client's acknowledgement.
    pub queued_out: u64,
    /// Bytes that the application lets come.
    pub credit_in: u64,
    /// Bytes that the application may still send.
    pub credit_out: u64,
}

/// A service over all workers of the proxy: an element of `/v1/services`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Service {
    /// Name.
    pub name: Text,
    /// Virtual address and port.
    pub address: SocketAddr,
    /// Established connections that wait for a process.
    pub pending: u64,
    /// Pool, by node and port.
    pub members: Vec<PoolMember>,
    /// What was counted of clients' connections; `null` where it is not: of channels of messages, and by
    /// proxies of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<ServiceFigures>,
}

/// What was counted of clients' connections over TCP to a service, since the policy named it or the proxy
/// started. Figures that are 0 are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceFigures {
    /// Connections that were established.
    #[serde(skip_serializing_if = "is_zero")]
    pub connections_total: u64,
    /// Connections that have ended.
    #[serde(skip_serializing_if = "is_zero")]
    pub ended_total: u64,
    /// Those of them that ended by the server's fault, at a bound of the proxy, or by the proxy's.
    #[serde(skip_serializing_if = "is_zero")]
    pub errors_total: u64,
    /// Connections to which the server has sent a byte.
    #[serde(skip_serializing_if = "is_zero")]
    pub answered_total: u64,
    /// The sum of the times until that byte, from the establishment on, in microseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_byte_us_total: u64,
    /// Bytes passed from clients.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_in_total: u64,
    /// Bytes passed to clients.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_out_total: u64,
}

impl ServiceFigures {
    /// Adds those of another worker or proxy.
    pub fn add(&mut self, other: &ServiceFigures) {
        let sum = |mine: &mut u64, theirs: u64| *mine = mine.saturating_add(theirs);
        sum(&mut self.connections_total, other.connections_total);
        sum(&mut self.ended_total, other.ended_total);
        sum(&mut self.errors_total, other.errors_total);
        sum(&mut self.answered_total, other.answered_total);
        sum(&mut self.first_byte_us_total, other.first_byte_us_total);
        sum(&mut self.bytes_in_total, other.bytes_in_total);
        sum(&mut self.bytes_out_total, other.bytes_out_total);
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A member of a service's pool. Members are shared: two services that name the same node and port show the
/// same figures.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolMember {
    /// App node; empty for a plain server.
    pub node: Text,
    /// Address of a plain server, which is reached over TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Why a plain server gets no connections at the moment: how the last one to it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Text>,
    /// Port that its processes listen on.
    pub port: u16,
    /// Processes that listen; each listens at every worker and counts once.
    pub listeners: u64,
    /// Connections that are open at it or offered to it.
    pub open: u64,
    /// Connections that its processes have room for.
    pub accept_credit: u64,
    /// Connections that its processes accepted since the proxy came to know the member.
    pub connections_total: u64,
}

/// A channel of messages over all workers of the proxy: an element of `/v1/channels`. Totals count from when
/// the policy named the channel as it is, or the proxy started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Channel {
    /// Name.
    pub name: Text,
    /// Proxy and worker at which it lives, such as `pn-1/0`, as far as this proxy knows; empty if it knows
    /// none.
    #[serde(default)]
    pub owner: Text,
    /// Connected peers that publish or push.
    pub senders: u64,
    /// Connected peers that subscribe or pull.
    pub receivers: u64,
    /// Pairs of a receiver and a topic that it has subscribed to.
    pub subscriptions: u64,
    /// The query that a program has asked for, if it is one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<RequestedQuery>,
    /// Figures of its messages.
    #[serde(flatten)]
    pub figures: ChannelFigures,
}

/// A query that a program has asked a channel for (`docs/queries.md`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestedQuery {
    /// The channel that was asked.
    pub of: Text,
    /// Who asked first: a public key, or an address.
    pub by: Text,
    /// How many have asked for it.
    pub requesters: u64,
    /// The text.
    pub sql: Text,
    /// `sbe` or `json`.
    pub output: Text,
    /// Where subscribers connect.
    pub address: SocketAddr,
    /// The topic of its rows.
    pub topic: Text,
    /// Seconds that it runs without subscribers.
    pub lease_s: u64,
    /// Seconds until it ends; absent while it has subscribers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_in_s: Option<u64>,
}

/// Messages of a channel, and the memory that they have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ChannelFigures {
    /// Messages that arrived.
    pub messages_total: u64,
    /// Their bytes, all frames together.
    pub bytes_total: u64,
    /// Of them, those to which nobody subscribed.
    pub unmatched_total: u64,
    /// Copies given to receivers.
    pub delivered_total: u64,
    /// Copies not delivered because a receiver's queue was full or memory was short.
    pub dropped_total: u64,
    /// Messages lost with a receiver that had been given them.
    pub lost_total: u64,
    /// How often senders were held back.
    pub held_total: u64,
    /// Length-prefixed connections that were reset: a malformed length, or the end of the stream within a
    /// message.
    #[serde(default)]
    pub malformed_total: u64,
    /// Messages of none of the channel's formats, if it has any.
    #[serde(default)]
    pub unknown_format_total: u64,
    /// Messages refused while their sender stayed connected: too many frames or bytes, too long a topic, or a
    /// peer that does not publish.
    #[serde(default)]
    pub refused_total: u64,
    /// Rows that operators of the channel's path, or its query, were given and have not used.
    #[serde(default)]
    pub lost_rows: LostRows,
    /// Last values that are kept.
    #[serde(default)]
    pub last_values: u64,
    /// Last values that gave way to others.
    #[serde(default)]
    pub last_values_evicted_total: u64,
    /// Messages that were not kept as last values because they are longer than the memory for all of them.
    #[serde(default)]
    pub last_values_too_long_total: u64,
    /// Copies that wait for receivers, and pushed messages that wait for one.
    pub waiting: u64,
    /// Memory of messages, in bytes.
    pub memory_bytes: u64,
    /// Largest memory, in bytes, summed over workers.
    pub memory_max_bytes: u64,
}

impl ChannelFigures {
    /// Adds those of another worker or proxy.
    pub fn add(&mut self, other: &ChannelFigures) {
        let pairs = [
            (&mut self.messages_total, other.messages_total),
            (&mut self.bytes_total, other.bytes_total),
            (&mut self.unmatched_total, other.unmatched_total),
            (&mut self.delivered_total, other.delivered_total),
            (&mut self.dropped_total, other.dropped_total),
            (&mut self.lost_total, other.lost_total),
            (&mut self.held_total, other.held_total),
            (&mut self.malformed_total, other.malformed_total),
            (&mut self.unknown_format_total, other.unknown_format_total),
            (&mut self.refused_total, other.refused_total),
            (&mut self.last_values, other.last_values),
            (&mut self.last_values_evicted_total, other.last_values_evicted_total),
            (&mut self.last_values_too_long_total, other.last_values_too_long_total),
            (&mut self.waiting, other.waiting),
            (&mut self.memory_bytes, other.memory_bytes),
            (&mut self.memory_max_bytes, other.memory_max_bytes),
        ];
        pairs.into_iter().for_each(|(own, more)| *own = own.saturating_add(more));
        self.lost_rows.add(&other.lost_rows);
    }
}

/// Rows that operators were given and have not used, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LostRows {
    /// They came after the time up to which rows were waited for.
    pub late_total: u64,
    /// They gave way to others, or found no room, because the operator's memory is bounded.
    pub evicted_total: u64,
    /// They are not of their format, or have a value that the result cannot say.
    pub invalid_total: u64,
    /// They have a null in a key or in their time.
    pub unmatched_total: u64,
    /// They are longer than the operator has room for.
    pub too_long_total: u64,
}

impl LostRows {
    /// The totals by reason, as metrics and lists name them.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("late", self.late_total),
            ("evicted", self.evicted_total),
            ("invalid", self.invalid_total),
            ("unmatched", self.unmatched_total),
            ("too_long", self.too_long_total),
        ]
    }

    /// Adds those of another operator.
    pub fn add(&mut self, other: &LostRows) {
        let own = [
            &mut self.late_total,
            &mut self.evicted_total,
            &mut self.invalid_total,
            &mut self.unmatched_total,
            &mut self.too_long_total,
        ];
        own.into_iter().zip(other.named()).for_each(|(own, (_, more))| *own = own.saturating_add(more));
    }

    /// The totals in words, such as `4 late, 1927 evicted`; `0` if nothing was lost.
    pub fn words(&self) -> String {
        let lost = self.named().into_iter().filter(|(_, count)| *count > 0);
        let words: Vec<String> =
            lost.map(|(reason, count)| format!("{count} {}", reason.replace('_', " "))).collect();
        if words.is_empty() { "0".to_owned() } else { words.join(", ") }
    }
}
