//! Which management node leads: the one whose lease holds `/csp/v1/leader`.
//!
//! Leading is a right to write policy, nothing else. It is enforced where the writes happen: each policy
//! transaction compares the create revision of the leader key ([`Leadership::fence`]), so a leader that lost
//! its lease without noticing yet writes nothing.

use std::time::{Duration, Instant};

use csp_control::keys::LEADER;
use csp_control::{EtcdAccess, EtcdClient};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use csp_api::mgmt::LeaderView;

/// How long a leader may be silent before another one takes over, in seconds.
const LEASE_TTL_S: i64 = 5;
/// How often the lease is kept alive, and how often followers look.
const BEAT: Duration = Duration::from_secs(1);
/// How long one request to etcd may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// A leader that could not renew for so long stops calling itself one, before its lease ends.
const STEP_DOWN_AFTER: Duration = Duration::from_secs(4);

/// The leading management node as far as this node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Leadership {
    /// Not known: etcd is silent, or nobody leads.
    #[default]
    Nobody,
    /// Another node.
    Other(LeaderView),
    /// This node.
    Own {
        /// How this node is named as the leader.
        view: LeaderView,
        /// Create revision of the leader key: what fenced transactions compare.
        fence: i64,
    },
}

impl Leadership {
    /// The leader, if there is one.
    pub fn leader(&self) -> Option<&LeaderView> {
        match self {
            Leadership::Nobody => None,
            Leadership::Other(view) | Leadership::Own { view, .. } => Some(view),
        }
    }

    /// What transactions must compare while this node leads.
    pub fn fence(&self) -> Option<i64> {
        match self {
            Leadership::Own { fence, .. } => Some(*fence),
            _ => None,
        }
    }
}

/// Takes part in elections until it is stopped.
#[derive(Debug)]
pub struct Election {
    /// The leading management node.
    pub leadership: watch::Receiver<Leadership>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Election {
    /// Stands for election as `own`. Must run inside tokio.
    pub fn start(etcd: EtcdAccess, own: LeaderView) -> Self {
        let (sender, leadership) = watch::channel(Leadership::Nobody);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(run(etcd, own, sender, stopped));
        Election { leadership, stop, task }
    }

    /// Resigns, so that another node can take over at once.
    pub async fn shutdown(self) {
        let _ = self.stop.send(true);
        let abort = self.task.abort_handle();
        if tokio::time::timeout(REQUEST_TIMEOUT, self.task).await.is_err() {
            abort.abort();
        }
    }
}

async fn run(
    etcd: EtcdAccess,
    own: LeaderView,
    sender: watch::Sender<Leadership>,
    mut stopped: watch::Receiver<bool>,
) {
    let client = loop {
        match EtcdClient::connect(&etcd).await {
            Ok(client) => break client.raw(),
            Err(error) => tracing::error!(%error, "no part is taken in elections"),
        }
        if rest(&mut stopped).await {
            return;
        }
    };
    while !*stopped.borrow() {
        if let Err(error) = campaign(&mut client.clone(), &own, &sender, &mut stopped).await {
            tracing::debug!(%error, "election");
        }
        publish_change(&sender, Leadership::Nobody);
        rest(&mut stopped).await;
    }
}

/// Waits one beat; `true` when the node stops.
async fn rest(stopped: &mut watch::Receiver<bool>) -> bool {
    tokio::time::timeout(BEAT, stopped.wait_for(|stop| *stop)).await.is_ok()
}

/// Publishes the leader, and logs a change.
fn publish_change(sender: &watch::Sender<Leadership>, now: Leadership) {
    let changed = sender.send_if_modified(|known| {
        let differs = *known != now;
        *known = now;
        differs
    });
    if changed {
        match &*sender.borrow() {
            Leadership::Nobody => tracing::info!("no leader is known"),
            Leadership::Other(view) => tracing::info!(leader = view.id, "following"),
            Leadership::Own { .. } => tracing::info!("leading"),
        }
    }
}

/// Follows until the leader key is free, takes it, leads until the lease is lost. Returns to be called again.
async fn campaign(
    client: &mut Client,
    own: &LeaderView,
    sender: &watch::Sender<Leadership>,
    stopped: &mut watch::Receiver<bool>,
) -> Result<(), etcd_client::Error> {
    while let Some((holder, revision)) = incumbent(client).await? {
        if holder == *own {
            // From before this node lost etcd or was killed: etcd keeps the lease for its whole time after
            // its own restart, too.
            resign(client, revision).await?;
            continue;
        }
        publish_change(sender, Leadership::Other(holder));
        if rest(stopped).await {
            return Ok(());
        }
    }
    let granted_at = Instant::now();
    let lease = client.lease_grant(LEASE_TTL_S, None).await?.id();
    let value = serde_json::to_string(own).unwrap_or_default();
    let free = Compare::create_revision(LEADER, CompareOp::Equal, 0);
    let take = TxnOp::put(LEADER, value, Some(PutOptions::new().with_lease(lease)));
    let taken = client.txn(Txn::new().when([free]).and_then([take])).await?;
    if !taken.succeeded() {
        client.lease_revoke(lease).await?;
        return Ok(());
    }
    let fence = taken.header().map_or(0, etcd_client::ResponseHeader::revision);
    publish_change(sender, Leadership::Own { view: own.clone(), fence });
    let led = lead(client, lease, fence, granted_at, stopped).await;
    publish_change(sender, Leadership::Nobody);
    // Without etcd the lease ends by itself.
    let _ = client.lease_revoke(lease).await;
    led
}

/// The holder of the leader key, and the key's create revision.
async fn incumbent(client: &mut Client) -> Result<Option<(LeaderView, i64)>, etcd_client::Error> {
    let found = client.get(LEADER, None).await?;
    let unknown = || LeaderView { id: "unknown".to_owned(), url: String::new() };
    let read = |kv: &etcd_client::KeyValue| {
        (serde_json::from_slice(kv.value()).unwrap_or_else(|_| unknown()), kv.create_revision())
    };
    Ok(found.kvs().first().map(read))
}

/// Deletes the leader key if it is the one of this create revision.
async fn resign(client: &mut Client, revision: i64) -> Result<(), etcd_client::Error> {
    let same = Compare::create_revision(LEADER, CompareOp::Equal, revision);
    client.txn(Txn::new().when([same]).and_then([TxnOp::delete(LEADER, None)])).await?;
    Ok(())
}

/// Keeps the lease alive; returns when it is lost or the node stops.
async fn lead(
    client: &mut Client,
    lease: i64,
    fence: i64,
    granted_at: Instant,
    stopped: &mut watch::Receiver<bool>,
) -> Result<(), etcd_client::Error> {
    let mut renewed_at = granted_at;
    while !rest(stopped).await {
        let asked_at = Instant::now();
        match tokio::time::timeout(REQUEST_TIMEOUT, renew(client, lease, fence)).await {
            Ok(Ok(true)) => renewed_at = asked_at,
            Ok(Ok(false)) => return Ok(()),
            Ok(Err(_)) | Err(_) if renewed_at.elapsed() < STEP_DOWN_AFTER => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// One renewal; `false` when the lease or the key is gone (an operator may delete the key to force an
/// election).
async fn renew(client: &mut Client, lease: i64, fence: i64) -> Result<bool, etcd_client::Error> {
    let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
    keeper.keep_alive().await?;
    let renewed = answers.message().await?.is_some_and(|answer| answer.ttl() > 0);
    Ok(renewed && incumbent(client).await?.is_some_and(|(_, revision)| revision == fence))
}
