//! The policy's part of a worker: made by the control thread, which has the time, and exchanged for the one
//! in force by the worker, which has not.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use csp_classify::{ChannelIndex, Classifier, PoolIndex, Rule, RuleError, ServiceIndex, Target};
use csp_election::{GroupId, Held};
use csp_types::{PlacementKey, Prefix};

use super::forward::Pools;

/// Addresses that several network nodes can answer for, and until when this one does.
#[derive(Clone, Debug)]
pub struct AddressGroup {
    /// The group.
    pub id: GroupId,
    /// Its addresses.
    pub networks: Vec<Prefix>,
    /// Until when this node holds it, on the clock of
    /// [`NetworkCore::set_lan_time`](super::NetworkCore::set_lan_time).
    pub held: Held,
}

impl AddressGroup {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }
}

/// Services, channels and egress addresses of a policy, ready for a worker.
#[derive(Clone, Debug)]
pub struct RuleSet {
    pub(super) classifier: Classifier,
    /// The keys of the channels' addresses, by [`ChannelIndex`].
    pub(super) channels: Vec<PlacementKey>,
    /// The addresses that the former set did not have.
    pub(super) new: Vec<IpAddr>,
    pub(super) groups: Vec<AddressGroup>,
    /// The servers of services whose packets are forwarded, by [`csp_classify::PoolIndex`].
    pub(super) pools: Arc<Pools>,
    pub(super) egress: Vec<IpAddr>,
}

impl RuleSet {
    /// Makes the rules of services (virtual address and port), of the addresses of message channels, of
    /// services whose packets are forwarded to `pools`, and of egress addresses, with room for `capacity` of
    /// them; `before` are the addresses of the set that it replaces.
    ///
    /// # Errors
    /// There are more rules than fit, or two with the same address and port.
    pub fn new(
        capacity: usize,
        services: &[SocketAddr],
        channels: &[(SocketAddr, PlacementKey)],
        pools: Arc<Pools>,
        egress: &[IpAddr],
        before: &[IpAddr],
    ) -> Result<Self, RuleError> {
        let count = services.len() + channels.len() + pools.all().len() + egress.len();
        if count > capacity || services.len().max(channels.len()) > usize::from(u16::MAX) {
            return Err(RuleError::TooMany { count, capacity });
        }
        let service = |(at, end): (usize, &SocketAddr)| {
            let target = Target::Service { port: end.port(), service: ServiceIndex(at as u16) };
            Rule { address: end.ip(), target }
        };
        let channel = |(at, (end, _)): (usize, &(SocketAddr, PlacementKey))| {
            let target = Target::Channel { port: end.port(), channel: ChannelIndex(at as u16) };
            Rule { address: end.ip(), target }
        };
        let mut rules: Vec<Rule> = services.iter().enumerate().map(service).collect();
        rules.extend(channels.iter().enumerate().map(channel));
        rules.extend(pools.all().iter().enumerate().map(|(at, pool)| {
            let (protocol, port) = (pool.protocol, pool.end.port());
            let target = Target::Forward { protocol, port, pool: PoolIndex(at as u16) };
            Rule { address: pool.end.ip(), target }
        }));
        rules.extend(egress.iter().map(|address| Rule { address: *address, target: Target::Egress }));
        let mut classifier = Classifier::new(capacity);
        classifier.replace(&rules)?;
        let before: HashSet<&IpAddr> = before.iter().collect();
        let new = classifier.addresses().iter().filter(|address| !before.contains(address)).copied();
        let new = new.collect();
        Ok(RuleSet {
            classifier,
            channels: channels.iter().map(|(_, key)| *key).collect(),
            new,
            groups: Vec::new(),
            pools,
            egress: egress.to_vec(),
        })
    }

    /// Adds the groups of addresses that are only answered for while they are held, and the addresses that
    /// were in another group before: they are announced as new ones are.
    #[must_use]
    pub fn with_groups(mut self, groups: Vec<AddressGroup>, moved: &[IpAddr]) -> Self {
        let known: HashSet<IpAddr> = self.new.iter().copied().collect();
        let ours: HashSet<&IpAddr> = self.classifier.addresses().iter().collect();
        let again = moved.iter().filter(|address| ours.contains(address) && !known.contains(*address));
        self.new.extend(again);
        RuleSet { groups, ..self }
    }

    /// Returns the addresses of the rules, each once.
    pub fn addresses(&self) -> &[IpAddr] {
        self.classifier.addresses()
    }
}
