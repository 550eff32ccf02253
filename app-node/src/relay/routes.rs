//! The proxy workers that processes of this host reach through the agent.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use csp_types::NodeId;
use csp_vi::{ProviderKind, ViAddress};

/// A proxy worker and how it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The proxy node.
    pub node: NodeId,
    /// Its worker.
    pub worker: u8,
    /// The name of the SAN provider that reaches it.
    pub provider: &'static str,
    /// The address where the worker accepts channels.
    pub address: ViAddress,
}

impl Target {
    /// Returns the address if the provider is verbs.
    pub fn address_of_verbs(&self) -> Option<SocketAddr> {
        match &self.address {
            ViAddress::Ip(address) if self.provider == ProviderKind::Verbs.as_str() => Some(*address),
            _ => None,
        }
    }
}

/// Returns the path of the Unix socket where agent `agent` accepts processes for a proxy worker.
pub fn path_of(folder: &Path, agent: NodeId, proxy: NodeId, worker: u8) -> PathBuf {
    folder.join(format!("{agent}.relay.{proxy}.w{worker}.sock"))
}

/// A target that the relay listens for.
#[derive(Debug)]
pub(super) struct Route {
    /// Never reused.
    pub number: u32,
    pub target: Target,
    /// The provider's index.
    pub via: usize,
    /// The number of its listener in the shm provider.
    pub listener: u32,
}

/// All routes.
#[derive(Debug, Default)]
pub(super) struct Routes {
    list: Vec<Route>,
    /// Routes that the relay no longer listens for and that may still carry VIs.
    leaving: Vec<Route>,
    next: u32,
}

impl Routes {
    /// Adds a route to `target`. A route that was being removed is restored with its number, so that its
    /// proxy worker is not watched twice.
    pub(super) fn add(&mut self, target: Target, via: usize, listener: u32) {
        let former = self.leaving.iter().position(|route| route.target == target);
        let number = former.map(|at| self.leaving.swap_remove(at).number).unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        self.list.push(Route { number, target, via, listener });
    }

    /// Starts the removal of a route that is not among `targets`, if there is one; returns its listener.
    pub(super) fn retire(&mut self, targets: &[Target]) -> Option<u32> {
        let at = self.list.iter().position(|route| !targets.contains(&route.target))?;
        let gone = self.list.swap_remove(at);
        let listener = gone.listener;
        self.leaving.push(gone);
        Some(listener)
    }

    /// Removes one retired route that carries no VI, if there is one; returns its number.
    pub(super) fn take_left(&mut self, mut carries: impl FnMut(u32) -> bool) -> Option<u32> {
        let at = self.leaving.iter().position(|route| !carries(route.number))?;
        Some(self.leaving.swap_remove(at).number)
    }

    pub(super) fn contains(&self, target: &Target) -> bool {
        self.list.iter().any(|route| route.target == *target)
    }

    pub(super) fn by_listener(&self, listener: u32) -> Option<&Route> {
        self.list.iter().find(|route| route.listener == listener)
    }

    pub(super) fn by_number(&self, number: u32) -> Option<&Route> {
        self.list.iter().find(|route| route.number == number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.list.iter()
    }
}
