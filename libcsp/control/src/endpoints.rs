//! The connections of a client to the members of etcd: with the credentials in force, and to members that
//! serve.
//!
//! tonic spreads requests over all endpoints, including one that refuses connections: with one of three
//! members down, a quarter of all requests failed. Therefore each member is probed once a second. A member
//! that does not answer or has no leader is left out until it does. If none answers, all are kept.

use std::time::Duration;

use csp_identity::{Credentials, ExpectedServer};
use etcd_client::{Channel, Client, ConnectOptions};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, timeout};
use tonic::transport::channel::Change;
use tonic::transport::{ClientTlsConfig, Endpoint, Identity, Uri};

use crate::client::EtcdAccess;
use crate::error::ControlError;

/// Timeout for connecting to one endpoint.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 pings; etcd refuses clients that ping more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(6);
/// A connection is broken when a ping is unanswered for this long.
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval at which members are probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Adds and removes endpoints of a channel.
type Changes = mpsc::Sender<Change<Uri, Endpoint>>;

/// Returns a channel to the configured members, and keeps its endpoints up to date while it is used. Fails on
/// malformed endpoints only. Requires a tokio runtime.
pub(crate) async fn open(etcd: &EtcdAccess) -> Result<Channel, ControlError> {
    let urls = &etcd.section.endpoints;
    if urls.is_empty() {
        return Err(ControlError::Etcd("no endpoint is configured".to_owned()));
    }
    let (channel, changes) = tonic::transport::Channel::balance_channel(urls.len() + 1);
    let mut members = Vec::new();
    for url in urls {
        let endpoint = endpoint(url, etcd.credentials.as_ref())?;
        // The send fails only when the client is gone.
        let _ = changes.send(Change::Insert(endpoint.uri().clone(), endpoint.clone())).await;
        members.push(Member { url: url.clone(), endpoint, used: true });
    }
    if etcd.credentials.is_some() || members.len() > 1 {
        tokio::spawn(keep(members, etcd.credentials.clone(), changes));
    }
    Ok(Channel::Tonic(channel))
}

/// A member of etcd.
struct Member {
    url: String,
    endpoint: Endpoint,
    /// Whether requests are sent to it.
    used: bool,
}

fn endpoint(url: &str, credentials: Option<&Credentials>) -> Result<Endpoint, ControlError> {
    let malformed = |error: tonic::transport::Error| ControlError::Etcd(format!("{url}: {error}"));
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(malformed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    match credentials {
        Some(credentials) if url.starts_with("https://") => {
            let (certificate, key) = credentials.pem();
            let tls = ClientTlsConfig::new().identity(Identity::from_pem(certificate, key));
            let verifier = credentials.server_verifier(ExpectedServer::Etcd);
            endpoint.tls_config_with_verifier(tls, verifier).map_err(malformed)
        }
        _ => Ok(endpoint),
    }
}

/// Keeps the endpoints of a channel up to date while the channel is used. Requests in progress finish on old
/// connections.
async fn keep(mut members: Vec<Member>, credentials: Option<Credentials>, changes: Changes) {
    let mut of_credentials = credentials.as_ref().map(Credentials::changes);
    let mut probes = probes(&members);
    let mut beat = tokio::time::interval(PROBE_INTERVAL);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let several = members.len() > 1;
    loop {
        let renewed = async {
            if let Some(changes) = &mut of_credentials
                && changes.changed().await.is_ok()
            {
                return;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = changes.closed() => return,
            () = renewed => {
                if let Err(error) = renew(&mut members, credentials.as_ref(), &changes).await {
                    tracing::warn!(%error, "the new identity is not used for etcd");
                }
                probes = self::probes(&members);
            }
            _ = beat.tick(), if several => select(&mut members, ask(&probes).await, &changes).await,
        }
    }
}

/// Replaces the connections by ones with the present credentials.
async fn renew(
    members: &mut [Member],
    credentials: Option<&Credentials>,
    changes: &Changes,
) -> Result<(), ControlError> {
    for member in members {
        member.endpoint = endpoint(&member.url, credentials)?;
        if member.used {
            let endpoint = member.endpoint.clone();
            let _ = changes.send(Change::Insert(endpoint.uri().clone(), endpoint)).await;
        }
    }
    Ok(())
}

/// Restricts the channel to the members that serve.
async fn select(members: &mut [Member], serve: Vec<bool>, changes: &Changes) {
    if !serve.contains(&true) {
        return;
    }
    // Recovered members are added first, so that the channel is never empty.
    for (member, _) in members.iter_mut().zip(&serve).filter(|(member, serves)| **serves && !member.used) {
        tracing::info!(endpoint = member.url, "this member of etcd serves again");
        member.used = true;
        let endpoint = member.endpoint.clone();
        let _ = changes.send(Change::Insert(endpoint.uri().clone(), endpoint)).await;
    }
    for (member, _) in members.iter_mut().zip(&serve).filter(|(member, serves)| !**serves && member.used) {
        tracing::warn!(endpoint = member.url, "this member of etcd does not serve");
        member.used = false;
        let _ = changes.send(Change::Remove(member.endpoint.uri().clone())).await;
    }
}

/// Returns a connection to each member, made when first needed.
fn probes(members: &[Member]) -> Vec<tonic::transport::Channel> {
    members.iter().map(|member| member.endpoint.connect_lazy()).collect()
}

/// Returns for each member whether it answers and has a leader.
async fn ask(probes: &[tonic::transport::Channel]) -> Vec<bool> {
    let mut asked = JoinSet::new();
    for (at, probe) in probes.iter().cloned().enumerate() {
        asked.spawn(async move { (at, timeout(PROBE_TIMEOUT, serves(probe)).await.unwrap_or(false)) });
    }
    let mut serve = vec![false; probes.len()];
    while let Some(answer) = asked.join_next().await {
        if let Ok((at, serves)) = answer
            && let Some(of_member) = serve.get_mut(at)
        {
            *of_member = serves;
        }
    }
    serve
}

async fn serves(probe: tonic::transport::Channel) -> bool {
    let Ok(client) = Client::from_channel(Channel::Tonic(probe), Some(ConnectOptions::new())).await else {
        return false;
    };
    client.maintenance_client().status().await.is_ok_and(|status| status.leader() != 0)
}
