//! The conditions that every run with messages must meet.

use std::collections::{BTreeMap, BTreeSet};

use csp_messages::{ChannelCounters, ChannelKind, FullQueue};
use csp_types::Duration;

use super::handlers::{Handlers, SwapCounters};
use super::peer::{Peer, Stage};
use super::plan::{self, Leaves, Role};
use super::scenario::{MessageIncident, MessageScenario};
use super::stamps::{self, Stamp};
use super::world::MessageWorld;
use crate::conversation::Ended;
use crate::judge::{broken_links, of_tcp};

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MessageReport {
    /// Messages that arrived at channels, and copies given to receivers.
    pub messages: u64,
    /// Messages that peers received.
    pub received: u64,
    /// Copies that were dropped, as counted.
    pub dropped: u64,
    /// Messages lost with a puller, as counted, at most.
    pub lost: u64,
    /// How often senders were held back.
    pub held: u64,
    /// Channels of which every copy was accounted for exactly.
    pub exact: usize,
    /// Peers whose connections an incident ended.
    pub broken: usize,
    /// Swaps of handlers.
    pub swaps: SwapCounters,
    /// Messages that modules have stamped, by the modules' letters from `a` on, as receivers have got them.
    pub stamped: [u64; 4],
    /// Copies that were dropped before or in a path, as counted, at least.
    pub dropped_path: u64,
    /// Byte streams that completed.
    pub streams: usize,
    /// Those of them whose server refused the upload.
    pub refused: usize,
    /// When the last byte stream ended, relative to the senders' start.
    pub streams_end: Duration,
    /// When each peer received its last message, relative to the senders' start, and how many.
    pub by_peer: Vec<(Duration, u64)>,
    /// Violated conditions; empty in a correct run.
    pub violations: Vec<String>,
    /// Virtual time that passed.
    pub elapsed: Duration,
    /// Counters of all nodes: equal if and only if the same events happened.
    pub counters: String,
    /// The channels' counters at rest.
    finals: Vec<ChannelCounters>,
}

/// The copies that a channel has dropped.
fn dropped(counters: &ChannelCounters) -> u64 {
    counters.dropped_newest + counters.dropped_oldest + counters.dropped_stalled + counters.dropped_memory
}

fn counters_of(world: &MessageWorld, channel: usize) -> ChannelCounters {
    let name = &world.scenario.channels[channel].spec.channel.name;
    let snapshots = world.broker().snapshots();
    snapshots.iter().find(|s| s.name == *name).map_or_else(ChannelCounters::default, |s| s.status.counters)
}

/// Adds a channel's counters to the report, before its channel is removed.
pub(super) fn count_channel(world: &mut MessageWorld, channel: usize) {
    let counters = counters_of(world, channel);
    let report = &mut world.report;
    report.messages += counters.published;
    report.dropped += dropped(&counters);
    report.dropped_path += counters.dropped_path;
    report.lost += counters.lost;
    report.held += counters.held;
}

/// Adds the counters of all channels to the report, at rest.
pub(super) fn count(world: &mut MessageWorld) {
    for channel in 0..world.scenario.channels.len() {
        count_channel(world, channel);
        let counters = counters_of(world, channel);
        world.report.finals.push(counters);
    }
}

/// Fills the world's report.
pub(super) fn judge(world: &mut MessageWorld) {
    let mut report = std::mem::take(&mut world.report);
    let MessageScenario { incident, .. } = world.scenario;
    report.swaps =
        world.handlers.as_ref().map_or(SwapCounters::default(), |handlers: &Handlers| handlers.counters);
    for peer in &world.peers {
        report.received += peer.received;
        for stamp in &peer.stamps {
            report.stamped[usize::from(stamp.letter - b'a') % 4] += 1;
        }
        report.by_peer.push((peer.last, peer.received));
        let wrong = peer.wrong.iter().map(|wrong| format!("peer {}: {wrong}", peer.number));
        report.violations.extend(wrong);
        if !matches!(peer.stage, Stage::Left) {
            report.broken += 1;
            if !incident.may_break(&peer.plan) {
                report.violations.push(format!("a connection ended early: {}", peer.describe()));
            }
        }
    }
    judge_streams(world, &mut report);
    for (channel, counters) in report.finals.clone().iter().enumerate() {
        let is_push =
            matches!(world.scenario.channels[channel].spec.channel.kind, ChannelKind::PushPull { .. });
        let judged = Group::of(world, channel);
        let found = if is_push { judged.pushed(counters) } else { judged.published(counters) };
        let found = found.and_then(|exact| judged.stamped(counters, exact && is_push).map(|()| exact));
        match found {
            Ok(exact) => report.exact += usize::from(exact),
            Err(found) => report.violations.push(format!("channel {channel}: {found}\n{counters:?}")),
        }
    }
    report.violations.append(&mut orders(world));
    report.violations.append(&mut leftovers(world));
    report.violations.append(&mut protocol_errors(world));
    report.counters = describe(world);
    world.report = report;
}

