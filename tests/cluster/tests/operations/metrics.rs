//! The daemons' own pages: promtool accepts them, and docs/operations/metrics.md lists what they have.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::{env, fs};

use csp_cluster::{Cluster, Tier};

use crate::prometheus::{ABSENT, repository};

const PAGE: &str = "docs/operations/metrics.md";
/// Between these lines stands the table.
const MARKS: [&str; 2] = ["<!-- made by make test-operations -->\n", "<!-- end -->\n"];
/// Set to rewrite the page.
const WRITE: &str = "CSP_WRITE";

/// What promtool finds fault with: metrics in nanoseconds and bits, which it wants in seconds and bytes.
/// Renaming them would break what people have.
const FAULTS: [&str; 2] = ["instead of \"nanoseconds\"", "instead of \"bits\""];

/// A metric as the daemons' pages describe it.
#[derive(Default)]
struct Metric {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    tiers: BTreeSet<&'static str>,
}

/// Checks the page of each daemon, and compares all of them with the committed list.
pub fn check(cluster: &Cluster) {
    let mut metrics = BTreeMap::new();
    for tier in Tier::ALL {
        let page = cluster.ask(tier, "/metrics").unwrap();
        promtool(tier, &page);
        read(tier, &page, &mut metrics);
    }
    compare(&table(&metrics));
}

fn promtool(tier: Tier, page: &str) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let known = |line: &&str| line.is_empty() || FAULTS.iter().any(|fault| line.ends_with(fault));
    let faults: Vec<&str> = text.lines().filter(|line| !known(line)).collect();
    assert!(faults.is_empty(), "{}: {faults:#?}", tier.daemon());
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}: {text}", tier.daemon());
}

/// Reads a page in Prometheus' text format.
fn read(tier: Tier, page: &str, into: &mut BTreeMap<String, Metric>) {
    let role = tier.role().as_str();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            let metric = into.entry(name.to_owned()).or_default();
            metric.tiers.insert(role);
            if metric.help.is_empty() {
                help.clone_into(&mut metric.help);
            }
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            kind.clone_into(&mut into.entry(name.to_owned()).or_default().kind);
        } else if let Some((name, labels)) = line.split_once('{')
            && let Some(metric) = into.get_mut(name.strip_suffix("_bucket").unwrap_or(name))
        {
            // No value of these pages contains a quotation mark.
            let labels = labels.split('"').step_by(2).filter_map(|part| part.strip_suffix('='));
            let labels = labels.map(|label| label.trim_start_matches([',', ' ']));
            metric.labels.extend(labels.filter(|label| *label != "le").map(str::to_owned));
        }
    }
}

/// The unit that a name ends in.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    let units = [
        ("_bits_per_second", "bit/s"),
        ("_nanoseconds", "ns"),
        ("_timestamp_seconds", "Unix time"),
        ("_start_time_seconds", "Unix time"),
        ("_seconds", "s"),
        ("_bytes", "bytes"),
    ];
    units.iter().find(|(end, _)| name.ends_with(end)).map_or("–", |(_, unit)| unit)
}

fn table(metrics: &BTreeMap<String, Metric>) -> String {
    let mut text = "| metric | type | unit | labels | of | meaning |\n|---|---|---|---|---|---|\n".to_owned();
    for (name, metric) in metrics {
        let list = |items: Vec<String>| if items.is_empty() { "–".to_owned() } else { items.join(", ") };
        let labels = list(metric.labels.iter().map(|label| format!("`{label}`")).collect());
        let tiers = match metric.tiers.len() {
            4 => "all".to_owned(),
            _ => list(metric.tiers.iter().map(|tier| tier.replace("-node", "")).collect()),
        };
        let (kind, help) = (&metric.kind, metric.help.replace('|', "\\|"));
        text += &format!("| `{name}` | {kind} | {} | {labels} | {tiers} | {help} |\n", unit(name));
    }
    text + "\nNot in the table, as they appear only then:\n\n"
        + &ABSENT.map(|(name, reason)| format!("- `{name}`: not here, as {reason}\n")).concat()
}

fn compare(made: &str) {
    let file = repository().join(PAGE);
    let page = fs::read_to_string(&file).unwrap();
    let (head, rest) = page.split_once(MARKS[0]).expect("the first mark");
    let (committed, tail) = rest.split_once(MARKS[1]).expect("the second mark");
    if env::var_os(WRITE).is_some() {
        return fs::write(file, [head, MARKS[0], made, MARKS[1], tail].concat()).unwrap();
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (made, committed) = (lines(made), lines(committed));
    let [new, gone] = [made.difference(&committed), committed.difference(&made)].map(Vec::from_iter);
    assert!(
        new.is_empty() && gone.is_empty(),
        "{PAGE} differs from what the daemons say; {WRITE}=1 make test-operations rewrites it\nnew: {new:#?}\ngone: {gone:#?}"
    );
}
