//! The figures of section 5.2, fabrics beside each other, and larger clusters.

use serde::Serialize;

use crate::costs::Costs;
use crate::link::Fabric;
use crate::model::run;
use crate::outcome::Outcome;
use crate::plan::{Demand, Setting, microseconds, one_tier};
use crate::scenario::{Arrivals, SEGMENT, Scenario, ScenarioError};
use crate::workload::Sizes;
use crate::{MICROSECOND, SECOND};

/// Sizes of Figures 8 and 9.
pub const SIZES: [u32; 5] = [2048, 4096, 8192, 16_384, 32_768];
/// Beside the points of Figure 9, capacities at which Figure 10 is made.
pub const CAPACITIES: [f64; 12] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0, 15.0, 20.0, 26.0];
/// What the paper reads off its Figure 9: size and equivalent processors.
pub const PAPER_EQUIVALENTS: [(u32, f64); 2] = [(2048, 33.0), (32_768, 2.8)];
/// Gigabits a second of the service that Figures 9 and 10 are about.
pub const SERVICE_GIGABITS: f64 = 2.0;
/// A link is fully used, and a throughput the highest, from this share on.
const FULL: f64 = 0.99;
/// Transactions at a time that keep the configuration busy.
const OUTSTANDING: u32 = 64;
/// Transactions for each node of a larger cluster, so that all of them are busy for long enough.
const TRANSACTIONS_A_NODE: u32 = 200;
/// Halvings of the interval in which a budget is searched.
const HALVINGS: u32 = 8;

/// How figures are made.
#[derive(Clone, Debug)]
pub struct Run {
    /// Costs.
    pub costs: Costs,
    /// The seed.
    pub seed: u64,
    /// Transactions of a point of Figure 10; those of other figures take a part of it.
    pub transactions: u32,
}

/// A size of Figure 8.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Budget {
    /// Size of the file.
    pub bytes: u32,
    /// Time of a transaction on the two links to the clients, computed.
    pub wire_us: f64,
    /// Longest time of the proxy tier that still fills the links.
    pub proxy_us: f64,
    /// The same of the application tier.
    pub application_us: f64,
}

/// A size of Figure 9.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Equivalent {
    /// Size of the file.
    pub bytes: u32,
    /// Processor time of the application node for a transaction.
    pub application_us: f64,
    /// Budget of the application tier.
    pub budget_us: f64,
    /// Processors that the tier needs.
    pub processors: f64,
    /// What the paper says.
    pub paper: Option<f64>,
}

/// A capacity of Figure 10.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Throughput {
    /// Processors of the application tier.
    pub processors: f64,
    /// Whether Figure 9 has a point there.
    pub in_figure_9: bool,
    /// Transactions a second.
    pub per_second: f64,
    /// The same by processor.
    pub per_processor: f64,
    /// Share of the links to the clients that is used.
    pub lan_use: f64,
    /// Share of the application tier's processors that is used.
    pub application_use: f64,
    /// Median latency, milliseconds.
    pub p50_ms: f64,
}

/// A fabric at a size.
#[derive(Clone, Debug, Serialize)]
pub struct FabricRow {
    /// The fabric.
    pub fabric: &'static str,
    /// Size of the file.
    pub bytes: u32,
    /// Transactions a second with the paper's links to the clients.
    pub per_second: f64,
    /// Transactions a second when those links are fast: the SAN's own limit.
    pub san_per_second: f64,
    /// Bits of files a second then, in millions.
    pub san_megabits: f64,
    /// Packets that enter the switch for a transaction.
    pub packets: f64,
    /// Median latency at half of the first rate.
    pub p50_us: f64,
    /// 99 of 100 take no longer.
    pub p99_us: f64,
}

/// A larger cluster.
#[derive(Clone, Debug, Serialize)]
pub struct Scale {
    /// Nodes of all tiers.
    pub nodes: u32,
    /// Gigabits of a link a second.
    pub gigabits: u32,
    /// Network, proxy and application nodes.
    pub split: [u32; 3],
    /// Requests a second at full use, computed.
    pub able_per_second: f64,
    /// Offered: 70 % of it.
    pub offered_per_second: f64,
    /// Completed, as simulated.
    pub per_second: f64,
    /// Use of processors by tier.
    pub used: [f64; 3],
    /// Use of the links to the clients.
    pub lan_use: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99 of 100 take no longer.
    pub p99_us: f64,
}

