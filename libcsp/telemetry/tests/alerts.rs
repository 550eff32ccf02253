//! The alerts of the Ansible role: Prometheus's own checker accepts them, and they fire for channels that
//! drop, lose or hold back, and for no others.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;

/// The rules as the role writes them.
fn rules() -> String {
    let template = include_str!("../../../ansible/roles/prometheus/templates/rules.yml.j2");
    let text = template.replace("{% raw %}", "").replace("{% endraw %}", "");
    text.replace("{{ prometheus_down_after }}", "30s").replace("{{ ansible_managed }}", "a test")
}

/// Channels: `calm` only delivers, `slow` drops from the 10th minute on, `gone` loses then, `stuck` holds
/// back and delivers nothing, `busy` holds back now and then.
const CASES: &str = r#"
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'csp_channel_dropped_total{channel="calm",worker="0"}', values: '7x30'}
      - {series: 'csp_channel_dropped_total{channel="slow",worker="0"}', values: '0x30'}
      - {series: 'csp_channel_dropped_total{channel="slow",worker="1"}', values: '5x10 6+10x20'}
      - {series: 'csp_channel_lost_total{channel="calm",worker="0"}', values: '1x30'}
      - {series: 'csp_channel_lost_total{channel="gone",worker="0"}', values: '1x10 2x20'}
      - {series: 'csp_channel_held_total{channel="stuck",worker="0"}', values: '0x10 1+1x20'}
      - {series: 'csp_channel_held_total{channel="busy",worker="0"}', values: '0x10 1+1x20'}
      - {series: 'csp_channel_delivered_total{channel="stuck",worker="0"}', values: '900x30'}
      - {series: 'csp_channel_delivered_total{channel="busy",worker="0"}', values: '0+900x30'}
    alert_rule_test:
      - {eval_time: 9m, alertname: CspChannelDrops}
      - {eval_time: 9m, alertname: CspChannelLoses}
      - {eval_time: 9m, alertname: CspChannelHeldBack}
      - {eval_time: 13m, alertname: CspChannelDrops, exp_alerts: [{exp_labels: {channel: slow}, exp_annotations: {summary: "Subscribers of channel slow lose messages: their queues are full, or memory is short (cspctl subscriptions slow)"}}]}
      - {eval_time: 13m, alertname: CspChannelLoses, exp_alerts: [{exp_labels: {channel: gone}, exp_annotations: {summary: "Messages of channel gone were lost with receivers that had been given them"}}]}
      - {eval_time: 20m, alertname: CspChannelLoses}
      - {eval_time: 20m, alertname: CspChannelHeldBack, exp_alerts: [{exp_labels: {channel: stuck}, exp_annotations: {summary: "Senders of channel stuck are held back, and no receiver takes messages"}}]}
"#;

#[test]
fn promtool_accepts_the_alerts_and_those_of_channels_fire_when_they_should() {
    if !csp_support::installed("promtool", "prometheus") {
        return;
    }
    let folder = Folder(std::env::temp_dir().join(format!("csp-alerts-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    std::fs::write(folder.0.join("rules.yml"), rules()).expect("a file");
    std::fs::write(folder.0.join("cases.yml"), CASES).expect("a file");
    for arguments in [["check", "rules", "rules.yml"], ["test", "rules", "cases.yml"]] {
        let output =
            Command::new("promtool").args(arguments).current_dir(&folder.0).output().expect("promtool runs");
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&text));
    }
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
