//! Rules, plug-ins and frames of the bench.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use csp_classify::multifield::{Direction, Fields, Match, Rule, Table};
use csp_lan::LanPort;
use csp_network_node::core::{CoreConfig, PluginChange};
use csp_network_node::{NetworkWorker, TokenSource};
use csp_plugins::{Binding, DRIVER, Fallback, HashKey, Level, Manager, ManagerConfig, builtin};
use csp_transport::ClusterKey;
use csp_types::{Instant, MacAddr};
use csp_wire::checksum::{Checksum, checksum};

use crate::common::{self, Kind};

/// Rules of the paper.
pub const RULES: usize = 5_192;
/// Different headers.
pub const HEADERS: usize = 65_536;
const SEED: u64 = 20;
pub const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
pub const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);

/// What is in front of the flow table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// No rules; the frames are segments of 4,096 connections.
    None,
    /// Rules for packets that are transmitted; the same frames are received.
    OtherDirection,
    /// Rules that match none of these frames.
    Unmatched,
    /// Rules that each lead to a plug-in without effect; headers hit all of them.
    NoOp,
    /// The same, and packets are counted by /24.
    Counter,
    /// The same, and packets are marked.
    Dscp,
}

impl Case {
    pub const fn name(self) -> &'static str {
        match self {
            Case::None => "no rules",
            Case::OtherDirection => "5,192 rules of the other direction",
            Case::Unmatched => "5,192 rules, none matches",
            Case::NoOp => "5,192 rules, no-op",
            Case::Counter => "5,192 rules, counter",
            Case::Dscp => "5,192 rules, dscp",
        }
    }

    pub const fn key(self) -> &'static str {
        match self {
            Case::None => "none",
            Case::OtherDirection => "other-direction",
            Case::Unmatched => "unmatched",
            Case::NoOp => "no-op",
            Case::Counter => "counter",
            Case::Dscp => "dscp",
        }
    }

    pub const fn plugin(self) -> (&'static str, &'static [(&'static str, &'static str)]) {
        match self {
            Case::Counter => ("counter", &[]),
            Case::Dscp => ("dscp", &[("dscp", "10")]),
            _ => ("no-op", &[]),
        }
    }
}

/// The processor time of this thread.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn service() -> SocketAddr {
    ([10, 76, 0, 100], 80).into()
}

/// Rules as ClassBench makes them, for what is received at port 0. Destination 10.76.0.0/16 belongs to none
/// of them in the case [`Case::Unmatched`].
pub fn rules(case: Case) -> Vec<Rule> {
    let direction = if case == Case::OtherDirection { Direction::Egress } else { Direction::Ingress };
    common::rules(Kind::Acl, RULES, SEED, 0)
        .into_iter()
        .map(|rule| {
            let fields = Match { interface: None, direction: Some(direction), ..rule.fields };
            Rule { fields, ..rule }
        })
        .filter(|rule| case != Case::Unmatched || unrelated(&rule.fields))
        .collect()
}

/// Whether a rule matches no segment to the service.
pub fn unrelated(fields: &Match) -> bool {
    let service = service().ip();
    fields.destination.is_some_and(|network| !network.contains(service))
}

/// The change that brings a worker to a case.
pub fn change(case: Case) -> PluginChange {
    if case == Case::None {
        return PluginChange::default();
    }
    let config =
        ManagerConfig { rules_max: 16_384, instances_max: 16, ..ManagerConfig::new(1, HashKey(1, 2)) };
    let mut manager = Manager::new(config);
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment("workers", Level::Worker).unwrap();
    manager.start("workers").unwrap();
    let (module, settings) = case.plugin();
    let instance = manager.create("plugin", module, "workers", settings).unwrap();
    let binding = Binding { instance, fallback: Fallback::Pass }.encode();
    manager
        .replace_rules(rules(case).into_iter().map(|rule| Rule { instance: binding, ..rule }).collect())
        .unwrap();
    let commands: Vec<_> = std::iter::from_fn(|| manager.poll_command(0)).collect();
    let egress = case == Case::OtherDirection;
    let (table, directions) = (Some(manager.publish_rules()), (!egress, egress));
    PluginChange { commands, table, directions, retired: Vec::with_capacity(8), ..PluginChange::default() }
}

