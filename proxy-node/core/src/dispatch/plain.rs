//! What the dispatcher knows of plain servers: clients that wait for a connection to one, and which are
//! checked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use csp_types::{FlowLabel, Instant};

use super::Dispatcher;
use super::pool::MemberId;
use super::services::Service;
use crate::flow::Flow;
use crate::servers::CheckSpec;

impl Dispatcher {
    /// Releases the plain server of a flow. The flag says that the connection to it is not established.
    pub(crate) fn release_plain(&mut self, (member, calling): (MemberId, bool)) {
        self.pools.release_plain(member, calling);
    }

    /// Returns whether a service has members whose processes have channels.
    pub(crate) fn has_processes(&self, service: u32) -> bool {
        let mut members = self.services.get(service).into_iter().flat_map(Service::members);
        members.any(|id| self.pools.get(id).is_some_and(|member| member.node().is_some()))
    }

    /// Returns whether something has changed since the last call by which a server may be
    /// [wanted](Self::is_wanted) or not.
    pub(crate) fn take_unreviewed(&mut self) -> bool {
        self.pools.take_unreviewed()
    }

    /// Returns whether the server of a flow could be chosen for another connection of its service, apart
    /// from limits of their number: the service names it with a weight, it is up, its node does not drain,
    /// and if it is a backup, no other server is up.
    pub(crate) fn is_wanted(&self, flow: &Flow) -> bool {
        let member = flow.plain().map(|(member, _)| member).or(flow.choice().map(|choice| choice.member));
        let service = self.services.get(flow.service).filter(|service| service.active);
        service.zip(member).is_some_and(|(service, member)| service.wants(&self.pools, member))
    }

    /// Returns the next client for which a plain server was chosen.
    pub(crate) fn next_call(&mut self) -> Option<FlowLabel> {
        self.calls.pop_front()
    }

    /// Records that a connection to a plain server is established.
    pub(crate) fn plain_up(&mut self, now: Instant, member: MemberId) {
        self.pools.plain_up(now, member);
    }

    /// Records that a connection to a plain server was not established, for the reason with this code.
    pub(crate) fn plain_down(&mut self, now: Instant, began: Instant, member: MemberId, code: u32) {
        self.pools.plain_down(now, began, member, code);
    }

    /// Records that a connection to a plain server could not be begun.
    pub(crate) fn plain_unreached(&mut self, now: Instant, member: MemberId) {
        self.pools.plain_unreached(now, member);
    }

    /// Returns the address of a flow's plain server.
    pub(crate) fn plain_of(&self, flow: &Flow) -> Option<SocketAddr> {
        self.pools.get(flow.plain()?.0)?.plain_address()
    }

    /// Returns when [`retry_plain`](Self::retry_plain) is to be called; `None` while no connection waits.
    /// `apart`: one waits that is in no backlog.
    pub(crate) fn retry_deadline(&self, apart: bool) -> Option<Instant> {
        self.pools.retry_deadline().filter(|_| apart || !self.services.waiting().is_empty())
    }

    /// Makes waiting connections look for plain servers that may be tried again.
    pub(crate) fn retry_plain(&mut self, now: Instant) {
        self.pools.retry(now);
    }

    /// Returns the plain servers that are to be checked, and how: as the first service that names one says.
    pub(crate) fn set_checks(&mut self) -> BTreeMap<MemberId, Arc<CheckSpec>> {
        let mut checks: BTreeMap<MemberId, Arc<CheckSpec>> = BTreeMap::new();
        for service in self.services.iter().filter(|service| service.active) {
            let Some(spec) = &service.spec.servers.check else { continue };
            let plain = |id: &MemberId| self.pools.get(*id).is_some_and(|member| member.node().is_none());
            for member in service.members().filter(plain) {
                checks.entry(member).or_insert_with(|| spec.clone());
            }
        }
        self.pools.set_checks(&checks);
        checks
    }

    /// Records the result of a check; the error is a code of [`reason`].
    pub(crate) fn checked(&mut self, now: Instant, member: MemberId, result: Result<(), u32>) {
        self.pools.checked(now, member, result);
    }
}
