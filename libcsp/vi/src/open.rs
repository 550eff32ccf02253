//! The one place where a daemon gets its providers.

use std::fmt;

use crate::shm::ShmProvider;
use crate::ucx::UcxProvider;
use crate::verbs::VerbsProvider;
use crate::{Provider, ViError};

/// The providers that a daemon can have; `memory` is for tests alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ProviderKind {
    /// Shared memory, between processes of one host.
    Shm,
    /// RDMA, between hosts that have it.
    Verbs,
    /// UCX over TCP, between any hosts.
    Ucx,
}

impl ProviderKind {
    /// The name used in configuration and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            ProviderKind::Shm => "shm",
            ProviderKind::Verbs => "verbs",
            ProviderKind::Ucx => "ucx",
        }
    }

    /// A provider without VIs, or why this host has none of the kind. The first of [`ProviderKind::Ucx`] loads a library
    /// and changes the environment: a daemon opens it before it starts threads.
    pub fn open(self) -> Result<Box<dyn Provider>, ViError> {
        Ok(match self {
            ProviderKind::Shm => Box::new(ShmProvider::new()?),
            ProviderKind::Verbs => Box::new(VerbsProvider::new()?),
            ProviderKind::Ucx => Box::new(UcxProvider::new()?),
        })
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
