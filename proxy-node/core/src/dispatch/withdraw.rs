//! Unanswered offers: a process that is busy with one connection for long must not hold others back from
//! processes that are ready for them, just as it would not with the kernel's single accept queue.
//!
//! ```text
//!  proxy ── OPEN ──▶ busy process     no answer for OFFER_PATIENCE, and another process is idle
//!        ── RESET ─▶ busy process     as for a client that left before it was accepted
//!        ── OPEN ──▶ idle process
//!        ◀── CLOSE ─ busy process     late; earlier messages of it concern the voided offer
//! ```
//! Until that answer, the proxy ignores what the busy process sends about the connection, and does not offer
//! it the same connection again: the process does not read its channel, so the connection would be delayed
//! again.

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
/// Upper limit of that time while no process is idle but others accept. A process that computes for long
/// cannot keep an offer for ever, whether or not it waits on its listener.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
/// How often [`OFFER_PATIENCE`] doubles, once for each process that a connection was withdrawn from. If all
/// processes are slow to answer, trying one after the other would slow them further.
const DOUBLINGS_MAX: u8 = 3;
/// Number of unanswered offers examined at once; the others are examined after [`LOOK_REST`].
const LOOK_MAX: usize = 64;
const LOOK_REST: Duration = Duration::from_millis(1);
/// Limits of the connections with unanswered withdrawn offers, and of such offers of each connection. Beyond
/// them offers are not withdrawn.
const WITHDRAWN_MAX: usize = 1024;
const ANSWERS_MAX: usize = 16;

/// Processes and lanes whose answer is outstanding.
type Answers = [Option<(ChannelId, Lane)>; ANSWERS_MAX];

/// Offers in order of age, and withdrawn ones.
#[derive(Debug)]
pub(crate) struct Offers {
    /// When to examine each offer next, earliest first; some have been answered since.
    queue: VecDeque<(Instant, FlowLabel)>,
    /// Processes and lanes that have not answered, by the connection withdrawn from them.
    withdrawn: HashMap<FlowLabel, Answers>,
    rest_until: Instant,
}

impl Offers {
    /// Creates the lists for this number of connections.
    pub(super) fn new(connections: usize) -> Self {
        // Twice the number, so that removing answered ones from a full queue is rare.
        Offers {
            queue: VecDeque::with_capacity(2 * connections),
            withdrawn: HashMap::with_capacity(WITHDRAWN_MAX),
            rest_until: Instant::ZERO,
        }
    }

    /// Returns the processes and lanes from which this connection was withdrawn and that have not answered.
    fn unanswered(&self, label: FlowLabel) -> impl Iterator<Item = (ChannelId, Lane)> {
        let answers = if self.withdrawn.is_empty() { None } else { self.withdrawn.get(&label) };
        answers.into_iter().flatten().flatten().copied()
    }

    /// Returns whether this connection was withdrawn from that process, which has not answered.
    pub(super) fn is_barred(&self, label: FlowLabel, channel: ChannelId) -> bool {
        self.unanswered(label).any(|(from, _)| from == channel)
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, label: FlowLabel) {
        if !self.withdrawn.is_empty() {
            self.withdrawn.remove(&label);
        }
    }

    /// Removes the outstanding answers of a channel, or of one lane of it, that is down.
    pub(super) fn remove_channel(&mut self, channel: ChannelId, lane: Option<Lane>) {
        self.withdrawn.retain(|_, answers| {
            clear_answers(answers, |(from, on)| from == channel && lane.is_none_or(|lane| lane == on));
            answers.iter().any(Option::is_some)
        });
    }

    /// Returns whether one more offer of this connection can be withdrawn.
    fn has_room(&self, label: FlowLabel) -> bool {
        match self.withdrawn.get(&label) {
            None => self.withdrawn.len() < WITHDRAWN_MAX,
            Some(answers) => answers.contains(&None),
        }
    }

    /// Records that an offer of this connection was withdrawn; [`has_room`](Self::has_room) must be true.
    fn withdrawn(&mut self, label: FlowLabel, from: (ChannelId, Lane)) {
        let answers = self.withdrawn.entry(label).or_default();
        if let Some(free) = answers.iter_mut().find(|answer| answer.is_none()) {
            *free = Some(from);
        }
    }

