//! What this node knows of policy: read from etcd every so often, kept while etcd is away.

use std::time::Instant;

use csp_api::mgmt::{Acknowledged, DryRunView, FieldError, PolicyView};
use csp_control::{
    AckState, GenerationRecord, GenerationSummary, ManagerError, NodeAck, NodeRecord, PolicyManager,
};
use csp_identity::Access;
use csp_planner::Planned;
use tokio::sync::{Mutex, watch};

use crate::cli::{Paint, unified};
use crate::limits::{HISTORY_INTERVAL, HISTORY_MAX, POLICY_POLL_INTERVAL};

/// One reading.
#[derive(Clone, Debug, Default)]
pub struct PolicyState {
    /// The generation in force; none before the first policy.
    pub active: Option<GenerationRecord>,
    /// The registered nodes that apply policies, with their acknowledgements.
    pub followers: Vec<(NodeRecord, Option<NodeAck>)>,
    /// The newest generations, newest first.
    pub history: Vec<GenerationSummary>,
    /// When the history was read.
    pub history_read: Option<Instant>,
    /// When etcd last answered; none if it never did.
    pub answered: Option<Instant>,
    /// Why the latest reading failed; none when it did not.
    pub problem: Option<String>,
}

impl PolicyState {
    /// Why etcd's policy is not the one that nodes use; empty if it is. etcd may have been wiped: nodes keep
    /// the policy that they have.
    pub fn orphaned(&self) -> String {
        if self.active.is_some() {
            return String::new();
        }
        let kept = self.followers.iter().filter_map(|(_, ack)| ack.as_ref()).map(|ack| ack.active).max();
        match kept {
            Some(generation) if generation > 0 => format!(
                "etcd holds no policy in force, but nodes keep generation {generation} of before; restore etcd's \
                 backup, or publish a policy (cspctl policy apply)"
            ),
            _ => String::new(),
        }
    }
}

/// Reads policy for this process; all readings go through one place, so that an older one never replaces a
/// newer.
#[derive(Debug)]
pub struct PolicyReader {
    manager: PolicyManager,
    state: watch::Sender<PolicyState>,
    turn: Mutex<()>,
}

impl PolicyReader {
    /// A reader that has read nothing yet.
    pub fn new(manager: PolicyManager) -> Self {
        PolicyReader { manager, state: watch::Sender::default(), turn: Mutex::default() }
    }

    /// What is known.
    pub fn known(&self) -> PolicyState {
        self.state.borrow().clone()
    }

    /// Returns what `look` finds in what is known.
    pub fn look<T>(&self, look: impl FnOnce(&PolicyState) -> T) -> T {
        look(&self.state.borrow())
    }

    /// The state in etcd now, or the state last known while etcd is away.
    pub async fn latest(&self) -> PolicyState {
        // An etcd that does not answer is waited for in `follow`, not in every question.
        if self.state.borrow().problem.is_none() {
            self.refresh(true).await;
        }
        self.known()
    }

    /// Reads forever.
    pub async fn follow(&self) {
        let mut beat = tokio::time::interval(POLICY_POLL_INTERVAL);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            // The history brings every generation's policy along, so it is read less often, and at each
            // change.
            let old = self.state.borrow().history_read.is_none_or(|at| at.elapsed() >= HISTORY_INTERVAL);
            self.refresh(old).await;
        }
    }

    /// Reads once, the history only if `with_history` or when the active generation changed. On failure only
    /// `problem` changes.
    pub async fn refresh(&self, with_history: bool) {
        let _turn = self.turn.lock().await;
        match read(&self.manager, self.known(), with_history).await {
            Ok(state) => drop(self.state.send_replace(state)),
            Err(error) => self.state.send_modify(|state| state.problem = Some(error.to_string())),
        }
    }
}

