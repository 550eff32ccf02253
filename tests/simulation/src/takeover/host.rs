//! A network node with its host: it is killed, stopped, put to sleep and started again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use csp_election::{Change, Group, GroupId, Held};
use csp_lan::faulty::{FaultHandle, wrap};
use csp_lan::memory::Hub;
use csp_network_node::core::{AddressGroup, RuleSet};
use csp_network_node::{Condition, NetworkWorker, OwnGroup};
use csp_transport::ClusterKey;
use csp_types::{Duration, Instant, MacAddr, NodeId, Prefix};
use csp_vi::memory::{InFlight, MemoryFabric};

use super::clocks::{Clocks, boot_time};
use super::scenario::{Fault, TakeoverScenario};
use super::tap::Tap;
use crate::application::PORT;
use crate::network::{network_node, provider_name, proxy_spec};

pub(super) const VIP: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 100);
pub(super) const EGRESS: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 101);
const GROUP: &str = "front";
const MTU: u16 = 1_500;

/// Returns the name of a proxy.
pub(super) fn proxy_name(at: usize) -> String {
    format!("pn-{}", at + 1)
}

/// Returns the id of the group.
pub(super) fn group_id() -> GroupId {
    GroupId::of(GROUP)
}

/// What nodes are attached to.
pub(super) struct Site {
    pub key: ClusterKey,
    pub fabric: MemoryFabric,
    pub hub: Hub,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Runs,
    /// It was killed or has left.
    Ended,
    /// Its host has lost power.
    Crashed,
    Stopped,
    Sleeps(Instant),
}

/// A network node.
pub(super) struct NetworkHost {
    pub name: String,
    mac: MacAddr,
    pub clocks: Clocks,
    life: Life,
    incarnation: u64,
    pub workers: Vec<(NetworkWorker, FaultHandle)>,
    held: Held,
    pub tap: Tap,
    /// Faults of its LAN port, those that it notices, and reasons to drain.
    lan: (u32, u32),
    drains: u32,
    /// Its condition has changed while it did not run.
    untold: bool,
}

impl NetworkHost {
    pub(super) fn new(at: usize, site: &Site, scenario: &TakeoverScenario) -> Self {
        let name = format!("nn-{}", at + 1);
        let clocks =
            if scenario.clocks_differ { Clocks::of(scenario.seed, &name) } else { Clocks::default() };
        let mut host = NetworkHost {
            name,
            mac: MacAddr([2, 0, 0, 0, 0, 2 + at as u8]),
            clocks,
            life: Life::Ended,
            incarnation: 0,
            workers: Vec::new(),
            held: Held::default(),
            tap: Tap::default(),
            lan: (0, 0),
            drains: 0,
            untold: false,
        };
        host.start(Instant::ZERO, site, scenario);
        host
    }

    /// Starts it with a new incarnation.
    fn start(&mut self, now: Instant, site: &Site, scenario: &TakeoverScenario) {
        (self.life, self.held) = (Life::Runs, Held::default());
        self.incarnation += 1;
        let shown = self.clocks.show(now);
        let count = scenario.network_workers;
        let ports = site.hub.attach_workers(count, &self.name, self.mac, MTU);
        let proxies: Vec<_> = (0..scenario.proxies).map(|at| proxy_spec(&proxy_name(at), 1, false)).collect();
        let own = self.group(scenario);
        for (port, number) in ports.into_iter().zip(0..) {
            let salt = 17 + u32::from(self.mac.0[5]) + u32::from(number);
            let (port, faults) =
                wrap(port, scenario.lan[1], scenario.seed.rotate_left(salt) ^ self.incarnation);
            faults.set_now(now);
            let (port, name) = (self.tap.wrap(port, VIP), &self.name);
            let place = (number, count as u8);
            let mut worker = network_node(&site.fabric, &site.key, name, self.incarnation, place, port);
            worker.set_lan_clock(boot_time);
            worker.set_proxies(shown, &proxies);
            worker.exchange_rules(shown, &mut rules(&own));
            if number == 0 {
                worker.set_groups(shown, std::slice::from_ref(&own));
            }
            self.workers.push((worker, faults));
        }
        self.tell_condition(now);
    }

    fn group(&self, scenario: &TakeoverScenario) -> OwnGroup {
        let first: NodeId = "nn-1".parse().expect("the simulation's own names are valid");
        let prefer = if scenario.prefers { vec![first] } else { Vec::new() };
        let group = Group { id: group_id(), prefer, failback: scenario.failback };
        OwnGroup { name: GROUP.to_owned(), group, held: self.held.clone() }
    }

    fn tell_condition(&mut self, now: Instant) {
        let shown = self.clocks.show(now);
        let condition = Condition { able: self.lan.1 == 0, draining: self.drains > 0, cut_off: false };
        self.untold = !self.runs();
        if let Some((worker, _)) = self.workers.first_mut().filter(|_| self.life == Life::Runs) {
            worker.set_condition(shown, &condition);
        }
    }

    /// Returns whether its process executes.
    pub(super) fn runs(&self) -> bool {
        self.life == Life::Runs
    }

