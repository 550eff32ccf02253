//! The proxy's state of one flow, besides its TCB: its stage, its process, and the credits of both
//! directions.
//!
//! ```text
//!  client SYN..ACK      pool choice          ACCEPTED            CLOSE / RESET, both ends
//! ───────────────▶ Pending ──────▶ Offered ───────────▶ Open ─────────────────────────────▶ (gone)
//!   (backlog)         ▲               │ REFUSED, process died, no answer while another one is idle
//!                     └───────────────┘
//!  CONNECT ──▶ Connecting ──▶ Open            Open ── CLOSE, process ended ──▶ Finishing ──▶ (gone)
//!  CONNECT of a hairpin ──▶ Open
//!  request of a local service ──▶ Pending
//!  client SYN..ACK, local service ──▶ Local ── the service or the client is done ──▶ Finishing or (gone)
//!  Open ── HAND_OVER ──▶ Left ── TAKE_OVER, by another process ──▶ Open
//!  Pending, plain server chosen ──▶ Calling ── SYN/ACK ──▶ Joined ── both ends ──▶ Finishing or (gone)
//!  the connection to that server:   Called ── SYN/ACK ──▶ Joined; for a local service: Behind
//! ```

use std::collections::HashMap;

use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::channel::Ticket;

use super::connection_log::End;
use super::dispatch::pool::{ChannelId, Choice, MemberId, ServerId};
use super::output::Lane;
use super::service_counters::Counted;
use super::shares::Charge;

/// The stage of a flow between the client's connection and the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The client is connected; no process has been found yet.
    Pending,
    /// OPEN was sent; the process has not answered.
    Offered(Choice),
    /// Bytes are relayed.
    Open(Attachment),
    /// A local service of the proxy is its other end.
    Local,
    /// An active open: the SYN was sent.
    Connecting {
        /// The process that requested it.
        channel: ChannelId,
        /// Its request id.
        request: u32,
    },
    /// Its process has handed it over; the process that presents this ticket takes it over.
    Left(Ticket),
    /// A plain server was chosen; the connection to it is not established yet.
    Calling(Call),
    /// A connection to a plain server, for this client: the SYN was sent.
    Called(FlowLabel),
    /// Bytes pass between this connection and another one.
    Joined(Joint),
    /// A connection to a plain server that a local service uses by this upstream connection.
    Behind(FlowLabel),
    /// A connection that examines a plain server.
    Checking(ServerId),
    /// The application has closed it; the TCB delivers the remaining bytes.
    Finishing,
}

/// The process at the other end of an open flow, and the pool choice to release at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// The process.
    pub channel: ChannelId,
    /// `None` for active opens.
    pub choice: Option<Choice>,
}

/// A client that waits for the connection to a plain server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The server.
    pub member: MemberId,
    /// The connection to it; [`FlowLabel::NONE`] before it is opened.
    pub server: FlowLabel,
}

/// One of two connections between which bytes pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Joint {
    /// The other one.
    pub peer: FlowLabel,
    /// The plain server of the client's connection; `None` for the connection to the server.
    pub member: Option<MemberId>,
}

/// One flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Its label.
    pub label: FlowLabel,
    /// The client's and the service's address.
    pub tuple: FourTuple,
    /// Number of the service; `u32::MAX` for connections that applications open.
    pub service: u32,
    /// Its stage.
    pub stage: Stage,
    /// The VI that carries it, once a process has been chosen.
    pub lane: Lane,
    /// When the stage began.
    pub since: Instant,
    /// When it was established, or requested by an application.
    pub began: Instant,
    /// Number of connections established before it: its place in the backlog.
    pub arrived: u64,
    /// Whether it is in its service's backlog.
    pub waiting: bool,
    /// Bytes that may still be sent to the application.
    pub to_app_credit: u32,
    /// Window granted to the application for bytes to the client; never larger than the memory reserved for
    /// it.
    pub from_app_window: u32,
    /// Bytes received from the application and not yet credited back.
    pub from_app_outstanding: u32,
    /// The client's FIN was received in order.
    pub client_finished: bool,
    /// SHUTDOWN was sent to the application.
    pub shutdown_sent: bool,
    /// The application sent SHUTDOWN.
    pub app_finished: bool,
    /// The client's connection has failed while bytes of it were unread, and the application has written
    /// since.
    pub broken: bool,
    /// The charge on the account of the user whose process opened the flow.
    pub charge: Charge,
    /// Number of processes from which its offer was withdrawn.
    pub withdrawals: u8,
    /// Number of connections to plain servers that were not established.
    pub calls: u8,
    /// A service between both ends examines its bytes ([`Between`](crate::service::between::Between)).
    pub between: bool,
    /// Its client's connection is one of TLS.
    pub secured: bool,
    /// Whether it is in the list of flows to pump.
    pub queued: bool,
    /// Bytes sent to the application.
    pub bytes_to_app: u64,
    /// Bytes received from the application.
    pub bytes_from_app: u64,
    /// Where it is counted by service.
    pub counted: Counted,
    /// How the end that finished first has it end; or why it ends.
    pub end: Option<End>,
}

