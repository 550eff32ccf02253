//! The channels of messages, over all proxies.

use csp_api::mgmt::{ChannelView, ChannelsView};
use csp_api::proxy;
use csp_policy::{Channel, Pattern};
use csp_types::Role;

use super::Cluster;

impl Cluster {
    /// `GET /api/v1/channels`.
    pub async fn channels(&self) -> ChannelsView {
        let targets = self.targets(&[Role::ProxyNode]);
        let (answers, unreachable) =
            self.fanout.ask::<Vec<proxy::Channel>>(targets, "/v1/channels", vec![]).await;
        let seen: Vec<proxy::Channel> = answers.into_iter().flat_map(|(_, channels)| channels).collect();
        let active = self.policy.known().active;
        let channels = active.iter().flat_map(|record| record.policy.all_channels());
        // Places for queries that nobody has asked for are nothing to look at.
        let places = active.iter().flat_map(|record| record.policy.requested_channels());
        let requested = places.map(|(_, place)| live(&place, &seen)).filter(|view| view.requested.is_some());
        ChannelsView {
            generation: active.as_ref().map_or(0, |record| record.generation),
            channels: channels.map(|channel| live(&channel, &seen)).chain(requested).collect(),
            unreachable,
        }
    }
}

fn live(channel: &Channel, seen: &[proxy::Channel]) -> ChannelView {
    let mut view = ChannelView {
        name: channel.name.clone(),
        vip: channel.vip.to_string(),
        port: channel.port,
        pattern: match channel.pattern {
            Pattern::Publish => "publish".to_owned(),
            Pattern::Push => "push".to_owned(),
        },
        owners: Vec::new(),
        senders: 0,
        receivers: 0,
        subscriptions: 0,
        requested: None,
        figures: proxy::ChannelFigures::default(),
    };
    for at_proxy in seen.iter().filter(|known| known.name == *channel.name) {
        if !at_proxy.owner.is_empty() && !view.owners.contains(&at_proxy.owner) {
            view.owners.push(at_proxy.owner.clone());
        }
        view.senders = view.senders.saturating_add(at_proxy.senders);
        view.receivers = view.receivers.saturating_add(at_proxy.receivers);
        view.subscriptions = view.subscriptions.saturating_add(at_proxy.subscriptions);
        view.requested = view.requested.or_else(|| at_proxy.requested.clone());
        view.figures.add(&at_proxy.figures);
    }
    view
}
