//! What is recorded of a connection when it ends: whose it was, how long each part took, and who ended it.
//!
//! ```text
//!  SYN/ACK ── handshake ──▶ established ── wait ──▶ a server has it ──▶ its first byte ──▶ the end
//! ```
//! Off, it costs a comparison at each of these points. On, each connection has a place for its progress, and
//! what ended waits in a list of fixed length for the daemon; what finds no room there is counted.

use std::collections::HashMap;
use std::sync::Arc;

use csp_tcp::Figures;
use csp_types::{FlowLabel, FourTuple, Instant};

use super::dispatch::pool::MemberId;
use super::dispatch::services::ServerHost;
use super::flow::Flow;
use super::reason;

/// Records that wait for the daemon, which takes them every tenth of a second.
pub const WAITING_MAX: usize = 16_384;
/// Bytes of a process's name that are kept.
const NAME_LEN: usize = 24;

/// How a connection ended, and who ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Both have finished, the client first.
    ClosedByClient,
    /// Both have finished, the server first.
    ClosedByServer,
    /// The client reset it.
    ClientReset,
    /// The client acknowledged nothing any more.
    ClientSilent,
    /// The server reset it, or closed it with bytes unread.
    ServerReset,
    /// The plain server acknowledged nothing any more.
    ServerSilent,
    /// The link to the process was lost.
    ServerLost,
    /// No server could be reached.
    ServerUnreachable,
    /// No process of its service listened.
    NoServer,
    /// No server took it within the time of the backlog.
    BacklogTime,
    /// A process handed it over, and none took it.
    NotTakenOver,
    /// It was idle while the table or the memory was nearly full.
    Idle,
    /// Its client acknowledged nothing while the memory was exhausted.
    Stalled,
    /// Its client moved nothing for long after the server had finished.
    HalfClosed,
    /// There was no memory for it.
    NoMemory,
    /// The handshake of TLS failed, or took too long.
    Handshake,
    /// Its client asked for a server's name (SNI) that its service does not have.
    UnknownName,
    /// One end broke a protocol.
    Protocol,
    /// The proxy ended it for another reason, such as that its service is gone.
    Proxy,
}

impl End {
    /// Returns the name, as in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            End::ClosedByClient => "closed_by_client",
            End::ClosedByServer => "closed_by_server",
            End::ClientReset => "client_reset",
            End::ClientSilent => "client_silent",
            End::ServerReset => "server_reset",
            End::ServerSilent => "server_silent",
            End::ServerLost => "server_lost",
            End::ServerUnreachable => "server_unreachable",
            End::NoServer => "no_server",
            End::BacklogTime => "backlog_time",
            End::NotTakenOver => "not_taken_over",
            End::Idle => "idle",
            End::Stalled => "stalled",
            End::HalfClosed => "half_closed",
            End::NoMemory => "no_memory",
            End::Handshake => "handshake",
            End::UnknownName => "unknown_name",
            End::Protocol => "protocol",
            End::Proxy => "proxy",
        }
    }

    /// Returns two letters: who (C client, S server, P proxy), and how.
    pub const fn code(self) -> &'static str {
        match self {
            End::ClosedByClient => "C-",
            End::ClosedByServer => "S-",
            End::ClientReset => "CR",
            End::ClientSilent => "CT",
            End::ServerReset => "SR",
            End::ServerSilent => "ST",
            End::ServerLost => "SL",
            End::ServerUnreachable => "SU",
            End::NoServer => "PN",
            End::BacklogTime => "PQ",
            End::NotTakenOver => "PH",
            End::Idle => "PI",
            End::Stalled => "PM",
            End::HalfClosed => "PC",
            End::NoMemory => "PR",
            End::Handshake => "CH",
            End::UnknownName => "CN",
            End::Protocol => "PX",
            End::Proxy => "PP",
        }
    }

    /// Returns whether both ends have finished.
    pub const fn is_well(self) -> bool {
        matches!(self, End::ClosedByClient | End::ClosedByServer)
    }

    /// Returns what a failure of the client's connection with this code means.
    pub(crate) const fn of_client(code: u32) -> End {
        match code {
            reason::TIMED_OUT => End::ClientSilent,
            reason::INVALID => End::Protocol,
            _ => End::ClientReset,
        }
    }

    /// Returns what a failure of the connection to a plain server with this code means.
    pub(crate) const fn of_server(code: u32) -> End {
        match code {
            reason::TIMED_OUT => End::ServerSilent,
            _ => End::ServerReset,
        }
    }
}