impl Flow {
    /// Returns the channel of the process that the flow is bound to, if any.
    pub fn channel(&self) -> Option<ChannelId> {
        match self.stage {
            Stage::Pending
            | Stage::Local
            | Stage::Left(_)
            | Stage::Calling(_)
            | Stage::Called(_)
            | Stage::Joined(_)
            | Stage::Behind(_)
            | Stage::Checking(_)
            | Stage::Finishing => None,
            Stage::Offered(choice) => Some(choice.channel),
            Stage::Open(attachment) => Some(attachment.channel),
            Stage::Connecting { channel, .. } => Some(channel),
        }
    }

    /// Returns the pool choice to release when the flow ends.
    pub fn choice(&self) -> Option<Choice> {
        match self.stage {
            Stage::Offered(choice) => Some(choice),
            Stage::Open(attachment) => attachment.choice,
            Stage::Pending
            | Stage::Local
            | Stage::Connecting { .. }
            | Stage::Left(_)
            | Stage::Calling(_)
            | Stage::Called(_)
            | Stage::Joined(_)
            | Stage::Behind(_)
            | Stage::Checking(_)
            | Stage::Finishing => None,
        }
    }

    /// Records that somebody has finished, or ends it. What is said first counts, but for an end that is not
    /// well after somebody has finished.
    #[inline]
    pub(crate) fn ends(&mut self, end: End) {
        if self.end.is_none_or(|before| before.is_well() && !end.is_well()) {
            self.end = Some(end);
        }
    }

    /// Returns the plain server to release when the flow ends, and whether its connection is not established
    /// yet.
    pub(crate) fn plain(&self) -> Option<(MemberId, bool)> {
        match self.stage {
            Stage::Calling(call) => Some((call.member, true)),
            Stage::Joined(joint) => joint.member.map(|member| (member, false)),
            _ => None,
        }
    }
}

/// Marks the absence of a slot.
const NIL: u32 = u32::MAX;

/// Both ends of a list through the table.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NIL, last: NIL };

/// A slot's neighbours: (previous, next) in the list of all flows, and in that of its channel.
#[derive(Clone, Copy, Debug)]
struct Links {
    all: (u32, u32),
    channel: (u32, u32),
}

/// Flows by label: one slot per label index of this worker's share, generation checked.
///
/// ```text
///  all:         flow ⇄ flow ⇄ flow ⇄ …        the longest in its stage first
///  channel 7:   flow ⇄ flow ⇄ …               in the order in which they were bound to it
/// ```
#[derive(Debug)]
pub struct FlowTable {
    /// First index and length of each range of labels; the slots of the ranges are consecutive.
    ranges: [(usize, usize); 2],
    slots: Box<[Option<Flow>]>,
    links: Box<[Links]>,
    all: Ends,
    channels: HashMap<ChannelId, Ends>,
    live: usize,
}

impl FlowTable {
    /// Creates a table for two ranges of label indices, each given by its first index and its length: those
    /// of the TCP engine, and the inner ones: those of hairpins and upstream connections.
    pub fn new(ranges: [(u32, usize); 2]) -> Self {
        let capacity = ranges[0].1 + ranges[1].1;
        let unlinked = Links { all: (NIL, NIL), channel: (NIL, NIL) };
        FlowTable {
            ranges: ranges.map(|(first, len)| (first as usize, len)),
            slots: vec![None; capacity].into_boxed_slice(),
            links: vec![unlinked; capacity].into_boxed_slice(),
            all: EMPTY,
            channels: HashMap::new(),
            live: 0,
        }
    }

    /// Returns the first index, and the number, of the labels of TCP connections.
    pub(crate) fn tcp_labels(&self) -> (usize, usize) {
        self.ranges[0]
    }

    #[inline]
    fn slot(&self, label: FlowLabel) -> Option<usize> {
        let [(first, len), (second, more)] = self.ranges;
        let at = label.index().wrapping_sub(first);
        if at < len {
            return Some(at);
        }
        let at = label.index().wrapping_sub(second);
        (at < more).then_some(len + at)
    }

    /// Returns whether a label is that of a hairpin or an upstream connection, which the TCP engine does not
    /// know.
    #[inline]
    pub(crate) fn is_inner(&self, label: FlowLabel) -> bool {
        let [_, (first, len)] = self.ranges;
        label.index().wrapping_sub(first) < len
    }

    fn live_slot(&self, label: FlowLabel) -> Option<usize> {
        self.slot(label).filter(|at| self.slots[*at].as_ref().is_some_and(|f| f.label == label))
    }

    /// Returns the flow with this label, generation included.
    #[inline]
    pub fn get(&self, label: FlowLabel) -> Option<&Flow> {
        self.slots[self.slot(label)?].as_ref().filter(|f| f.label == label)
    }

