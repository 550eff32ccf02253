//! Keeps this node's record in etcd: under one lease, renewed every second, granted again after it expires.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Backoff, EtcdClient, REQUEST_TIMEOUT, etcd_error, within};
use crate::error::ControlError;
use crate::keys;
use crate::registry::NodeRecord;
use crate::status::StatusCell;

/// TTL of a registration's lease.
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(5);
/// Interval at which the lease is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a contested registration is checked.
const CONTEST_INTERVAL: Duration = Duration::from_millis(200);
/// A lease whose remaining TTL exceeds what is possible without renewal by this much was renewed. etcd rounds
/// to seconds.
const RENEWED_BY: Duration = Duration::from_secs(2);

/// State of the first registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Still trying.
    Pending,
    /// The record is in etcd.
    Registered,
    /// Another live node holds the id; its record.
    Taken(Box<NodeRecord>),
}

/// The task that keeps the record in etcd.
pub(crate) struct Registration {
    pub(crate) client: EtcdClient,
    pub(crate) record: NodeRecord,
    /// The former incarnation on this host, known to be dead.
    pub(crate) predecessor: Option<u64>,
    /// Whether the node is to drain; `None` until etcd has answered.
    pub(crate) draining: watch::Receiver<Option<bool>>,
    pub(crate) status: StatusCell,
    pub(crate) first: watch::Sender<First>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Why a registration ended.
enum RegistrationEnd {
    /// etcd was unreachable for too long, or lost the lease.
    Lost(ControlError),
    /// Another live node holds the id.
    Taken(Box<NodeRecord>),
}

impl From<ControlError> for RegistrationEnd {
    fn from(error: ControlError) -> Self {
        RegistrationEnd::Lost(error)
    }
}

impl Registration {
    /// Registers, and stays registered until it is stopped; then deletes the record.
    pub(crate) async fn run(mut self) {
        let mut stop = self.stop.clone();
        let mut lease = None;
        tokio::select! {
            () = self.keep(&mut lease) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        if let Some(lease) = lease {
            self.leave(lease).await;
        }
    }

    /// Registers repeatedly. Returns when the id is taken before this node ever held it.
    async fn keep(&mut self, lease: &mut Option<i64>) {
        let mut backoff = Backoff::default();
        loop {
            let lapse = self.hold(lease, &mut backoff).await;
            let problem = match lapse {
                RegistrationEnd::Taken(other) if *self.first.borrow() == First::Pending => {
                    let _ = self.first.send(First::Taken(other));
                    return;
                }
                // A node that serves does not stop because another one was started under its name.
                RegistrationEnd::Taken(other) => taken(&other).to_string(),
                RegistrationEnd::Lost(error) => error.to_string(),
            };
            tracing::warn!(problem, "not registered, trying again");
            self.status.update(|status| {
                status.registered = false;
                status.registration_problem = problem;
            });
            sleep(backoff.next()).await;
        }
    }

    /// Holds one lease: grants it, claims the id, renews it until it is lost.
    async fn hold(&mut self, held: &mut Option<i64>, backoff: &mut Backoff) -> RegistrationEnd {
        let lease = match self.register().await {
            Ok(lease) => lease,
            Err(lapse) => return lapse,
        };
        *held = Some(lease);
        backoff.reset();
        tracing::info!(id = %self.record.id, lease, "registered");
        let _ = self.first.send(First::Registered);
        self.status.update(|status| {
            status.registered = true;
            status.registration_problem.clear();
        });
        loop {
            let (mut draining, shown) = (self.draining.clone(), self.record.draining);
            tokio::select! {
                error = self.renew(lease) => return error.into(),
                Ok(_) = draining.wait_for(|now| now.is_some_and(|now| now != shown)) => {}
            }
            self.record.draining = !shown;
            tracing::info!(draining = !shown, "the registration changes");
            if let Err(error) = self.update(lease).await {
                return error.into();
            }
        }
    }

    /// Replaces this node's record by its changed version.
    async fn update(&self, lease: i64) -> Result<(), ControlError> {
        let key = keys::node(self.record.role, &self.record.id);
        let own = Compare::lease(key.as_str(), CompareOp::Equal, lease);
        let response = self.client.txn(Txn::new().when([own]).and_then([self.put(&key, lease)])).await?;
        if response.succeeded() {
            Ok(())
        } else {
            Err(ControlError::Etcd("the registration is no longer this node's".to_owned()))
        }
    }

    async fn register(&mut self) -> Result<i64, RegistrationEnd> {
        // A node that drained before its restart must not be offered new connections in between.
        let drains = self.client.get(&keys::drain(&self.record.id), None).await?;
        self.record.draining = !drains.kvs().is_empty();
        let ttl = LEASE_TTL.as_secs() as i64;
        let lease = within(self.client.inner.lease_client().grant(ttl, None)).await?.id();
        let claimed = self.claim(lease).await;
        if claimed.is_err() {
            // The lease expires by itself if this request is lost.
            let _ = within(self.client.inner.lease_client().revoke(lease)).await;
        }
        claimed.map(|()| lease)
    }

    /// Writes the record under `lease` unless another node's is there. Waits for the lease of a dead
    /// predecessor to expire.
    async fn claim(&self, lease: i64) -> Result<(), RegistrationEnd> {
        let key = keys::node(self.record.role, &self.record.id);
        let mut contest = Contest::default();
        let mut renewed_at = Instant::now();
        loop {
            let Some(other) = self.try_claim(&key, lease).await? else { return Ok(()) };
            let found: Option<NodeRecord> = serde_json::from_slice(&other.value).ok();
            if found.as_ref().is_some_and(|found| self.is_own(found)) {
                return Ok(self.replace(&key, lease, other.mod_revision).await?);
            }
            let left = self.lease_left(other.lease).await?;
            if contest.is_alive(left, Instant::now()) {
                let found = found.unwrap_or_else(|| NodeRecord { incarnation: 0, ..self.record.clone() });
                return Err(RegistrationEnd::Taken(Box::new(found)));
            }
            if renewed_at.elapsed() >= RENEW_INTERVAL {
                renewed_at = Instant::now();
                let _ = within(self.client.inner.lease_client().keep_alive(lease)).await?;
            }
            sleep(CONTEST_INTERVAL).await;
        }
    }

    /// Returns whether a record belongs to this daemon or to its dead predecessor.
    fn is_own(&self, found: &NodeRecord) -> bool {
        let succeeded = Some(found.incarnation) == self.predecessor && found.host == self.record.host;
        found.incarnation == self.record.incarnation || succeeded
    }

    /// Creates the record if no record with this id exists in any role; otherwise returns the existing one.
    async fn try_claim(&self, key: &str, lease: i64) -> Result<Option<Held>, ControlError> {
        let keys = keys::ROLES.map(|role| keys::node(role, &self.record.id));
        let absent = keys.iter().map(|key| Compare::create_revision(key.as_str(), CompareOp::Equal, 0));
        let gets = keys.iter().map(|key| TxnOp::get(key.as_str(), None));
        let txn = Txn::new()
            .when(absent.collect::<Vec<_>>())
            .and_then([self.put(key, lease)])
            .or_else(gets.collect::<Vec<_>>());
        let response = self.client.txn(txn).await?;
        if response.succeeded() {
            return Ok(None);
        }
        let found = response.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(mut get) => get.take_kvs().into_iter().next(),
            _ => None,
        });
        let held = found.map(|pair| Held {
            lease: pair.lease(),
            mod_revision: pair.mod_revision(),
            value: pair.into_key_value().1,
        });
        held.map(Some).ok_or_else(|| ControlError::Etcd("unexpected answer to a transaction".to_owned()))
    }

