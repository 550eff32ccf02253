//! HTTP in the course of a run.

use std::collections::BTreeMap;

use csp_types::{Duration, Instant};

use super::Ask;
use crate::application::PORT;
use crate::pattern::Request;
use crate::proxy::worker_policy;
use crate::scenario::Transaction;
use crate::world::{VIP, World, policy};

/// How often a daemon sends the clients of HTTP of a proxy that drains elsewhere.
const DRAIN_EVERY: Duration = Duration::from_millis(100);

/// What a run has of HTTP.
#[derive(Debug, Default)]
pub(crate) struct HttpState {
    /// When the clients of a proxy that drains were last sent elsewhere.
    drained: Instant,
    reloaded: bool,
    /// How often processes that are no more have read the head of a request, by its key.
    pub(crate) served: BTreeMap<u32, u32>,
}

impl World {
    /// Returns whether a transaction goes by HTTP.
    pub(crate) fn speaks_http(&self, work: &Transaction) -> bool {
        self.scenario.http.is_some() && (work.by_process.is_none() || work.hairpin)
    }

    /// Sends the request of transaction number `at`.
    pub(crate) fn start_http(&mut self, at: usize, work: Transaction, request: Request) {
        let service = (VIP, PORT).into();
        // No response waits for the end of its client's stream.
        let request = Request { half_close: false, ..request };
        let ask = Ask { request, abort_after: work.abort_after, half_close: work.half_close };
        let plan = self.scenario.http.as_ref();
        let chain = plan.and_then(|plan| plan.chains.get(&at).copied());
        if let Some(chain) = chain {
            return self.client.start_http(self.now, service, ask, chain);
        }
        let process = work.by_process.unwrap_or(0);
        let process = if self.applications[process].is_some() { process } else { 1 - process };
        if let Some(application) = &mut self.applications[process] {
            application.start_http(service, ask);
        }
    }

    /// Performs what happens at this time after the earliest start.
    pub(crate) fn happen_http(&mut self, since: Duration) {
        let reload = self.scenario.http.as_ref().and_then(|plan| plan.reload);
        if reload.is_some_and(|time| time <= since) && !std::mem::replace(&mut self.http.reloaded, true) {
            self.reload();
        }
        self.drain_clients();
    }

    /// Puts a policy into force that keeps fewer connections to processes.
    fn reload(&mut self) {
        let mut policy = policy(&self.scenario);
        policy.http.iter_mut().for_each(|plan| plan.upstream_idle /= 2);
        for (clock, proxy) in self.clocks.proxies.iter().zip(&mut self.proxies) {
            let now = clock.at(self.now);
            let set = proxy.iter_mut().map(|proxy| proxy.set_policy(now, worker_policy(&policy)));
            set.for_each(|set| set.expect("the policy has no channels"));
        }
    }

    /// Has the clients of HTTP of a proxy that drains go elsewhere, as its daemon does now and then.
    fn drain_clients(&mut self) {
        let is_due = self.http.drained + DRAIN_EVERY <= self.now;
        let Some(at) = self.draining.filter(|_| is_due) else { return };
        self.http.drained = self.now;
        if let Some(proxy) = &mut self.proxies[at] {
            proxy.gateway_mut().drain_all(self.clocks.proxies[at].at(self.now));
        }
    }
}
