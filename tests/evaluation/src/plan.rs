//! Capacity planning: what a transaction needs of each tier, and how many nodes a rate needs.

use serde::Serialize;

use crate::costs::{Cost, Costs, TierCosts};
use crate::link::Fabric;
use crate::model::run;
use crate::outcome::{Latency, Outcome};
use crate::scenario::{Arrivals, NODES_MAX, RATES, Scenario, ScenarioError, Stop, Tier};
use crate::workload::Sizes;
use crate::{MICROSECOND, SECOND};

/// Names of the tiers, in the order of the path.
pub const TIERS: [&str; 3] = ["network", "proxy", "application"];
/// Most nodes that a plan divides among the tiers.
const SPLIT_MAX: u32 = NODES_MAX;

/// What the nodes are like, and what they serve.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Costs.
    pub costs: Costs,
    /// Sizes of files.
    pub sizes: Sizes,
    /// Links to the clients.
    pub lan: Fabric,
    /// Links of the SAN.
    pub san: Fabric,
    /// SAN ports of a proxy node.
    pub proxy_ports: u32,
    /// Processors of a node, by tier.
    pub processors: [u32; 3],
    /// Bytes of a message between proxy and application node.
    pub message_bytes: u32,
    /// Share of a processor or a link that may be used.
    pub utilisation: f64,
    /// Transactions that are simulated.
    pub transactions: u32,
    /// The seed.
    pub seed: u64,
}

/// Mean time that a transaction takes of each resource, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Demand {
    /// Processors, by tier.
    pub processors: [f64; 3],
    /// The busier direction of a network node's link to the clients.
    pub lan: f64,
    /// The busier direction of a SAN port, by tier.
    pub san: [f64; 3],
}

/// How many nodes a rate needs.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Requests a second.
    pub requests_per_second: f64,
    /// What is needed of each tier.
    pub tiers: [TierPlan; 3],
    /// Latency that the simulator expects with these nodes.
    pub latency: Latency,
    /// Requests a second that it completes with them.
    pub completed_per_second: f64,
    /// How far the costs may be wrong.
    pub error: f64,
}

/// Nodes of one tier.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TierPlan {
    /// Name.
    pub tier: &'static str,
    /// Nodes.
    pub nodes: u32,
    /// Nodes if every cost is lower by the error.
    pub nodes_least: u32,
    /// Nodes if every cost is higher by the error.
    pub nodes_most: u32,
    /// Processors of all of them.
    pub processors: u32,
    /// Share of the processors' time that is used, as simulated.
    pub processor_use: f64,
    /// Share of the busiest kind of link that is used, as computed.
    pub link_use: f64,
    /// What decides how many nodes are needed.
    pub limit: Limit,
}

/// What decides how many nodes are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The processors.
    Processors,
    /// The link to the clients.
    Lan,
    /// The ports of the SAN.
    San,
}

impl Demand {
    /// Measures what a transaction takes: the simulator runs one of each size alone.
    pub fn measure(setting: &Setting) -> Result<Self, ScenarioError> {
        let mut demand = Demand::default();
        let (mut out, mut into) = (0.0, 0.0);
        let mut san = [[0.0; 2]; 3];
        for (bytes, share) in setting.sizes.shares() {
            let scenario = Scenario {
                sizes: Sizes::fixed(bytes),
                arrivals: Arrivals::Closed { outstanding: 1 },
                transactions: 1,
                stop: Stop::Drained,
                warm_up: 0,
                ..setting.scenario([1; 3])
            };
            let counted = run(&scenario)?.counted;
            let busy = [counted.network_busy, counted.proxy_busy, counted.application_busy];
            for (sum, busy) in demand.processors.iter_mut().zip(busy) {
                *sum += busy as f64 * share / SECOND;
            }
            let bits = setting.lan.bits_per_second as f64 / 8.0;
            out += counted.lan_out_wire_bytes as f64 * share / bits;
            into += counted.lan_in_wire_bytes as f64 * share / bits;
            let ports = [counted.san_network_busy, counted.san_proxy_busy, counted.san_application_busy];
            for (sums, ways) in san.iter_mut().zip(ports) {
                for (sum, busy) in sums.iter_mut().zip(ways) {
                    *sum += busy as f64 * share / SECOND;
                }
            }
        }
        demand.lan = f64::max(out, into);
        demand.san = san.map(|ways| f64::max(ways[0], ways[1]));
        Ok(demand)
    }

    /// Requests a second that one node of a tier can do, and what limits it.
    fn capacity(&self, tier: usize, setting: &Setting) -> (f64, Limit) {
        let ports = if tier == 1 { f64::from(setting.proxy_ports) } else { 1.0 };
        let mut limits =
            vec![(f64::from(setting.processors[tier]) / self.processors[tier], Limit::Processors)];
        limits.push((ports / self.san[tier], Limit::San));
        if tier == 0 {
            limits.push((1.0 / self.lan, Limit::Lan));
        }
        limits.into_iter().min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((0.0, Limit::Processors))
    }

    /// Returns the number of nodes of each tier for a rate.
    fn nodes(&self, rate: f64, setting: &Setting) -> [u32; 3] {
        [0, 1, 2].map(|tier| {
            let nodes = rate / (self.capacity(tier, setting).0 * setting.utilisation);
            // A hair above a whole number is rounding, not a node more.
            (nodes - 1e-9).ceil().clamp(1.0, f64::from(u32::MAX)) as u32
        })
    }

