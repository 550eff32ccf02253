//! Upstream connections of local services: flows whose client's end is the local service itself.
//!
//! ```text
//!        ACCEPTED, SYN/ACK          Step::Close                 CLOSE of the process, or time
//!  Asked ───────────────▶ Served ───────────────▶ Closing ──────────────────────────────────▶ (gone)
//!    └─ refused, late,      └─ server gone and all read, both finished, reset ──────────────▶ (gone)
//!       cancelled ────────────────────────────────────────────────────────────────────────▶ (gone)
//! ```
//! The flow table has their stages towards the server ([`Stage`](crate::Stage)). This part owns their
//! labels, the bytes that processes sent and services have not read, the requests by token, and their
//! deadlines. The bytes lie in the TCP engine's memory for sending, so that they can move to a client without
//! copying. Those of plain servers are the TCP engine's ([`plain`]).

mod course;
mod ends;
mod loops;
mod plain;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;

use csp_tcp::{HeldBytes, Stack};
use csp_types::{Duration, FlowLabel, Instant, LabelAllocator};
use csp_wire::channel::{MessageHeader, MessageKind, bytes_read};

use super::service::upstream::{Ended, Excluded, OpenError};

pub(crate) use ends::ServiceEnds;

/// How long a connection that the service has closed waits for the process to close it.
pub const CLOSING_MAX: Duration = Duration::from_secs(60);
/// Number of requests with excluded members that wait for a process at which further ones are refused. Those
/// whose offer was withdrawn, or whose process has died, wait again beyond it.
pub const EXCLUDING_MAX: usize = 256;

/// State of an upstream connection from the view of its local service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The request is not answered.
    Asked,
    /// The service uses the connection.
    Served,
    /// The service has finished with it: the request was cancelled, or the connection was closed and the
    /// process has yet to close it.
    Closing,
}

/// The service's end of one upstream connection.
#[derive(Debug)]
pub(crate) struct End {
    label: FlowLabel,
    pub(crate) state: State,
    token: u64,
    excluded: Excluded,
    /// Time at which the request fails, or the closed connection is reset.
    deadline: Option<Instant>,
    /// The address to which the client has connected, or that of the service; `None` if servers learn of no
    /// client.
    front: Option<SocketAddr>,
    /// The error reported for the request when the flow is removed.
    error: OpenError,
    /// How the connection has ended at the process.
    pub(crate) ended: Option<Ended>,
    /// How many bytes of the service the process has read, as it said when it closed the connection.
    pub(crate) bytes_read: Option<u64>,
    /// Whether another process takes the connection over, or has: what was read of it is not known any more.
    moved: bool,
    /// Whether the service sends no more.
    finished: bool,
    /// Its server gets no new connections. Known once the connection is served.
    unwanted: bool,
    /// Whether the service's DATA waits for the lane.
    parked: bool,
    /// Bytes of the process that the service has not read.
    pub(crate) held: HeldBytes,
}

/// What is reported to the service about a flow that is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Report {
    /// The request with this token has failed.
    Failed(u64, OpenError),
    /// The connection has ended.
    Gone(Ended),
    /// Nothing: the service knows.
    None,
}

/// All upstream connections of a worker.
#[derive(Debug)]
pub(crate) struct Upstreams {
    first_index: usize,
    labels: LabelAllocator<Box<[u32]>>,
    ends: Box<[Option<End>]>,
    live: usize,
    /// Unanswered requests.
    tokens: HashMap<u64, FlowLabel>,
    deadlines: BTreeSet<(Instant, u32)>,
    /// Requests with excluded members that wait for a process, in order of arrival. They are not in a
    /// backlog, where a request that no process can serve would block the others.
    excluding: VecDeque<FlowLabel>,
}

impl End {
    /// Returns whether the service uses the connection.
    fn is_served(&self) -> bool {
        self.state == State::Served
    }
}

