//! Follows a key prefix of etcd: reads it at revision R, watches from R+1, and reads it again when the watch
//! is lost.
//!
//! The read is linearizable and complete, so a follower needs no history: after a compaction, a change of the
//! member that answers, or a restored or recreated etcd, it simply reads again. A restored or recreated etcd
//! is recognised by its cluster id and revision, and reported.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{EventType, GetOptions, ResponseHeader, WatchOptions, WatchResponse, WatchStream};
use tokio::time::MissedTickBehavior;

use crate::client::{Backoff, EtcdClient, within};
use crate::error::ControlError;
use crate::status::StatusCell;

/// How often a follower's [`Follower::tick`] runs.
const TICK: Duration = Duration::from_secs(1);

/// One key and its value.
pub(crate) type Entry = (String, Vec<u8>);

/// A change of one key.
pub(crate) enum KeyChange {
    Put(Entry),
    Delete(String),
}

/// A consumer that is kept up to date with a prefix.
pub(crate) trait Follower {
    /// Receives the whole prefix at `revision`, from a linearizable read. Keys that are not in `entries` do
    /// not exist.
    fn reset(&mut self, revision: i64, entries: Vec<Entry>);
    /// Receives the changes of one watch response, in order. `revision` is the newest of them.
    fn change(&mut self, revision: i64, changes: Vec<KeyChange>);
    /// The watch was lost. The consumer keeps its state.
    fn lost(&mut self, reason: &str);
    /// Called every [`TICK`].
    fn tick(&mut self) {}
}

/// A point of etcd's history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Point {
    /// etcd's cluster id; 0 before the first contact.
    cluster: u64,
    revision: i64,
}

impl Point {
    fn of(header: Option<&ResponseHeader>) -> Result<Point, ControlError> {
        let missing = || ControlError::Etcd("an answer without a header".to_owned());
        let header = header.ok_or_else(missing)?;
        Ok(Point { cluster: header.cluster_id(), revision: header.revision() })
    }

    /// Returns whether a linearizable read at `now` proves that this point is not in etcd's history.
    fn is_lost_at(&self, now: &Point) -> bool {
        self.cluster != 0 && (self.cluster != now.cluster || now.revision < self.revision)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {} of cluster {:x}", self.revision, self.cluster)
    }
}

/// The latest point of etcd's history that any follower of this node has seen.
#[derive(Clone, Debug)]
pub(crate) struct History {
    latest: Arc<Mutex<(Point, Epoch)>>,
    status: StatusCell,
}

/// Number of history losses before a watch was opened. Reports of watches from an earlier epoch are ignored.
type Epoch = u64;

impl History {
    /// Creates an empty history. Losses are counted in `status`.
    pub(crate) fn new(status: StatusCell) -> History {
        History { latest: Arc::default(), status }
    }

