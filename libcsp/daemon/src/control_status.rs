//! The state of a node's control plane as readiness conditions and metrics.

use csp_control::ControlStatus;
use csp_telemetry::{ConditionState, MetricWriter, Readiness};

use crate::thread::Progress;

/// Sets the conditions that every node has: `control` (registration and etcd) and `state` (files of the state
/// directory).
pub(crate) fn set_readiness(readiness: &Readiness, status: &ControlStatus) {
    let control = match (status.registered, status.synced()) {
        (true, true) => "",
        (false, _) => status.registration_problem.as_str(),
        (true, false) => status.sync_problem.as_str(),
    };
    set(readiness, "control", status.registered && status.synced(), control);
    let policy = match status.active_generation {
        0 if status.policy_problem.is_empty() => "no policy yet",
        _ => status.policy_problem.as_str(),
    };
    set(readiness, "policy", policy.is_empty(), policy);
    set_state(readiness, status);
}

/// Sets the condition `state`.
pub fn set_state(readiness: &Readiness, status: &ControlStatus) {
    set(readiness, "state", status.state_problem.is_empty(), &status.state_problem);
}

fn set(readiness: &Readiness, name: &str, well: bool, reason: &str) {
    let state = if well { ConditionState::Ok } else { ConditionState::Degraded };
    readiness.set(name, state, if well { "" } else { reason });
}

/// Writes the metrics that every node has.
pub fn control_metrics(out: &mut MetricWriter, status: &ControlStatus) {
    let stale = status.stale_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
    let help = "How long membership or policy have not followed etcd; 0 while both do";
    out.gauge("csp_control_stale_seconds", help, &[], stale);
    let help = "How often etcd was found restored from a backup, begun anew or replaced by another one";
    out.counter("csp_control_etcd_history_losses_total", help, &[], status.history_losses);
    let help = "1 while files of the state directory cannot be written";
    out.gauge("csp_control_state_unwritten", help, &[], flag(&status.state_problem));
}

/// Writes how long work for the control thread kept each worker from its packets.
pub(crate) fn pause_metrics(out: &mut MetricWriter, threads: &[Progress]) {
    for (worker, (longest, pauses)) in threads.iter().map(Progress::pauses).enumerate() {
        let worker = worker.to_string();
        let labels = [("worker", worker.as_str())];
        let help = "Longest time since the start for which work for the control thread kept a worker from its packets";
        out.gauge("csp_worker_pause_longest_seconds", help, &labels, longest.as_secs_f64());
        let help = "How often that took longer than 500 microseconds";
        out.counter("csp_worker_pauses_total", help, &labels, pauses);
    }
}

/// Writes the metrics of nodes that apply policies.
pub(crate) fn policy_metrics(out: &mut MetricWriter, status: &ControlStatus) {
    let help = "1 while the policy in use is not the one in force in etcd: etcd lost that, or no management node has signed it";
    out.gauge("csp_policy_orphaned", help, &[], flag(&status.policy_problem));
    let help = "Policy generation by state";
    out.gauge("csp_policy_generation", help, &[("state", "staged")], status.staged_generation as f64);
    out.gauge("csp_policy_generation", help, &[("state", "active")], status.active_generation as f64);
}

fn flag(problem: &str) -> f64 {
    if problem.is_empty() { 0.0 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use csp_telemetry::Exposition;

    use super::*;

    fn page(status: &ControlStatus) -> String {
        let exposition = Exposition::new();
        let status = status.clone();
        exposition.register(move |out: &mut MetricWriter| {
            control_metrics(out, &status);
            policy_metrics(out, &status);
        });
        exposition.render()
    }

    fn reasons(status: &ControlStatus) -> Vec<(String, String)> {
        let readiness = Readiness::new();
        set_readiness(&readiness, status);
        assert!(readiness.ready(), "what etcd or a disk does takes no node out of service");
        let bad = readiness.conditions().into_iter().filter(|c| c.state != ConditionState::Ok);
        bad.map(|condition| (condition.name.to_string(), condition.reason.to_string())).collect()
    }

    #[test]
    fn a_status_becomes_conditions_and_metrics() {
        let well = ControlStatus {
            registered: true,
            membership_synced: true,
            policy_synced: true,
            active_generation: 7,
            ..ControlStatus::default()
        };
        assert_eq!(reasons(&well), []);
        let page_of_well = page(&well);
        for line in ["csp_control_stale_seconds 0", "csp_control_state_unwritten 0", "csp_policy_orphaned 0"]
        {
            assert!(page_of_well.contains(line), "{page_of_well}");
        }
        let ill = ControlStatus {
            policy_synced: false,
            sync_problem: "no leader".to_owned(),
            stale_since: tokio::time::Instant::now().checked_sub(std::time::Duration::from_secs(5)),
            history_losses: 2,
            policy_problem: "etcd holds no policy".to_owned(),
            state_problem: "policy.json: full".to_owned(),
            ..well.clone()
        };
        let expected =
            [("control", "no leader"), ("policy", "etcd holds no policy"), ("state", "policy.json: full")];
        assert_eq!(reasons(&ill), expected.map(|(name, reason)| (name.to_owned(), reason.to_owned())));
        let page = page(&ill);
        for line in [
            "csp_control_stale_seconds 5",
            "csp_control_etcd_history_losses_total 2",
            "csp_control_state_unwritten 1",
            "csp_policy_orphaned 1",
        ] {
            assert!(page.contains(line), "{page}");
        }
        let none = ControlStatus { active_generation: 0, ..well };
        assert_eq!(reasons(&none), [("policy".to_owned(), "no policy yet".to_owned())]);
    }
}
