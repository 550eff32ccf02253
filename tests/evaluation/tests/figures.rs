//! Files of costs, the paper's figures, plans.

use std::process::{Command, Output};

use csp_evaluation::costs::{BENCH, Costs, FORM, PAPER};
use csp_evaluation::figures::{Run, SIZES};
use csp_evaluation::plan::{Demand, Setting};
use csp_evaluation::report;
use csp_evaluation::workload::Sizes;

fn short_run() -> Run {
    Run { costs: Costs::parse(PAPER).expect("the paper's costs"), seed: 2002, transactions: 4_000 }
}

#[test]
fn the_papers_numbers_come_out_within_a_tenth() {
    let run = short_run();
    let budgets = run.budgets().expect("runs");
    let equivalents = run.equivalents(&budgets).expect("runs");
    for budget in &budgets {
        for tier in [budget.proxy_us, budget.application_us] {
            assert!((1.0..1.03).contains(&(tier / budget.wire_us)), "{budget:?}");
        }
    }
    let points: Vec<_> = equivalents.iter().map(|point| point.processors).collect();
    assert!(points.is_sorted_by(|one, other| one > other), "{points:?}");
    let throughput = run.throughput(&equivalents).expect("runs");
    let all = report::compare(&equivalents, &throughput);
    for row in &all {
        assert!(row.holds(), "{row:?}");
    }
    assert!(all.iter().any(|row| row.what.contains("peak")));
    for report in [report::budgets(&budgets), report::throughput(&throughput), report::comparisons(&all)] {
        assert!(report.rows.iter().all(|row| row.len() == report.columns.len()), "{}", report.name);
        assert_eq!(report.csv().lines().count(), report.rows.len() + 1);
        assert!(report.plots.iter().all(|(_, plot)| !plot.svg().contains("NaN")));
    }
}

#[test]
fn infiniband_carries_more_and_takes_less_time_than_ethernet() {
    let rows = short_run().fabrics().expect("runs");
    let (ethernet, infiniband) = rows.split_at(SIZES.len());
    for (one, other) in ethernet.iter().zip(infiniband) {
        // Links to the clients are the limit in both.
        assert!((one.per_second / other.per_second - 1.0).abs() < 0.02, "{one:?} {other:?}");
        assert!(other.san_per_second > 1.5 * one.san_per_second, "{one:?} {other:?}");
        assert!(other.p50_us < one.p50_us && other.packets > one.packets, "{one:?} {other:?}");
    }
}

#[test]
fn a_plan_is_what_the_simulator_confirms() {
    for (rate, sizes, gigabits) in [
        (30_000.0, Sizes::specweb99(), 25),
        (400_000.0, Sizes::fixed(2048), 25),
        (60_000.0, Sizes::fixed(32_768), 1),
    ] {
        let mut setting = Setting::new(Costs::parse(BENCH).expect("costs"), sizes, gigabits);
        setting.transactions = 10_000;
        let plan = setting.plan(rate).expect("a plan");
        assert!((plan.completed_per_second / rate - 1.0).abs() < 0.05, "{plan:?}");
        for tier in plan.tiers {
            assert!(tier.nodes_least <= tier.nodes && tier.nodes <= tier.nodes_most, "{tier:?}");
            assert!(tier.processor_use <= 0.75 && tier.link_use <= 0.7 + 1e-6, "{tier:?}");
            // One node less would be too few.
            let (before, after) = (f64::from(tier.nodes - 1), f64::from(tier.nodes));
            let most = tier.processor_use.max(tier.link_use);
            assert!(tier.nodes == 1 || most * after / before > 0.66, "{tier:?}");
        }
    }
}

#[test]
fn nodes_are_divided_so_that_no_tier_holds_back_the_others() {
    let setting = Setting::new(Costs::parse(BENCH).expect("costs"), Sizes::specweb99(), 25);
    let demand = Demand::measure(&setting).expect("runs");
    for nodes in [3, 8, 64, 512] {
        let split = demand.split(nodes, &setting);
        assert_eq!(split.iter().sum::<u32>(), nodes);
        let rate = demand.rate(split, &setting);
        for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            let mut other = split;
            (other[from], other[to]) = (other[from] - 1, other[to] + 1);
            assert!(
                other[from] == 0 || demand.rate(other, &setting) <= rate * 1.000_001,
                "{split:?} {other:?}"
            );
        }
    }
}

#[test]
fn files_of_costs_say_what_is_wrong() {
    for text in [PAPER, BENCH] {
        let costs = Costs::parse(text).expect("costs that are shipped");
        assert_eq!(Costs::parse(&costs.to_yaml()).expect("what was written"), costs);
        let json = serde_json::to_string(&costs).expect("JSON");
        assert_eq!(Costs::parse(&json).expect("JSON is YAML"), costs);
    }
    let filled = FORM.replace("kind: missing", "kind: measured");
    assert!(Costs::parse(&filled).is_ok());
    for (text, expected) in [
        (FORM.to_owned(), "network.transaction is not filled in"),
        (filled.replacen("value: 0", "value: -3", 1), "network.transaction is -3000 ns; right is 0 to"),
        (filled.replacen("value: 0", "value: .nan", 1), "network.transaction is NaN ns"),
        (filled.replacen("unit: us", "unit: ms", 1), "ms"),
        (filled.replacen("error: 0.15", "error: 15", 1), "error is 15; right is 0 to 1"),
        (filled.replacen("  packet:", "  paket:", 1), "paket"),
        ("x".repeat(70_000), "the file has 70000 bytes"),
    ] {
        let error = Costs::parse(&text).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

fn program(name: &str, arguments: &[&str]) -> Output {
    Command::new(name).args(arguments).output().expect("the program starts")
}

#[test]
fn programs_explain_themselves_and_end_with_their_codes() {
    let (evaluate, plan) = (env!("CARGO_BIN_EXE_csp-evaluate"), env!("CARGO_BIN_EXE_csp-plan"));
    for name in [evaluate, plan] {
        let help = String::from_utf8(program(name, &["--help"]).stdout).expect("text");
        assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    }
    let folder = std::env::temp_dir().join(format!("csp-evaluation-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    std::fs::write(path("form.yaml"), FORM).expect("written");
    std::fs::write(path("page.md"), "no place").expect("written");
    let rate = ["--requests-per-second", "1000", "--transactions", "200"];
    for (name, arguments, code) in [
        (plan, vec![], 0),
        (plan, vec!["-o", "json", "--size", "2048", "--infiniband-gbps", "50", "--processors", "1,2,3"], 0),
        (plan, vec!["--processors", "1,2"], 64),
        (plan, vec!["--size", "0"], 64),
        (plan, vec!["--costs", &path("form.yaml")], 65),
        (plan, vec!["--costs", &path("nothing.yaml")], 66),
    ] {
        let output = program(name, &[&rate[..], &arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    }
    let few = ["fabrics", "--transactions", "400"];
    let output = program(evaluate, &[&few[..], &["-o", "json", "--write", &path("out")]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["fabrics"].as_array().map(Vec::len), Some(2 * SIZES.len()));
    for name in ["out/fabrics.csv", "out/fabrics.json", "out/fabrics.svg"] {
        assert!(std::fs::metadata(path(name)).is_ok_and(|file| file.len() > 100), "{name}");
    }
    let output = program(evaluate, &[&few[..], &["--page", &path("page.md")]].concat());
    assert_eq!(output.status.code(), Some(73), "{output:?}");
    let _ = std::fs::remove_dir_all(&folder);
}
