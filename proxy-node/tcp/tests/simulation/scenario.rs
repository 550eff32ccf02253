//! The scenario of a seed: hosts, links and conversations, all drawn from it.

use csp_tcp::{CongestionControl, EcnMode, StackConfig, SynCookies};
use csp_types::Duration;

use crate::app::{Appetite, Script, Step};
use crate::link::{Bottleneck, Bursts, LinkPlan};
use crate::model::{Manners, OutOfOrder};
use crate::random::Random;

/// How long acknowledgements are usually delayed.
pub const PROMPT: Duration = Duration::from_millis(40);

/// The kind of faults.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Theme {
    /// No faults: the expectations are exact.
    Clean,
    /// Loss, duplication, reordering, jitter, corruption.
    Faulty,
    /// A bandwidth limit with a finite queue.
    Narrow,
    /// Outages of some seconds; an MTU that changes.
    Broken,
    /// Tables and memory too small for the load.
    Crowded,
}

/// One end of the link.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Side {
    Engine(StackConfig),
    Model(Manners),
}

impl Side {
    fn set_cookies(&mut self, wanted: SynCookies) {
        if let Side::Engine(config) = self {
            config.syn_cookies = wanted;
        }
    }

    /// Most bytes that can be in flight to or from it.
    pub fn window(&self) -> u64 {
        match self {
            Side::Engine(config) => u64::from(config.receive_window_max.min(config.send_buffer_max)),
            Side::Model(manners) => u64::from(manners.buffer.min(manners.fixed_window.unwrap_or(u32::MAX))),
        }
    }
}

/// How a host processes arrivals.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Packets that arrived together are coalesced.
    pub joins: bool,
    /// The host processes arrivals at this interval.
    pub every: Duration,
    /// The host transmits after every packet, not after all of them.
    pub answers_each: bool,
}

/// One connection and its applications.
#[derive(Clone, Debug)]
pub struct Plan {
    pub port: u16,
    pub ipv6: bool,
    /// Both sides open it simultaneously.
    pub both_open: bool,
    /// When it begins (since the start) …
    pub begins: Duration,
    /// … or this long after that conversation has ended.
    pub after: Option<usize>,
    pub scripts: [Script; 2],
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub theme: Theme,
    pub sides: [Side; 2],
    pub receive: [Receive; 2],
    pub links: [LinkPlan; 2],
    pub plans: Vec<Plan>,
    /// Interval at which network nodes are replaced, if at all.
    pub node_changes: Option<Duration>,
}

impl Scenario {
    pub fn draw(seed: u64) -> Scenario {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x7c9);
        let random = &mut random;
        let theme = random.pick(&[
            Theme::Clean,
            Theme::Clean,
            Theme::Faulty,
            Theme::Faulty,
            Theme::Faulty,
            Theme::Narrow,
            Theme::Broken,
            Theme::Crowded,
        ]);
        let round_trip = Duration::from_micros(random.pick(&[100, 1_000, 10_000, 40_000, 160_000]));
        let mut links = [link(random, theme, round_trip / 2), link(random, theme, round_trip / 2)];
        if theme == Theme::Narrow && random.chance(0.5) {
            links[1] = LinkPlan { delay: round_trip / 2, ..LinkPlan::default() };
        }
        let mut sides = [side(random, theme, seed), side(random, theme, seed.wrapping_add(1 << 40))];
        if let [Side::Model(_), Side::Model(_)] = sides {
            sides[random.below(2) as usize] = Side::Engine(config(random, theme, seed));
        }
        for (link, side) in links.iter_mut().zip(&sides) {
            // A black hole: only the engine detects one by itself.
            link.icmp = matches!(side, Side::Model(_)) || random.chance(0.7);
        }
        // The acknowledgement of a cookie is sent once: if it is lost and the server is to send first, both
        // sides wait forever.
        if !links.iter().all(LinkPlan::is_lossless) {
            sides.iter_mut().for_each(|side| side.set_cookies(SynCookies::Off));
        }
        let receive = [receive(random), receive(random)];
        let plans = plans(random, theme, &sides);
        // Without a quiet time between two uses of the same addresses, nothing is guaranteed for the second.
        if theme == Theme::Faulty && random.chance(0.3) && plans.iter().all(|plan| plan.after.is_none()) {
            links.iter_mut().for_each(|link| link.ghosts = 0.02);
        }
        let node_changes = (theme == Theme::Faulty && random.chance(0.3))
            .then(|| Duration::from_millis(20 + random.below(1_000)));
        Scenario { theme, sides, receive, links, plans, node_changes }
    }

    /// Whether connections may fail through faults.
    pub fn is_rough(&self) -> bool {
        self.theme == Theme::Crowded
    }

    /// Whether a side answers SYNs with cookies.
    pub fn has_cookies(&self, side: usize) -> bool {
        matches!(&self.sides[side], Side::Engine(config) if config.syn_cookies != SynCookies::Off)
    }

    /// Whether packets are reordered, but only slightly: everything arrives, once, and within a tenth of a
    /// round trip of its regular time.
    pub fn is_little_reordered(&self) -> bool {
        let most = (self.links[0].delay + self.links[1].delay) / 20;
        let little = |link: &LinkPlan| {
            link.is_lossless()
                && link.duplication == 0.0
                && link.ghosts == 0.0
                && link.hold + link.jitter <= most
        };
        self.theme == Theme::Faulty
            && self.links.iter().all(little)
            && self.node_changes.is_none()
            && self.receive.iter().all(|receive| receive.every <= most)
    }

    /// Whether nothing may be retransmitted.
    pub fn is_clean(&self) -> bool {
        let prompt = |(side, receive): (&Side, &Receive)| match side {
            // A tail loss probe allows for a delay as long as that of the engine's own acknowledgements.
            Side::Engine(config) => config.delayed_ack == PROMPT,
            Side::Model(manners) => manners.is_prompt() && !receive.joins,
        };
        self.theme == Theme::Clean
            && self.links.iter().all(LinkPlan::is_clean)
            && self.sides.iter().zip(&self.receive).all(prompt)
            && self.node_changes.is_none()
            && self.receive.iter().all(|receive| receive.every == Duration::ZERO)
    }
}

