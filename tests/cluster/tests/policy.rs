//! Policies through `cspctl`: wrong ones are refused with file and line, and leave the one in force
//! unchanged.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;

use csp_cluster::{Cluster, Tier, configs, testing};
use serde_json::Value;

/// Returns the parsed output of `cspctl ... --output json`.
fn json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let mut all = arguments.to_vec();
    all.extend(["--output", "json"]);
    let text = cluster.cspctl(&all).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("cspctl {arguments:?}: {error}\n{text}"))
}

fn generation(cluster: &Cluster) -> u64 {
    json(cluster, &["policy", "show"])["generation"].as_u64().unwrap()
}

/// Returns the generation reported by a data daemon's metrics.
fn in_force(cluster: &Cluster, tier: Tier) -> f64 {
    cluster.metric(tier, "csp_policy_generation", "state=\"active\"").unwrap()
}

/// Applies the policy with `from` replaced by `to`: exit code 65, the line of `to`, and every one of `words`.
fn refused(cluster: &Cluster, from: &str, to: &str, words: &[&str]) {
    let good = configs::policy();
    let line =
        1 + good[..good.find(from).unwrap_or_else(|| panic!("no {from:?} in\n{good}"))].matches('\n').count();
    let path = cluster.scratch().join("wrong.yaml");
    fs::write(&path, good.replacen(from, to, 1)).unwrap();
    let path = path.to_string_lossy().into_owned();
    for command in [&["policy", "apply", path.as_str()][..], &["policy", "diff", path.as_str()]] {
        let output = cluster.cspctl_output(command).unwrap();
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(65), "{command:?} with {to:?}: {reported}");
        let place = format!("{path}:{line}:");
        for word in [place.as_str()].iter().chain(words) {
            assert!(reported.contains(word), "{command:?} with {to:?} does not contain {word:?}: {reported}");
        }
    }
}

fn wrong_ones_are_refused(cluster: &Cluster) {
    refused(cluster, "    port: 80\n", "    prot: 80\n", &["services[0].prot", "port"]);
    refused(cluster, "    port: 80\n", "    port: 99999\n", &["services[0].port", "65535"]);
    refused(cluster, "name: web", "name: Web Site", &["services[0].name"]);
    refused(cluster, "name: upload", "name: web", &["services[1].name"]);
    refused(cluster, "vip: 10.76.0.100", "vip: 10.76.0.300", &["services[0].vip", "10.76.0.300"]);
    refused(cluster, "apiVersion: csp/v1", "apiVersion: csp/v2", &["apiVersion", "csp/v1"]);
    refused(cluster, "10.76.0.0/24", "10.76.0.0/40", &["egress[0].destinations[0]"]);
    let output = cluster.cspctl_output(&["policy", "apply", "/nonexistent.yaml"]).unwrap();
    assert_eq!(output.status.code(), Some(66), "{output:?}");
}

fn documents_are_json(cluster: &Cluster) {
    assert_eq!(json(cluster, &["nodes"])["nodes"].as_array().unwrap().len(), 4);
    let services = json(cluster, &["services"]);
    let names: Vec<&str> =
        services["services"].as_array().unwrap().iter().filter_map(|s| s["name"].as_str()).collect();
    assert_eq!(names, ["web", "upload"], "{services}");
    assert!(json(cluster, &["flows"])["flows"].is_array());
    assert!(!json(cluster, &["flow", "trace", "--last"])["events"].as_array().unwrap().is_empty());
}

/// A valid policy that differs: `diff` shows the change, `apply` creates the next generation, `history` lists
/// both.
fn a_change_is_shown_and_applied(cluster: &Cluster) {
    let same = cluster.scratch().join("demo.yaml").to_string_lossy().into_owned();
    let output = cluster.cspctl_output(&["policy", "diff", &same]).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{output:?}");
    let other = cluster.scratch().join("other.yaml");
    fs::write(&other, configs::policy().replace("name: upload", "name: store")).unwrap();
    let other = other.to_string_lossy().into_owned();
    let output = cluster.cspctl_output(&["policy", "diff", &other]).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for (sign, name) in [('-', "upload"), ('+', "store")] {
        assert!(
            text.lines().any(|l| l.starts_with(sign) && l.contains(name)),
            "diff lacks {sign} {name}:\n{text}"
        );
    }
    let before = generation(cluster);
    let output = cluster.cspctl(&["policy", "apply", &same]).unwrap();
    assert!(output.contains("unchanged"), "{output}");
    assert_eq!(generation(cluster), before);
    cluster.cspctl(&["policy", "apply", &other]).unwrap();
    assert!(generation(cluster) > before);
    assert!(cluster.cspctl(&["policy", "show"]).unwrap().contains("store"));
    let old = cluster.cspctl(&["policy", "show", "--generation", &before.to_string()]).unwrap();
    assert!(old.contains("upload"), "{old}");
    let history = json(cluster, &["policy", "history"]);
    let phases: Vec<&str> = history.as_array().unwrap().iter().filter_map(|g| g["phase"].as_str()).collect();
    assert_eq!(phases, ["active", "superseded"], "{history}");
    for tier in [Tier::NetworkNode, Tier::ProxyNode] {
        assert_eq!(in_force(cluster, tier), generation(cluster) as f64, "{}", tier.daemon());
    }
    cluster.wait_served().unwrap();
}

#[test]
fn a_wrong_policy_is_refused_and_the_one_in_force_stays() {
    let Some(mut cluster) = testing::lay_out("policy") else { return };
    cluster.serve().unwrap();
    let before = generation(&cluster);
    wrong_ones_are_refused(&cluster);
    assert_eq!(generation(&cluster), before);
    for tier in [Tier::NetworkNode, Tier::ProxyNode] {
        assert_eq!(in_force(&cluster, tier), before as f64, "{}", tier.daemon());
    }
    cluster.wait_answer("1KiB").unwrap();
    documents_are_json(&cluster);
    a_change_is_shown_and_applied(&cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

/// Returns the demo's policy with `count` services more, each with an address and a pool of its own.
fn large_policy(count: usize) -> String {
    let service = |n: usize| {
        let (high, low) = (n / 250, n % 250 + 1);
        format!("  - {{name: s{n}, vip: 10.80.{high}.{low}, port: 80, pool: [{{node: an-{n}, port: 80}}]}}\n")
    };
    let services: String = (0..count).map(service).collect();
    configs::policy().replacen("services:\n", &format!("services:\n{services}"), 1)
}

#[test]
fn ten_thousand_services_apply() {
    let Some(mut cluster) = testing::lay_out("large") else { return };
    cluster.serve().unwrap();
    let path = cluster.scratch().join("large.yaml");
    fs::write(&path, large_policy(10_000)).unwrap();
    let path = path.to_string_lossy().into_owned();
    let began = std::time::Instant::now();
    cluster.cspctl(&["policy", "apply", "--timeout", "60", &path]).unwrap();
    println!("10,000 services in force after {:.1} s", began.elapsed().as_secs_f64());
    for tier in [Tier::NetworkNode, Tier::ProxyNode] {
        assert_eq!(in_force(&cluster, tier), generation(&cluster) as f64, "{}", tier.daemon());
    }
    cluster.wait_answer("1KiB").unwrap();
    // A daemon that restarts reads it again.
    cluster.daemon(Tier::NetworkNode).unwrap().stop().unwrap();
    cluster.start(Tier::NetworkNode).unwrap();
    cluster.wait_served().unwrap();
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