    /// Returns the flow with this label for changes; use [`set_stage`](Self::set_stage) to change its stage.
    #[inline]
    pub fn get_mut(&mut self, label: FlowLabel) -> Option<&mut Flow> {
        let at = self.slot(label)?;
        self.slots[at].as_mut().filter(|f| f.label == label)
    }

    /// Records how a flow ends, if there is one with this label ([`Flow::ends`]).
    #[inline]
    pub(crate) fn ends(&mut self, label: FlowLabel, end: End) {
        if let Some(flow) = self.get_mut(label) {
            flow.ends(end);
        }
    }

    /// Records that the server of a local service's upstream connection has finished.
    pub(crate) fn server_finished(&mut self, upstream: FlowLabel) {
        if let Some(flow) = self.get_mut(upstream) {
            flow.app_finished = true;
        }
    }

    /// Inserts a flow. Returns a flow of an older generation that was in the slot.
    pub fn insert(&mut self, flow: Flow) -> Option<Flow> {
        let at = self.slot(flow.label)?;
        let old = self.take(at);
        let channel = flow.channel();
        self.slots[at] = Some(flow);
        self.live += 1;
        self.link_all(at);
        self.link_channel(at, channel);
        old
    }

    /// Removes a flow.
    pub fn remove(&mut self, label: FlowLabel) -> Option<Flow> {
        let at = self.live_slot(label)?;
        self.take(at)
    }

    /// Sets the stage of a flow, entered at `now`; `None` if there is no such flow.
    pub fn set_stage(&mut self, now: Instant, label: FlowLabel, stage: Stage) -> Option<&mut Flow> {
        let at = self.live_slot(label)?;
        let flow = self.slots[at].as_mut()?;
        let before = flow.channel();
        (flow.stage, flow.since) = (stage, now);
        let after = flow.channel();
        self.unlink_all(at);
        self.link_all(at);
        if before != after {
            self.unlink_channel(at, before);
            self.link_channel(at, after);
        }
        self.slots[at].as_mut()
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the number of slots.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the flows in `count` slots starting at slot `from`; slots beyond the end are left out.
    pub fn part(&self, from: usize, count: usize) -> impl Iterator<Item = &Flow> {
        self.slots.iter().skip(from).take(count).flatten()
    }

    /// Returns all flows, those that entered their stage last first.
    pub fn newest(&self) -> impl Iterator<Item = &Flow> {
        let mut at = self.all.last;
        std::iter::from_fn(move || {
            let flow = self.slots.get(at as usize)?.as_ref()?;
            at = self.links[at as usize].all.0;
            Some(flow)
        })
    }

    /// Returns the flows bound to a channel, in the order in which they were bound.
    pub fn of_channel(&self, channel: ChannelId) -> impl Iterator<Item = &Flow> {
        let mut at = self.channels.get(&channel).map_or(NIL, |ends| ends.first);
        std::iter::from_fn(move || {
            let flow = self.slots.get(at as usize)?.as_ref()?;
            at = self.links[at as usize].channel.1;
            Some(flow)
        })
    }

    fn take(&mut self, at: usize) -> Option<Flow> {
        let channel = self.slots[at].as_ref()?.channel();
        self.unlink_all(at);
        self.unlink_channel(at, channel);
        self.live -= 1;
        self.slots[at].take()
    }

    fn link_all(&mut self, at: usize) {
        let last = self.all.last;
        self.links[at].all = (last, NIL);
        match self.links.get_mut(last as usize) {
            Some(links) => links.all.1 = at as u32,
            None => self.all.first = at as u32,
        }
        self.all.last = at as u32;
    }

    fn unlink_all(&mut self, at: usize) {
        let (previous, next) = self.links[at].all;
        match self.links.get_mut(previous as usize) {
            Some(links) => links.all.1 = next,
            None => self.all.first = next,
        }
        match self.links.get_mut(next as usize) {
            Some(links) => links.all.0 = previous,
            None => self.all.last = previous,
        }
    }

    fn link_channel(&mut self, at: usize, channel: Option<ChannelId>) {
        let Some(channel) = channel else { return };
        let ends = self.channels.entry(channel).or_insert(EMPTY);
        self.links[at].channel = (ends.last, NIL);
        match self.links.get_mut(ends.last as usize) {
            Some(links) => links.channel.1 = at as u32,
            None => ends.first = at as u32,
        }
        ends.last = at as u32;
    }

    fn unlink_channel(&mut self, at: usize, channel: Option<ChannelId>) {
        let Some(channel) = channel else { return };
        let Some(ends) = self.channels.get_mut(&channel) else { return };
        let (previous, next) = self.links[at].channel;
        match self.links.get_mut(previous as usize) {
            Some(links) => links.channel.1 = next,
            None => ends.first = next,
        }
        match self.links.get_mut(next as usize) {
            Some(links) => links.channel.0 = previous,
            None => ends.last = previous,
        }
        if ends.first == NIL {
            self.channels.remove(&channel);
        }
    }
}

#[cfg(test)]
mod tests;