impl Manners {
    /// Whether it gives a sender no reason for retransmissions.
    fn is_prompt(&self) -> bool {
        self.out_of_order == OutOfOrder::Keep && self.shrinks == 0.0 && self.ack_delay <= PROMPT
    }
}

fn link(random: &mut Random, theme: Theme, delay: Duration) -> LinkPlan {
    let mut plan = LinkPlan { delay, icmp: true, ..LinkPlan::default() };
    match theme {
        Theme::Clean => {
            plan.jitter = Duration::from_micros(random.pick(&[0, 0, 0, 100, 1_000]));
            plan.duplication = random.pick(&[0.0, 0.0, 0.0, 0.05]);
        }
        Theme::Faulty => faults(random, &mut plan),
        Theme::Narrow => {
            let bytes_per_second = random.pick(&[50_000, 200_000, 1_000_000, 10_000_000]);
            let queue = random.pick(&[3_000, 10_000, 30_000, 200_000]);
            plan.bottleneck = Some(Bottleneck { bytes_per_second, queue, mark: queue / 3 });
        }
        Theme::Broken => {
            if random.chance(0.6) {
                let from = Duration::from_millis(random.below(3_000));
                let to = from + Duration::from_millis(200 + random.below(6_000));
                plan.outages.push((from, to));
            }
            if random.chance(0.6) {
                let mut at = Duration::from_millis(random.below(300));
                for _ in 0..1 + random.below(3) {
                    plan.mtus.push((at, random.pick(&[1_500, 1_400, 1_280, 1_006, 576])));
                    at += Duration::from_millis(random.below(3_000));
                }
            }
            plan.loss = random.pick(&[0.0, 0.0, 0.01]);
        }
        Theme::Crowded => {
            plan.loss = random.pick(&[0.0, 0.0, 0.02]);
            plan.jitter = Duration::from_micros(random.pick(&[0, 300]));
        }
    }
    plan
}

fn faults(random: &mut Random, plan: &mut LinkPlan) {
    plan.loss = random.pick(&[0.0, 0.0, 0.001, 0.01, 0.03, 0.08]);
    plan.jitter = Duration::from_micros(random.pick(&[0, 0, 100, 3_000]));
    plan.duplication = random.pick(&[0.0, 0.0, 0.02, 0.2]);
    plan.reordering = random.pick(&[0.0, 0.0, 0.02, 0.2]);
    plan.hold = Duration::from_micros(random.pick(&[200, 2_000, 30_000]));
    plan.corruption = random.pick(&[0.0, 0.0, 0.01]);
    if random.chance(0.25) {
        let (begin, end) = (random.pick(&[0.002, 0.01, 0.03]), random.pick(&[0.1, 0.3, 0.5]));
        plan.bursts = Some(Bursts { begin, end, loss: random.pick(&[0.5, 1.0]) });
    }
}