    /// Returns the latest point, to compare with a read that begins now.
    fn latest(&self) -> (Point, Epoch) {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, (Point, Epoch)> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a linearizable read that began when `before` was the latest point. Reports a loss of history
    /// if the read proves one. Returns the epoch of the read.
    fn read(&self, now: Point, before: (Point, Epoch)) -> Epoch {
        let mut latest = self.lock();
        let (point, epoch) = &mut *latest;
        if *epoch != before.1 {
            // Another follower has noticed a loss meanwhile, and it is unknown whether this read was before
            // or after it.
            return before.1;
        }
        if before.0.is_lost_at(&now) {
            let old = before.0;
            tracing::error!(
                "etcd answers with {now} after {old}: it was restored from a backup, begun anew or replaced by \
                 another one; all is read again"
            );
            *epoch += 1;
            *point = now;
            self.status.update(|status| status.history_losses += 1);
        } else if now.revision > point.revision {
            *point = now;
        }
        *epoch
    }

    /// Records that a watch has reached `revision`.
    fn watched(&self, revision: i64, of: Epoch) {
        let mut latest = self.lock();
        let (point, epoch) = &mut *latest;
        if *epoch == of {
            point.revision = point.revision.max(revision);
        }
    }
}

/// Follows `prefix` until the task is aborted.
pub(crate) async fn follow(
    client: EtcdClient,
    prefix: impl Into<String>,
    mut follower: impl Follower,
    history: History,
) {
    let prefix = prefix.into();
    let mut backoff = Backoff::default();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let error = match resync(&client, &prefix, &mut follower, &history).await {
            Ok((mut stream, epoch)) => {
                backoff.reset();
                let seen = |revision| history.watched(revision, epoch);
                watch_until_lost(&mut stream, &mut follower, &mut ticks, seen).await
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

/// Reads the prefix and opens the watch that continues from there.
async fn resync(
    client: &EtcdClient,
    prefix: &str,
    follower: &mut impl Follower,
    history: &History,
) -> Result<(WatchStream, Epoch), ControlError> {
    let before = history.latest();
    let mut response = client.get(prefix, Some(GetOptions::new().with_prefix())).await?;
    let now = Point::of(response.header())?;
    let options = WatchOptions::new().with_prefix().with_start_revision(now.revision + 1);
    let mut stream = within(client.inner.watch_client().watch(prefix, Some(options))).await?;
    check_created(client, &mut stream, now).await?;
    let epoch = history.read(now, before);
    let entries = response.take_kvs().into_iter().map(etcd_client::KeyValue::into_key_value);
    let entries = entries.filter_map(|(key, value)| Some((String::from_utf8(key).ok()?, value))).collect();
    follower.reset(now.revision, entries);
    Ok((stream, epoch))
}

/// Checks that the watch continues the read at `read`. Another member may serve the watch, and it may belong
/// to another cluster or have been replaced since. A watch from a revision that etcd has not reached waits
/// without an error.
async fn check_created(
    client: &EtcdClient,
    stream: &mut WatchStream,
    read: Point,
) -> Result<(), ControlError> {
    let response = within(stream.message()).await?;
    let response = response.ok_or_else(|| ControlError::Etcd("etcd closed the watch".to_owned()))?;
    if response.canceled() {
        return Err(canceled(&response));
    }
    let mut watched = Point::of(response.header())?;
    if watched.cluster == read.cluster && watched.revision < read.revision {
        // The member may merely lag behind, which a linearizable read does not.
        watched = Point::of(client.get(crate::keys::ACTIVE, None).await?.header())?;
    }
    if read.is_lost_at(&watched) {
        return Err(ControlError::Etcd(format!(
            "the read found {read}, the watch {watched}: etcd was replaced meanwhile, or the endpoints belong to \
             different clusters of etcd"
        )));
    }
    Ok(())
}

/// Passes changes on until the watch breaks, and returns the reason. `seen` is called with the revision of
/// each response.
pub(crate) async fn watch_until_lost(
    stream: &mut WatchStream,
    follower: &mut impl Follower,
    ticks: &mut tokio::time::Interval,
    mut seen: impl FnMut(i64),
) -> ControlError {
    loop {
        tokio::select! {
            message = stream.message() => match message {
                Ok(Some(response)) if response.canceled() => return canceled(&response),
                Ok(Some(response)) => {
                    if let Err(error) = pass_on(&response, follower, &mut seen) {
                        return error;
                    }
                }
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

fn pass_on(
    response: &WatchResponse,
    follower: &mut impl Follower,
    seen: &mut impl FnMut(i64),
) -> Result<(), ControlError> {
    let revision = Point::of(response.header())?.revision;
    let changes = response.events().iter().filter_map(|event| {
        let pair = event.kv()?;
        let key = pair.key_str().ok()?.to_owned();
        Some(match event.event_type() {
            EventType::Put => KeyChange::Put((key, pair.value().to_vec())),
            EventType::Delete => KeyChange::Delete(key),
        })
    });
    let changes: Vec<KeyChange> = changes.collect();
    seen(revision);
    if !changes.is_empty() {
        follower.change(revision, changes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_history_is_counted_once() {
        let (status, receiver) = StatusCell::new();
        let history = History::new(status);
        let at = |cluster, revision| Point { cluster, revision };
        let losses = || receiver.borrow().history_losses;
        let read = |now| history.read(now, history.latest());
        let old = read(at(1, 100));
        history.watched(120, old);
        let slow = history.latest();
        history.watched(125, old);
        history.read(at(1, 122), slow);
        assert_eq!(losses(), 0, "a read that began before the watch came further");
        let slow = history.latest();
        read(at(1, 110));
        assert_eq!(losses(), 1, "a linearizable read before what a watch has reported");
        // Watches of an earlier epoch are ignored.
        history.watched(130, old);
        history.watched(130, history.read(at(1, 109), slow));
        let now = read(at(1, 111));
        assert_eq!(losses(), 1);
        history.watched(140, now);
        read(at(2, 200));
        assert_eq!(losses(), 2, "another cluster, whatever its revision");
        read(at(2, 200));
        assert_eq!(losses(), 2);
    }
}
