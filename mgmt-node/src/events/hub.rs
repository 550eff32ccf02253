//! All events at this management node, and those who wait for more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csp_api::Text;
use csp_api::events::{Event, Page, Push, What};
use csp_api::mgmt::AuditRecord;
use csp_daemon::Events;
use csp_events::{Collector, Cursor, Filter};
use tokio::sync::watch;

use crate::actions::AuditHook;

/// What was announced of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Announced {
    pub role: Text,
    pub incarnation: u64,
    pub late: bool,
    pub draining: bool,
}

/// The events of the cluster, as far as they arrived here.
#[derive(Debug)]
pub struct Hub {
    own: Events,
    state: Mutex<State>,
    arrivals: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    collector: Collector,
    announced: BTreeMap<Text, Announced>,
}

impl Hub {
    /// Returns the events of a cluster of which nothing is known yet; `own` are this node's.
    pub fn new(own: Events) -> Arc<Hub> {
        let collector = Collector::new(rand::random());
        let state = Mutex::new(State { collector, announced: BTreeMap::new() });
        Arc::new(Hub { own, state, arrivals: watch::Sender::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event of this node.
    pub fn record(&self, what: &What) {
        self.own.record(what);
    }

    /// Takes over what is new of a push. Returns the last event of its origin that is here.
    pub fn admit(&self, push: Push) -> u64 {
        let (origin, mut state) = (push.origin.clone(), self.state());
        let admitted = state.collector.admit(push);
        for event in &admitted.new {
            note(&mut state.announced, event);
        }
        let arrivals = state.collector.arrivals();
        drop(state);
        if !admitted.new.is_empty() {
            self.arrivals.send_modify(|known| *known = arrivals.max(*known));
        }
        if admitted.lost > 0 {
            self.record(&What::EventsLost { node: origin, count: admitted.lost });
        }
        admitted.known
    }

    /// Takes over this node's own events as they are recorded. Does not end.
    pub async fn follow_own(self: Arc<Self>) {
        let (mut latest, mut known) = (self.own.latest(), 0);
        loop {
            latest.borrow_and_update();
            known = self.admit(self.own.after(known));
            if known >= *latest.borrow() && latest.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the latest events that match.
    pub fn latest(&self, filter: &Filter, most: usize) -> Page {
        self.state().collector.latest(filter, most)
    }

    /// Returns the events after `cursor` that match; waits for the first one at most so long.
    pub async fn after(&self, cursor: &Cursor, filter: &Filter, most: usize, wait: Duration) -> Page {
        let until = tokio::time::Instant::now() + wait;
        let (mut arrivals, mut cursor, mut missed) = (self.arrivals.subscribe(), cursor.clone(), 0);
        loop {
            arrivals.borrow_and_update();
            let mut page = self.state().collector.read(&cursor, filter, most);
            missed += page.missed;
            page.missed = missed;
            let more = tokio::time::timeout_at(until, arrivals.changed());
            if !page.events.is_empty() || missed > 0 || !matches!(more.await, Ok(Ok(()))) {
                return page;
            }
            // What did not match was looked at.
            cursor = page.cursor.parse().unwrap_or(cursor);
        }
    }

    /// Returns what was announced of each node.
    pub(super) fn announced(&self) -> BTreeMap<Text, Announced> {
        self.state().announced.clone()
    }

    /// Forgets a node that was late and did not come back.
    pub(super) fn forget(&self, node: &Text) {
        self.state().announced.remove(node);
    }
}

impl AuditHook for Hub {
    /// Makes an event of each change that was made or refused.
    fn recorded(&self, record: &AuditRecord) {
        let (Some(status), Some(result)) = (record.status, &record.result) else { return };
        self.record(&What::ChangeRequested {
            who: (&record.who).into(),
            by: (&record.by).into(),
            from: (&record.from).into(),
            method: (&record.method).into(),
            path: (&record.path).into(),
            what: (&record.what).into(),
            status,
            result: result.into(),
        });
    }
}

/// Keeps what events say of nodes, whoever led when they were recorded.
fn note(announced: &mut BTreeMap<Text, Announced>, event: &Event) {
    match event.what() {
        Some(What::NodeJoined { node, role, incarnation, .. }) => {
            let known = announced.entry(node).or_default();
            (known.role, known.incarnation, known.late) = (role, incarnation, false);
        }
        Some(What::NodeLate { node, .. }) => {
            announced.entry(node).or_default().late = true;
        }
        Some(What::NodeLeft { node, .. }) => {
            announced.remove(&node);
        }
        Some(What::NodeDrains { node }) => announced.entry(node).or_default().draining = true,
        Some(What::NodeResumes { node }) => announced.entry(node).or_default().draining = false,
        _ => {}
    }
}
