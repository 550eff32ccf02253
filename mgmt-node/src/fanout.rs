//! Asks many nodes' admin endpoints at once: bounded in time, in parallel requests and in bytes.

mod call;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use csp_identity::{Credentials, ExpectedServer, IdentityRole};
use csp_types::{NodeId, Role};
use reqwest::Url;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::limits::{FANOUT_BODY_LEN_MAX, FANOUT_PARALLEL_MAX, FANOUT_SLOW_MAX, FANOUT_TIMEOUT};
use csp_api::Text;
use csp_api::mgmt::{ErrorBody, Unreachable};
use futures_util::FutureExt as _;

pub use call::Asked;

/// Longest reason for a refusal, in bytes of its body.
const REASON_LEN_MAX: u64 = 64 << 10;
/// Nodes that connections are kept for.
const CLIENTS_MAX: usize = 1024;

/// A node to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Node id.
    pub id: String,
    /// Role.
    pub role: String,
    /// Base URL of its admin endpoint.
    pub admin: String,
}

/// Why a node's answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The node registered something that is no URL.
    #[error("its registered admin address `{0}` is no URL")]
    Address(String),
    /// Nothing came back.
    #[error("{0}")]
    NoAnswer(String),
    /// It answered in time, but with an error status.
    #[error("it answered with status {0}")]
    Status(u16),
    /// It refused what it was given; contains why.
    #[error("{0}")]
    Refused(Text),
    /// The answer is too long.
    #[error("its answer is longer than {} KiB", FANOUT_BODY_LEN_MAX >> 10)]
    TooLong,
    /// The answer is no body of that route.
    #[error("its answer to {path} is not understood: {reason}; do the releases match?")]
    NotUnderstood {
        /// What was asked for.
        path: String,
        /// What is wrong with the body.
        reason: Text,
    },
}

/// The client for other nodes' admin endpoints; cheap to clone.
#[derive(Clone, Debug)]
pub struct Fanout {
    credentials: Option<Credentials>,
    /// By role and id: connections that are for this node alone, whatever else has its address.
    clients: Arc<Mutex<BTreeMap<(Role, NodeId), reqwest::Client>>>,
    slots: Arc<Semaphore>,
    /// For questions whose answers take long.
    slow_slots: Arc<Semaphore>,
}

impl Fanout {
    /// A client with this node's identity.
    pub fn new(credentials: Option<&Credentials>) -> Self {
        let slots = |count| Arc::new(Semaphore::new(count));
        let (slots, slow_slots) = (slots(FANOUT_PARALLEL_MAX), slots(FANOUT_SLOW_MAX));
        Fanout { credentials: credentials.cloned(), clients: Arc::default(), slots, slow_slots }
    }

