//! Options that the policy or a configuration sets and that the wire or the data path obeys.
//!
//! Each stands here once, so that no layer converts between enumerations of its own. With the feature `serde`
//! they are read and written by the words of the policy. Defaults belong to the structs that hold the
//! options, where layers have different ones.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Action after a supplied handler was stopped because it trapped, ran too long, or asked for too much. The
/// numbers are those of the context protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
#[repr(u8)]
pub enum OnStop {
    /// The module is started again, after a pause that grows each time. Messages that arrive meanwhile are
    /// given up and counted. After 16 stops the action is [`End`](Self::End); a module that has run for a
    /// minute begins with all restarts again.
    #[default]
    Restart = 0,
    /// Messages bypass the handler from then on. The message that stopped it is given up.
    Pass = 1,
    /// The path ends: messages are given up here from then on, and counted.
    End = 2,
}

impl OnStop {
    /// Returns the action with this number on the wire.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => OnStop::Restart,
            1 => OnStop::Pass,
            2 => OnStop::End,
            _ => return None,
        })
    }
}

/// State of a stage that runs a supplied handler. The numbers are those of the context protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Standing {
    /// It runs.
    #[default]
    Running = 0,
    /// Its module was stopped, and waits to be restarted.
    Waiting = 1,
    /// Its module was stopped, and messages bypass it.
    PassedBy = 2,
    /// Its module was stopped, and messages end here.
    Ended = 3,
    /// It does not run: its messages wait at the proxy.
    Refused = 4,
}

impl Standing {
    /// Returns the state with this number on the wire.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Standing::Running,
            1 => Standing::Waiting,
            2 => Standing::PassedBy,
            3 => Standing::Ended,
            4 => Standing::Refused,
            _ => return None,
        })
    }
}

/// Division of contexts, or of the capacity of an output link, among information flows (IQ, Table 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub enum Scheme {
    /// RR: flows that have items, one after the other. At a link each gets as many bytes.
    #[cfg_attr(feature = "serde", serde(rename = "RR"))]
    RoundRobin,
    /// EAS: each flow has an equal share, whether it uses it or not.
    #[cfg_attr(feature = "serde", serde(rename = "EAS"))]
    EqualStatic,
    /// SA: each flow has the share that it reserves, whether it uses it or not. Flows that reserve nothing
    /// share the rest by priority.
    #[cfg_attr(feature = "serde", serde(rename = "SA"))]
    Static,
    /// PA: the flows of the highest priority that have items, one after the other.
    #[cfg_attr(feature = "serde", serde(rename = "PA"))]
    PriorityAware,
    /// PAR: what flows reserve first; the rest as under PA. A reservation that is not used is lent.
    #[cfg_attr(feature = "serde", serde(rename = "PAR"))]
    PriorityAwareReserved,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 5] = [
        Scheme::RoundRobin,
        Scheme::EqualStatic,
        Scheme::Static,
        Scheme::PriorityAware,
        Scheme::PriorityAwareReserved,
    ];

    /// Returns the abbreviation of the paper, which the policy uses.
    pub const fn abbreviation(self) -> &'static str {
        match self {
            Scheme::RoundRobin => "RR",
            Scheme::EqualStatic => "EAS",
            Scheme::Static => "SA",
            Scheme::PriorityAware => "PA",
            Scheme::PriorityAwareReserved => "PAR",
        }
    }

    /// Returns whether flows have shares that others do not get while they are idle. The other schemes
    /// conserve work.
    pub const fn is_static(self) -> bool {
        matches!(self, Scheme::EqualStatic | Scheme::Static)
    }
}

/// What is metered of information flows (IQ §4, "Monitoring overheads"). Counters always run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum MonitorMode {
    /// Nothing; triggers do not fire.
    Off,
    /// Lengths of queues (the paper's queue length monitoring).
    Queues,
    /// Those, and rates and delays of each priority (the paper's simple monitoring).
    Priorities,
    /// Those, and rates and delays of each flow (the paper's fancy monitoring).
    Flows,
}

/// Action on a data item whose flow's queue is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "kebab-case"))]
pub enum Overflow {
    /// The item is dropped and counted.
    #[default]
    DropNewest,
    /// The items that have waited longest are dropped and counted until there is room.
    DropOldest,
    /// The item stays with its sender, which is held back.
    Hold,
}

/// Action on a message for a receiver whose queue is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "kebab-case"))]
pub enum FullQueue {
    /// The message is dropped, as libzmq does.
    #[default]
    DropNewest,
    /// The message that has waited longest is dropped.
    DropOldest,
    /// Publishers are held back before the queue is exceeded.
    Block,
}

/// Decides which messages of a channel have the same key: a later one replaces an earlier one with the same
/// key as last value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum LastValueKey {
    /// The first frame, up to the longest topic: for messages of several frames.
    #[default]
    Topic,
    /// The first bytes of the message, at most as many as a block has.
    Bytes(u16),
}

/// Order of the bytes of a number, such as the length before a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum ByteOrder {
    /// The first byte is the most significant one, as in the Internet's protocols.
    #[default]
    Big,
    /// The last byte is the most significant one.
    Little,
}

/// A congestion control algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum CongestionControl {
    /// Additive increase by one segment per round trip, window halved on loss (RFC 5681, RFC 6582).
    NewReno,
    /// Growth by a cubic function of the time since the last loss (RFC 9438); the default of Linux.
    #[default]
    Cubic,
}

/// Use of explicit congestion notification by a connection (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum EcnMode {
    /// Never.
    Off,
    /// If the peer proposes it.
    #[default]
    Passive,
    /// The engine proposes it, too, where it opens the connection: only the opening side can (RFC 3168
    /// §6.1.1). If its SYN is not answered, it is retransmitted without the proposal.
    Active,
}

/// When SYNs are answered by cookies, without storing state (RFC 4987 §3.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum SynCookies {
    /// While the table of half-open connections, or that of all connections, is full.
    #[default]
    Auto,
    /// Never: when the table is full, a SYN evicts the oldest half-open connection (RFC 4987 §3.4).
    Off,
    /// For every SYN; for tests.
    Always,
}

/// Action on a rule's packets while the environment of its plug-in does not run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Fallback {
    /// They are routed as if no rule had matched.
    #[default]
    Pass,
    /// They are dropped.
    Drop,
}

/// Form of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum LogFormat {
    /// One readable line per event.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_wire_are_read_as_they_are_written() {
        for number in 0..=u8::MAX {
            assert!(OnStop::from_u8(number).is_none_or(|on_stop| on_stop as u8 == number));
            assert!(Standing::from_u8(number).is_none_or(|standing| standing as u8 == number));
        }
        assert_eq!((0..=u8::MAX).filter_map(OnStop::from_u8).count(), 3);
        assert_eq!((0..=u8::MAX).filter_map(Standing::from_u8).count(), 5);
    }
}