impl Upstreams {
    /// Allocates `count` connections, whose labels begin with this index.
    pub(crate) fn new(first_index: u32, count: usize) -> Self {
        let zeros = || vec![0; count].into_boxed_slice();
        Upstreams {
            first_index: first_index.max(1) as usize,
            labels: LabelAllocator::new(first_index, zeros(), zeros()),
            ends: std::iter::repeat_with(|| None).take(count).collect(),
            live: 0,
            tokens: HashMap::with_capacity(2 * count),
            deadlines: BTreeSet::new(),
            excluding: VecDeque::with_capacity(EXCLUDING_MAX),
        }
    }

    /// Notes what a message of a process says of what it has read of the `sent` bytes. What it reads behind
    /// the end of its own stream is answered no more.
    #[inline]
    pub(crate) fn note_read(&mut self, label: FlowLabel, header: &MessageHeader, sent: u64) {
        use MessageKind::{Close, HandOver, Reset, Shutdown};
        if !matches!(header.kind, Shutdown | Close | Reset | HandOver) {
            return;
        }
        let Some(end) = self.get_mut(label) else { return };
        match header.kind {
            HandOver => end.moved = true,
            _ => end.bytes_read = end.bytes_read.or(bytes_read(header.argument, sent)),
        }
    }

    /// Returns the number of connections and unanswered requests.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Returns whether a label is in the range of upstream connections, in use or not.
    pub(crate) fn is_of(&self, label: FlowLabel) -> bool {
        self.slot(label).is_some()
    }

    /// Begins a request; returns its flow's label.
    fn begin(
        &mut self,
        token: u64,
        excluded: Excluded,
        deadline: Option<Instant>,
    ) -> Result<FlowLabel, OpenError> {
        if self.tokens.contains_key(&token) {
            return Err(OpenError::TokenInUse);
        }
        if !excluded.is_empty() && !self.has_room_to_exclude() {
            return Err(OpenError::NoRoom);
        }
        let label = self.labels.allocate().ok_or(OpenError::NoRoom)?;
        let at = self.slot(label).ok_or(OpenError::NoRoom)?;
        self.ends[at] = Some(End {
            label,
            state: State::Asked,
            token,
            excluded,
            deadline,
            front: None,
            error: OpenError::NoServer,
            ended: None,
            bytes_read: None,
            moved: false,
            finished: false,
            unwanted: false,
            parked: false,
            held: HeldBytes::default(),
        });
        self.live += 1;
        self.tokens.insert(token, label);
        self.deadlines.extend(deadline.map(|at| (at, label.to_wire())));
        Ok(label)
    }

    /// Returns whether one more request may wait apart from the backlogs. Requests that were answered
    /// meanwhile do not count.
    fn has_room_to_exclude(&mut self) -> bool {
        if self.excluding.len() >= EXCLUDING_MAX {
            let mut excluding = std::mem::take(&mut self.excluding);
            excluding.retain(|label| self.get(*label).is_some_and(|end| end.state == State::Asked));
            self.excluding = excluding;
        }
        self.excluding.len() < EXCLUDING_MAX
    }

    /// Releases the end of a flow that was removed, with its bytes. Returns `None` if the flow is not an
    /// upstream connection.
    pub(crate) fn release(&mut self, tcp: &mut Stack, label: FlowLabel) -> Option<Report> {
        let at = self.slot(label)?;
        let mut end = self.ends[at].take_if(|end| end.label == label)?;
        tcp.discard_held(&mut end.held, usize::MAX);
        self.forget_request(&mut end);
        self.live -= 1;
        self.labels.release(label);
        Some(match end.state {
            State::Asked => Report::Failed(end.token, end.error),
            State::Served => Report::Gone(end.ended.unwrap_or(Ended::Reset)),
            State::Closing => Report::None,
        })
    }

