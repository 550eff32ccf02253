//! What the dispatcher knows of plain servers: clients that wait for a connection to one, and which are
//! checked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use csp_types::{FlowLabel, Instant};

use super::Dispatcher;
use super::pool::MemberId;
use crate::flow::Flow;
use crate::servers::CheckSpec;

impl Dispatcher {
    /// Releases the plain server of a flow. The flag says that the connection to it is not established.
    pub(crate) fn release_plain(&mut self, (member, calling): (MemberId, bool)) {
        self.pools.release_plain(member, calling);
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
    pub(crate) fn retry_deadline(&self) -> Option<Instant> {
        self.pools.retry_deadline().filter(|_| !self.services.waiting().is_empty())
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
