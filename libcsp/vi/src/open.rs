//! Creates the providers of a daemon.

use std::fmt;
use std::net::IpAddr;

use crate::shm::ShmProvider;
use crate::tcp::TcpProvider;
use crate::ucx::UcxProvider;
use crate::verbs::VerbsProvider;
use crate::{Provider, ViError};

/// The kinds of provider that a daemon can open. `memory` is for tests only and not listed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ProviderKind {
    /// Shared memory, between processes of one host.
    Shm,
    /// RDMA, between hosts with RDMA devices.
    Verbs,
    /// Kernel TCP, between any hosts.
    Tcp,
    /// UCX over TCP, between any hosts.
    Ucx,
}

impl ProviderKind {
    /// The name used in configuration and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            ProviderKind::Shm => "shm",
            ProviderKind::Verbs => "verbs",
            ProviderKind::Tcp => "tcp",
            ProviderKind::Ucx => "ucx",
        }
    }

    /// Opens a provider without VIs; the error says why this host cannot provide this kind. The first
    /// [`ProviderKind::Ucx`] of a process loads a library and modifies the environment, so a daemon opens it
    /// before it starts threads.
    pub fn open(self) -> Result<Box<dyn Provider>, ViError> {
        self.open_at(None)
    }

    /// As [`open`](Self::open), for the SAN that has this address of the host: a UCX provider then listens on
    /// the address' network interface only, otherwise on all; a TCP provider connects from the address.
    pub fn open_at(self, address: Option<IpAddr>) -> Result<Box<dyn Provider>, ViError> {
        Ok(match (self, address) {
            (ProviderKind::Shm, _) => Box::new(ShmProvider::new()?),
            (ProviderKind::Verbs, _) => Box::new(VerbsProvider::new()?),
            (ProviderKind::Tcp, None) => Box::new(TcpProvider::new()?),
            (ProviderKind::Tcp, Some(address)) => Box::new(TcpProvider::at(address)?),
            (ProviderKind::Ucx, None) => Box::new(UcxProvider::new()?),
            (ProviderKind::Ucx, Some(address)) => Box::new(UcxProvider::at(address)?),
        })
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
