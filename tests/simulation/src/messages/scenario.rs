//! What a seed determines: channels, peers, the incident, and byte streams beside them. Faults of links and
//! clocks are those of the byte streams' [`Scenario`].

use std::net::Ipv4Addr;

use csp_messages::{Budget, ChannelConfig, ChannelKind, FullQueue, QueueLimits};
use csp_services::ChannelSpec;
use csp_types::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::handlers::HandlersPlan;
use super::plan::{ChannelPlan, Leaves, PeerPlan, Place, Role};
use crate::scenario::{Scenario, Stall, Transaction};

const SEED: u64 = 0x6d65_7373_6167_6573;
/// The address of all channels and of the byte service.
pub(super) const VIP: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 100);
const FIRST_PORT: u16 = 5_556;
/// Longest message of a channel: more than a connection's window.
pub(super) const MESSAGE_LEN_MAX: u32 = 100 * 1024;
/// Guaranteed memory of a channel with handlers: two of the longest messages, and more.
const HANDLED_GUARANTEE: u64 = 256 << 10;
const TOPICS: [&[u8]; 6] = [b"a", b"ab", b"abc", b"b", b"bc", b"c"];
/// Prefixes that are subscribed to.
const PREFIXES: [&[u8]; 5] = [b"", b"a", b"ab", b"b", b"c"];

/// An event in the middle of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageIncident {
    /// Nothing.
    None,
    /// A VI between a program and the proxy breaks while both are alive: the link resumes, and no connection
    /// is affected.
    ChannelResumes,
    /// The same, between the network node and the proxy.
    TunnelResumes,
    /// A VI between a program and the proxy breaks for good: connections of programs may fail.
    ChannelBreaks,
    /// The same, between the network node and the proxy: connections continue.
    TunnelBreaks,
    /// The first program dies.
    ProgramDies,
    /// The network node loses its tables: connections continue.
    NetworkNodeRestarts,
    /// The policy removes the channel of this index, and adds it again later.
    PolicyRemoves(usize),
    /// The policy changes the channel of this index: its peers have to connect again.
    PolicyChanges(usize),
}

impl MessageIncident {
    /// Returns whether a peer's connection may end early.
    pub fn may_break(self, peer: &PeerPlan) -> bool {
        match self {
            _ if peer.late => false,
            MessageIncident::ChannelBreaks => peer.place != Place::Outside,
            MessageIncident::ProgramDies => peer.place == Place::Inside(0),
            MessageIncident::PolicyRemoves(channel) | MessageIncident::PolicyChanges(channel) => {
                peer.channel == channel
            }
            _ => false,
        }
    }

    /// Returns whether VIs break although both of their ends are alive.
    pub fn resumes(self) -> bool {
        matches!(self, MessageIncident::ChannelResumes | MessageIncident::TunnelResumes)
    }

    /// Returns the index of the channel that the policy changes.
    pub fn changed(self) -> Option<usize> {
        match self {
            MessageIncident::PolicyRemoves(channel) | MessageIncident::PolicyChanges(channel) => {
                Some(channel)
            }
            _ => None,
        }
    }

    fn draw(random: &mut ChaCha8Rng, channels: usize) -> Self {
        let channel = random.random_range(0..channels);
        let drawn = [
            MessageIncident::None,
            MessageIncident::None,
            MessageIncident::None,
            MessageIncident::None,
            MessageIncident::ChannelResumes,
            MessageIncident::TunnelResumes,
            MessageIncident::ChannelBreaks,
            MessageIncident::TunnelBreaks,
            MessageIncident::ProgramDies,
            MessageIncident::NetworkNodeRestarts,
            MessageIncident::PolicyRemoves(channel),
            MessageIncident::PolicyChanges(channel),
        ];
        drawn[random.random_range(0..drawn.len())]
    }
}

