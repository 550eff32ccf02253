//! Consistency: how soon a change of the flows' configuration is in force at every worker, while messages
//! fill the link.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{NAMES, PORT, Plan, SETTLE_S, apply, endpoint, policy, start};
use crate::{Cluster, Tier, wait_until};

/// Changes that are measured.
const CHANGES: usize = 100;
/// How long a change may take, for the length of the publishers' run.
const CHANGE_MS_MAX: u32 = 1_500;

/// Times of all changes, in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Consistency {
    /// By part of the way; the first is the operator's command.
    pub parts: Vec<(&'static str, Vec<f64>)>,
}

const PARTS: [(&str, &str); 3] = [
    ("all", "proxy: from the policy's receipt until it is in force at every worker"),
    ("translated", "of that, the control thread's translation"),
    ("worker", "of that, the worker: messages of its flows wait so long"),
];
const COMMAND: &str = "`cspctl policy apply`: a process, etcd, a check by every node, acknowledgements";

/// Measures changes while three publishers send twice what the link takes.
pub(super) fn run(cluster: &Cluster, plan: &Plan, progress: &impl Fn(&str)) -> Result<Consistency> {
    progress("controller: changes of the flows' configuration");
    apply(cluster, &policy(plan, "PAR", [50.0, 200.0, 50.0], ""))?;
    let seconds = SETTLE_S + CHANGES as u32 * CHANGE_MS_MAX / 1_000;
    let mut programs = Vec::new();
    for (name, port) in NAMES.iter().zip(PORT..) {
        let receive = ["receive".to_owned(), endpoint(port), (seconds + 1).to_string()];
        programs.push(start(cluster, &format!("receive-{name}"), &receive)?.0);
        let steps = format!("{}:{seconds}", plan.link_mbps * 2 / 3);
        let publish = ["publish".to_owned(), endpoint(port), plan.size.to_string(), steps];
        programs.push(start(cluster, &format!("publish-{name}"), &publish)?.0);
    }
    let busy = || {
        let released =
            cluster.metric(Tier::ProxyNode, "csp_information_flow_dropped_total", "flow=\"a\"").ok()?;
        (released > 0.0).then_some(())
    };
    wait_until("messages fill the link", Duration::from_secs(30), busy)?;
    let mut parts: Vec<(&str, Vec<f64>)> = vec![(COMMAND, Vec::new())];
    parts.extend(PARTS.map(|(_, what)| (what, Vec::new())));
    for change in 0..CHANGES {
        let promised = [50.0, 200.0 - 10.0 * (change % 2) as f64, 50.0];
        let begun = Instant::now();
        apply(cluster, &policy(plan, "PAR", promised, ""))?;
        parts[0].1.push(begun.elapsed().as_secs_f64() * 1e6);
        for ((label, _), (_, times)) in PARTS.iter().zip(&mut parts[1..]) {
            let label = format!("part=\"{label}\"");
            times.push(cluster.metric(Tier::ProxyNode, "csp_policy_apply_seconds", &label)? * 1e6);
        }
    }
    if programs.iter_mut().any(|program| program.exited().is_some()) {
        bail!("a publisher or receiver has ended before the last change");
    }
    programs.iter_mut().for_each(crate::Process::kill);
    Ok(Consistency { parts })
}

/// Returns the section of the report.
pub fn section(found: &Consistency) -> String {
    let mut out = format!(
        "\nConsistency: {CHANGES} changes of a promise while messages fill the link, one proxy with one worker. From the management node on, etcd lies in the path: a \
         generation is checked by every node before it is in force. The paper's controller writes to the appliance, which is what the proxy's receipt is compared with.\n\n\
         | µs | least | median | p99 | most |\n|---|---|---|---|---|\n"
    );
    for (what, times) in &found.parts {
        let mut times = times.clone();
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times.get(((times.len() as f64 * part).ceil() as usize).max(1) - 1).copied();
        let [least, median, p99, most] = [0.0, 0.5, 0.99, 1.0].map(|part| at(part).unwrap_or(f64::NAN));
        out += &format!("| {what} | {least:.1} | {median:.1} | {p99:.1} | {most:.1} |\n");
    }
    out
}
