//! The proxy workers that processes of this host reach through the agent.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use csp_types::NodeId;
use csp_vi::{ProviderKind, ViAddress};

/// A proxy worker and the way to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The proxy node.
    pub node: NodeId,
    /// Its worker.
    pub worker: u8,
    /// Which of the SAN's providers carries it, by the name that it gives itself.
    pub provider: &'static str,
    /// Where the worker accepts channels.
    pub address: ViAddress,
}

impl Target {
    /// The address, where verbs lead to it.
    pub fn address_of_verbs(&self) -> Option<SocketAddr> {
        match &self.address {
            ViAddress::Ip(address) if self.provider == ProviderKind::Verbs.as_str() => Some(*address),
            _ => None,
        }
    }
}

/// The Unix socket where the agent `agent` accepts processes for a proxy worker.
pub fn path_of(folder: &Path, agent: NodeId, proxy: NodeId, worker: u8) -> PathBuf {
    folder.join(format!("{agent}.relay.{proxy}.w{worker}.sock"))
}

/// A target that is listened for.
#[derive(Debug)]
pub(super) struct Route {
    /// Never used twice.
    pub number: u32,
    pub target: Target,
    /// The provider's place.
    pub via: usize,
    /// Which listener of the shm provider stands for it.
    pub listener: u32,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Routes {
    list: Vec<Route>,
    /// Those that are listened for no more and may still carry VIs.
    leaving: Vec<Route>,
    next: u32,
}

impl Routes {
    /// A route to `target`; one that was leaving is the same again, so that a proxy worker is not watched twice.
    pub(super) fn add(&mut self, target: Target, via: usize, listener: u32) {
        let former = self.leaving.iter().position(|route| route.target == target);
        let number = former.map(|at| self.leaving.swap_remove(at).number).unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        self.list.push(Route { number, target, via, listener });
    }

    /// Has a route that is not among `targets` leave, if there is one; gives its listener.
    pub(super) fn retire(&mut self, targets: &[Target]) -> Option<u32> {
        let at = self.list.iter().position(|route| !targets.contains(&route.target))?;
        let gone = self.list.swap_remove(at);
        let listener = gone.listener;
        self.leaving.push(gone);
        Some(listener)
    }

    /// Takes out a leaving route that carries nothing any more, if there is one; gives its number.
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