/// Parameters of a run, all drawn from its seed.
#[derive(Clone, Debug)]
pub struct MessageScenario {
    /// Faults of the links, delays, clocks, MTUs.
    pub links: Scenario,
    /// Blocks of 2 KiB for messages.
    pub pool_blocks: u32,
    /// The channels.
    pub channels: Vec<ChannelPlan>,
    /// The peers.
    pub peers: Vec<PeerPlan>,
    /// The incident.
    pub incident: MessageIncident,
    /// When it happens, relative to the senders' start.
    pub strikes: Duration,
    /// How long it lasts.
    pub outage: Duration,
    /// A program that does nothing for a while.
    pub stop: Option<Stall>,
    /// Byte streams of a client host to the service on the same worker.
    pub work: Vec<Transaction>,
    /// Supplied handlers, and when they are swapped.
    pub handlers: Option<HandlersPlan>,
}

impl MessageScenario {
    /// Returns a scenario over these links without peers, faults and incident: one publish/subscribe channel
    /// with ample room, and one push channel.
    pub fn quiet(links: Scenario) -> Self {
        let mut scenario = MessageScenario::of(7);
        for plan in &mut scenario.channels {
            plan.spec.channel.queue = QueueLimits::default();
            plan.spec.channel.budget.max = 2 << 20;
            plan.spec.channel.kind = match plan.spec.channel.kind {
                ChannelKind::PublishSubscribe { .. } => {
                    ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None }
                }
                ChannelKind::PushPull { .. } => ChannelKind::PushPull { backlog: QueueLimits::default() },
            };
        }
        MessageScenario {
            links,
            pool_blocks: 4_096,
            peers: Vec::new(),
            incident: MessageIncident::None,
            stop: None,
            work: Vec::new(),
            ..scenario
        }
    }

    /// Returns the scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let random = &mut ChaCha8Rng::seed_from_u64(seed ^ SEED);
        let links = Scenario::of(seed);
        let count = random.random_range(2..=3);
        let channels: Vec<_> = (0..count).map(|at| channel(random, at, at == 1)).collect();
        let incident = MessageIncident::draw(random, count);
        let strikes = Duration::from_micros(random.random_range(0..300_000));
        let outage = Duration::from_micros(random.random_range(0..500_000));
        let mut peers = Vec::new();
        for channel in 0..count {
            peers.extend(group(random, channel, channel == 1, None));
        }
        if incident != MessageIncident::None {
            let late = strikes + outage + Scenario::RECOVERY;
            for channel in 0..count {
                peers.extend(group(random, channel, channel == 1, Some(late)));
            }
            // A program that has died opens no connection.
            let dead = |peer: &&mut PeerPlan| peer.late && incident == MessageIncident::ProgramDies;
            for peer in peers.iter_mut().filter(dead).filter(|peer| peer.place == Place::Inside(0)) {
                peer.place = Place::Inside(1);
            }
        }
        let stop = (random.random_range(0..6) == 0 && !incident.resumes()).then(|| Stall {
            process: random.random_range(0..2),
            from: Duration::from_micros(random.random_range(0..200_000)),
            length: Duration::from_micros(random.random_range(100_000..3_000_000)),
            stopped: true,
        });
        let of_clients = |t: &&Transaction| t.by_process.is_none() && t.abort_after.is_none() && !t.late;
        let work = links.work.iter().filter(of_clients).take(2).copied().collect();
        MessageScenario {
            links,
            pool_blocks: random.random_range(400..1_024),
            channels,
            peers,
            incident,
            strikes,
            outage,
            stop,
            work,
            handlers: None,
        }
    }

    /// Returns the scenario of a seed with supplied handlers in paths of channels, which are swapped so many
    /// times.
    pub fn with_handlers(seed: u64, swaps: usize) -> Self {
        let mut scenario = MessageScenario::of(seed);
        let late = scenario.peers.iter().filter(|peer| peer.late).find_map(|peer| peer.start);
        let plan = HandlersPlan::of(seed, scenario.channels.len(), swaps, late);
        for (channel, _) in scenario.channels.iter_mut().zip(&plan.paths).filter(|(_, path)| path.is_some()) {
            // A channel that holds its senders back needs room for the longest message and what is made of
            // it.
            let budget = &mut channel.spec.channel.budget;
            budget.guaranteed = HANDLED_GUARANTEE;
            budget.max = budget.max.max(HANDLED_GUARANTEE);
        }
        scenario.handlers = Some(plan);
        scenario
    }
}

