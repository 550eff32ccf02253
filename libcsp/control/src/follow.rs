//! Following a key prefix of etcd for ever: get it at revision R, watch from R+1, get again when the watch is lost.

use std::time::Duration;

use etcd_client::{EventType, GetOptions, WatchOptions, WatchResponse, WatchStream};
use tokio::time::MissedTickBehavior;

use crate::client::{Backoff, EtcdClient, within};
use crate::error::ControlError;

/// How often a follower's [`Follower::tick`] runs.
const TICK: Duration = Duration::from_secs(1);

/// One key and its value.
pub(crate) type Entry = (String, Vec<u8>);

/// One change of a key.
pub(crate) enum KeyChange {
    Put(Entry),
    Delete(String),
}

/// What is kept up to date from a prefix.
pub(crate) trait Follower {
    /// The whole prefix as it is at `revision`, from a linearizable read: what is not in `entries` is not in etcd.
    fn reset(&mut self, revision: i64, entries: Vec<Entry>);
    /// Changes of one watch response, in order; `revision` is the newest of them.
    fn change(&mut self, revision: i64, changes: Vec<KeyChange>);
    /// The watch is lost; what is known stays.
    fn lost(&mut self, reason: &str);
    /// Time passed.
    fn tick(&mut self) {}
}

/// Follows `prefix` until the task is aborted.
pub(crate) async fn follow(client: EtcdClient, prefix: impl Into<String>, mut follower: impl Follower) {
    let prefix = prefix.into();
    let mut backoff = Backoff::default();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let error = match resync(&client, &prefix, &mut follower).await {
            Ok(mut stream) => {
                backoff.reset();
                watch_until_lost(&mut stream, &mut follower, &mut ticks).await
            }
            Err(error) => error,
        };
        let reason = error.to_string();
        tracing::warn!(prefix, reason, "lost the watch on etcd, trying again");
        follower.lost(&reason);
        let pause = tokio::time::sleep(backoff.next());
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                _ = ticks.tick() => follower.tick(),
            }
        }
    }
}

/// Reads the prefix and opens the watch that continues it.
async fn resync(
    client: &EtcdClient,
    prefix: &str,
    follower: &mut impl Follower,
) -> Result<WatchStream, ControlError> {
    let mut response = client.get(prefix, Some(GetOptions::new().with_prefix())).await?;
    let revision = response.header().map_or(0, |header| header.revision());
    let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
    let stream = within(client.inner.watch_client().watch(prefix, Some(options))).await?;
    let entries = response.take_kvs().into_iter().map(etcd_client::KeyValue::into_key_value);
    let entries = entries.filter_map(|(key, value)| Some((String::from_utf8(key).ok()?, value))).collect();
    follower.reset(revision, entries);
    Ok(stream)
}

/// Passes changes on until the watch breaks; returns the reason.
pub(crate) async fn watch_until_lost(
    stream: &mut WatchStream,
    follower: &mut impl Follower,
    ticks: &mut tokio::time::Interval,
) -> ControlError {
    loop {
        tokio::select! {
            message = stream.message() => match message {
                Ok(Some(response)) if response.canceled() => return canceled(&response),
                Ok(Some(response)) => pass_on(&response, follower),
                Ok(None) => return ControlError::Etcd("etcd closed the watch".to_owned()),
                Err(error) => return crate::client::etcd_error(error),
            },
            _ = ticks.tick() => follower.tick(),
        }
    }
}

fn canceled(response: &WatchResponse) -> ControlError {
    let compacted = response.compact_revision();
    ControlError::Etcd(if compacted > 0 {
        format!("the watch fell behind: revisions before {compacted} are compacted")
    } else {
        format!("etcd canceled the watch: {}", response.cancel_reason())
    })
}

fn pass_on(response: &WatchResponse, follower: &mut impl Follower) {
    let Some(revision) = response.header().map(|header| header.revision()) else { return };
    let changes = response.events().iter().filter_map(|event| {
        let pair = event.kv()?;
        let key = pair.key_str().ok()?.to_owned();
        Some(match event.event_type() {
            EventType::Put => KeyChange::Put((key, pair.value().to_vec())),
            EventType::Delete => KeyChange::Delete(key),
        })
    });
    let changes: Vec<KeyChange> = changes.collect();
    if !changes.is_empty() {
        follower.change(revision, changes);
    }
}
