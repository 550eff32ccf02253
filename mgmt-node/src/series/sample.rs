//! Reads the figures every ten seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Readings;
use super::figures::{of_node, of_service};
use crate::limits::SERIES_INTERVAL;
use crate::publish::now_unix_ms;
use crate::views::Cluster;

/// Reads forever.
pub async fn run(cluster: Arc<Cluster>) {
    let mut beat = tokio::time::interval(SERIES_INTERVAL);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let read = read(&cluster).await;
        cluster.poller.series.add(now_unix_ms(), read);
    }
}

async fn read(cluster: &Cluster) -> BTreeMap<String, Readings> {
    let health = cluster.poller.health();
    let samples = health.iter().filter_map(|(id, health)| Some((id, &health.sample.as_ref()?.1)));
    let mut read: BTreeMap<String, Readings> =
        samples.map(|(id, sample)| (format!("node/{id}"), of_node(sample))).collect();
    let services = cluster.services().await;
    // What some proxies alone report would look like a fall.
    if services.unreachable.is_empty() {
        let named = services.services.iter().map(|s| (format!("service/{}", s.name), of_service(s)));
        read.extend(named);
    }
    read
}