async fn read(
    manager: &PolicyManager,
    mut state: PolicyState,
    with_history: bool,
) -> Result<PolicyState, ManagerError> {
    let number = manager.active().await?;
    // Generations are immutable: one that is known need not be read again.
    let changed = state.active.as_ref().map_or(0, |record| record.generation) != number;
    if changed {
        state.active = read_active(manager, number).await?;
    }
    state.followers = manager.followers().await?;
    if changed || with_history {
        state.history = manager.history(HISTORY_MAX).await?;
        state.history_read = Some(Instant::now());
        // But an etcd that was wiped begins its numbers anew.
        let in_force = state.history.iter().find(|summary| summary.active);
        let differs = |record: &GenerationRecord| in_force.is_some_and(|now| now.hash != record.hash);
        if state.active.as_ref().is_some_and(differs) {
            state.active = read_active(manager, number).await?;
        }
    }
    Ok(PolicyState { answered: Some(Instant::now()), problem: None, ..state })
}

async fn read_active(manager: &PolicyManager, number: u64) -> Result<Option<GenerationRecord>, ManagerError> {
    if number == 0 {
        return Ok(None);
    }
    manager.generation(number).await.map(Some)
}

/// The state as the API has it.
pub const fn acknowledged(state: AckState) -> Acknowledged {
    match state {
        AckState::Staged => Acknowledged::Staged,
        AckState::Active => Acknowledged::Active,
        AckState::Refused => Acknowledged::Refused,
    }
}

/// A generation for the API; for a caller that may only look, without the keys that are in it.
pub fn view(record: &GenerationRecord, access: Access) -> PolicyView {
    let whole = &record.policy;
    let redacted = (access < Access::Operator).then(|| whole.redacted());
    let policy = redacted.as_ref().unwrap_or(whole);
    PolicyView {
        generation: record.generation,
        created_unix_ms: record.created_unix_ms,
        hash: record.hash.clone(),
        yaml: yaml(policy),
        policy: serde_json::to_value(policy).unwrap_or_default(),
    }
}

/// What is said of a policy that was checked and is not published.
pub fn dry_run(planned: &Planned, active: Option<&GenerationRecord>) -> DryRunView {
    let policy = planned.policy();
    let before = active.map_or_else(String::new, |record| yaml(&record.policy));
    let generation = active.map_or(0, |record| record.generation);
    let name = format!("generation {generation}");
    DryRunView {
        generation,
        diff: unified(&before, &yaml(policy), &name, "this policy", Paint::off()),
        warnings: planned.warnings(),
        valid: true,
        services: policy.services.len(),
        channels: policy.channels.len(),
        queries: policy.queries.len(),
        handlers: policy.handlers.len(),
        flows: policy.information_flows.len(),
        plugins: policy.plugins.len(),
        rules: policy.rules.len(),
        hash: policy.hash(),
        yaml: yaml(policy),
    }
}

/// How much of what is in a policy.
pub fn contents(checked: &DryRunView) -> String {
    let counts = [
        (checked.services, "service", "services"),
        (checked.channels, "channel", "channels"),
        (checked.queries, "query", "queries"),
        (checked.handlers, "handler", "handlers"),
        (checked.flows, "information flow", "information flows"),
        (checked.plugins, "plug-in", "plug-ins"),
        (checked.rules, "rule", "rules"),
    ];
    let there = counts.into_iter().filter(|(count, ..)| *count > 0);
    let words =
        there.map(|(count, one, several)| format!("{count} {}", if count == 1 { one } else { several }));
    match words.collect::<Vec<_>>() {
        words if words.is_empty() => "no services, channels or rules".to_owned(),
        words => words.join(", "),
    }
}

/// A policy as YAML in canonical order.
pub fn yaml(policy: &csp_policy::Policy) -> String {
    // Strings, numbers and lists only: nothing that YAML cannot hold.
    serde_saphyr::to_string(policy).unwrap_or_default()
}

/// The problems of a policy file for the API. What is allowed stands in the message behind a fixed phrase.
pub fn field_errors(error: &csp_control::ConfigError) -> Vec<FieldError> {
    let one = |problem: &csp_control::config::Problem| {
        let (line, column) = problem.position.unwrap_or((0, 0));
        let split = ["; allowed is ", "; allowed are ", "; allowed: "]
            .iter()
            .find_map(|phrase| problem.message.split_once(phrase));
        let (message, allowed) = split.unwrap_or((&problem.message, ""));
        FieldError {
            file: error.file.clone(),
            line,
            column,
            field: problem.field.clone(),
            message: message.to_owned(),
            allowed: allowed.to_owned(),
        }
    };
    error.problems.iter().map(one).collect()
}