fn judge_streams(world: &MessageWorld, report: &mut MessageReport) {
    let ended: BTreeMap<u32, &Ended> = world.client.ended.iter().map(|(key, how)| (*key, how)).collect();
    let cut_short =
        |key| world.client.addresses.get(&key).is_some_and(|client| world.resets.has_cut_short(client));
    for (at, work) in world.scenario.work.iter().enumerate() {
        match ended.get(&world.key_of(at)) {
            Some(Ended::Complete) => {
                report.streams += 1;
                report.refused += usize::from(work.refusal.is_some());
            }
            // The VI that breaks may be that of a process which serves it.
            Some(_) if world.scenario.incident == MessageIncident::ChannelBreaks => {}
            // The time for which a reset waits is bounded.
            Some(Ended::Short(_) | Ended::Failed(_))
                if work.refusal.is_some() && cut_short(world.key_of(at)) => {}
            how => report.violations.push(format!("byte stream {at} {work:?} ended as {how:?}")),
        }
    }
    report.violations.extend_from_slice(&world.client.corrupt);
    report.violations.extend(world.servers.iter().flat_map(|server| server.corrupt.iter().cloned()));
    report.streams_end =
        world.began.map_or(Duration::ZERO, |began| world.client.prompt_end.saturating_since(began));
}

/// Without doubles, and in the order of each sender; a puller may be given messages that another one could
/// not take.
fn orders(world: &MessageWorld) -> Vec<String> {
    let mut found = Vec::new();
    for peer in &world.peers {
        let is_push = peer.plan.channel == 1;
        for (sender, got) in &peer.got {
            let distinct: BTreeSet<u32> = got.iter().copied().collect();
            let is_ordered = got.is_sorted() || (is_push && !world.all_pullers_stayed());
            if distinct.len() < got.len() || !is_ordered {
                found.push(format!("peer {} received of {sender}: {got:?}", peer.number));
            }
        }
    }
    found
}

/// The peers of a channel that its counters are about: since the policy has changed it, if it has.
struct Group<'a> {
    policy: FullQueue,
    /// Others may have been there before or after the change.
    changed: bool,
    receivers: Vec<&'a Peer>,
    senders: Vec<&'a Peer>,
}

/// How many messages a sender has sent as a whole over a connection that ended well; `None` if it did not.
fn complete(peer: &Peer) -> Option<u32> {
    let well = peer.stage == Stage::Left && !matches!(peer.plan.leaves, Leaves::Resets(_));
    well.then(|| peer.whole())
}

/// Whether a receiver received all that it was given.
fn stayed(peer: &Peer) -> bool {
    peer.stage == Stage::Left && peer.plan.leaves == Leaves::Last
}

impl<'a> Group<'a> {
    fn of(world: &'a MessageWorld, channel: usize) -> Self {
        let changed = world.scenario.incident.changed() == Some(channel);
        // Pullers that came between the change and the late peers get messages of late pushers.
        let is_in = |peer: &&Peer| {
            let counts = !changed || peer.plan.late || (channel == 1 && !peer.plan.sends());
            peer.plan.channel == channel && counts
        };
        let (senders, receivers) = world.peers.iter().filter(is_in).partition(|peer| peer.plan.sends());
        let policy = match world.scenario.channels[channel].spec.channel.kind {
            ChannelKind::PublishSubscribe { policy, .. } => policy,
            ChannelKind::PushPull { .. } => FullQueue::Block,
        };
        Group { policy, changed, receivers, senders }
    }

    /// Checks that as many messages arrived as were sent.
    fn arrivals(&self, counters: &ChannelCounters) -> Result<bool, String> {
        let least: u64 = self.senders.iter().filter_map(|peer| complete(peer)).map(u64::from).sum();
        let most: u64 = self.senders.iter().map(|peer| u64::from(peer.sent)).sum();
        let most = if self.changed { u64::MAX } else { most };
        match (least..=most).contains(&counters.published) {
            true => Ok(!self.changed && self.senders.iter().all(|peer| complete(peer).is_some())),
            false => Err(format!("{} messages arrived, of {least} to {most}", counters.published)),
        }
    }

