//! Follows this daemon's certificate on disk, and reports its state.

use std::time::Duration;

use csp_identity::{Credentials, UnixTime};
use csp_telemetry::{ConditionState, Exposition, MetricWriter, Readiness};

/// A certificate is reported as expiring when less than a tenth of its lifetime remains, but at most this
/// much.
const SHORT: Duration = Duration::from_secs(24 * 3600);

/// Follows the identity in the background and adds its metrics. Requires a tokio runtime.
pub fn watch(credentials: &Credentials, metrics: &Exposition) {
    tokio::spawn(credentials.clone().follow());
    let credentials = credentials.clone();
    metrics.register(move |out: &mut MetricWriter| {
        let state = credentials.state();
        let help = "When this node's certificate expires, in seconds of the Unix epoch";
        out.gauge("csp_certificate_expires_timestamp_seconds", help, &[], state.holder.not_after as f64);
        let help = "1 while the identity on disk cannot be used and the one before stays in force";
        let problem = if state.problem.is_some() { 1.0 } else { 0.0 };
        out.gauge("csp_certificate_problem", help, &[], problem);
    });
}

/// Sets the condition `identity`. Clients' traffic does not depend on it, so that it is at worst degraded.
pub fn set_readiness(readiness: &Readiness, credentials: &Credentials) {
    let state = credentials.state();
    let left = state.holder.life_left(UnixTime::now());
    let life = u64::try_from(state.holder.not_after - state.holder.not_before).unwrap_or(0);
    let reason = match state.problem {
        Some(problem) => problem,
        None if left.is_zero() => {
            "this node's certificate has expired; `cspctl pki issue` makes a new one".to_owned()
        }
        None if left < SHORT.min(Duration::from_secs(life / 10)) => {
            format!("this node's certificate expires in {} s", left.as_secs())
        }
        None => return readiness.set("identity", ConditionState::Ok, ""),
    };
    readiness.set("identity", ConditionState::Degraded, reason);
}
