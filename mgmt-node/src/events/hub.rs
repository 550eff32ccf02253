//! All events at this management node, and those who wait for more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csp_api::Text;
use csp_api::events::{Event, Push, What};
use csp_api::mgmt::AuditRecord;
use csp_daemon::Events;
use csp_events::{Collector, Cursor, Filter, Read};
use tokio::sync::watch;
use tokio::time::Instant;

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
    /// Name and incarnation of `own`.
    stream: (Text, u64),
    state: Mutex<State>,
    arrivals: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    collector: Collector,
    announced: BTreeMap<Text, Announced>,
    /// By node: events that were lost and not reported yet, and when some were.
    lost: BTreeMap<Text, (u64, Instant)>,
}

/// The kind of node that pushed events, and so what it may speak of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pusher {
    /// A management node: what it says of nodes is believed.
    Management,
    /// Another node: it speaks for itself.
    Node,
}

/// Nodes whose state is kept.
const NODES_MAX: usize = 8192;
/// Shortest time between two reports that events of a node were lost.
const LOST_INTERVAL: Duration = Duration::from_secs(10);
/// This node's stream is heard of so often.
const HEARTBEAT: Duration = Duration::from_secs(5);

impl Hub {
    /// Returns the events of a cluster of which nothing is known yet; `own` are this node's.
    pub fn new(own: Events) -> Arc<Hub> {
        let collector = Collector::new(rand::random());
        let (announced, lost) = (BTreeMap::new(), BTreeMap::new());
        let state = Mutex::new(State { collector, announced, lost });
        let Push { origin, incarnation, .. } = own.after(0);
        let stream = (origin, incarnation);
        Arc::new(Hub { own, stream, state, arrivals: watch::Sender::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event of this node.
    pub fn record(&self, what: &What) {
        self.own.record(what);
    }

    /// Takes over what is new of a push. Returns the last event of its origin that is here.
    pub fn admit(&self, push: Push, by: Pusher) -> u64 {
        let (origin, mut state) = (push.origin.clone(), self.state());
        let admitted = state.collector.admit(push);
        if by == Pusher::Management {
            admitted.new.iter().for_each(|event| note(&mut state.announced, event));
        }
        let lost = state.report_lost(&origin, admitted.lost);
        let arrivals = state.collector.arrivals();
        drop(state);
        if !admitted.new.is_empty() {
            self.arrivals.send_modify(|known| *known = arrivals.max(*known));
        }
        if lost > 0 {
            self.record(&What::EventsLost { node: origin, count: lost });
        }
        admitted.known
    }

    /// Takes over this node's own events as they are recorded. Does not end.
    pub async fn follow_own(self: Arc<Self>) {
        let mut latest = self.own.latest();
        loop {
            latest.borrow_and_update();
            self.take_own();
            let changed = tokio::time::timeout(HEARTBEAT, latest.changed()).await;
            if matches!(changed, Ok(Err(_))) {
                return;
            }
        }
    }

    /// Takes over this node's own events up to now.
    pub(super) fn take_own(&self) {
        let (origin, incarnation) = &self.stream;
        loop {
            let known = self.state().collector.known(origin, *incarnation);
            let push = self.own.after(known);
            let has_none = push.events.is_empty();
            if self.admit(push, Pusher::Management) == known || has_none {
                return;
            }
        }
    }

    /// Returns the latest events that match.
    pub fn latest(&self, filter: &Filter, most: usize) -> Read {
        self.state().collector.latest(filter, most)
    }

    /// Returns the events after `cursor` that match; waits for the first one at most so long.
    pub async fn after(&self, cursor: &Cursor, filter: &Filter, most: usize, wait: Duration) -> Read {
        let until = Instant::now() + wait;
        let (mut arrivals, mut cursor, mut missed) = (self.arrivals.subscribe(), cursor.clone(), 0);
        loop {
            arrivals.borrow_and_update();
            let mut read = self.state().collector.read(&cursor, filter, most);
            missed += read.missed;
            read.missed = missed;
            let is_done = !read.events.is_empty() || missed > 0 || Instant::now() >= until;
            if is_done || !matches!(tokio::time::timeout_at(until, arrivals.changed()).await, Ok(Ok(()))) {
                return read;
            }
            // What did not match was looked at.
            cursor = read.cursor;
        }
    }

    /// Returns how many events arrived after `cursor` and are kept.
    pub fn waiting(&self, cursor: &Cursor) -> u64 {
        self.state().collector.waiting(cursor)
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

impl State {
    /// Returns how many lost events of a node to report now.
    fn report_lost(&mut self, origin: &Text, count: u64) -> u64 {
        if count == 0 && !self.lost.contains_key(origin) {
            return 0;
        }
        if self.lost.len() >= NODES_MAX {
            self.lost.clear();
        }
        let long_ago = || Instant::now().checked_sub(LOST_INTERVAL).unwrap_or_else(Instant::now);
        let (lost, reported) = self.lost.entry(origin.clone()).or_insert_with(|| (0, long_ago()));
        *lost = lost.saturating_add(count);
        if *lost == 0 || reported.elapsed() < LOST_INTERVAL {
            return 0;
        }
        *reported = Instant::now();
        std::mem::take(lost)
    }
}

impl AuditHook for Hub {
    /// Makes an event of each change that was made or refused.
    fn recorded(&self, record: &AuditRecord) {
        let (Some(status), Some(result)) = (record.status, &record.result) else { return };
        // Viewers read events; what the audit log has beyond that is for operators.
        self.record(&What::ChangeRequested {
            who: (&record.who).into(),
            by: (&record.by).into(),
            method: (&record.method).into(),
            path: (&record.path).into(),
            status,
            result: result.into(),
        });
    }
}

/// Keeps what events say of nodes, whoever led when they were recorded.
fn note(announced: &mut BTreeMap<Text, Announced>, event: &Event) {
    match event.what() {
        Some(What::NodeJoined { node, .. })
            if announced.len() >= NODES_MAX && !announced.contains_key(&node) => {}
        Some(What::NodeJoined { node, role, incarnation, .. }) => {
            let known = announced.entry(node).or_default();
            (known.role, known.incarnation, known.late) = (role, incarnation, false);
        }
        Some(What::NodeLate { node, .. }) => {
            if let Some(known) = announced.get_mut(&node) {
                known.late = true;
            }
        }
        Some(What::NodeLeft { node, .. }) => {
            announced.remove(&node);
        }
        Some(What::NodeDrains { node }) => set_draining(announced, &node, true),
        Some(What::NodeResumes { node }) => set_draining(announced, &node, false),
        _ => {}
    }
}

fn set_draining(announced: &mut BTreeMap<Text, Announced>, node: &Text, draining: bool) {
    if let Some(known) = announced.get_mut(node) {
        known.draining = draining;
    }
}