fn receive(random: &mut Random) -> Receive {
    Receive {
        joins: random.chance(0.6),
        every: Duration::from_micros(random.pick(&[0, 0, 0, 50, 500])),
        answers_each: random.chance(0.4),
    }
}

fn side(random: &mut Random, theme: Theme, seed: u64) -> Side {
    if random.chance(0.65) { Side::Engine(config(random, theme, seed)) } else { Side::Model(manners(random)) }
}

fn config(random: &mut Random, theme: Theme, seed: u64) -> StackConfig {
    let mut isn_secret = [0; 16];
    isn_secret[..8].copy_from_slice(&seed.to_le_bytes());
    let crowded = theme == Theme::Crowded;
    let pick =
        |random: &mut Random, usual: usize, few: &[usize]| if crowded { random.pick(few) } else { usual };
    let block_len = random.pick(&[512, 2_048, 4_096]);
    StackConfig {
        first_label_index: 1 + random.below(1_000) as u32,
        connections: pick(random, 24, &[2, 4, 24]),
        half_open: pick(random, 24, &[1, 2, 24]),
        syn_cookies: random.pick(&[SynCookies::Off, SynCookies::Auto, SynCookies::Always]),
        time_wait_entries: pick(random, 24, &[1, 24]),
        listeners: 4,
        replies: pick(random, 64, &[1, 64]),
        blocks: pick(random, (8 << 20) / block_len, &[8, 20, 60, 500]),
        block_len,
        range_sets: pick(random, 48, &[1, 3, 48]),
        receive_window_max: random.pick(&[3_000, 20_000, 65_535, 300_000, 1 << 20]),
        send_buffer_max: random.pick(&[3_000, 20_000, 65_536, 1 << 20]),
        mss_v4: random.pick(&[1_460, 1_460, 1_460, 536, 999]),
        mss_v6: random.pick(&[1_440, 1_440, 1_220]),
        nagle: random.chance(0.2),
        congestion: random.pick(&[CongestionControl::Cubic, CongestionControl::NewReno]),
        delayed_ack: Duration::from_millis(random.pick(&[40, 40, 10, 100])),
        quick_acks: random.pick(&[16, 16, 0, 2]),
        // Longer than an outage and the retransmissions that follow it.
        time_wait: Duration::from_secs(random.pick(&[30, 60])),
        keepalive_idle: Some(Duration::from_secs(random.pick(&[30, 7_200]))),
        keepalive_interval: Duration::from_secs(10),
        keepalive_probes: 9,
        isn_secret,
        ecn: random.pick(&[EcnMode::Off, EcnMode::Passive, EcnMode::Active]),
        ..StackConfig::default()
    }
}

fn manners(random: &mut Random) -> Manners {
    let plain = random.chance(0.35);
    let mut manners = Manners {
        mss: 1_460,
        sack: true,
        timestamps: true,
        window_scale: Some(7),
        ecn: random.chance(0.5),
        buffer: 200_000,
        shrinks: 0.0,
        out_of_order: OutOfOrder::Keep,
        ack_every: 2,
        ack_delay: Duration::from_millis(40),
        fixed_window: None,
        crumbs: None,
        rto_min: Duration::from_millis(random.pick(&[200, 1_000])),
        time_wait: Duration::from_secs(random.pick(&[30, 60])),
        lone_fin: random.chance(0.3),
    };
    if plain {
        return manners;
    }
    manners.mss = random.pick(&[1_460, 1_460, 1_460, 1_000, 777, 536, 100]);
    manners.sack = random.chance(0.6);
    manners.timestamps = random.chance(0.6);
    manners.window_scale = random.pick(&[None, None, Some(0), Some(2), Some(7), Some(14)]);
    manners.buffer = random.pick(&[200_000, 65_535, 20_000, 5_000, 600, 20]);
    manners.shrinks = random.pick(&[0.0, 0.0, 0.0, 0.02, 0.3]);
    manners.out_of_order = random.pick(&[
        OutOfOrder::Keep,
        OutOfOrder::Keep,
        OutOfOrder::Discard,
        OutOfOrder::Renege(0.02),
        OutOfOrder::Renege(0.2),
    ]);
    manners.ack_every = random.pick(&[1, 2, 2, 8, 1_000]);
    manners.ack_delay = Duration::from_millis(random.pick(&[40, 40, 5, 200, 500]));
    manners.fixed_window = random.pick(&[None, None, Some(1_000), Some(20_000), Some(100_000)]);
    manners.crumbs = random.pick(&[None, None, None, Some(10), Some(600)]);
    manners
}

