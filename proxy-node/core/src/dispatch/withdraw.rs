//! Offers that stay unanswered: a process that is busy with one connection for long must not keep others from processes
//! that wait for them, as the kernel's one queue for all of them would not.
//!
//! ```text
//!  proxy ── OPEN ──▶ busy process     no answer for OFFER_PATIENCE, and another process is idle
//!        ── RESET ─▶ busy process     as for a client that left before it was accepted
//!        ── OPEN ──▶ idle process
//!        ◀── CLOSE ─ busy process     late; what comes of it before is about the offer that is void
//! ```
//! Until that answer, what the busy process sends about the connection is ignored, and it is not offered the same one again:
//! it does not look at its channel, and the connection would be stuck there.

use std::collections::{HashMap, VecDeque};

use csp_types::{Duration, FlowLabel, Instant};
use csp_wire::channel::{MessageHeader, MessageKind};

use super::Dispatcher;
use super::pool::{ChannelId, Choice};
use crate::context::Context;
use crate::flow::{Flow, FlowTable, Stage};
use crate::recorder::Recorder;
use crate::{Lane, ProxyOutput, reason};

/// How long an offer stays with a process that does not answer while another one is idle.
pub const OFFER_PATIENCE: Duration = Duration::from_millis(20);
/// How long at most while no process is idle, but others accept: a process that computes for long, its listener out of its
/// waits or not, keeps nothing for ever.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
/// How often [`OFFER_PATIENCE`] doubles, with each process that a connection was withdrawn from: where all are slow to answer, trying one
/// after the other would make them slower.
const DOUBLINGS_MAX: u8 = 3;
/// Unanswered offers that are looked at in one go, and the rest after it.
const LOOK_MAX: usize = 64;
const LOOK_REST: Duration = Duration::from_millis(1);
/// Connections with withdrawn offers that were not answered, and such offers of each; beyond them offers stay where they
/// are.
const WITHDRAWN_MAX: usize = 1024;
const ANSWERS_MAX: usize = 16;

/// Where answers are due from.
type Answers = [Option<(ChannelId, Lane)>; ANSWERS_MAX];

/// Offers by their age, and those that were withdrawn.
#[derive(Debug)]
pub(crate) struct Offers {
    /// When to look at each again, the earliest first; some are answered by now.
    queue: VecDeque<(Instant, FlowLabel)>,
    /// Processes and lanes that have not answered, by the connection that was withdrawn from them.
    withdrawn: HashMap<FlowLabel, Answers>,
    rest_until: Instant,
}

impl Offers {
    /// For so many connections at once.
    pub(super) fn new(connections: usize) -> Self {
        // Twice, so that taking answered ones out when it is full is rare.
        Offers {
            queue: VecDeque::with_capacity(2 * connections),
            withdrawn: HashMap::with_capacity(WITHDRAWN_MAX),
            rest_until: Instant::ZERO,
        }
    }

    /// The processes and lanes from which this connection was withdrawn without an answer so far.
    fn unanswered(&self, label: FlowLabel) -> impl Iterator<Item = (ChannelId, Lane)> {
        let answers = if self.withdrawn.is_empty() { None } else { self.withdrawn.get(&label) };
        answers.into_iter().flatten().flatten().copied()
    }

    /// Whether this connection was withdrawn from that process, which has not answered.
    pub(super) fn is_barred(&self, label: FlowLabel, channel: ChannelId) -> bool {
        self.unanswered(label).any(|(from, _)| from == channel)
    }

    /// The connection is over.
    pub(super) fn remove(&mut self, label: FlowLabel) {
        if !self.withdrawn.is_empty() {
            self.withdrawn.remove(&label);
        }
    }

    /// A channel is gone, or one lane of it: no answer will come from there.
    pub(super) fn remove_channel(&mut self, channel: ChannelId, lane: Option<Lane>) {
        self.withdrawn.retain(|_, answers| {
            clear_answers(answers, |(from, on)| from == channel && lane.is_none_or(|lane| lane == on));
            answers.iter().any(Option::is_some)
        });
    }

    /// Whether one more offer of this connection can be withdrawn.
    fn has_room(&self, label: FlowLabel) -> bool {
        match self.withdrawn.get(&label) {
            None => self.withdrawn.len() < WITHDRAWN_MAX,
            Some(answers) => answers.contains(&None),
        }
    }

    /// An offer of this connection was withdrawn there; there [is room](Self::has_room) for it.
    fn withdrawn(&mut self, label: FlowLabel, from: (ChannelId, Lane)) {
        let answers = self.withdrawn.entry(label).or_default();
        if let Some(free) = answers.iter_mut().find(|answer| answer.is_none()) {
            *free = Some(from);
        }
    }

    /// The process has answered: what it sends about this connection from now on counts.
    fn answered(&mut self, label: FlowLabel, by: ChannelId) {
        if let Some(answers) = self.withdrawn.get_mut(&label) {
            clear_answers(answers, |(from, _)| from == by);
            if answers.iter().all(Option::is_none) {
                self.withdrawn.remove(&label);
            }
        }
    }
}

/// Takes answers out that will not come any more.
fn clear_answers(answers: &mut Answers, gone: impl Fn((ChannelId, Lane)) -> bool) {
    for answer in answers {
        answer.take_if(|from| gone(*from));
    }
}

