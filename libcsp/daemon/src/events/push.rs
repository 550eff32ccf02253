//! Pushes this node's events to every management node, each from where that one is.

use std::collections::BTreeMap;
use std::time::Duration;

use csp_api::events::{Push, Pushed};
use csp_control::Membership;
use csp_identity::{Credentials, ExpectedServer};
use csp_types::{NodeId, Role};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::Events;

/// A management node that began anew has forgotten all; it is asked this often.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time for a push.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a push that failed: at first, and at most; it doubles each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Longest answer, in bytes.
const ANSWER_LEN_MAX: u64 = 4096;

/// Aborts its task when it is dropped.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Pushes `events` to all management nodes of the membership except `own`. Does not end.
pub async fn push(
    events: Events,
    own: NodeId,
    mut membership: watch::Receiver<Membership>,
    credentials: Option<Credentials>,
) {
    let mut running: BTreeMap<(NodeId, String), Running> = BTreeMap::new();
    loop {
        let nodes: Vec<(NodeId, String)> = {
            let membership = membership.borrow_and_update();
            let records = membership.of_role(Role::MgmtNode).map(|member| &member.record);
            records
                .filter(|record| record.id != own)
                .map(|record| (record.id, record.admin.clone()))
                .collect()
        };
        running.retain(|node, _| nodes.contains(node));
        for node in nodes {
            if running.contains_key(&node) {
                continue;
            }
            let to = Destination::new(&node, credentials.as_ref());
            let Ok(to) = to.inspect_err(|error| tracing::warn!(node = %node.0, %error, "no events go there"))
            else {
                continue;
            };
            running
                .entry(node)
                .or_insert_with(|| Running(tokio::spawn(to.follow(events.clone())).abort_handle()));
        }
        if membership.changed().await.is_err() {
            return;
        }
    }
}

/// A management node.
struct Destination {
    node: NodeId,
    url: reqwest::Url,
    client: reqwest::Client,
}

impl Destination {
    fn new((node, admin): &(NodeId, String), credentials: Option<&Credentials>) -> Result<Self, String> {
        let url = reqwest::Url::parse(admin).and_then(|base| base.join("/v1/events"));
        let expected = ExpectedServer::Node(Role::MgmtNode, *node);
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .https_only(credentials.is_some())
            .timeout(TIMEOUT)
            .tls_backend_preconfigured(csp_identity::client_config(credentials, expected))
            .build();
        Ok(Destination {
            node: *node,
            url: url.map_err(|error| format!("{admin:?}: {error}"))?,
            client: client.map_err(|error| error.to_string())?,
        })
    }

    /// Pushes what is new, and what the node says it has not.
    async fn follow(self, events: Events) {
        let (mut latest, mut known, mut pause) = (events.latest(), 0, PAUSE.0);
        loop {
            latest.borrow_and_update();
            let push = events.after(known);
            let last = push.events.last().map_or(known, |event| event.sequence);
            match self.send(&push).await {
                Ok(pushed) => {
                    let goes_on = pushed.known > known || pushed.known == last;
                    (known, pause) = (pushed.known, PAUSE.0);
                    if goes_on && known < *latest.borrow() {
                        continue;
                    }
                }
                Err(error) => {
                    tracing::debug!(node = %self.node, error, "a management node did not take events");
                    // Nodes do not all come back at once.
                    tokio::time::sleep(pause.mul_f64(0.5 + crate::jitter::fraction())).await;
                    pause = (pause * 2).min(PAUSE.1);
                    continue;
                }
            }
            let _ = tokio::time::timeout(HEARTBEAT, latest.changed()).await;
        }
    }

    async fn send(&self, push: &Push) -> Result<Pushed, String> {
        let text = |error: reqwest::Error| error.to_string();
        let answer = self.client.post(self.url.clone()).json(push).send().await.map_err(text)?;
        if !answer.status().is_success() {
            return Err(format!("status {}", answer.status().as_u16()));
        }
        if answer.content_length().is_none_or(|len| len > ANSWER_LEN_MAX) {
            return Err("its answer is too long".to_owned());
        }
        answer.json().await.map_err(text)
    }
}
