//! Handlers of paths that change are made on the control thread, before the workers are asked to change them:
//! to start a module, or to compile a query's plan, takes a worker no time.

use csp_handlers::CONTEXTS_MAX;
use csp_messages::StageMaker;
use csp_services::ChannelPath;

use crate::WorkerPolicy;

/// What the workers have in force.
#[derive(Debug, Default)]
pub struct Prepared {
    active: Vec<ChannelPath>,
}

impl Prepared {
    /// Makes the handlers that so many workers will need for a policy.
    pub fn prepare(&self, policy: &WorkerPolicy, workers: usize) {
        for path in policy.messages.paths() {
            let is_kept = self.active.iter().any(|active| path.keeps_handlers_of(active));
            if !is_kept {
                // Handlers of contexts elsewhere are made there.
                let here = path.stages.iter().filter(|stage| stage.context < CONTEXTS_MAX);
                here.filter_map(|stage| stage.maker.as_ref()).for_each(|maker| maker.prepare(workers));
            }
        }
    }

    /// Records that the workers have been asked, and drops what they did not need.
    pub fn done(&mut self, policy: &WorkerPolicy) {
        policy.messages.paths().flat_map(makers).for_each(StageMaker::discard);
        self.active = policy.messages.paths().cloned().collect();
    }
}

fn makers(path: &ChannelPath) -> impl Iterator<Item = &StageMaker> {
    path.stages.iter().filter_map(|stage| stage.maker.as_ref())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use csp_handlers::builtin;
    use csp_messages::{Budget, ChannelConfig, ChannelKind, FullQueue, QueueLimits};
    use csp_services::{ChannelPolicy, ChannelSpec, MessagesPolicy, PathStage};

    use super::*;

    fn channel() -> ChannelConfig {
        ChannelConfig {
            name: "ticks".to_owned(),
            kind: ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None },
            budget: Budget { guaranteed: 0, max: 1 << 20 },
            message_len_max: 1 << 10,
            queue: QueueLimits::default(),
            sequence: false,
        }
    }

    fn policy(made: &Arc<AtomicUsize>, parameters: &str) -> WorkerPolicy {
        let made = made.clone();
        let make = move || {
            made.fetch_add(1, Ordering::Relaxed);
            builtin::make("forward")
        };
        let stage = PathStage {
            handler: "mine".to_owned(),
            context: 0,
            parameters: parameters.to_owned(),
            maker: Some(StageMaker::new("key", make)),
            auto: None,
            outputs: Vec::new(),
        };
        let paths = vec![ChannelPath::new(1, vec![stage])];
        let channel = ChannelPolicy { paths, ..ChannelSpec::open(1, channel()).into() };
        let messages = MessagesPolicy { channels: vec![channel], ..MessagesPolicy::default() };
        WorkerPolicy { messages, ..WorkerPolicy::default() }
    }

    #[test]
    fn what_changes_is_made_before_the_workers_ask_and_nothing_else() {
        let (made, mut prepared) = (Arc::new(AtomicUsize::new(0)), Prepared::default());
        let count = || made.load(Ordering::Relaxed);
        let first = policy(&made, "1");
        prepared.prepare(&first, 2);
        assert_eq!(count(), 2);
        let maker = first.messages.channels[0].paths[0].stages[0].maker.clone().unwrap();
        assert!(maker.make().is_some() && maker.make().is_some());
        assert_eq!(count(), 2, "workers got what was prepared");
        prepared.done(&first);
        prepared.prepare(&policy(&made, "1"), 2);
        assert_eq!(count(), 2, "the same path stays as it is");
        let second = policy(&made, "2");
        prepared.prepare(&second, 2);
        assert_eq!(count(), 4);
        prepared.done(&second);
        assert!(second.messages.channels[0].paths[0].stages[0].maker.as_ref().unwrap().make().is_some());
        assert_eq!(count(), 5, "what was not used is gone, and made when it is needed after all");
    }
}