/// Bytes sent in one direction.
fn amount(random: &mut Random, sides: &[Side; 2]) -> u64 {
    let tiny = sides.iter().any(|side| match side {
        Side::Model(manners) => manners.buffer < 1_000 || manners.crumbs.is_some() || manners.mss < 200,
        Side::Engine(_) => false,
    });
    let most = if tiny { 3_000 } else { random.pick(&[1, 100, 3_000, 20_000, 60_000, 150_000, 400_000]) };
    random.below(most + 1)
}

fn plans(random: &mut Random, theme: Theme, sides: &[Side; 2]) -> Vec<Plan> {
    let crowd = if theme == Theme::Crowded { 12 } else { 5 };
    let mut plans: Vec<Plan> = Vec::new();
    let chain = random.chance(0.25);
    for n in 0..1 + random.below(crowd) as usize {
        let mut port = 1_000 + n as u16;
        let mut ipv6 = random.chance(0.3);
        let after = (chain && n > 0).then(|| n - 1);
        if let Some(before) = after
            && random.chance(0.7)
        {
            // The same addresses again.
            (port, ipv6) = (plans[before].port, plans[before].ipv6);
        }
        let begins = Duration::from_millis(random.pick(&[0, 0, 1, 50, 700]));
        let both_open = after.is_none() && theme != Theme::Crowded && random.chance(0.1);
        let scripts = scripts(random, sides, n);
        plans.push(Plan { port, ipv6, both_open, begins, after, scripts });
    }
    plans
}

fn scripts(random: &mut Random, sides: &[Side; 2], n: usize) -> [Script; 2] {
    let share = if n == 0 { 1 } else { 4 };
    let size = |random: &mut Random| amount(random, sides) / share;
    use Step::{Abort, AwaitFinish, Close, Pause, Shutdown, Write};
    let break_time = Duration::from_millis(random.below(400));
    let (a, b): (Vec<Step>, Vec<Step>) = match random.below(10) {
        // One direction only.
        0 => (vec![Write(size(random)), Shutdown], vec![AwaitFinish, Shutdown]),
        1 => (vec![AwaitFinish, Shutdown], vec![Write(size(random)), Shutdown]),
        // Both directions simultaneously.
        2 => (vec![Write(size(random)), Shutdown], vec![Write(size(random)), Shutdown]),
        // Half-close: the response follows the FIN.
        3 => (vec![Write(size(random)), Shutdown], vec![AwaitFinish, Write(size(random)), Shutdown]),
        4 | 5 => dialogue(random, Duration::ZERO),
        // Pauses so long that keepalive probes are sent and congestion windows restart.
        6 => {
            let pause = Duration::from_secs(random.pick(&[1, 3, 100]));
            dialogue(random, pause)
        }
        // Close after everything was delivered.
        7 => (
            vec![Write(size(random)), AwaitFinish, Close],
            vec![Write(size(random)), Pause(break_time), Close],
        ),
        // Close in the middle.
        8 => (vec![Write(size(random)), Close], vec![Write(size(random)), Pause(break_time), Shutdown]),
        _ => (
            vec![Write(size(random)), Pause(break_time), Abort],
            vec![Write(size(random)), AwaitFinish, Close],
        ),
    };
    let mut made = |steps| Script {
        steps,
        appetite: random.pick(&[
            Appetite::Eager,
            Appetite::Eager,
            Appetite::Eager,
            Appetite::Slow(3_000, Duration::from_millis(20)),
            Appetite::Slow(20_000, Duration::from_millis(300)),
            Appetite::Late(Duration::from_millis(800)),
            Appetite::Late(Duration::from_secs(8)),
        ]),
        piece: random.pick(&[1 << 20, 30_000, 1_448, 700]),
    };
    let (a, b) = (made(a), made(b));
    if random.chance(0.5) { [a, b] } else { [b, a] }
}

/// Requests and responses, with a pause before each request.
fn dialogue(random: &mut Random, pause: Duration) -> (Vec<Step>, Vec<Step>) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let (mut asked, mut answered) = (0, 0);
    let rounds = if pause > Duration::from_secs(10) { 2 } else { 1 + random.below(8) };
    for _ in 0..rounds {
        let most = random.pick(&[100, 5_000, 30_000]);
        let (request, response) = (1 + random.below(700), 1 + random.below(most));
        asked += request;
        answered += response;
        if pause > Duration::ZERO {
            a.push(Step::Pause(pause));
        }
        a.extend([Step::Write(request), Step::Await(answered)]);
        b.extend([Step::Await(asked), Step::Write(response)]);
    }
    a.push(Step::Shutdown);
    b.extend([Step::AwaitFinish, Step::Shutdown]);
    (a, b)
}
