//! What is simulated: nodes, links, load.

use thiserror::Error;

use crate::costs::Costs;
use crate::link::Fabric;
use crate::workload::Sizes;

/// Most nodes of a tier.
pub const NODES_MAX: u32 = 4096;
/// Most processors of a node.
pub const PROCESSORS_MAX: u32 = 1024;
/// Most transactions of a run.
pub const TRANSACTIONS_MAX: u32 = 10_000_000;
/// Least and most requests a second.
pub const RATES: (f64, f64) = (1e-3, 1e10);
/// Largest file.
pub const FILE_BYTES_MAX: u32 = 1 << 30;
/// Most full packets of all responses that a run has to complete.
pub const PACKETS_MAX: f64 = 1e8;
/// Bytes of TCP payload of a full packet.
pub const SEGMENT: u32 = 1460;

/// A configuration and its load.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Network nodes, each with a link to the clients and a port to the SAN.
    pub network: Tier,
    /// Proxy nodes.
    pub proxy: Tier,
    /// Application nodes, each with one port to the SAN.
    pub application: Tier,
    /// SAN ports of a proxy node.
    pub proxy_ports: u32,
    /// Links to the clients.
    pub lan: Fabric,
    /// Links between nodes and switch.
    pub san: Fabric,
    /// Bytes of a response that a message from an application node carries at most.
    pub message_bytes: u32,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Bytes of a response's head.
    pub head_bytes: u32,
    /// Sizes of files.
    pub sizes: Sizes,
    /// How requests arrive.
    pub arrivals: Arrivals,
    /// Transactions that have to be completed.
    pub transactions: u32,
    /// What happens then.
    pub stop: Stop,
    /// Of the completed transactions those that are not measured, because the system was still filling.
    pub warm_up: u32,
    /// Costs of nodes.
    pub costs: Costs,
    /// Everything random follows from it.
    pub seed: u64,
}

/// Nodes of a tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tier {
    /// Number of nodes.
    pub nodes: u32,
    /// Processors of each.
    pub processors: u32,
    /// Speed of a processor; costs are for 1.
    pub speed: f64,
}

impl Tier {
    /// Nodes with this many processors of speed 1.
    pub const fn new(nodes: u32, processors: u32) -> Self {
        Tier { nodes, processors, speed: 1.0 }
    }
}

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// With exponential times between them, whether earlier ones are done or not.
    Open {
        /// Mean rate.
        per_second: f64,
    },
    /// So many at any time: one that is completed is followed by another.
    Closed {
        /// Transactions at a time.
        outstanding: u32,
    },
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// As soon as enough transactions are completed, with others on their way, as the paper's runs.
    Completed,
    /// No more transactions than asked for are started, and all of them are completed.
    Drained,
}

/// Why a scenario is refused.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ScenarioError {
    /// A number is outside of what can be simulated.
    #[error("{what} is {value}; right is {least} to {most}")]
    OutOfRange {
        /// What the number is.
        what: &'static str,
        /// The number.
        value: f64,
        /// Least that is right.
        least: f64,
        /// Most that is right.
        most: f64,
    },
    /// The run took more events than a run may take.
    #[error("stopped after {0} events: fewer transactions or smaller files are right")]
    TooManyEvents(u64),
}

impl Scenario {
    /// The paper's configuration: two network nodes with Gigabit Ethernet to the clients, two proxy
    /// nodes with two SAN ports each, four application nodes, a switch of ten ports.
    pub fn paper(costs: &Costs) -> Self {
        Scenario {
            network: Tier::new(2, 1),
            proxy: Tier::new(2, 1),
            application: Tier::new(4, 1),
            proxy_ports: 2,
            lan: Fabric::ethernet(1_000_000_000),
            san: Fabric::PAPER_ETHERNET,
            message_bytes: SEGMENT,
            request_bytes: 170,
            head_bytes: 230,
            sizes: Sizes::specweb99(),
            arrivals: Arrivals::Open { per_second: 20_000.0 },
            transactions: 50_000,
            stop: Stop::Completed,
            warm_up: 0,
            costs: costs.clone(),
            seed: 2002,
        }
    }

    /// Gives the tier of application nodes the capacity of this many processors of speed 1.
    #[must_use]
    pub fn with_application_capacity(mut self, processors: f64) -> Self {
        let all = f64::from(self.application.nodes * self.application.processors);
        self.application.speed = processors / all;
        self
    }

    /// Checks that the scenario is within what can be simulated.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let range = |what, value: f64, least: f64, most: f64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(ScenarioError::OutOfRange { what, value, least, most }),
        };
        let count = |what, value: u32, most: u32| range(what, f64::from(value), 1.0, f64::from(most));
        for (nodes, processors, tier) in [
            ("network nodes", "processors of a network node", self.network),
            ("proxy nodes", "processors of a proxy node", self.proxy),
            ("application nodes", "processors of an application node", self.application),
        ] {
            count(nodes, tier.nodes, NODES_MAX)?;
            count(processors, tier.processors, PROCESSORS_MAX)?;
            range("speed of a processor", tier.speed, 1e-6, 1e6)?;
        }
        count("SAN ports of a proxy node", self.proxy_ports, 64)?;
        count("bytes of a message", self.message_bytes, 1 << 24)?;
        count("bytes of a request", self.request_bytes, 64 * 1024)?;
        count("bytes of a response's head", self.head_bytes, 64 * 1024)?;
        count("bytes of a file", self.sizes.largest(), FILE_BYTES_MAX)?;
        count("transactions", self.transactions, TRANSACTIONS_MAX)?;
        let packets = f64::from(self.transactions) * self.sizes.mean() / f64::from(SEGMENT);
        range("packets of all transactions", packets.round(), 0.0, PACKETS_MAX)?;
        range("transactions not measured", f64::from(self.warm_up), 0.0, f64::from(self.transactions - 1))?;
        for fabric in [&self.lan, &self.san] {
            range("bits of a link a second", fabric.bits_per_second as f64, 1e6, 1e13)?;
            count("bytes of a packet", fabric.payload, 1 << 16)?;
        }
        match self.arrivals {
            Arrivals::Open { per_second } => range("requests a second", per_second, RATES.0, RATES.1),
            Arrivals::Closed { outstanding } => count("transactions at a time", outstanding, 1_000_000),
        }
    }
}