    /// The client for one node: its server's certificate must be that node's.
    fn client(&self, target: &Target) -> Result<reqwest::Client, AskError> {
        let unknown = || AskError::NoAnswer(format!("{}/{} is no node", target.role, target.id));
        let role =
            target.role.parse::<IdentityRole>().ok().and_then(IdentityRole::node).ok_or_else(unknown)?;
        let id: NodeId = target.id.parse().map_err(|_| unknown())?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&(role, id)) {
            return Ok(client.clone());
        }
        if clients.len() >= CLIENTS_MAX {
            clients.clear();
        }
        let expected = ExpectedServer::Node(role, id);
        // No proxies of the environment, and no redirects: a node must not send the request elsewhere.
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            // The address is what etcd holds as the node's registration.
            .https_only(self.credentials.is_some())
            .connect_timeout(FANOUT_TIMEOUT)
            .timeout(FANOUT_TIMEOUT)
            .tls_backend_preconfigured(csp_identity::client_config(self.credentials.as_ref(), expected))
            .build()
            .map_err(|error| AskError::NoAnswer(error.to_string()))?;
        clients.insert((role, id), client.clone());
        Ok(client)
    }

    /// GET of `path` at one node: status and body.
    pub async fn get(
        &self,
        target: &Target,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<(u16, Vec<u8>), AskError> {
        self.get_within(&self.slots, target, (path, query), FANOUT_TIMEOUT).boxed().await
    }

    async fn get_within(
        &self,
        slots: &Semaphore,
        target: &Target,
        (path, query): (&str, &[(&str, String)]),
        timeout: Duration,
    ) -> Result<(u16, Vec<u8>), AskError> {
        let url = Url::parse(&target.admin).and_then(|base| base.join(path));
        let url = url.map_err(|_| AskError::Address(target.admin.clone()))?;
        let no_answer = |e: reqwest::Error| AskError::NoAnswer(cause(&e, timeout));
        let _slot = slots.acquire().await.map_err(|e| AskError::NoAnswer(e.to_string()))?;
        let request = self.client(target)?.get(url).timeout(timeout).query(query);
        let mut response = request.send().await.map_err(no_answer)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(no_answer)? {
            if body.len() + chunk.len() > FANOUT_BODY_LEN_MAX {
                return Err(AskError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok((response.status().as_u16(), body))
    }

    /// PUT of bytes at one node, which may take so long; `Err` with its reason if it refuses them.
    pub async fn put(
        &self,
        target: &Target,
        path: &str,
        bytes: Vec<u8>,
        timeout: Duration,
    ) -> Result<(), AskError> {
        let url = Url::parse(&target.admin).and_then(|base| base.join(path));
        let url = url.map_err(|_| AskError::Address(target.admin.clone()))?;
        let no_answer = |e: reqwest::Error| AskError::NoAnswer(cause(&e, timeout));
        let _slot = self.slow_slots.acquire().await.map_err(|e| AskError::NoAnswer(e.to_string()))?;
        let request = self.client(target)?.put(url).timeout(timeout).body(bytes);
        let response = request.send().await.map_err(no_answer)?;
        if response.status().is_success() { Ok(()) } else { Err(refusal(response).await) }
    }

    /// DELETE at one node. Returns whether there was what is deleted; `Err` with its reason if the node
    /// refuses.
    pub async fn delete(&self, target: &Target, path: &str) -> Result<bool, AskError> {
        let url = Url::parse(&target.admin).and_then(|base| base.join(path));
        let url = url.map_err(|_| AskError::Address(target.admin.clone()))?;
        let no_answer = |e: reqwest::Error| AskError::NoAnswer(cause(&e, FANOUT_TIMEOUT));
        let _slot = self.slots.acquire().await.map_err(|e| AskError::NoAnswer(e.to_string()))?;
        let request = self.client(target)?.delete(url).timeout(FANOUT_TIMEOUT);
        let response = request.send().await.map_err(no_answer)?;
        match response.status() {
            status if status.is_success() => Ok(true),
            reqwest::StatusCode::NOT_FOUND => Ok(false),
            _ => Err(refusal(response).await),
        }
    }

    /// GET of a body at one node that may wait for so long until it answers.
    pub async fn slow_body<T: DeserializeOwned>(
        &self,
        target: &Target,
        path: &str,
        query: &[(&str, String)],
        timeout: Duration,
    ) -> Result<T, AskError> {
        let (status, body) =
            self.get_within(&self.slow_slots, target, (path, query), timeout).boxed().await?;
        if status != 200 {
            return Err(AskError::Status(status));
        }
        parse(path, &body)
    }

    /// GET of a body at one node. A status other than 200 is an error.
    pub async fn body<T: DeserializeOwned>(
        &self,
        target: &Target,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, AskError> {
        let (status, body) = self.get(target, path, query).await?;
        if status != 200 {
            return Err(AskError::Status(status));
        }
        parse(path, &body)
    }

    /// GET of a body at all `targets`; the bodies in the order of `targets`, and the nodes without a usable
    /// answer.
    pub async fn ask<T: DeserializeOwned + Send + 'static>(
        &self,
        targets: Vec<Target>,
        path: &'static str,
        query: Vec<(&'static str, String)>,
    ) -> (Vec<(Target, T)>, Vec<Unreachable>) {
        let mut asked = JoinSet::new();
        for (at, target) in targets.into_iter().enumerate() {
            let (this, query) = (self.clone(), query.clone());
            asked.spawn(async move {
                let answer = this.body(&target, path, &query).await;
                (at, target, answer)
            });
        }
        let mut done = asked.join_all().await;
        done.sort_by_key(|(at, ..)| *at);
        let (mut answers, mut unreachable) = (Vec::new(), Vec::new());
        for (_, target, answer) in done {
            match answer {
                Ok(value) => answers.push((target, value)),
                Err(e) => unreachable.push(Unreachable { node: target.id, error: e.to_string() }),
            }
        }
        (answers, unreachable)
    }
}

/// Reads `body`, the answer to `path`.
pub fn parse<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T, AskError> {
    // The text of the error quotes the body, which may be hostile.
    serde_json::from_slice(body)
        .map_err(|error| AskError::NotUnderstood { path: path.to_owned(), reason: error.to_string().into() })
}

/// Returns why a node refuses what it was asked, from its answer.
async fn refusal(response: reqwest::Response) -> AskError {
    let (status, len) = (response.status(), response.content_length());
    let reason = match len {
        Some(len) if len <= REASON_LEN_MAX => response.bytes().await.ok(),
        _ => None,
    };
    let reason = reason.and_then(|body| serde_json::from_slice::<ErrorBody>(&body).ok());
    reason.map_or(AskError::Status(status.as_u16()), |body| AskError::Refused(body.error.into()))
}

/// The innermost cause: reqwest's own text states only that sending failed.
fn cause(error: &reqwest::Error, timeout: Duration) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", timeout.as_secs());
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