/// The same rules, which lead to an instance of level 1, with their table.
pub fn at_level1(module: &'static str) -> (Manager, Arc<Table>) {
    let mut manager =
        Manager::new(ManagerConfig { rules_max: 16_384, ..ManagerConfig::new(1, HashKey(1, 2)) });
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment(DRIVER, Level::Driver).unwrap();
    manager.start(DRIVER).unwrap();
    let instance = manager.create("plugin", module, DRIVER, &[]).unwrap();
    let binding = Binding { instance, fallback: Fallback::Pass }.encode();
    let rules = rules(Case::NoOp).into_iter().map(|rule| Rule { instance: binding, ..rule });
    manager.replace_rules(rules.collect()).unwrap();
    let table = manager.publish_rules().table;
    (manager, table)
}

/// Frames to the node: headers that hit all rules, or segments of connections to the service.
pub fn frames(case: Case, len: usize) -> Vec<Vec<u8>> {
    match case {
        Case::None | Case::OtherDirection | Case::Unmatched => {
            (0..HEADERS).map(|at| segment(at, len)).collect()
        }
        _ => frames_of(&rules(case), len),
    }
}

/// Frames with headers that hit all of these rules.
pub fn frames_of(rules: &[Rule], len: usize) -> Vec<Vec<u8>> {
    common::uniform(rules, HEADERS, SEED, 0).iter().map(|fields| frame(fields, len)).collect()
}

fn segment(at: usize, len: usize) -> Vec<u8> {
    let (connection, destination) = (at % 4096, service());
    let fields = Fields {
        source: [10, 76, (1 + connection / 250) as u8, (1 + connection % 250) as u8].into(),
        destination: destination.ip(),
        ports: Some((40_000, destination.port())),
        protocol: 6,
        interface: 0,
        direction: Direction::Ingress,
        tcp_flags: Some(if at < 4096 { 0x02 } else { 0x10 }),
        dscp: 0,
    };
    frame(&fields, len)
}

/// A frame of `len` bytes with these fields and correct checksums.
fn frame(fields: &Fields, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (fields.source, fields.destination) else {
        unreachable!()
    };
    bytes[..6].copy_from_slice(&OUR_MAC.0);
    bytes[6..12].copy_from_slice(&CLIENT_MAC.0);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut bytes[14..];
    ip[0] = 0x45;
    ip[1] = fields.dscp << 2;
    ip[2..4].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    ip[8] = 64;
    ip[9] = fields.protocol;
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..20].copy_from_slice(&destination.octets());
    let sum = checksum(&ip[..20]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    if let Some((source, destination)) = fields.ports {
        ip[20..22].copy_from_slice(&source.to_be_bytes());
        ip[22..24].copy_from_slice(&destination.to_be_bytes());
    }
    if fields.protocol == 6 {
        ip[32] = 5 << 4;
        ip[33] = fields.tcp_flags.unwrap_or(0);
        let mut sum = Checksum::pseudo(source.into(), destination.into(), 6, (len - 34) as u32).unwrap();
        sum.add(&ip[20..]);
        ip[36..38].copy_from_slice(&sum.finish().to_be_bytes());
    }
    bytes
}

/// A worker without tunnels.
pub fn worker(config: CoreConfig, lan: Vec<LanPort>) -> NetworkWorker {
    let key = ClusterKey::from_bytes([1; 32]);
    let tokens = TokenSource { keys: key.into(), node: "nn-1".parse().unwrap(), nonce: 9 };
    let mut worker = NetworkWorker::new(config, 0, lan, vec![], tokens);
    worker.set_services(Instant::from_nanos(1), &[service()], &[]).unwrap();
    worker
}

/// The beginning of evaluation.md.
pub fn preface() -> String {
    let unix_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    format!(
        "# Packet plug-ins, measured\n\nWritten by `make bench-plugins` at Unix time {unix_s}, load {load} at the beginning. Level 2, and level 3 where it \
         says so.\n\nProcessor time of the worker's thread, the best of several rounds; what other programs take counts only for \
         their share of the caches. {RULES} rules as ClassBench makes them (ACL), {HEADERS} frames. Where no rule matches, or there are none, the \
         frames are segments of 4,096 connections to a service; otherwise headers that hit all rules, which pass and are then no service's.\n"
    )
}