    /// Returns the requests a second that these nodes can do at full use.
    pub fn rate(&self, nodes: [u32; 3], setting: &Setting) -> f64 {
        (0..3)
            .map(|tier| f64::from(nodes[tier]) * self.capacity(tier, setting).0)
            .fold(f64::INFINITY, f64::min)
    }

    /// Divides nodes among the tiers, so that they can do as much as possible.
    pub fn split(&self, nodes: u32, setting: &Setting) -> [u32; 3] {
        let mut tiers = [1; 3];
        for _ in 3..nodes.min(SPLIT_MAX) {
            let able = |tier: &usize| f64::from(tiers[*tier]) * self.capacity(*tier, setting).0;
            let least = (0..3).min_by(|one, other| able(one).total_cmp(&able(other))).unwrap_or(0);
            tiers[least] += 1;
        }
        tiers
    }

    fn link_use(&self, tier: usize, nodes: u32, rate: f64, setting: &Setting) -> f64 {
        let ports = if tier == 1 { setting.proxy_ports } else { 1 };
        let san = self.san[tier] / f64::from(ports);
        let most = if tier == 0 { f64::max(san, self.lan) } else { san };
        rate * most / f64::from(nodes)
    }
}

impl Setting {
    /// Nodes of today: Ethernet with this many bits a second, responses in messages of 16 KiB.
    pub fn new(costs: Costs, sizes: Sizes, gigabits: u32) -> Self {
        let link = Fabric::ethernet(u64::from(gigabits) * 1_000_000_000);
        Setting {
            costs,
            sizes,
            lan: link.clone(),
            san: link,
            proxy_ports: 1,
            processors: [8; 3],
            message_bytes: 16 * 1024,
            utilisation: 0.7,
            transactions: 30_000,
            seed: 2002,
        }
    }

    /// Returns a scenario with these nodes; load and end are the paper's.
    fn scenario(&self, nodes: [u32; 3]) -> Scenario {
        let tier = |tier: usize| Tier::new(nodes[tier], self.processors[tier]);
        Scenario {
            network: tier(0),
            proxy: tier(1),
            application: tier(2),
            proxy_ports: self.proxy_ports,
            lan: self.lan.clone(),
            san: self.san.clone(),
            message_bytes: self.message_bytes,
            sizes: self.sizes.clone(),
            seed: self.seed,
            ..Scenario::paper(&self.costs)
        }
    }

    /// Simulates an open load on these nodes; the first fifth is not measured.
    pub fn simulate(&self, nodes: [u32; 3], per_second: f64) -> Result<Outcome, ScenarioError> {
        run(&Scenario {
            arrivals: Arrivals::Open { per_second },
            transactions: self.transactions,
            warm_up: self.transactions / 5,
            ..self.scenario(nodes)
        })
    }

    /// Returns how many nodes a rate needs, and what to expect of them.
    pub fn plan(&self, rate: f64) -> Result<Plan, ScenarioError> {
        let (least, most) = RATES;
        if !(least..=most).contains(&rate) {
            return Err(ScenarioError::OutOfRange { what: "requests a second", value: rate, least, most });
        }
        let demand = Demand::measure(self)?;
        let nodes = demand.nodes(rate, self);
        let with = |factor: f64| -> Result<[u32; 3], ScenarioError> {
            let other = Setting { costs: scaled(&self.costs, factor), ..self.clone() };
            Ok(Demand::measure(&other)?.nodes(rate, &other))
        };
        let (least, most) = (with(1.0 - self.costs.error)?, with(1.0 + self.costs.error)?);
        let outcome = self.simulate(nodes, rate)?;
        let used = [outcome.use_of.network, outcome.use_of.proxy, outcome.use_of.application];
        let tiers = [0, 1, 2].map(|tier| TierPlan {
            tier: TIERS[tier],
            nodes: nodes[tier],
            nodes_least: least[tier],
            nodes_most: most[tier],
            processors: nodes[tier].saturating_mul(self.processors[tier]),
            processor_use: used[tier],
            link_use: demand.link_use(tier, nodes[tier], rate, self),
            limit: demand.capacity(tier, self).1,
        });
        Ok(Plan {
            requests_per_second: rate,
            tiers,
            latency: outcome.latency,
            completed_per_second: outcome.transactions_per_second,
            error: self.costs.error,
        })
    }
}

/// Returns costs that are all higher or lower by a factor.
fn scaled(costs: &Costs, factor: f64) -> Costs {
    let of =
        |cost: &Option<Cost>| cost.as_ref().map(|cost| Cost { value: cost.value * factor, ..cost.clone() });
    let tier = |tier: &TierCosts| TierCosts {
        transaction: of(&tier.transaction),
        packet: of(&tier.packet),
        record: of(&tier.record),
        message: of(&tier.message),
        byte: of(&tier.byte),
    };
    Costs {
        network: tier(&costs.network),
        proxy: tier(&costs.proxy),
        application: tier(&costs.application),
        ..costs.clone()
    }
}

/// Returns costs where one tier takes this many microseconds for a transaction, and the others nothing.
pub fn one_tier(tier: usize, microseconds: f64) -> Costs {
    let alone = TierCosts {
        transaction: Some(Cost::assumed(microseconds, "a budget that is searched")),
        ..TierCosts::default()
    };
    let mut costs = Costs::free();
    match tier {
        0 => costs.network = alone,
        1 => costs.proxy = alone,
        _ => costs.application = alone,
    }
    costs
}

/// Seconds as microseconds.
pub fn microseconds(seconds: f64) -> f64 {
    seconds * SECOND / MICROSECOND
}