/// Whether the offer that is looked at when it is `due` is still that of this connection.
fn is_unanswered(flows: &FlowTable, due: Instant, label: FlowLabel) -> bool {
    let offered = |f: &&Flow| matches!(f.stage, Stage::Offered(_)) && f.since + OFFER_PATIENCE <= due;
    flows.get(label).filter(offered).is_some()
}

impl Dispatcher {
    /// OPEN was sent: looks whether it is answered after a while.
    pub(super) fn watch_offer(&mut self, now: Instant, flows: &FlowTable, label: FlowLabel) {
        if self.offers.queue.len() == self.offers.queue.capacity() {
            self.offers.queue.retain(|(due, label)| is_unanswered(flows, *due, *label));
        }
        self.offers.queue.push_back((now + OFFER_PATIENCE, label));
    }

    /// An offer was answered: those at the front of the queue that are need no look.
    pub(super) fn drop_answered(&mut self, flows: &FlowTable) {
        while let Some((due, label)) = self.offers.queue.front().copied()
            && !is_unanswered(flows, due, label)
        {
            self.offers.queue.pop_front();
        }
    }

    /// When an offer is to be looked at.
    pub(crate) fn offers_deadline(&self) -> Option<Instant> {
        self.offers.queue.front().map(|(due, _)| self.offers.rest_until.max(*due))
    }

    /// Withdraws offers that went unanswered for too long, where another process would take them.
    pub(crate) fn check_offers(&mut self, cx: &mut Context<'_, impl ProxyOutput>) {
        let mut looked = 0;
        while self.offers_deadline().is_some_and(|due| due <= cx.now)
            && let Some((due, label)) = self.offers.queue.pop_front()
        {
            if !is_unanswered(cx.flows, due, label) {
                continue;
            }
            if !self.withdraw(cx, label) {
                self.offers.queue.push_back((cx.now + OFFER_PATIENCE, label));
                if let Some(choice) = cx.flows.get(label).and_then(Flow::choice) {
                    self.pools.mark_slow(choice);
                }
            }
            looked += 1;
            if looked == LOOK_MAX {
                self.offers.rest_until = cx.now + LOOK_REST;
            }
        }
    }

    /// Offers a connection to an idle process instead; `false` where there is none.
    fn withdraw(&mut self, cx: &mut Context<'_, impl ProxyOutput>, label: FlowLabel) -> bool {
        let now = cx.now;
        let Some(flow) = cx.flows.get(label) else { return false };
        let (Stage::Offered(from), lane) = (flow.stage, flow.lane) else { return false };
        let Some(service) = self.services.get(flow.service) else { return false };
        if now < flow.since + OFFER_PATIENCE * (1 << flow.withdrawals.min(DOUBLINGS_MAX)) {
            return false;
        }
        let barred = |channel| channel == from.channel || self.offers.is_barred(label, channel);
        let local = service.spec.address.ip();
        let starved =
            now >= flow.since + BUSY_PATIENCE && self.pools.any_ready(now, &service.members, local, barred);
        let wanted = starved || self.pools.any_idle(now, &service.members, local, barred);
        let number = flow.service;
        let reset = MessageHeader::of_flow(MessageKind::Reset, label, reason::CONNECTION_RESET, 0);
        // Where RESET cannot be sent the lane is about to be reported down.
        if !wanted || !self.offers.has_room(label) || !cx.send(lane, reset, &[]) {
            return false;
        }
        self.offers.withdrawn(label, (from.channel, lane));
        cx.recorder.counters.offers_withdrawn += 1;
        if let Some(flow) = cx.flows.get_mut(label) {
            flow.withdrawals = flow.withdrawals.saturating_add(1);
        }
        self.take_back(now, cx.flows, label, from);
        let service = self.services.get(number);
        let barred = |channel| self.offers.is_barred(label, channel);
        let to = service.and_then(|service| self.pools.choose_idle(now, &service.members, local, barred));
        if !to.is_some_and(|to| self.send_open(cx, label, to)) {
            self.dispatch(cx, label);
        }
        true
    }

    /// A message of a process about an offer that was withdrawn from it; `false`: it is about something else.
    pub(crate) fn on_withdrawn(
        &mut self,
        recorder: &mut Recorder,
        (channel, lane): (ChannelId, Lane),
        label: FlowLabel,
        kind: MessageKind,
    ) -> bool {
        if !self.offers.unanswered(label).any(|from| from == (channel, lane)) {
            return false;
        }
        recorder.counters.stale_messages += 1; // it crossed our RESET on the way
        if matches!(kind, MessageKind::Close | MessageKind::Reset | MessageKind::Refused) {
            self.offers.answered(label, channel);
            self.pools.set_readied(); // to take this very connection, if no other process does
        }
        true
    }

    /// An offer is void that its process did not answer, or handed back: the connection has none again.
    pub(crate) fn take_back(
        &mut self,
        now: Instant,
        flows: &mut FlowTable,
        label: FlowLabel,
        choice: Choice,
    ) {
        self.pools.doubt(now, choice);
        flows.set_stage(now, label, Stage::Pending);
    }
}