impl Run {
    /// A constant stream of transactions of one size on the paper's configuration.
    fn stream(&self, bytes: u32, costs: &Costs) -> Scenario {
        let transactions = (self.transactions / 20).max(800);
        Scenario {
            sizes: Sizes::fixed(bytes),
            arrivals: Arrivals::Closed { outstanding: OUTSTANDING },
            transactions,
            warm_up: transactions / 3,
            seed: self.seed,
            ..Scenario::paper(costs)
        }
    }

    /// Figure 8: processing budgets by tier.
    pub fn budgets(&self) -> Result<Vec<Budget>, ScenarioError> {
        SIZES.iter().map(|bytes| self.budget(*bytes)).collect()
    }

    fn budget(&self, bytes: u32) -> Result<Budget, ScenarioError> {
        let stream = self.stream(bytes, &Costs::free());
        let wire_us = wire_us(&stream, bytes);
        let most = run(&stream)?.transactions_per_second;
        let tier = |tier: usize| -> Result<f64, ScenarioError> {
            let nodes = if tier == 1 { stream.proxy.nodes } else { stream.application.nodes };
            let (mut low, mut high) = (0.8 * wire_us, 1.25 * wire_us);
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(low, high);
                let costs = one_tier(tier, middle * f64::from(nodes));
                let scenario = Scenario { costs, ..stream.clone() };
                match run(&scenario)?.transactions_per_second >= FULL * most {
                    true => low = middle,
                    false => high = middle,
                }
            }
            Ok(low)
        };
        Ok(Budget { bytes, wire_us, proxy_us: tier(1)?, application_us: tier(2)? })
    }

    /// Figure 9: processors that the application tier needs to fill the links.
    pub fn equivalents(&self, budgets: &[Budget]) -> Result<Vec<Equivalent>, ScenarioError> {
        let of = |budget: &Budget| {
            let application_us = self.application_us(budget.bytes)?;
            let paper = PAPER_EQUIVALENTS.iter().find(|(bytes, _)| *bytes == budget.bytes).map(|(_, p)| *p);
            Ok(Equivalent {
                bytes: budget.bytes,
                application_us,
                budget_us: budget.application_us,
                processors: application_us / budget.application_us,
                paper,
            })
        };
        budgets.iter().map(of).collect()
    }

    /// Processor time of an application node for a transaction of this size.
    fn application_us(&self, bytes: u32) -> Result<f64, ScenarioError> {
        let paper = Scenario::paper(&self.costs);
        let setting = Setting {
            lan: paper.lan,
            san: paper.san,
            message_bytes: paper.message_bytes,
            ..Setting::new(self.costs.clone(), Sizes::fixed(bytes), 1)
        };
        Ok(microseconds(Demand::measure(&setting)?.processors[2]))
    }

    /// Figure 10: throughput of the mix by capacity of the application tier.
    pub fn throughput(&self, equivalents: &[Equivalent]) -> Result<Vec<Throughput>, ScenarioError> {
        let points = equivalents.iter().map(|point| (point.processors, true));
        let mut points: Vec<(f64, bool)> = points.chain(CAPACITIES.map(|p| (p, false))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points.into_iter().map(|(processors, in_figure_9)| self.point(processors, in_figure_9)).collect()
    }

    fn point(&self, processors: f64, in_figure_9: bool) -> Result<Throughput, ScenarioError> {
        let scenario =
            Scenario { transactions: self.transactions, seed: self.seed, ..Scenario::paper(&self.costs) };
        let outcome = run(&scenario.with_application_capacity(processors))?;
        Ok(Throughput {
            processors,
            in_figure_9,
            per_second: outcome.transactions_per_second,
            per_processor: outcome.transactions_per_second / processors,
            lan_use: outcome.use_of.lan_out.min(1.0),
            application_use: outcome.use_of.application.min(1.0),
            p50_ms: outcome.latency.p50_us / 1000.0,
        })
    }

    /// The SAN as Ethernet and as InfiniBand, without processor time.
    pub fn fabrics(&self) -> Result<Vec<FabricRow>, ScenarioError> {
        let mut rows = Vec::new();
        for fabric in [Fabric::PAPER_ETHERNET, Fabric::PAPER_INFINIBAND] {
            for bytes in SIZES {
                rows.push(self.fabric(&fabric, bytes)?);
            }
        }
        Ok(rows)
    }

    fn fabric(&self, fabric: &Fabric, bytes: u32) -> Result<FabricRow, ScenarioError> {
        let stream = Scenario { san: fabric.clone(), ..self.stream(bytes, &Costs::free()) };
        let full = run(&stream)?;
        let lan = Fabric::ethernet(100_000_000_000);
        let alone = run(&Scenario { lan, ..stream.clone() })?;
        let arrivals = Arrivals::Open { per_second: full.transactions_per_second / 2.0 };
        let half = run(&Scenario { arrivals, ..stream.clone() })?;
        Ok(FabricRow {
            fabric: fabric.name,
            bytes,
            per_second: full.transactions_per_second,
            san_per_second: alone.transactions_per_second,
            san_megabits: alone.transactions_per_second * f64::from(bytes) * 8.0 / 1e6,
            packets: full.counted.san_packets as f64 / full.completed.max(1) as f64,
            p50_us: half.latency.p50_us,
            p99_us: half.latency.p99_us,
        })
    }

    /// Clusters of 8, 64 and 512 nodes with the paper's links and today's, divided among the tiers as
    /// the costs ask.
    pub fn scale(&self) -> Result<Vec<Scale>, ScenarioError> {
        let mut rows = Vec::new();
        for nodes in [8, 64, 512] {
            for gigabits in [1, 25, 100] {
                rows.push(self.cluster(nodes, gigabits)?);
            }
        }
        Ok(rows)
    }

    fn cluster(&self, nodes: u32, gigabits: u32) -> Result<Scale, ScenarioError> {
        let setting = Setting {
            transactions: self.transactions.max(TRANSACTIONS_A_NODE * nodes),
            seed: self.seed,
            ..Setting::new(self.costs.clone(), Sizes::specweb99(), gigabits)
        };
        let demand = Demand::measure(&setting)?;
        let split = demand.split(nodes, &setting);
        let able = demand.rate(split, &setting);
        let offered = able * setting.utilisation;
        let outcome: Outcome = setting.simulate(split, offered)?;
        let used = outcome.use_of;
        Ok(Scale {
            nodes,
            gigabits,
            split,
            able_per_second: able,
            offered_per_second: offered,
            per_second: outcome.transactions_per_second,
            used: [used.network, used.proxy, used.application],
            lan_use: used.lan_out,
            p50_us: outcome.latency.p50_us,
            p99_us: outcome.latency.p99_us,
        })
    }
}

/// Time that the packets of a transaction take on the links to the clients, spread over all links.
pub fn wire_us(scenario: &Scenario, bytes: u32) -> f64 {
    let response = bytes + scenario.head_bytes;
    let of = |payload: u32| f64::from(scenario.lan.divide(payload + 40).wire);
    let full = f64::from(response / SEGMENT) * of(SEGMENT);
    let last = if response.is_multiple_of(SEGMENT) { 0.0 } else { of(response % SEGMENT) };
    // SYN/ACK, FIN and the last acknowledgement.
    let wire = full + last + 3.0 * of(0);
    let rate = scenario.lan.bits_per_second as f64 * f64::from(scenario.network.nodes);
    wire * 8.0 / rate * SECOND / MICROSECOND
}

/// Returns the least capacity that has the highest throughput.
pub fn knee<'a>(points: impl Iterator<Item = &'a Throughput> + Clone) -> f64 {
    let most = points.clone().map(|point| point.per_second).fold(0.0, f64::max);
    let mut full = points.filter(|point| point.per_second >= FULL * most).map(|point| point.processors);
    full.by_ref().fold(f64::INFINITY, f64::min)
}
