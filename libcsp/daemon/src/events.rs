//! This node's events: recorded here, logged, and pushed to every management node.

mod certificate;
mod notice;
mod push;
mod report;

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use csp_api::events::{Push, Severity, What};
use csp_control::NodeRecord;
use csp_events::Journal;
use serde::Deserialize;
use tokio::sync::watch;

use super::clock;

pub use certificate::CertificateNotice;
pub(crate) use notice::Notices;
pub use push::push;
pub use report::Reporter;

/// The events of this process. Clones share them and are cheap.
#[derive(Clone, Debug)]
pub struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    journal: Mutex<Journal>,
    latest: watch::Sender<u64>,
}

impl Events {
    /// Returns the events of the node with this registration; there are none yet.
    pub fn of(record: &NodeRecord) -> Events {
        let journal = Journal::new(record.id.to_string().into(), record.incarnation);
        Events(Arc::new(Shared { journal: Mutex::new(journal), latest: watch::Sender::new(0) }))
    }

    /// Records what happened, and logs it. Does not wait.
    pub fn record(&self, what: &What) {
        let (object, text, time_ms) = (what.object(), what.text(), clock::unix_now_ms());
        match what.severity() {
            Severity::Info => tracing::info!(target: "csp_events", %object, "{text}"),
            Severity::Warning => tracing::warn!(target: "csp_events", %object, "{text}"),
            Severity::Error => tracing::error!(target: "csp_events", %object, "{text}"),
        }
        let mut journal = self.0.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.record(time_ms, what);
        let latest = journal.latest();
        drop(journal);
        self.0.latest.send_modify(|known| *known = latest.max(*known));
    }

    /// Returns the next events for somebody who has those up to `known`.
    pub fn after(&self, known: u64) -> Push {
        self.0.journal.lock().unwrap_or_else(PoisonError::into_inner).after(known)
    }

    /// Returns a receiver of the number of the latest event.
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.0.latest.subscribe()
    }

    /// Returns the route at which management nodes, and people, read what this node has recorded:
    /// `GET /v1/events?since=NUMBER`.
    pub fn route(&self) -> Router {
        Router::new().route("/v1/events", get(since)).with_state(self.clone())
    }
}

/// Query of [`since`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Since {
    #[serde(default)]
    since: u64,
}

async fn since(State(events): State<Events>, Query(query): Query<Since>) -> Json<Push> {
    Json(events.after(query.since))
}
