//! Peers of channels, and messages on their way, over all proxies.

use std::time::Duration;

use csp_api::messages::{MessageTrace, Subscriptions};
use csp_api::mgmt::{MessageTraceView, PeerView, SubscriptionsView, TracedMessageView, Unreachable};
use csp_types::Role;
use tokio::task::JoinSet;

use super::Cluster;
use crate::fanout::AskError;
use crate::limits::FANOUT_TIMEOUT;

/// What is to be traced.
#[derive(Clone, Debug)]
pub struct TraceAsked {
    /// Channel.
    pub channel: String,
    /// Number of messages.
    pub count: usize,
    /// Beginning of their topics, as [`csp_api::topic::escape`] writes it.
    pub topic: String,
    /// How long to wait for them.
    pub timeout: Duration,
}

impl Cluster {
    /// Returns whether the active policy names the channel.
    pub fn has_channel(&self, name: &str) -> bool {
        let active = self.policy.known().active;
        active.iter().any(|record| {
            let requested = record.policy.requested_channels().map(|(_, place)| place);
            record.policy.all_channels().chain(requested).any(|channel| channel.name == name)
        })
    }

    /// `GET /api/v1/subscriptions`: the peers of a channel, or of all; at most `limit`.
    pub async fn subscriptions(
        &self,
        channel: Option<&str>,
        limit: usize,
        prefixes: u32,
    ) -> SubscriptionsView {
        let targets = self.targets(&[Role::ProxyNode]);
        let mut query = vec![("peers", limit.to_string()), ("prefixes", prefixes.to_string())];
        query.extend(channel.map(|channel| ("channel", channel.to_owned())));
        let (answers, unreachable) =
            self.fanout.ask::<Subscriptions>(targets, "/v1/subscriptions", query).await;
        let mut view = SubscriptionsView { unreachable, ..SubscriptionsView::default() };
        for (target, answer) in answers {
            view.more = view.more.saturating_add(answer.more);
            let peers = answer.peers.into_iter();
            view.peers.extend(peers.map(|peer| PeerView { proxy: (&target.id).into(), peer }));
        }
        let sends = |view: &PeerView| matches!(view.peer.role.as_str(), "publisher" | "pusher" | "both");
        view.peers.sort_by(|a, b| {
            let key = |view: &PeerView| (view.peer.channel.clone(), !sends(view), view.peer.name.address);
            key(a).cmp(&key(b))
        });
        view.more = view.more.saturating_add(view.peers.len().saturating_sub(limit) as u64);
        view.peers.truncate(limit);
        view
    }

    /// `GET /api/v1/messages/trace`: the next messages of a channel, wherever they pass. Proxies that have
    /// none are not waited for when the others have enough.
    pub async fn trace_messages(&self, asked: TraceAsked) -> MessageTraceView {
        let query = vec![
            ("channel", asked.channel),
            ("count", asked.count.to_string()),
            ("topic", asked.topic),
            ("timeout_s", asked.timeout.as_secs().to_string()),
        ];
        let mut running = JoinSet::new();
        for target in self.targets(&[Role::ProxyNode]) {
            let (fanout, query, within) =
                (self.fanout.clone(), query.clone(), asked.timeout + FANOUT_TIMEOUT);
            running.spawn(async move {
                let answer = fanout.slow_body::<MessageTrace>(&target, "/v1/messages/trace", &query, within);
                (answer.await, target)
            });
        }
        let mut view = MessageTraceView::default();
        while let Some(done) = running.join_next().await {
            let Ok((answer, target)) = done else { continue };
            match answer {
                Ok(trace) => {
                    let messages = trace.messages.into_iter();
                    let of = |message| TracedMessageView { proxy: (&target.id).into(), message };
                    view.messages.extend(messages.map(of));
                }
                // It does not follow the policy that names the channel yet.
                Err(AskError::Status(404)) => {}
                Err(e) => view.unreachable.push(Unreachable { node: target.id, error: e.to_string() }),
            }
            if view.messages.len() >= asked.count {
                break;
            }
        }
        view.messages.truncate(asked.count);
        view
    }
}
