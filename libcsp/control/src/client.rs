//! A connection to etcd, with the timeouts that all of CSP uses.

use std::time::Duration;

use csp_identity::Credentials;
use etcd_client::{Client, ConnectOptions, GetOptions, GetResponse, Txn, TxnResponse};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::config::EtcdSection;
use crate::endpoints;
use crate::error::ControlError;
use crate::policy_store::packed::Header;

/// Timeout of one request to etcd.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// The endpoints of etcd, and the identity with which this program connects.
#[derive(Clone, Debug)]
pub struct EtcdAccess {
    /// The configured endpoints.
    pub section: EtcdSection,
    /// This program's identity; `None` for an etcd on this host without TLS.
    pub credentials: Option<Credentials>,
}

impl EtcdAccess {
    /// Returns access without TLS to an etcd on this host.
    pub fn bare(url: String) -> Self {
        EtcdAccess { section: EtcdSection { endpoints: vec![url] }, credentials: None }
    }
}

/// A client of etcd. It connects when first needed and reconnects when a connection breaks.
///
/// Its futures are boxed, so that gRPC is compiled into this crate and not into each crate that awaits them
/// (decision 0083).
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
    /// Returns a client of the configured endpoints, without waiting for a connection. Fails on malformed
    /// endpoints only.
    ///
    /// Connections made after a change of the credentials use the new ones. Endpoints that do not serve are
    /// left out while others do. Requires a tokio runtime.
    pub fn connect(etcd: &EtcdAccess) -> BoxFuture<'_, Result<EtcdClient, ControlError>> {
        let connect = async {
            let options = ConnectOptions::new().with_require_leader(true);
            let inner = Client::from_channel(endpoints::open(etcd).await?, Some(options)).await;
            Ok(EtcdClient { inner: inner.map_err(etcd_error)? })
        };
        connect.boxed()
    }

    /// Returns the library's client, for requests that this type does not wrap. They have no timeout.
    pub fn raw(&self) -> Client {
        self.inner.clone()
    }

    /// Checks that etcd serves, by a linearizable read, which requires a leader.
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

    /// Reads the chunks of a packed generation, one request for each.
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

/// Why a packed generation could not be read.
pub(crate) enum ChunksError {
    /// etcd did not answer.
    Etcd(ControlError),
    /// The chunks in etcd are missing or invalid.
    Wrong(String),
}

/// Runs one request with [`REQUEST_TIMEOUT`].
pub(crate) async fn within<T>(
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, ControlError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(result) => result.map_err(etcd_error),
        Err(_) => Err(ControlError::Etcd(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))),
    }
}

/// Converts an error of the library, with a message of one line.
pub(crate) fn etcd_error(error: etcd_client::Error) -> ControlError {
    ControlError::Etcd(match error {
        etcd_client::Error::GRpcStatus(status) => crate::error::with_remedy(status.message()),
        other => other.to_string(),
    })
}

/// Increasing, bounded delays between unlimited retries.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempt: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(2);

    /// Returns the next delay: 100 ms, doubled up to 2 s. Each is shortened by a random part of up to a
    /// quarter, so that nodes that lost etcd together do not reconnect together.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = Self::FIRST.saturating_mul(1 << self.attempt.min(5)).min(Self::LAST);
        self.attempt = self.attempt.saturating_add(1);
        pause.mul_f64(1.0 - rand::random::<f64>() / 4.0)
    }

    /// Resets the delay after a success.
    pub(crate) fn reset(&mut self) {
        self.attempt = 0;
    }
}
