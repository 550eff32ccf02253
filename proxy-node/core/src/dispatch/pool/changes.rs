//! Members that came into use or went out of it, until somebody asks.

use super::{MemberId, PlainState, Pools, ServerId};
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

/// The changes since they were taken last, each with the serial number of its member.
#[derive(Debug, Default)]
pub(super) struct Changes {
    list: Vec<(MemberId, u32, Change)>,
    /// There were more than are kept: every member is looked at.
    overflowed: bool,
    /// Since connections to members were reviewed something has changed.
    unreviewed: bool,
}

impl Changes {
    pub(super) fn add(&mut self, member: ServerId, change: Change) {
        self.unreviewed = true;
        match self.list.len() < CHANGES_MAX {
            true => self.list.push((member.member, member.serial, change)),
            false => self.overflowed = true,
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
    /// Records a change of a member, if it happened.
    pub(super) fn changed_if(&mut self, happened: bool, member: MemberId, change: Change) {
        if happened {
            self.changed(member, change);
        }
    }

    /// Records a change of a member.
    pub(super) fn changed(&mut self, member: MemberId, change: Change) {
        if let Some(id) = self.get(member).map(|known| known.id(member)) {
            self.changes.add(id, change);
        }
    }

    /// Has the connections to members [reviewed](Self::take_unreviewed).
    pub(crate) fn set_unreviewed(&mut self) {
        self.changes.unreviewed = true;
    }

    /// Returns whether, since the last call, a member came into use or went out of it, or the policy or the
    /// nodes that drain have changed.
    pub(crate) fn take_unreviewed(&mut self) -> bool {
        std::mem::take(&mut self.changes.unreviewed)
    }

    /// Records that a plain server that is down is named by one more service.
    pub(super) fn named_while_down(&mut self, member: MemberId) {
        let state = self.get(member).and_then(|known| known.plain_state());
        if let Some(PlainState::Down { code, .. }) = state {
            self.changed(member, Change::Down(code));
        }
    }

    /// Returns the servers that came into use or went out of it since the last call, for each service of
    /// theirs; `name` is a service's name by its number.
    pub fn take_changes<'a>(&mut self, name: impl Fn(u32) -> Option<&'a str>) -> Vec<ServerChange> {
        let Changes { mut list, overflowed, unreviewed } = std::mem::take(&mut self.changes);
        self.changes.unreviewed = unreviewed;
        if overflowed {
            list = self.states().collect();
        }
        let mut named = Vec::new();
        for (id, serial, change) in list {
            let Some(member) = self.get(id).filter(|member| member.serial == serial) else { continue };
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

    /// Returns the state of each member as a change. Members of application nodes at which nobody listens
    /// are left out: it is not known whether anybody has.
    fn states(&self) -> impl Iterator<Item = (MemberId, u32, Change)> {
        let all = self.members.iter().enumerate();
        all.filter_map(|(at, member)| {
            let member = member.as_ref()?;
            let change = match member.plain_state() {
                Some(PlainState::Down { code, .. }) => Change::Down(code),
                None if member.listeners == 0 => return None,
                _ => Change::Up,
            };
            Some((MemberId(at as u32), member.serial, change))
        })
    }
}
