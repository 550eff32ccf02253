//! The rules of packaging/prometheus: promtool accepts them; each alert fires once, stays silent once, and
//! has a severity, texts, and a runbook.
#![forbid(unsafe_code)]
#![allow(clippy::tests_outside_test_module, reason = "an integration test")]

mod cases;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use cases::{CASES, Series};

const RULES: &str = include_str!("../../../../packaging/prometheus/rules.yml");
const RUNBOOKS: &str = include_str!("../../../../docs/operations/runbooks.md");
/// Where the runbooks are, in the rules as they are shipped.
const PAGES: &str = "https://example.invalid/csp/docs/operations";

/// An alert whose texts are compared as Prometheus writes them.
const TEXTS: &str = r#"
  - interval: 1m
    input_series:
      - {series: 'up{job="csp",tier="proxy-node",node="pn-1",instance="10.77.0.2:9102"}', values: '1x5 0x5'}
    alert_rule_test:
      - {eval_time: 5m, alertname: CspNodeDown}
      - eval_time: 8m
        alertname: CspNodeDown
        exp_alerts:
          - exp_labels: {severity: critical, job: csp, tier: proxy-node, node: pn-1, instance: "10.77.0.2:9102"}
            exp_annotations:
              summary: "proxy-node pn-1 does not answer"
              description: "Prometheus has not been able to scrape 10.77.0.2:9102: the daemon, its host or the way to it is down, or the scrape is refused."
              runbook_url: https://example.invalid/csp/docs/operations/runbooks.md#cspnodedown
"#;

/// The alerts of the rules, in their order.
fn alerts() -> Vec<&'static str> {
    RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

fn promtool(folder: &Folder, arguments: &[&str]) {
    let output =
        Command::new("promtool").args(arguments).current_dir(&folder.0).output().expect("promtool runs");
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&text));
}

/// The labels that the texts of an alert name.
fn labels_in_texts(alert: &str) -> BTreeSet<&'static str> {
    let block = RULES.split("      - alert: ").find(|block| block.lines().next() == Some(alert));
    let names = block.unwrap_or_default().split("$labels.").skip(1);
    names.filter_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()).collect()
}

/// One test of promtool: whether the alert fires with these series, with all labels that its texts name.
fn test(alert: &str, minutes: u32, series: &[Series], fires: bool) -> String {
    let name = if fires { "fires" } else { "is silent" };
    let mut text = format!("  - name: {alert} {name}\n    interval: 1m\n    input_series:\n");
    for (series, values) in series {
        let _ = writeln!(text, "      - {{series: '{series}', values: '{values}'}}");
    }
    let named: String = match fires {
        true => labels_in_texts(alert).into_iter().map(|label| format!(",{label}!=\"\"")).collect(),
        false => String::new(),
    };
    let samples = if fires { "[{labels: '{}', value: 1}]" } else { "[]" };
    let _ = writeln!(
        text,
        "    promql_expr_test:\n      - eval_time: {minutes}m\n        expr: 'count(count by (alertname) \
         (ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"{named}}}))'\n        exp_samples: {samples}"
    );
    text
}

#[test]
fn each_alert_fires_when_it_should_and_not_otherwise() {
    let tested: Vec<&str> = CASES.iter().map(|case| case.alert).collect();
    assert_eq!(tested, alerts(), "every alert has a case, in the order of the rules");
    if !csp_support::installed("promtool", "prometheus") {
        return;
    }
    let mut tests = format!("rule_files: [rules.yml]\nevaluation_interval: 1m\ntests:{TEXTS}");
    for case in CASES {
        tests += &test(case.alert, case.minutes, case.fires, true);
        tests += &test(case.alert, case.minutes, case.silent, false);
    }
    let folder = Folder(std::env::temp_dir().join(format!("csp-alerts-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    std::fs::write(folder.0.join("rules.yml"), RULES).expect("a file");
    std::fs::write(folder.0.join("cases.yml"), tests).expect("a file");
    promtool(&folder, &["check", "rules", "rules.yml"]);
    promtool(&folder, &["test", "rules", "cases.yml"]);
}

#[test]
fn each_alert_has_a_severity_texts_and_a_runbook_that_exists() {
    let blocks: Vec<&str> = RULES.split("      - alert: ").skip(1).collect();
    assert_eq!(blocks.len(), alerts().len());
    for block in blocks {
        let alert = block.lines().next().unwrap_or_default();
        let severities = ["critical", "warning", "info"].map(|s| format!("labels: {{severity: {s}}}"));
        assert!(severities.iter().any(|severity| block.contains(severity.as_str())), "{alert}: severity");
        assert!(block.contains("summary: \"") && block.contains("description: \""), "{alert}: texts");
        let runbook = format!("runbook_url: {PAGES}/runbooks.md#{}\n", alert.to_lowercase());
        assert!(block.contains(&runbook), "{alert}: {runbook}");
    }
    let described: Vec<&str> = RUNBOOKS.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert_eq!(described, alerts(), "docs/operations/runbooks.md has every alert, in the order of the rules");
    let unique: BTreeSet<&str> = described.iter().copied().collect();
    assert_eq!(unique.len(), described.len());
}

#[test]
fn the_role_has_these_rules_and_replaces_what_it_says() {
    let role = include_str!("../../../../ansible/roles/prometheus/files/rules.yml");
    assert_eq!(role, RULES);
    let tasks = include_str!("../../../../ansible/roles/prometheus/tasks/server.yml");
    assert!(tasks.contains(&format!("replace('{PAGES}', prometheus_runbooks)")), "{tasks}");
    assert!(tasks.contains("replace('for: 30s', 'for: ' ~ prometheus_down_after)"), "{tasks}");
    assert!(RULES.contains("        for: 30s\n"));
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
