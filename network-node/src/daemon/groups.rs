//! The control thread's part in the election of addresses' owners: the groups of a policy that this node may
//! hold, whether its LAN ports work, and what it holds as metrics.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use csp_api::events::What;
use csp_daemon::clock;
use csp_election::{Group, GroupId, Held};
use csp_policy::{Policy, VipGroup};
use csp_telemetry::{MetricSource, MetricWriter};
use csp_types::OwnedAddresses;

use crate::core::AddressGroup;
use crate::worker::{Condition, OwnGroup};

use super::config::LanSection;
use super::data_thread::Question;
use super::workers::DataWorkers;

/// A group of the policy in force.
#[derive(Clone, Debug)]
struct Known {
    name: String,
    held: Held,
    /// Whether it was held when its changes were asked for last.
    was_held: bool,
}

/// The groups of the policy in force, and where their state is. It outlives policies: a group that stays
/// keeps its state.
#[derive(Clone, Debug, Default)]
pub struct Groups(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    known: HashMap<GroupId, Known>,
    /// The group of each address that is in one.
    placed: HashMap<IpAddr, GroupId>,
}

/// The groups of a policy, for the workers.
#[derive(Clone, Debug, Default)]
pub struct GroupRules {
    /// All groups: a node answers for their addresses while it holds them.
    pub all: Vec<AddressGroup>,
    /// Those that this node may hold.
    pub own: Vec<OwnGroup>,
    /// Addresses that were in another group before, or in none: they are announced again.
    pub moved: Vec<IpAddr>,
}

impl Groups {
    /// Returns the groups that this node holds since the last call, or holds no longer.
    pub fn changes(&self) -> Vec<What> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let change = |known: &mut Known| {
            let is_held = known.held.is_at(clock::boot_now());
            let group = (&known.name).into();
            match (std::mem::replace(&mut known.was_held, is_held), is_held) {
                (false, true) => Some(What::VipGroupTaken { group }),
                (true, false) => Some(What::VipGroupGiven { group }),
                _ => None,
            }
        };
        state.known.values_mut().filter_map(change).collect()
    }

    /// Returns the groups of a policy. This node may hold those of which it owns all addresses.
    pub fn of_policy(&self, policy: &Policy, owned: &OwnedAddresses) -> GroupRules {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { known, placed } = &mut *state;
        let ids = |group: &VipGroup| GroupId::of(&group.name);
        known.retain(|id, _| policy.vip_groups.iter().any(|group| ids(group) == *id));
        let addresses = policy.addresses();
        let place = |address: &IpAddr| Some((*address, ids(policy.vip_group(*address)?)));
        let before = std::mem::replace(placed, addresses.iter().filter_map(place).collect());
        let mut rules = GroupRules::default();
        let moved = addresses.iter().filter(|address| placed.get(*address) != before.get(*address));
        rules.moved = moved.copied().collect();
        for group in &policy.vip_groups {
            let id = ids(group);
            let new = || Known { name: group.name.clone(), held: Held::default(), was_held: false };
            let held = known.entry(id).or_insert_with(new).held.clone();
            rules.all.push(AddressGroup { id, networks: group.addresses.clone(), held: held.clone() });
            let of_group = || addresses.iter().filter(|address| group.contains(**address));
            let foreign: Vec<&IpAddr> = of_group().filter(|address| !owned.contains(**address)).collect();
            match foreign.first() {
                None => {
                    rules.own.push(OwnGroup { name: group.name.clone(), group: as_candidate(group), held })
                }
                Some(first) if foreign.len() < of_group().count() => {
                    tracing::warn!(group = group.name, address = %first, "this node does not take part in the group's election: it does not own all its addresses, see owns in its configuration");
                }
                Some(_) => {}
            }
        }
        rules
    }
}

fn as_candidate(group: &VipGroup) -> Group {
    Group {
        id: GroupId::of(&group.name),
        prefer: group.prefer.clone(),
        failback: group.preempt.then(|| Duration::from_secs(group.preempt_delay_s.into())),
    }
}

impl MetricSource for Groups {
    fn collect(&self, out: &mut MetricWriter) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for Known { name, held, .. } in state.known.values() {
            let help = "Whether this node answers for the addresses of a VIP group (1) or not (0)";
            let is_held = held.is_at(clock::boot_now());
            out.gauge("csp_vip_group_held", help, &[("group", name)], f64::from(u8::from(is_held)));
        }
    }
}

/// Returns the first LAN port without a link; `None` if all have one. Ports whose driver does not say count
/// as working.
pub fn port_without_link(ports: &[LanSection]) -> Option<&str> {
    let fails = |port: &&LanSection| matches!(csp_lan::has_link(&port.interface), Ok(false));
    ports.iter().find(fails).map(|port| port.interface.as_str())
}

/// Whether this node can serve and wants to, as worker 0 is to know.
#[derive(Debug, Default)]
pub struct Watched {
    draining: bool,
    /// etcd is silent.
    cut_off: bool,
    /// The LAN port without a link.
    dark: Option<String>,
}

impl Watched {
    /// Sets whether the node drains.
    pub fn set_draining(&mut self, draining: bool, workers: &DataWorkers) {
        if std::mem::replace(&mut self.draining, draining) != draining {
            self.send(workers);
        }
    }

    /// Sets whether etcd is silent.
    pub fn set_cut_off(&mut self, cut_off: bool, workers: &DataWorkers) {
        if std::mem::replace(&mut self.cut_off, cut_off) != cut_off {
            self.send(workers);
        }
    }

    /// Sets the LAN port that has no link.
    pub fn set_dark(&mut self, port: Option<&str>, workers: &DataWorkers) {
        if self.dark.as_deref() == port {
            return;
        }
        match port {
            Some(interface) => {
                tracing::warn!(interface, "the LAN port has no link: VIP groups go to another network node");
            }
            None => tracing::info!("all LAN ports have a link again"),
        }
        self.dark = port.map(str::to_owned);
        self.send(workers);
    }

    fn send(&self, workers: &DataWorkers) {
        let Watched { draining, cut_off, .. } = *self;
        let condition = Condition { able: self.dark.is_none(), draining, cut_off };
        let sent = workers.mailboxes().first().map(|mailbox| mailbox.send(Question::Condition(condition)));
        if let Some(Err(error)) = sent {
            tracing::error!(%error, "worker 0 does not know whether this node can serve");
        }
    }
}
