//! Fig. 2: all flows share what is before their queues, as the paper's shared a receive ring. Here that is
//! one publisher's connection: a message that finds its flow's queue full holds the connection, with what
//! follows whatever its flow.

use std::fmt::Write as _;

use anyhow::Result;

use super::{NAMES, PAPER, PORT, Plan, Row, SETTLE_S, Scenario, apply, endpoint, row, run_programs};
use crate::schemas::sbe_schema;
use crate::{Cluster, VIP};

const SCHEMES: [&str; 5] = ["RR", "EAS", "SA", "PA", "PAR"];

/// Messages of three formats on one channel; A's queue is twice as long as B's and C's.
fn policy(plan: &Plan, scheme: &str, promised: [f64; 3]) -> String {
    let part = f64::from(plan.link_mbps) / PAPER;
    let mut messages = String::new();
    for (name, id) in NAMES.iter().zip(1..) {
        let _ = write!(
            messages,
            r#"<sbe:message name="{name}" id="{id}"><field name="number" id="1" type="uint64"/><field name="at" id="2" type="uint64"/></sbe:message>"#
        );
    }
    let schema = sbe_schema(r#"package="ring" id="77" version="0" byteOrder="littleEndian""#, "", &messages);
    let mut text = "apiVersion: csp/v1\nformats:\n".to_owned();
    for name in NAMES {
        let _ = writeln!(text, "  - name: {name}\n    message: {name}\n    schema: |{schema}");
    }
    let _ = writeln!(
        text,
        "channels:\n  - {{name: ring, vip: {VIP}, port: {PORT}, formats: [a, b, c]}}\ninformation_flows:"
    );
    for (name, promise) in NAMES.iter().zip(promised) {
        let (priority, queue) = (if *name == "b" { 9 } else { 0 }, if *name == "a" { 512 } else { 256 });
        let _ = writeln!(
            text,
            "  - {{name: {name}, match: {{channel: ring, format: {name}}}, priority: {priority}, reserve: {{mbps: {}}}, message_bytes: {}, queue: \
             {{messages: {queue}, full: hold}}}}",
            (promise * part).floor(),
            plan.size
        );
    }
    let _ = writeln!(text, "  - {{name: default, message_bytes: {}}}", plan.size);
    let _ = writeln!(text, "link: {{mbps: {}, scheme: {scheme}}}", plan.link_mbps);
    text
}

pub(super) fn run(cluster: &Cluster, plan: &Plan, progress: &impl Fn(&str)) -> Result<Vec<Row>> {
    let part = f64::from(plan.link_mbps) / PAPER;
    let seconds = plan.seconds + SETTLE_S;
    let mut rows = Vec::new();
    for scheme in SCHEMES {
        progress(&format!("Fig. 2, {scheme}"));
        let promised = match scheme {
            "SA" => [100.0, 200.0, 100.0],
            "PAR" => [50.0, 200.0, 50.0],
            _ => [0.0; 3],
        };
        // One message in three is each flow's, so that all have what the poorest has.
        let expected = match scheme {
            "SA" => [100.0; 3],
            "EAS" => [PAPER / 4.0; 3],
            _ => [PAPER / 3.0; 3],
        };
        apply(cluster, &policy(plan, scheme, promised))?;
        let time = (seconds + 2).to_string();
        let receive =
            NAMES.map(|name| vec!["receive".to_owned(), endpoint(PORT), time.clone(), name.to_owned()]);
        let step = format!("{}:{seconds}", 330.0 * part);
        let send = vec!["ring".to_owned(), endpoint(PORT), plan.size.to_string(), step];
        let seen = run_programs(cluster, &receive, &[send], seconds)?;
        let scenario = Scenario { figure: "2", scheme, sent: [330.0; 3], promised: [0.0; 3], expected };
        rows.push(row(&scenario, part, &seen));
    }
    Ok(rows)
}