    /// Returns whether it may transmit in the group's name now.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.runs() && self.held.is_at(self.clocks.boot(now))
    }

    /// Runs its workers; returns whether there was work.
    pub(super) fn turn(&mut self, now: Instant) -> bool {
        if !self.runs() {
            return false;
        }
        let shown = self.clocks.show(now);
        let any = self.workers.iter_mut().fold(false, |any, (worker, _)| worker.turn(shown, 1) | any);
        // After a stop, its workers may run before its control thread.
        if self.untold {
            self.tell_condition(now);
        }
        any
    }

    /// Returns whether it took the group since the last call.
    pub(super) fn take_gain(&mut self) -> bool {
        let Some((worker, _)) = self.workers.first_mut() else { return false };
        let changes = std::iter::from_fn(|| worker.poll_change());
        changes.filter(|(_, change)| matches!(change, Change::Gained { .. })).count() > 0
    }

    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let workers = self.workers.iter().filter(|_| self.runs());
        let due = workers.flat_map(|(worker, faults)| {
            let timer = worker.next_timeout().map(|shown| self.clocks.when(now, shown));
            timer.into_iter().chain(faults.next_due())
        });
        due.min()
    }

    /// Returns the names of its workers on the fabric.
    pub(super) fn providers(&self, scenario: &TakeoverScenario) -> impl Iterator<Item = String> {
        let name = self.name.clone();
        (0..scenario.network_workers as u8).map(move |number| provider_name(&name, number))
    }

    /// Begins a fault; `false` if that is impossible in its present state. Cuts are the world's.
    pub(super) fn strike(
        &mut self,
        now: Instant,
        fault: Fault,
        site: &Site,
        scenario: &TakeoverScenario,
    ) -> bool {
        let of_life = !matches!(fault, Fault::Cut(_) | Fault::Lan { .. } | Fault::Drain);
        if of_life && !self.runs() {
            return false;
        }
        match fault {
            Fault::Kill => {
                let fates = [InFlight::Lost, InFlight::Delivered];
                let fate = fates[(scenario.seed ^ self.incarnation) as usize % 2];
                self.end(fate, site, scenario);
            }
            Fault::Crash => self.life = Life::Crashed,
            Fault::Stop => self.life = Life::Stopped,
            Fault::Sleep => self.life = Life::Sleeps(now),
            Fault::Leave => {
                let shown = self.clocks.show(now);
                self.workers.iter_mut().for_each(|(worker, _)| worker.close(shown));
                self.end(InFlight::Delivered, site, scenario);
            }
            Fault::Lan { noticed } => self.count_lan(now, noticed, true),
            Fault::Drain => {
                self.drains += 1;
                self.tell_condition(now);
            }
            Fault::Cut(_) => {}
        }
        true
    }

    /// Ends a fault.
    pub(super) fn heal(&mut self, now: Instant, fault: Fault, site: &Site, scenario: &TakeoverScenario) {
        match fault {
            Fault::Kill | Fault::Leave => self.start(now, site, scenario),
            Fault::Crash => {
                self.end(InFlight::Lost, site, scenario);
                self.start(now, site, scenario);
            }
            Fault::Stop | Fault::Sleep => {
                if let Life::Sleeps(since) = self.life {
                    self.clocks.sleep(now - since);
                }
                self.life = Life::Runs;
            }
            Fault::Lan { noticed } => self.count_lan(now, noticed, false),
            Fault::Drain => {
                self.drains -= 1;
                self.tell_condition(now);
            }
            Fault::Cut(_) => {}
        }
    }

    fn end(&mut self, fate: InFlight, site: &Site, scenario: &TakeoverScenario) {
        for provider in self.providers(scenario) {
            site.fabric.kill_node(&provider, fate);
        }
        self.workers.clear();
        self.life = Life::Ended;
    }

    fn count_lan(&mut self, now: Instant, noticed: bool, cut: bool) {
        let change = |count: u32| if cut { count + 1 } else { count - 1 };
        self.lan.0 = change(self.lan.0);
        if noticed {
            self.lan.1 = change(self.lan.1);
        }
        self.tap.cut(self.lan.0 > 0);
        self.tell_condition(now);
    }

    /// Sets the time of its LAN ports.
    pub(super) fn set_now(&self, now: Instant) {
        self.workers.iter().for_each(|(_, faults)| faults.set_now(now));
    }

    /// Describes it, for debugging a seed.
    pub(super) fn describe(&self, now: Instant) -> String {
        let (holds, wakes) = (self.holds(now), self.next_timeout(now));
        let election = self.workers.first().map(|(worker, _)| worker.election());
        format!("{} {:?}, holds the group: {holds}, wakes {wakes:?}, {election:?}", self.name, self.life)
    }
}

/// Returns the rules of a network node: the service, the egress address, and the group of both.
fn rules(own: &OwnGroup) -> RuleSet {
    let service: SocketAddr = (VIP, PORT).into();
    let networks = vec![Prefix::new(IpAddr::V4(VIP), 31).expect("a network")];
    let group = AddressGroup { id: own.group.id, networks, held: own.held.clone() };
    let rules = RuleSet::new(16, &[service], &[], Default::default(), &[EGRESS.into()], &[]);
    rules.expect("the simulation's policy fits").with_groups(vec![group], &[])
}

/// Returns how long votes may keep a group at a node that lost its proxies: [`csp_election::HELD_FOR`] on a
/// clock that is up to 0.03 % slow.
pub(super) const HELD_MAX: Duration = Duration::from_micros(600_000 + 300);