    /// Records that a process has accepted; returns the request's token.
    fn accept(&mut self, label: FlowLabel) -> Option<u64> {
        let at = self.slot(label)?;
        let mut end = self.ends[at].take_if(|end| end.label == label && end.state == State::Asked)?;
        self.forget_request(&mut end);
        end.state = State::Served;
        let token = end.token;
        self.ends[at] = Some(end);
        Some(token)
    }

    /// Withdraws a request. Returns its flow, about which nothing more is reported.
    fn cancel(&mut self, token: u64) -> Option<FlowLabel> {
        let label = self.tokens.remove(&token)?;
        self.get_mut(label)?.state = State::Closing;
        Some(label)
    }

    /// Records that the service has closed a connection, which is reset at `until`.
    fn close(&mut self, label: FlowLabel, until: Instant) {
        let Some(end) = self.get_mut(label) else { return };
        (end.state, end.deadline) = (State::Closing, Some(until));
        self.deadlines.insert((until, label.to_wire()));
    }

    /// Returns when [`next_overdue`](Self::next_overdue) is to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Removes and returns a connection whose deadline has passed.
    pub(crate) fn next_overdue(&mut self, now: Instant) -> Option<FlowLabel> {
        while let Some((_, label)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.pop_first();
            if let Some(label) = FlowLabel::from_wire(label) {
                return Some(label);
            }
        }
        None
    }

    /// Returns the members that a flow's request excludes.
    pub(crate) fn excluded(&self, label: FlowLabel) -> &Excluded {
        self.get(label).map_or(&Excluded::NONE, |end| &end.excluded)
    }

    /// Queues a request apart from the backlog if it excludes members; `false` if it does not.
    pub(crate) fn wait(&mut self, label: FlowLabel) -> bool {
        let excludes = !self.excluded(label).is_empty();
        if excludes {
            self.excluding.push_back(label);
        }
        excludes
    }

    /// Returns the length of the queue apart from the backlogs, including requests answered since.
    pub(crate) fn excluding_len(&self) -> usize {
        self.excluding.len()
    }

    /// Removes and returns the first request of the queue apart from the backlogs.
    pub(crate) fn next_excluding(&mut self) -> Option<FlowLabel> {
        self.excluding.pop_front()
    }

    /// Returns whether a service uses this connection.
    pub(crate) fn is_served(&self, label: FlowLabel) -> bool {
        self.get(label).is_some_and(End::is_served)
    }

    /// Returns whether the server of a connection that the service uses gets new connections.
    pub(crate) fn is_wanted(&self, label: FlowLabel) -> bool {
        self.get(label).is_some_and(|end| end.is_served() && !end.unwanted)
    }

    /// Returns the connections that services use.
    fn served(&self) -> impl Iterator<Item = FlowLabel> {
        self.ends.iter().flatten().filter(|end| end.is_served()).map(|end| end.label)
    }

    /// Records that a connection no longer waits for its lane; `false` if it did not wait.
    pub(crate) fn unpark(&mut self, label: FlowLabel) -> bool {
        self.get_mut(label).is_some_and(|end| std::mem::take(&mut end.parked))
    }

    /// Returns the end of a connection.
    pub(crate) fn get(&self, label: FlowLabel) -> Option<&End> {
        self.ends[self.slot(label)?].as_ref().filter(|end| end.label == label)
    }

    /// Returns the end of a connection for changes.
    pub(crate) fn get_mut(&mut self, label: FlowLabel) -> Option<&mut End> {
        let at = self.slot(label)?;
        self.ends[at].as_mut().filter(|end| end.label == label)
    }

    #[inline]
    fn slot(&self, label: FlowLabel) -> Option<usize> {
        label.index().checked_sub(self.first_index).filter(|at| *at < self.ends.len())
    }

    fn forget_request(&mut self, end: &mut End) {
        if end.state == State::Asked {
            self.tokens.remove(&end.token);
        }
        if let Some(at) = end.deadline.take() {
            self.deadlines.remove(&(at, end.label.to_wire()));
        }
    }
}