    /// Every gap is accounted for. Returns whether all copies are, exactly.
    fn published(&self, counters: &ChannelCounters) -> Result<bool, String> {
        let all_sent = self.arrivals(counters)?;
        let mut missing = 0;
        for receiver in &self.receivers {
            for sender in &self.senders {
                missing += gaps(receiver, sender);
            }
        }
        let dropped = dropped(counters);
        let is_early = |peer: &&&Peer| peer.plan.start.is_none() || peer.plan.late;
        let all_there =
            self.receivers.iter().filter(is_early).filter(|p| stayed(p)).count() == self.receivers.len();
        // A late receiver is not late for the late senders only.
        let all_known = all_there
            && self.receivers.iter().all(|r| r.plan.late == self.senders[0].plan.late)
            && self.senders.iter().all(|s| s.plan.late == self.senders[0].plan.late);
        let exact = all_sent && all_known;
        let received: u64 = self.receivers.iter().map(|peer| peer.received).sum();
        // What a path has dropped is missing at every receiver that wanted it.
        let in_path = counters.dropped_path * self.receivers.len() as u64;
        if missing > dropped + in_path || (exact && missing < dropped) {
            return Err(format!(
                "{missing} copies are missing, {dropped} and at most {in_path} are counted as dropped"
            ));
        }
        if received > counters.taken || (exact && received < counters.taken) {
            return Err(format!("{received} copies were received, {} given", counters.taken));
        }
        match self.policy == FullQueue::Block && dropped + in_path > 0 {
            true => Err(format!(
                "{dropped} copies and {in_path} in paths dropped, although senders are held back"
            )),
            false => Ok(exact),
        }
    }

    /// The handlers have seen each message once and in order. `complete`: the receivers have together got all
    /// that were published.
    fn stamped(&self, counters: &ChannelCounters, complete: bool) -> Result<(), String> {
        let all = |peer: &&&Peer| {
            let gets_all =
                matches!(&peer.plan.role, Role::Receives { topics, .. } if topics.contains(&&b""[..]));
            gets_all && stayed(peer) && peer.received == counters.published
        };
        let complete = !self.changed && (complete || self.receivers.iter().any(|peer| all(&peer)));
        if !self.receivers.iter().any(|peer| peer.is_stamped) {
            return Ok(());
        }
        // A puller that stays may have got messages before the channel was changed, from other senders.
        let is_in = |stamp: &&Stamp| self.senders.iter().any(|sender| sender.number == stamp.sender);
        let stamps = self.receivers.iter().flat_map(|peer| &peer.stamps).filter(is_in);
        stamps::check(stamps, counters.published, complete)
    }

    /// Every message arrives at one puller, or was lost with one. Returns whether all messages are accounted
    /// for.
    fn pushed(&self, counters: &ChannelCounters) -> Result<bool, String> {
        let all_sent = self.arrivals(counters)?;
        let mut got = BTreeSet::new();
        for (sender, number) in self
            .receivers
            .iter()
            .flat_map(|peer| &peer.got)
            .flat_map(|(s, got)| got.iter().map(move |n| (*s, *n)))
        {
            if !got.insert((sender, number)) {
                return Err(format!("message {number} of {sender} arrived twice"));
            }
        }
        let arrived = |sender: &Peer| got.range((sender.number, 0)..(sender.number + 1, 0)).count() as u64;
        let missing: u64 = self
            .senders
            .iter()
            .filter_map(|sender| Some(u64::from(complete(sender)?) - arrived(sender)))
            .sum();
        // What had been passed to the channel of a program that is gone cannot be known.
        let uncertain =
            self.receivers.iter().any(|peer| !stayed(peer) && peer.plan.place != plan::Place::Outside);
        if missing > counters.lost && !uncertain {
            return Err(format!("{missing} messages are missing, {} are counted as lost", counters.lost));
        }
        match self.receivers.iter().all(|peer| stayed(peer)) && counters.lost > 0 {
            true => Err(format!("{} messages lost with pullers that stayed", counters.lost)),
            false => Ok(all_sent && missing == 0),
        }
    }
}

/// Returns the number of a sender's messages that a receiver should have received and has not, as far as that
/// can be known: from the first on if the receiver was there before, to the last if both stayed.
fn gaps(receiver: &Peer, sender: &Peer) -> u64 {
    let (Role::Receives { topics: wanted, .. }, Role::Sends { topics, .. }) =
        (&receiver.plan.role, &sender.plan.role)
    else {
        return 0;
    };
    let none = Vec::new();
    let got = receiver.got.get(&sender.number).unwrap_or(&none);
    let was_there = receiver.plan.start.is_none() || (receiver.plan.late && sender.plan.late);
    let first = if was_there { Some(0) } else { got.first().copied() };
    let end = complete(sender).filter(|_| stayed(receiver)).or(got.last().map(|last| last + 1));
    let (Some(first), Some(end)) = (first, end) else { return 0 };
    let matches = |number: &u32| {
        let topic = plan::topic(sender.number, *number, topics);
        wanted.iter().any(|prefix| topic.starts_with(prefix))
    };
    ((first..end).filter(matches).count() - got.len()) as u64
}