    /// Replaces this node's former record.
    async fn replace(&self, key: &str, lease: i64, seen: i64) -> Result<(), ControlError> {
        let unchanged = Compare::mod_revision(key, CompareOp::Equal, seen);
        let response = self.client.txn(Txn::new().when([unchanged]).and_then([self.put(key, lease)])).await?;
        if response.succeeded() {
            Ok(())
        } else {
            Err(ControlError::Etcd("the registration changed meanwhile".to_owned()))
        }
    }

    fn put(&self, key: &str, lease: i64) -> TxnOp {
        let value = serde_json::to_string(&self.record).unwrap_or_default();
        TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
    }

    /// Returns the remaining TTL of another node's lease; `None` for a record without a lease, which does not
    /// expire.
    async fn lease_left(&self, lease: i64) -> Result<Option<Duration>, ControlError> {
        if lease == 0 {
            return Ok(None);
        }
        let response = within(self.client.inner.lease_client().time_to_live(lease, None)).await?;
        Ok(Some(Duration::from_secs(u64::try_from(response.ttl()).unwrap_or(0))))
    }

    /// Renews `lease` every second. Returns when it is lost, or was not renewed for its whole TTL.
    async fn renew(&self, lease: i64) -> ControlError {
        let mut renewed_at = Instant::now();
        loop {
            let error = match self.renew_over_one_stream(lease, &mut renewed_at).await {
                Renewal::Gone => return ControlError::Etcd("the lease lapsed".to_owned()),
                Renewal::Broken(error) => error,
            };
            if renewed_at.elapsed() >= LEASE_TTL {
                return error;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn renew_over_one_stream(&self, lease: i64, renewed_at: &mut Instant) -> Renewal {
        let opened = timeout(REQUEST_TIMEOUT, self.client.inner.lease_client().keep_alive(lease)).await;
        let (mut keeper, mut answers) = match opened {
            Ok(Ok(stream)) => stream,
            // The form in which etcd-client reports a lease unknown to etcd.
            Ok(Err(etcd_client::Error::LeaseKeepAliveError(_))) => return Renewal::Gone,
            Ok(Err(error)) => return Renewal::Broken(etcd_error(error)),
            Err(_) => return Renewal::Broken(ControlError::Etcd("no answer to a renewal".to_owned())),
        };
        loop {
            *renewed_at = Instant::now();
            sleep(RENEW_INTERVAL).await;
            if let Err(error) = keeper.keep_alive().await {
                return Renewal::Broken(etcd_error(error));
            }
            match timeout(REQUEST_TIMEOUT, answers.message()).await {
                Ok(Ok(Some(answer))) if answer.ttl() > 0 => {}
                Ok(Ok(Some(_))) => return Renewal::Gone,
                Ok(Ok(None)) => {
                    return Renewal::Broken(ControlError::Etcd("etcd closed the renewals".to_owned()));
                }
                Ok(Err(error)) => return Renewal::Broken(etcd_error(error)),
                Err(_) => return Renewal::Broken(ControlError::Etcd("no answer to a renewal".to_owned())),
            }
        }
    }

    /// Marks the node as leaving, then deletes the record. Best effort: otherwise the lease expires.
    async fn leave(&mut self, lease: i64) {
        self.record.leaving = true;
        let key = keys::node(self.record.role, &self.record.id);
        // Only this node's own registration is deleted: the lease may have expired, and another node
        // registered.
        let own = Compare::lease(key.as_str(), CompareOp::Equal, lease);
        let farewell = self.client.txn(Txn::new().when([own]).and_then([self.put(&key, lease)])).await;
        let revoked = within(self.client.inner.lease_client().revoke(lease)).await;
        if let Some(error) = farewell.err().or(revoked.err()) {
            tracing::warn!(%error, "could not take the registration back; it lapses in {} s", LEASE_TTL.as_secs());
        }
    }
}

enum Renewal {
    Gone,
    Broken(ControlError),
}

struct Held {
    value: Vec<u8>,
    lease: i64,
    mod_revision: i64,
}

/// Determines whether the holder of an id is alive, that is, renews its lease.
#[derive(Default)]
struct Contest {
    since: Option<(Instant, Duration)>,
    renewals: u32,
}

impl Contest {
    /// Records a check of the lease; `left` is its remaining TTL. Returns true after two renewals: one is not
    /// enough, since a new leader of etcd also renews every lease once.
    fn is_alive(&mut self, left: Option<Duration>, now: Instant) -> bool {
        let Some(left) = left else { return true };
        let Some((since, left_then)) = self.since else {
            self.since = Some((now, left));
            return false;
        };
        let expected = left_then.saturating_sub(Duration::from_secs((now - since).as_secs()));
        if left >= expected + RENEWED_BY {
            self.renewals += 1;
            self.since = Some((now, left));
        }
        self.renewals >= 2
    }
}

/// Returns the error for an id that `other` holds.
pub(crate) fn taken(other: &NodeRecord) -> ControlError {
    ControlError::IdTaken {
        id: other.id,
        role: other.role.to_string(),
        incarnation: other.incarnation,
        host: other.host.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every 200 ms at a lease that is renewed every `renew_ms` (0: never); when it is called alive, in
    /// ms.
    fn called_alive_after(renew_ms: u64) -> Option<u64> {
        let start = Instant::now();
        let mut contest = Contest::default();
        (0..60).map(|n| n * 200).find(|at| {
            let age = if renew_ms == 0 { *at } else { at % renew_ms };
            // etcd cuts to whole seconds.
            let left =
                Duration::from_secs(LEASE_TTL.saturating_sub(Duration::from_millis(age + 1)).as_secs());
            contest.is_alive(Some(left), start + Duration::from_millis(*at))
        })
    }

    #[tokio::test]
    async fn a_renewed_lease_is_alive_and_a_lapsing_one_is_not() {
        assert_eq!(called_alive_after(0), None);
        let found = called_alive_after(1000).expect("a renewed lease is alive");
        assert!(found <= 6000, "found after {found} ms");
        assert!(called_alive_after(1700).is_some());
    }
}
