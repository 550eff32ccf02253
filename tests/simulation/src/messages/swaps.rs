//! The policy in force, and swaps of handlers: by the policy, as the daemon does it.

use csp_messages::{PathError, StageMaker};
use csp_proxy_node::{PolicyError, WorkerPolicy};
use csp_services::{ChannelPath, ChannelPolicy, MessagesPolicy, SpecError};
use csp_types::{Duration, PlacementKey};

use super::handlers::Swap;
use super::world::{MessageWorld, policy};
use crate::proxy::worker_policy;

impl MessageWorld {
    /// Puts the policy with all channels but one into force.
    pub(super) fn put_into_force(&mut self, without: Option<usize>) {
        self.without = without;
        let policy = self.worker_policy();
        let now = self.clocks.proxy.at(self.now);
        self.proxy.set_policy(now, policy).expect("the channels fit the pool, and their paths the channels");
    }

    /// Returns the policy with the paths in force.
    fn worker_policy(&self) -> WorkerPolicy {
        let WorkerPolicy { mut services, egress, .. } = worker_policy(&policy(&self.scenario));
        let mut messages = MessagesPolicy::default();
        let all = self.scenario.channels.iter().enumerate();
        for (at, plan) in all.filter(|(at, _)| Some(*at) != self.without) {
            let (service, handlers) = (plan.service(), self.handlers.as_ref());
            let path = handlers.and_then(|handlers| handlers.path(at, plan.spec.number));
            let (paths, place) =
                (path.into_iter().collect(), Some(PlacementKey::of_address(service.address)));
            messages.channels.push(ChannelPolicy { paths, place, ..plan.spec.clone().into() });
            services.push(service);
        }
        WorkerPolicy { services, egress, messages, ..WorkerPolicy::default() }
    }

    /// Lets receivers of channels with handlers expect their stamps.
    pub(super) fn stamp_peers(&mut self) {
        let Some(handlers) = &self.handlers else { return };
        for peer in &mut self.peers {
            peer.is_stamped = handlers.plan.paths[peer.plan.channel].is_some();
        }
    }

    /// Performs the swaps that are due.
    pub(super) fn swap(&mut self, since: Duration) {
        while let Some(swap) = self.handlers.as_mut().and_then(|handlers| handlers.poll(since)) {
            // A channel that the policy has removed has no path.
            if self.without == Some(swap.channel) {
                continue;
            }
            let set = self.try_swap(&swap);
            let Some(handlers) = &mut self.handlers else { return };
            match set {
                Ok(()) if !swap.is_refused => handlers.swapped(swap),
                Err(PolicyError::Channels(SpecError::Path(_, PathError::UnknownHandler(_))))
                    if swap.is_refused =>
                {
                    handlers.counters.refused += 1;
                }
                Err(PolicyError::Channels(SpecError::Path(_, PathError::TooMany))) => {
                    handlers.counters.waited += 1;
                }
                other => self.report.violations.push(format!("a swap ended as {other:?}")),
            }
        }
    }

    fn try_swap(&mut self, swap: &Swap) -> Result<(), PolicyError> {
        let number = self.scenario.channels[swap.channel].spec.number;
        let wanted = swap.wanted.path(number, &swap.parameters());
        let makers = |path: &ChannelPath| {
            path.stages.iter().filter_map(|stage| stage.maker.clone()).collect::<Vec<StageMaker>>()
        };
        let makers = makers(&wanted);
        // The control thread makes the handlers, and drops what the worker has not used.
        makers.iter().for_each(|maker| maker.prepare(1));
        let mut policy = self.worker_policy();
        let channels = policy.messages.channels.iter_mut().filter(|channel| channel.spec.number == number);
        channels.flat_map(|channel| &mut channel.paths).for_each(|path| *path = wanted.clone());
        let now = self.clocks.proxy.at(self.now);
        let set = self.proxy.set_policy(now, policy);
        makers.iter().for_each(StageMaker::discard);
        set
    }

    /// Returns the number of messages that wait in paths.
    pub(super) fn waiting_in_paths(&self) -> usize {
        let contexts = self.broker().contexts().contexts;
        contexts.iter().map(|context| context.waiting as usize).sum()
    }
}