    /// Records that the process has answered: its further messages about this connection are processed.
    fn answered(&mut self, label: FlowLabel, by: ChannelId) {
        if let Some(answers) = self.withdrawn.get_mut(&label) {
            clear_answers(answers, |(from, _)| from == by);
            if answers.iter().all(Option::is_none) {
                self.withdrawn.remove(&label);
            }
        }
    }
}

/// Removes answers that will not arrive any more.
fn clear_answers(answers: &mut Answers, gone: impl Fn((ChannelId, Lane)) -> bool) {
    for answer in answers {
        answer.take_if(|from| gone(*from));
    }
}

/// Returns whether the offer that was to be examined at `due` is still unanswered.
fn is_unanswered(flows: &FlowTable, due: Instant, label: FlowLabel) -> bool {
    let offered = |f: &&Flow| matches!(f.stage, Stage::Offered(_)) && f.since + OFFER_PATIENCE <= due;
    flows.get(label).filter(offered).is_some()
}

impl Dispatcher {
    /// Schedules the examination of an offer for which OPEN was sent.
    pub(super) fn watch_offer(&mut self, now: Instant, flows: &FlowTable, label: FlowLabel) {
        if self.offers.queue.len() == self.offers.queue.capacity() {
            self.offers.queue.retain(|(due, label)| is_unanswered(flows, *due, *label));
        }
        self.offers.queue.push_back((now + OFFER_PATIENCE, label));
    }

    /// Removes answered offers from the front of the queue.
    pub(super) fn drop_answered(&mut self, flows: &FlowTable) {
        while let Some((due, label)) = self.offers.queue.front().copied()
            && !is_unanswered(flows, due, label)
        {
            self.offers.queue.pop_front();
        }
    }

    /// Returns when the next offer is to be examined.
    pub(crate) fn offers_deadline(&self) -> Option<Instant> {
        self.offers.queue.front().map(|(due, _)| self.offers.rest_until.max(*due))
    }

    /// Withdraws offers that have been unanswered for too long if another process would accept them.
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

    /// Offers a connection to an idle process instead; `false` if there is none.
    fn withdraw(&mut self, cx: &mut Context<'_, impl ProxyOutput>, label: FlowLabel) -> bool {
        let now = cx.now;
        let Some(flow) = cx.flows.get(label) else { return false };
        let (Stage::Offered(from), lane) = (flow.stage, flow.lane) else { return false };
        let Some(service) = self.services.get(flow.service) else { return false };
        if now < flow.since + OFFER_PATIENCE * (1 << flow.withdrawals.min(DOUBLINGS_MAX)) {
            return false;
        }
        let barred = |channel| channel == from.channel || self.offers.is_barred(label, channel);
        let local = flow.tuple.local.ip();
        let excluded = *cx.upstreams.excluded(label);
        let resort = service.resort(&self.pools, &excluded, cx.may_call(label));
        let client = flow.tuple.remote.ip();
        let candidates = || service.members_but(&excluded, resort, client);
        let starved =
            now >= flow.since + BUSY_PATIENCE && self.pools.any_ready(now, candidates(), local, barred);
        let wanted = starved || self.pools.any_idle(now, candidates(), local, barred);
        let number = flow.service;
        let reset = MessageHeader::of_flow(MessageKind::Reset, label, reason::CONNECTION_RESET, 0);
        // If RESET cannot be sent, the loss of the lane is about to be reported.
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
        let to = service.and_then(|service| {
            let candidates = service.members_but(&excluded, resort, client);
            self.pools.choose_idle(now, candidates, local, barred)
        });
        if !to.is_some_and(|to| self.send_open(cx, label, to)) {
            self.dispatch(cx, label);
        }
        true
    }

    /// Processes a message about a withdrawn offer of its sender; `false` if the message concerns something
    /// else.
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
        recorder.counters.stale_messages += 1; // it crossed our RESET
        if matches!(kind, MessageKind::Close | MessageKind::Reset | MessageKind::Refused) {
            self.offers.answered(label, channel);
            self.pools.set_readied(); // the process can be offered this connection again
        }
        true
    }

    /// Voids an offer that its process did not answer or handed back: the connection waits for a process
    /// again.
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
