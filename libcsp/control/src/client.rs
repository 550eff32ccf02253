//! A connection to etcd with the deadlines all of CSP uses.

use std::time::Duration;

use csp_identity::Credentials;
use etcd_client::{Client, ConnectOptions, GetOptions, GetResponse, Txn, TxnResponse};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::config::EtcdSection;
use crate::endpoints;
use crate::error::ControlError;
use crate::policy_store::packed::Header;

/// How long one request to etcd may take.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Where etcd is, and who asks.
#[derive(Clone, Debug)]
pub struct EtcdAccess {
    /// The configured endpoints.
    pub section: EtcdSection,
    /// This program's identity; `None` for an etcd of this host without TLS.
    pub credentials: Option<Credentials>,
}

impl EtcdAccess {
    /// An etcd of this host without TLS.
    pub fn bare(url: String) -> Self {
        EtcdAccess { section: EtcdSection { endpoints: vec![url] }, credentials: None }
    }
}

/// A client of etcd. Connections are made when first needed and made again when they break.
///
/// Its futures are boxed, so that gRPC is compiled into this crate and not into each one that awaits them (decision 0083).
#[derive(Clone)]
pub struct EtcdClient {
    pub(crate) inner: Client,
}

impl std::fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EtcdClient")
    }
}

impl EtcdClient {
    /// A client of the configured endpoints. Does not wait for a connection; fails on malformed endpoints only.
    ///
    /// With credentials, connections made after a change of them use the new ones. Of several endpoints, those that do
    /// not serve are left out. Must run inside tokio.
    pub fn connect(etcd: &EtcdAccess) -> BoxFuture<'_, Result<EtcdClient, ControlError>> {
        let connect = async {
            let options = ConnectOptions::new().with_require_leader(true);
            let inner = Client::from_channel(endpoints::open(etcd).await?, Some(options)).await;
            Ok(EtcdClient { inner: inner.map_err(etcd_error)? })
        };
        connect.boxed()
    }

    /// The library's client, for what this one does not wrap. Its requests have no deadline of their own.
    pub fn raw(&self) -> Client {
        self.inner.clone()
    }

    /// Whether etcd serves: a linearizable read, which needs a leader.
    pub async fn health(&self) -> Result<(), ControlError> {
        self.get(crate::keys::ACTIVE, None).await.map(drop)
    }

    pub(crate) fn get<'a>(
        &'a self,
        key: &'a str,
        options: Option<GetOptions>,
    ) -> BoxFuture<'a, Result<GetResponse, ControlError>> {
        async move { within(self.inner.kv_client().get(key, options)).await }.boxed()
    }

    /// Reads the chunks of a packed generation, one request each.
    pub(crate) async fn chunks(&self, header: &Header) -> Result<Vec<Vec<u8>>, ChunksError> {
        let mut chunks = Vec::new();
        for number in 0..header.chunks().map_err(ChunksError::Wrong)? {
            let key = crate::keys::chunk(&header.hash, number);
            let mut response = self.get(&key, None).await.map_err(ChunksError::Etcd)?;
            let pair = response.take_kvs().into_iter().next();
            let missing =
                || ChunksError::Wrong(format!("generation {}: {key} is missing", header.generation));
            chunks.push(pair.ok_or_else(missing)?.into_key_value().1);
        }
        Ok(chunks)
    }

    pub(crate) fn put<'a>(&'a self, key: &'a str, value: String) -> BoxFuture<'a, Result<(), ControlError>> {
        async move { within(self.inner.kv_client().put(key, value, None)).await.map(drop) }.boxed()
    }

    pub(crate) fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnResponse, ControlError>> {
        async { within(self.inner.kv_client().txn(txn)).await }.boxed()
    }
}

/// Why a packed generation was not read.
pub(crate) enum ChunksError {
    /// etcd did not answer.
    Etcd(ControlError),
    /// etcd does not hold it.
    Wrong(String),
}

/// Runs one request with the request deadline.
pub(crate) async fn within<T>(
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, ControlError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(result) => result.map_err(etcd_error),
        Err(_) => Err(ControlError::Etcd(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))),
    }
}

/// The error in one line for people.
pub(crate) fn etcd_error(error: etcd_client::Error) -> ControlError {
    ControlError::Etcd(match error {
        etcd_client::Error::GRpcStatus(status) => crate::error::with_remedy(status.message()),
        other => other.to_string(),
    })
}

/// Growing pauses between attempts, with a bound, for retries that never end.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempt: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(2);

    /// The next pause: 100 ms doubling up to 2 s, each shortened by up to a quarter at random so that nodes which lost
    /// etcd together do not come back together.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = Self::FIRST.saturating_mul(1 << self.attempt.min(5)).min(Self::LAST);
        self.attempt = self.attempt.saturating_add(1);
        pause.mul_f64(1.0 - rand::random::<f64>() / 4.0)
    }

    /// Starts over after a success.
    pub(crate) fn reset(&mut self) {
        self.attempt = 0;
    }
}
