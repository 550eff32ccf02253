//! Publication of a policy: written → staged by every live node → active → confirmed by every live node.
//!
//! ```text
//!            all staged              all active, or time is up
//!  Staging ─────────────▶ Activating ─────────────────────────▶ Active
//!     │                       │
//!     │ one refuses           │ one refuses: the generation before is put back
//!     ├───────────▶ Refused ◀─┘
//!     │ time is up
//!     └───────────▶ TimedOut
//! ```
//! One publication at a time; the leader alone publishes, and each write carries the leader's fence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csp_api::events::What;
use csp_api::mgmt::{AckView, Acknowledged, GenerationView, Phase};
use csp_control::{AckState, ManagerError, NodeAck, NodeRecord, PolicyManager};
use csp_daemon::Events;
use csp_policy::Policy;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::limits::ACK_POLL_INTERVAL;
use crate::policy_view::{PolicyReader, acknowledged};

/// Why a publication did not start.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// One is under way.
    #[error("generation {0} is being published at this time; wait for it and try again")]
    Busy(u64),
    /// Another generation is in force than the caller has changed.
    #[error("generation {active} is in force, but generation {expected} was changed; read it again")]
    Changed {
        /// The one in force.
        active: u64,
        /// The one that the caller expects.
        expected: u64,
    },
    /// The policy store refused it.
    #[error(transparent)]
    Manager(#[from] ManagerError),
}

/// How a publication started.
#[derive(Clone, Debug)]
pub enum Started {
    /// It runs; follow it with [`Publisher::wait`].
    Running(GenerationView),
    /// This very policy is in force.
    Unchanged(GenerationView),
}

/// Publishes, and remembers the publications of this process.
#[derive(Debug)]
pub struct Publisher {
    reader: Arc<PolicyReader>,
    current: watch::Sender<Option<GenerationView>>,
    /// Reasons of generations that were not activated, by number.
    failures: std::sync::Mutex<BTreeMap<u64, (Phase, String)>>,
    busy: Arc<Mutex<()>>,
    events: Events,
}

/// Failures remembered.
const FAILURES_MAX: usize = 256;

impl Publisher {
    /// A publisher that makes `reader` read after each step, and records publications.
    pub fn new(reader: Arc<PolicyReader>, events: Events) -> Arc<Self> {
        let (current, _) = watch::channel(None);
        Arc::new(Publisher { reader, current, failures: Default::default(), busy: Arc::default(), events })
    }

    /// Publishes `policy` through `manager` (fenced by the caller). Each of the two waits takes at most
    /// `timeout`. With `expected` only if that generation is in force.
    pub async fn start(
        self: &Arc<Self>,
        manager: PolicyManager,
        policy: Policy,
        timeout: Duration,
        expected: Option<u64>,
    ) -> Result<Started, PublishError> {
        let Ok(turn) = self.busy.clone().try_lock_owned() else {
            let number = self.current.borrow().as_ref().map_or(0, |view| view.generation);
            return Err(PublishError::Busy(number));
        };
        let before = manager.active().await?;
        if let Some(expected) = expected.filter(|expected| *expected != before) {
            return Err(PublishError::Changed { active: before, expected });
        }
        let doubt = manager.doubt().await?;
        if let Some(doubt) = doubt.clone().filter(|_| expected.is_some()) {
            return Err(ManagerError::Doubtful(doubt).into());
        }
        // What nodes do not follow is published anew, even if it is the same.
        if before > 0 && doubt.is_none() {
            let record = manager.generation(before).await?;
            if record.hash == policy.hash() {
                let acks = acks(&manager.followers().await?, before);
                let (created_unix_ms, hash) = (record.created_unix_ms, record.hash);
                return Ok(Started::Unchanged(view(before, created_unix_ms, hash, Phase::Active, acks)));
            }
        }
        let number = manager.publish(&policy, Some(before)).await?;
        let waiting = acks(&manager.followers().await.unwrap_or_default(), number);
        let first = view(number, csp_daemon::clock::unix_now_ms(), policy.hash(), Phase::Staging, waiting);
        self.events.record(&What::PolicyPublished { generation: number, hash: policy.hash().into() });
        self.current.send_replace(Some(first.clone()));
        let this = self.clone();
        tokio::spawn(async move {
            this.reader.refresh(true).await;
            let (phase, reason) = this.carry_out(&manager, number, before, timeout).await;
            if phase != Phase::Active {
                this.remember(number, phase, reason.clone().unwrap_or_default());
            }
            // A client that sees the final phase must see the same in /api/v1/policy.
            this.reader.refresh(true).await;
            let reason_text = reason.clone().unwrap_or_default().into();
            this.events.record(&match phase {
                Phase::Active => What::PolicyActive { generation: number, reason: reason_text },
                _ => What::PolicyRefused { generation: number, reason: reason_text },
            });
            this.step(|view| (view.phase, view.reason) = (phase, reason));
            drop(turn);
        });
        Ok(Started::Running(first))
    }

    /// The publication of `generation` by this process, once it is newer than `since` or `wait` has passed.
    pub async fn wait(&self, generation: u64, since: u64, wait: Duration) -> Option<GenerationView> {
        let mut current = self.current.subscribe();
        let of = |view: &Option<GenerationView>| view.clone().filter(|view| view.generation == generation);
        of(&current.borrow())?;
        let changed = |view: &Option<GenerationView>| of(view).is_none_or(|view| view.revision > since);
        let _ = tokio::time::timeout(wait, current.wait_for(changed)).await;
        of(&current.borrow_and_update())
    }

    /// The publication under way, or the last one of this process.
    pub fn current(&self) -> Option<GenerationView> {
        self.current.borrow().clone()
    }

