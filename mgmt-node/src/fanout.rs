//! Asks many nodes' admin endpoints at once: bounded in time, in parallel requests and in bytes.

use std::sync::Arc;

use reqwest::Url;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::api::Unreachable;
use crate::limits::{FANOUT_BODY_LEN_MAX, FANOUT_PARALLEL_MAX, FANOUT_TIMEOUT};

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
    /// It said too much.
    #[error("its answer is longer than {} KiB", FANOUT_BODY_LEN_MAX >> 10)]
    TooLong,
    /// It said something else than JSON.
    #[error("its answer is no JSON: {0}")]
    NotJson(String),
}

/// The client for other nodes' admin endpoints; cheap to clone.
#[derive(Clone, Debug)]
pub struct Fanout {
    http: reqwest::Client,
    slots: Arc<Semaphore>,
}

impl Fanout {
    /// A client. Fails only when the system gives no resources for one.
    pub fn new() -> Result<Self, reqwest::Error> {
        // Not through proxies of the environment, and not wherever a node says: redirects are refused.
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(FANOUT_TIMEOUT)
            .timeout(FANOUT_TIMEOUT)
            .build()?;
        Ok(Fanout { http, slots: Arc::new(Semaphore::new(FANOUT_PARALLEL_MAX)) })
    }

    /// GET of `path` at one node: status and body.
    pub async fn get(
        &self,
        target: &Target,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<(u16, Vec<u8>), AskError> {
        let url = Url::parse(&target.admin).and_then(|base| base.join(path));
        let url = url.map_err(|_| AskError::Address(target.admin.clone()))?;
        let no_answer = |e: reqwest::Error| AskError::NoAnswer(cause(&e));
        let _slot = self.slots.acquire().await.map_err(|e| AskError::NoAnswer(e.to_string()))?;
        let mut response = self.http.get(url).query(query).send().await.map_err(no_answer)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(no_answer)? {
            if body.len() + chunk.len() > FANOUT_BODY_LEN_MAX {
                return Err(AskError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok((response.status().as_u16(), body))
    }

    /// GET of JSON at one node. A status other than 200 is an error.
    pub async fn json(
        &self,
        target: &Target,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<Value, AskError> {
        let (status, body) = self.get(target, path, query).await?;
        if status != 200 {
            return Err(AskError::Status(status));
        }
        serde_json::from_slice(&body).map_err(|e| AskError::NotJson(e.to_string()))
    }

    /// GET of JSON at all `targets`; what they said in the order of `targets`, and who did not say anything useful.
    pub async fn ask(
        &self,
        targets: Vec<Target>,
        path: &'static str,
        query: Vec<(&'static str, String)>,
    ) -> (Vec<(Target, Value)>, Vec<Unreachable>) {
        let mut asked = JoinSet::new();
        for (at, target) in targets.into_iter().enumerate() {
            let (this, query) = (self.clone(), query.clone());
            asked.spawn(async move {
                let answer = this.json(&target, path, &query).await;
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

/// The innermost cause; reqwest's own text says only that sending failed.
fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", FANOUT_TIMEOUT.as_secs());
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