fn channel(random: &mut ChaCha8Rng, at: usize, is_push: bool) -> ChannelPlan {
    let messages = if random.random_range(0..2) == 0 { random.random_range(1..20) } else { 1_000 };
    let bytes = if random.random_range(0..3) == 0 { random.random_range(1..64) << 10 } else { 4 << 20 };
    let queue = QueueLimits { messages, bytes, ..QueueLimits::default() };
    let policy = [FullQueue::DropNewest, FullQueue::DropOldest, FullQueue::Block][random.random_range(0..3)];
    let kind = match is_push {
        true => ChannelKind::PushPull { backlog: queue },
        false => ChannelKind::PublishSubscribe { policy, cache: None },
    };
    let guaranteed = 128 << 10;
    let max = if random.random_range(0..3) == 0 { guaranteed } else { 2 << 20 };
    let channel = ChannelConfig {
        name: format!("channel-{at}"),
        kind,
        budget: Budget { guaranteed, max },
        message_len_max: MESSAGE_LEN_MAX,
        queue,
        sequence: false,
    };
    let number = at as u32 + 1;
    let address = (VIP, FIRST_PORT + at as u16).into();
    ChannelPlan { spec: ChannelSpec::open(number, channel), address }
}

/// Draws the peers of a channel: those before the incident, or those that connect `late`.
fn group(random: &mut ChaCha8Rng, channel: usize, is_push: bool, late: Option<Duration>) -> Vec<PeerPlan> {
    let most = if late.is_some() { 2 } else { 4 };
    let receivers = random.random_range(1..=most);
    let senders = random.random_range(1..=most - 1);
    let mut peers = Vec::new();
    for at in 0..receivers + senders {
        let sends = at >= receivers;
        // One receiver of each group stays, is outside and there from the start.
        let steady = at == 0;
        let place = match random.random_range(0..4) {
            program @ 0..2 if !steady => Place::Inside(program),
            _ => Place::Outside,
        };
        let joins = Duration::from_micros(random.random_range(0..200_000));
        let start = match late {
            Some(late) => Some(late),
            None if sends => Some(joins),
            None => (random.random_range(0..4) == 0 && !steady).then_some(joins),
        };
        let role = if sends { sender(random) } else { receiver(random, is_push, late.is_some()) };
        let leaves = match random.random_range(0..8) {
            _ if steady || late.is_some() => Leaves::Last,
            0 => Leaves::Closes(joins + Duration::from_micros(random.random_range(0..200_000))),
            1 => Leaves::Resets(joins + Duration::from_micros(random.random_range(0..200_000))),
            _ => Leaves::Last,
        };
        let minor = random.random_range(0..2);
        peers.push(PeerPlan { channel, place, minor, start, role, leaves, late: late.is_some() });
    }
    peers
}

fn sender(random: &mut ChaCha8Rng) -> Role {
    let floods = random.random_range(0..3) == 0;
    Role::Sends {
        messages: if floods { random.random_range(60..200) } else { random.random_range(1..40) },
        len_max: [0, 600, 20_000, MESSAGE_LEN_MAX - 100][random.random_range(0..4)],
        every: Duration::from_micros(if floods { 0 } else { random.random_range(0..3_000) }),
        topics: some(random, &TOPICS, 3),
        closes: random.random_range(0..2) == 0,
    }
}

fn receiver(random: &mut ChaCha8Rng, is_push: bool, is_late: bool) -> Role {
    let count = if is_push { 0 } else { random.random_range(1..=2) };
    let deaf = (random.random_range(0..4) == 0 && !is_late).then(|| {
        let from = Duration::from_micros(random.random_range(0..200_000));
        (from, from + Duration::from_micros(random.random_range(10_000..4_000_000)))
    });
    Role::Receives { topics: some(random, &PREFIXES, count), deaf }
}

/// Draws neighbours out of `all`.
fn some(random: &mut ChaCha8Rng, all: &[&'static [u8]], count: usize) -> Vec<&'static [u8]> {
    let from = random.random_range(0..all.len());
    all.iter().cycle().skip(from).take(count).copied().collect()
}