    /// Why `generation` was not activated, if this process knows.
    pub fn failure(&self, generation: u64) -> Option<(Phase, String)> {
        let failures = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        failures.get(&generation).cloned()
    }

    async fn carry_out(
        &self,
        manager: &PolicyManager,
        number: u64,
        before: u64,
        timeout: Duration,
    ) -> (Phase, Option<String>) {
        match self.gather(manager, number, timeout, Acknowledged::Staged).await {
            Gathered::All => {}
            Gathered::Refused(why) => return (Phase::Refused, Some(why)),
            Gathered::TimedOut(why) => return (Phase::TimedOut, Some(why)),
        }
        if let Err(error) = self.activate(manager, number, before).await {
            return (Phase::Refused, Some(format!("it could not be activated: {error}")));
        }
        self.step(|view| view.phase = Phase::Activating);
        match self.gather(manager, number, timeout, Acknowledged::Active).await {
            Gathered::All => (Phase::Active, None),
            // They staged it, so they can; they follow by themselves.
            Gathered::TimedOut(why) => (Phase::Active, Some(why)),
            // Not by the history in etcd, which others could have written.
            Gathered::Refused(why) if before == 0 => {
                (Phase::Active, Some(format!("{why}; none was in force before")))
            }
            Gathered::Refused(why) => match manager.activate(before, number).await {
                Ok(()) => (Phase::Refused, Some(format!("{why}; generation {before} was put back in force"))),
                Err(error) => (Phase::Active, Some(format!("{why}; it could not be taken back: {error}"))),
            },
        }
    }

    async fn activate(&self, manager: &PolicyManager, number: u64, before: u64) -> Result<(), ManagerError> {
        match manager.activate(number, before).await {
            // An answer that got lost is no failure.
            Err(error) => match manager.active().await {
                Ok(active) if active == number => Ok(()),
                _ => Err(error),
            },
            done => done,
        }
    }

    /// Waits until all live nodes are at `goal`, one refuses, or `timeout` has passed.
    async fn gather(
        &self,
        manager: &PolicyManager,
        number: u64,
        timeout: Duration,
        goal: Acknowledged,
    ) -> Gathered {
        let deadline = Instant::now() + timeout;
        loop {
            let mut problem = None;
            match manager.followers().await {
                Ok(followers) => {
                    let acks = acks(&followers, number);
                    self.step(|view| view.acks = acks.clone());
                    let refused = acks.iter().find(|ack| ack.state == Acknowledged::Refused);
                    if let Some(ack) = refused {
                        let why = ack.error.as_deref().unwrap_or("no reason given");
                        return Gathered::Refused(format!("{} refused: {why}", ack.node));
                    }
                    if acks.iter().all(|ack| is_at(ack, goal)) {
                        return Gathered::All;
                    }
                }
                Err(error) => problem = Some(error.to_string()),
            }
            if Instant::now() >= deadline {
                return Gathered::TimedOut(problem.unwrap_or_else(|| self.late(timeout, goal)));
            }
            tokio::time::sleep(ACK_POLL_INTERVAL).await;
        }
    }

    fn late(&self, timeout: Duration, goal: Acknowledged) -> String {
        let current = self.current.borrow();
        let acks = current.iter().flat_map(|view| &view.acks);
        let late: Vec<&str> = acks.filter(|ack| !is_at(ack, goal)).map(|ack| ack.node.as_str()).collect();
        format!("{} did not say `{}` within {} s", late.join(", "), goal.as_str(), timeout.as_secs())
    }

    /// Changes the current publication, and wakes the requests that wait for it if anything changed.
    fn step(&self, change: impl FnOnce(&mut GenerationView)) {
        self.current.send_if_modified(|current| {
            let Some(view) = current else { return false };
            let old = view.clone();
            change(view);
            let changed = *view != old;
            view.revision += u64::from(changed);
            changed
        });
    }

    fn remember(&self, generation: u64, phase: Phase, reason: String) {
        let mut failures = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        failures.insert(generation, (phase, reason));
        while failures.len() > FAILURES_MAX {
            failures.pop_first();
        }
    }
}

enum Gathered {
    All,
    Refused(String),
    TimedOut(String),
}

/// Whether a node has reached `goal`, or is beyond it.
fn is_at(ack: &AckView, goal: Acknowledged) -> bool {
    ack.state == goal || ack.state == Acknowledged::Active
}

/// The acknowledgements of `generation` by the nodes that apply policy.
pub fn acks(followers: &[(NodeRecord, Option<NodeAck>)], generation: u64) -> Vec<AckView> {
    let one = |(node, said): &(NodeRecord, Option<NodeAck>)| {
        let (state, error) = verdict(said.as_ref(), generation);
        AckView { node: node.id.to_string(), role: node.role.to_string(), state, error }
    };
    followers.iter().map(one).collect()
}

/// What a node's acknowledgement means for `generation`.
fn verdict(said: Option<&NodeAck>, generation: u64) -> (Acknowledged, Option<String>) {
    match said {
        Some(ack) if ack.generation == generation && ack.state == AckState::Refused => {
            (Acknowledged::Refused, Some(ack.error.clone()))
        }
        Some(ack) if ack.active == generation => (Acknowledged::Active, None),
        Some(ack) if ack.generation == generation => (acknowledged(ack.state), None),
        _ => (Acknowledged::Waiting, None),
    }
}

fn view(
    generation: u64,
    created_unix_ms: u64,
    hash: String,
    phase: Phase,
    acks: Vec<AckView>,
) -> GenerationView {
    GenerationView { generation, created_unix_ms, hash, phase, reason: None, acks, revision: 1 }
}