/// What TLS says of a connection. Texts are empty where there is nothing to say.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TlsNote {
    /// The server's name (SNI) by which it went on to its service, or was refused.
    pub server_name: Box<str>,
    /// The subject of its client's certificate (RFC 4514).
    pub client: Box<str>,
    /// Why the handshake failed.
    pub fault: Box<str>,
}

/// A connection that has ended.
#[derive(Clone, Debug)]
pub struct EndedConnection {
    /// Its label.
    pub label: FlowLabel,
    /// The client's and the service's address.
    pub tuple: FourTuple,
    /// Its service.
    pub service: Arc<str>,
    /// The server that had it, with its port.
    pub server: Option<(ServerHost, u16)>,
    /// The beginning of the process's name; empty: none had it.
    pub process: ProcessName,
    /// Bytes from and to the client.
    pub bytes: (u64, u64),
    /// Time from the SYN/ACK to its acknowledgement in microseconds; 0: not measured.
    pub handshake_us: u32,
    /// When it was established.
    pub began: Instant,
    /// When a server had it.
    pub opened: Option<Instant>,
    /// When the server's first byte came.
    pub first_byte: Option<Instant>,
    /// When it ended.
    pub ended: Instant,
    /// Smoothed round-trip time and retransmissions, towards the client.
    pub figures: Figures,
    /// How it ended.
    pub end: End,
    /// What TLS says of it; `None`: nothing.
    pub tls: Option<Box<TlsNote>>,
}

/// The beginning of a process's name.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ProcessName {
    bytes: [u8; NAME_LEN],
    len: u8,
}

impl ProcessName {
    fn of(name: &str) -> ProcessName {
        let name = &name[..name.floor_char_boundary(NAME_LEN)];
        let mut bytes = [0; NAME_LEN];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        ProcessName { bytes, len: name.len() as u8 }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len.into()).unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug)]
struct Progress {
    label: FlowLabel,
    handshake_us: u32,
    member: Option<MemberId>,
    process: ProcessName,
    opened: Option<Instant>,
    first_byte: Option<Instant>,
}

/// A service.
#[derive(Clone, Debug)]
struct Sampled {
    name: Arc<str>,
    /// Of so many connections that end well one is recorded.
    sample: u32,
    /// Those that have ended well.
    well: u64,
}

/// The log of one worker.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLog {
    first_index: usize,
    /// By number of the service.
    services: HashMap<u32, Sampled>,
    /// Empty: off.
    progress: Box<[Progress]>,
    ended: Vec<EndedConnection>,
    lost: u64,
    /// Of connections of TLS that are in the log.
    notes: HashMap<FlowLabel, Box<TlsNote>>,
}

impl ConnectionLog {
    /// Begins, with a place for each of `connections` labels from `first_index` on.
    pub(crate) fn begin(&mut self, first_index: usize, connections: usize) {
        if !self.is_on() {
            self.first_index = first_index;
            self.progress = vec![Progress::of(FlowLabel::NONE, 0); connections].into_boxed_slice();
            self.ended.reserve(WAITING_MAX);
        }
    }

    /// Sets a service's name, and of how many connections that end well one is recorded.
    pub(crate) fn set_service(&mut self, number: u32, name: &str, sample: u32) {
        let known = self.services.entry(number);
        let known = known.or_insert_with(|| Sampled { name: name.into(), sample, well: 0 });
        if *known.name != *name {
            known.name = name.into();
        }
        known.sample = sample;
    }

    /// Ends; what waits can still be taken.
    pub(crate) fn stop(&mut self) {
        self.progress = Box::default();
        self.notes = HashMap::new();
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.progress.is_empty()
    }

    #[inline]
    fn of(&mut self, label: FlowLabel) -> Option<&mut Progress> {
        let at = label.index().wrapping_sub(self.first_index);
        self.progress.get_mut(at).filter(|progress| progress.label == label)
    }

    /// A connection is established.
    #[inline]
    pub(crate) fn began(&mut self, label: FlowLabel, handshake_us: u32) {
        let at = label.index().wrapping_sub(self.first_index);
        if let Some(progress) = self.progress.get_mut(at) {
            *progress = Progress::of(label, handshake_us);
        }
    }