impl MessageWorld {
    fn all_pullers_stayed(&self) -> bool {
        self.peers.iter().filter(|peer| peer.plan.channel == 1 && !peer.plan.sends()).all(stayed)
    }
}

/// Returns every table that is not empty, with the number of its entries.
pub(super) fn leftovers(world: &MessageWorld) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |node: &str, table: &str, left: usize| {
        if left > 0 {
            found.push(format!("{node} leaks {left} {table}"));
        }
    };
    for (name, tcp) in [
        ("client", world.client.tcp()),
        ("outside", &world.outside.lan.tcp),
        ("pn-1", world.proxy.core().tcp()),
    ] {
        of_tcp(tcp).into_iter().for_each(|(table, left)| look(name, table, left));
    }
    look("outside", "peers", world.outside.open());
    let core = world.proxy.core();
    look("pn-1", "flows", core.flow_count());
    look("pn-1", "ends of hairpins", core.hairpin_count());
    look("pn-1", "bytes of send budget", core.budget_reserved() as usize);
    let broker = world.broker();
    look("broker", "connections", broker.connection_count());
    if let Some(plane) = broker.plane() {
        look("broker", "peers", plane.peers());
        look("broker", "blocks of messages", plane.occupancy().blocks_used as usize);
        look("broker", "messages", plane.occupancy().messages as usize);
        look("broker", "subscriptions", plane.subscription_counts().entries as usize);
    }
    for snapshot in broker.snapshots() {
        look("broker", "waiting messages", snapshot.waiting as usize);
        look("broker", "subscribers that hold back publishers", snapshot.status.blocked as usize);
    }
    look("broker", "messages in paths", world.waiting_in_paths());
    for (worker, _) in &world.network {
        look("nn-1", "flows", worker.core().flow_count());
        look("nn-1", "labels", worker.core().label_count());
    }
    world.servers.iter().for_each(|server| look("process", "flows", server.open()));
    world.programs.iter().flatten().for_each(|program| look("program", "flows", program.open()));
    found
}

/// All nodes and peers are correct here, so none may count a protocol violation of another.
fn protocol_errors(world: &MessageWorld) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |node: &str, what: &str, count: u64| {
        if count > 0 {
            found.push(format!("{node} saw {count} {what}"));
        }
    };
    let counters = world.proxy.core().counters();
    look("pn-1", "malformed messages", world.proxy.malformed());
    look("pn-1", "violations by processes", counters.violations);
    look("pn-1", "ill-formed segments", counters.drop_malformed);
    look("pn-1", "writes without room", counters.drop_no_budget);
    let programs = world.programs.iter().flatten().map(|program| program.side());
    let endpoints = world.proxy.endpoints().chain(programs.clone().map(|side| side.endpoint()));
    for endpoint in endpoints {
        look("a node", "links that broke the protocol", broken_links(endpoint.counters()));
    }
    programs.for_each(|side| look("program", "violations by proxies", side.counters().protocol_violations));
    if let Some(plane) = world.broker().plane() {
        let calls = plane.counters();
        look("broker", "messages of too many frames", calls.refused_frames);
        look("broker", "messages that are too long", calls.refused_too_long);
        look("broker", "topics that are too long", calls.refused_topic);
        look("broker", "messages cut short", calls.refused_mismatch);
        look("broker", "subscriptions refused", calls.subscribe_refused);
        look("broker", "deliveries out of order", calls.delivered_refused);
        look("broker", "calls about what was removed", calls.unknown);
        look("pool", "stale handles", plane.pool_counters().stale_handles);
    }
    found
}

fn describe(world: &MessageWorld) -> String {
    let mut text = format!("{:?}", world.broker().zmtp());
    let mut snapshots = world.broker().snapshots();
    snapshots.sort_by(|a, b| a.name.cmp(&b.name));
    for snapshot in snapshots {
        text += &format!("\n{snapshot:?}");
    }
    text += &format!("\npn-1 {:?} {:?}", world.proxy.core().counters(), world.proxy.core().tcp().counters());
    text += &format!("\noutside {:?}", world.outside.lan.tcp.counters());
    for flow in world.proxy.core().flows(world.now, 64) {
        text += &format!("\nleft {flow:?}");
    }
    for peer in &world.peers {
        text += &format!("\n{}", peer.describe());
    }
    text
}
