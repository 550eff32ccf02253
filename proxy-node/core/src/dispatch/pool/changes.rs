//! Members that came into use or went out of it, until somebody asks.

use super::{MemberId, Pools};
use crate::dispatch::services::ServerHost;
use crate::reason;

/// Changes that are kept; further ones are not reported.
const CHANGES_MAX: usize = 4096;

/// What became of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// It gets connections: a process listens, or the plain server is reached again.
    Up,
    /// It gets none: no process listens.
    Unserved,
    /// It gets none: the plain server is not reached, for the reason with this code of [`reason`].
    Down(u32),
}

/// The changes since they were taken last.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<(MemberId, Change)>);

impl Changes {
    pub(super) fn add_if(&mut self, happened: bool, member: MemberId, change: Change) {
        if happened {
            self.add(member, change);
        }
    }

    pub(super) fn add(&mut self, member: MemberId, change: Change) {
        if self.0.len() < CHANGES_MAX {
            self.0.push((member, change));
        }
    }
}

/// A server of a service that came into use or went out of it, as this worker sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerChange {
    /// The service.
    pub service: String,
    /// Where the server is.
    pub host: ServerHost,
    /// Its port.
    pub port: u16,
    /// Why it gets no connections; `None`: it does.
    pub down: Option<&'static str>,
}

impl Pools {
    /// Returns the servers that came into use or went out of it since the last call, for each service of
    /// theirs; `name` is a service's name by its number.
    pub fn take_changes<'a>(&mut self, name: impl Fn(u32) -> Option<&'a str>) -> Vec<ServerChange> {
        let mut named = Vec::new();
        for (id, change) in std::mem::take(&mut self.changes.0) {
            let Some(member) = self.get(id) else { continue };
            let down = match change {
                Change::Up => None,
                Change::Unserved => Some("no process listens"),
                Change::Down(code) => Some(reason::text(code)),
            };
            let of = |service: &str| ServerChange {
                service: service.to_owned(),
                host: member.host,
                port: member.port,
                down,
            };
            named.extend(member.services.iter().filter_map(|number| name(*number)).map(of));
        }
        named
    }
}