    /// Notes what TLS says of a connection that has begun.
    pub(crate) fn note(&mut self, label: FlowLabel, server_name: Option<&str>, client: Option<&str>) {
        if self.of(label).is_none() || (server_name, client) == (None, None) {
            return;
        }
        let text = |text: Option<&str>| text.unwrap_or_default().into();
        let note = TlsNote { server_name: text(server_name), client: text(client), fault: text(None) };
        self.notes.insert(label, note.into());
    }

    /// A server has it: a process, or a plain server.
    #[inline]
    pub(crate) fn opened(&mut self, now: Instant, label: FlowLabel, member: MemberId, process: &str) {
        if let Some(progress) = self.of(label) {
            (progress.opened, progress.member) = (Some(now), Some(member));
            progress.process = ProcessName::of(process);
        }
    }

    /// The server's first byte has come.
    #[inline]
    pub(crate) fn first_byte(&mut self, now: Instant, label: FlowLabel) {
        if let Some(progress) = self.of(label) {
            progress.first_byte = Some(now);
        }
    }

    /// Returns the member that had a connection, if it is in the log.
    pub(crate) fn member(&mut self, label: FlowLabel) -> Option<Option<MemberId>> {
        self.of(label).map(|progress| progress.member)
    }

    /// Records the end of a connection that is in the log.
    pub(crate) fn ended(
        &mut self,
        now: Instant,
        flow: &Flow,
        server: Option<(ServerHost, u16)>,
        figures: Figures,
    ) {
        let Some(progress) = self.of(flow.label) else { return };
        let Progress { handshake_us, process, opened, first_byte, .. } = *progress;
        let end = flow.end.unwrap_or(End::Proxy);
        progress.label = FlowLabel::NONE;
        let tls = self.notes.remove(&flow.label);
        let Some(service) = self.services.get_mut(&flow.service) else { return };
        if end.is_well() {
            service.well += 1;
            if service.sample == 0 || !(service.well - 1).is_multiple_of(service.sample.into()) {
                return;
            }
        }
        let service = Arc::clone(&service.name);
        self.push(EndedConnection {
            label: flow.label,
            tuple: flow.tuple,
            service,
            server,
            process,
            bytes: (flow.bytes_to_app, flow.bytes_from_app),
            handshake_us,
            began: flow.began,
            opened,
            first_byte,
            ended: now,
            figures,
            end,
            tls,
        });
    }

    /// Records a connection that ended before it was a flow.
    pub(crate) fn refused(&mut self, now: Instant, of: (FlowLabel, FourTuple, u32), end: End) {
        self.refused_because(now, of, end, || None);
    }

    /// As [`refused`](Self::refused), with what TLS says of it.
    pub(crate) fn refused_because(
        &mut self,
        now: Instant,
        (label, tuple, service): (FlowLabel, FourTuple, u32),
        end: End,
        note: impl FnOnce() -> Option<TlsNote>,
    ) {
        if !self.is_on() {
            return;
        }
        let known = self.services.get(&service);
        let service = known.map_or_else(|| Arc::from("(removed)"), |service| Arc::clone(&service.name));
        self.push(EndedConnection {
            label,
            tuple,
            service,
            server: None,
            process: ProcessName::default(),
            bytes: (0, 0),
            handshake_us: 0,
            began: now,
            opened: None,
            first_byte: None,
            ended: now,
            figures: Figures::default(),
            end,
            tls: note().map(Box::new),
        });
    }

    fn push(&mut self, record: EndedConnection) {
        match self.ended.len() < WAITING_MAX {
            true => self.ended.push(record),
            false => self.lost += 1,
        }
    }

    /// Returns whether records wait.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Returns the records that wait, and how many found no room since the last call; `room` takes the place
    /// of their list.
    pub(crate) fn take(&mut self, room: Vec<EndedConnection>) -> (Vec<EndedConnection>, u64) {
        (std::mem::replace(&mut self.ended, room), std::mem::take(&mut self.lost))
    }
}

impl Progress {
    fn of(label: FlowLabel, handshake_us: u32) -> Progress {
        let process = ProcessName::default();
        Progress { label, handshake_us, member: None, process, opened: None, first_byte: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_between_characters() {
        assert_eq!(ProcessName::of("nginx").as_str(), "nginx");
        assert_eq!(ProcessName::of(&"é".repeat(20)).as_str(), "é".repeat(12));
        assert_eq!(ProcessName::of(&format!("x{}", "é".repeat(20))).as_str(), format!("x{}", "é".repeat(11)));
    }
}
