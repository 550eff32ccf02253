//! Nodes and links of a configuration, and how transactions are spread over them.

use crate::link::Link;
use crate::model::parcel::Transaction;
use crate::scenario::{Scenario, Tier};
use crate::station::Station;

/// Processors of all nodes and all links.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub network: Vec<Station>,
    pub proxy: Vec<Station>,
    pub application: Vec<Station>,
    /// From the clients to each network node.
    pub lan_in: Vec<Link>,
    /// From each network node to the clients.
    pub lan_out: Vec<Link>,
    /// From each SAN port to the switch.
    pub up: Vec<Link>,
    /// From the switch to each SAN port.
    pub down: Vec<Link>,
    /// SAN ports of a proxy node.
    proxy_ports: u32,
}

impl Nodes {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let stations = |tier: Tier| -> Vec<Station> {
            (0..tier.nodes).map(|_| Station::new(tier.processors, tier.speed)).collect()
        };
        let links = |count: u32, fabric| -> Vec<Link> { (0..count).map(|_| Link::new(fabric)).collect() };
        let ports =
            scenario.network.nodes + scenario.proxy.nodes * scenario.proxy_ports + scenario.application.nodes;
        Nodes {
            network: stations(scenario.network),
            proxy: stations(scenario.proxy),
            application: stations(scenario.application),
            lan_in: links(scenario.network.nodes, &scenario.lan),
            lan_out: links(scenario.network.nodes, &scenario.lan),
            up: links(ports, &scenario.san),
            down: links(ports, &scenario.san),
            proxy_ports: scenario.proxy_ports,
        }
    }

    /// Returns a transaction with its nodes. In each tier the nodes take turns; the first of each round
    /// differs, so that nodes of two tiers do not always meet each other.
    pub(crate) fn spread(&self, number: u32, started: u64, response: u32) -> Transaction {
        let turn = |tier: &[Station], salt: u64| {
            let nodes = tier.len() as u64;
            ((u64::from(number) + mixed(u64::from(number) / nodes + salt) % nodes) % nodes) as u32
        };
        Transaction {
            started,
            response,
            received: 0,
            packets: 0,
            ended: false,
            network: turn(&self.network, 1 << 40),
            proxy: turn(&self.proxy, 2 << 40),
            port: number / self.proxy.len() as u32 % self.proxy_ports,
            application: turn(&self.application, 3 << 40),
        }
    }

    /// Ports of the network nodes come first.
    pub(crate) fn network_port(&self, of: &Transaction) -> u32 {
        of.network
    }

    /// Then those of the proxy nodes.
    pub(crate) fn proxy_port(&self, of: &Transaction) -> u32 {
        self.network.len() as u32 + of.proxy * self.proxy_ports + of.port
    }

    /// Then those of the application nodes.
    pub(crate) fn application_port(&self, of: &Transaction) -> u32 {
        self.network.len() as u32 + self.proxy.len() as u32 * self.proxy_ports + of.application
    }
}

/// Mixes the bits of a number (the finaliser of SplitMix64).
const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
