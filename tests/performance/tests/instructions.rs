//! Guards what the data path costs: instructions a segment, a head, a request and a message, counted by
//! callgrind (Debian package valgrind), must not exceed those of `instructions.txt` by more than 3 %.
//!
//! The program runs itself under callgrind, once for each case; only the functions that a case names are
//! counted. Segments are those of the engine's bench. Requests and messages are what further ones add to a
//! run of the simulation, so that set-up does not count. GLIBC_TUNABLES makes the C library choose routines
//! that every x86-64 machine can run. If it still chooses others here than where the figures are from, which
//! a count of its own shows, nothing is compared.
//!
//! `CSP_INSTRUCTIONS=write` replaces the file by what is counted.
#![allow(
    missing_docs,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a failed unwrap ends the test, which runs programs"
)]

#[path = "../benches/fixture/mod.rs"]
mod fixture;
mod forwarding;
mod http;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::time::Duration;

use csp_simulation::messages::{Leaves, MessageScenario, MessageWorld, PeerPlan, Place, Role};
use csp_simulation::{Incident, Scenario, Transaction, World};
use csp_wire::tcp::Flags;
use fixture::{Bench, MSS};

/// Most that a count may exceed its figure, as a factor.
const LIMIT: f64 = 1.03;
/// Fewer than this share of a figure call for a new one, which the next regression is measured by.
const IMPROVED: f64 = 0.95;
const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/instructions.txt");
/// Calls of the engine's functions.
const CALLS: usize = 256;
/// Requests and messages of the shorter run; the longer has twice as many.
const FEW: u32 = 120;
/// The first argument of the program under callgrind.
const RUN: &str = "run";
/// The case by which the C library is recognised.
const LIBRARY: &str = "C library";

/// One count: its name, what is run, the functions counted, and whether it is the difference of two runs.
type Case = (&'static str, &'static str, &'static str, bool);

/// Flows of the cases that are compared with each other, and how much more the larger one may cost.
const FLOWS: [u32; 2] = [1_000, 200_000];
const FLOWS_LIMIT: f64 = 1.05;
const FORWARDED: [&str; 2] = ["packet forwarded, of 1,000 flows", "packet forwarded, of 200,000 flows"];

const CASES: [Case; 16] = [
    (LIBRARY, "library", "measured_library", false),
    ("segment in, 1,448 B", "segments", "measured_segment_in", false),
    ("segment out, 1,448 B", "segments", "measured_segment_out", false),
    ("acknowledgement in", "segments", "measured_acknowledgement", false),
    (FORWARDED[0], "forwarded few", "measured_forward", false),
    (FORWARDED[1], "forwarded many", "measured_forward", false),
    ("HTTP request of curl, head read", "http curl", "measured_head", false),
    ("HTTP request of Chrome, head read", "http chrome", "measured_head", false),
    ("HTTP request of Chrome, head passed on", "http request", "measured_passed_request", false),
    ("HTTP response, head passed on", "http response", "measured_passed_response", false),
    ("connection with a request, network node", "requests", "measured_network_turn", true),
    ("connection with a request, proxy", "requests", "measured_proxy_turn", true),
    ("connection with a request in the log, proxy", "logged requests", "measured_proxy_turn", true),
    ("connection with a request, process", "requests", "measured_process_turn", true),
    ("download of 50,000 B through an edge, proxy", "downloads", "measured_proxy_turn", true),
    ("message to two subscribers, proxy", "messages", "measured_proxy_turn", true),
];

#[inline(never)]
fn measured_library(memory: &mut [u8]) {
    for len in [1, 20, 100, 1_000, 1_448] {
        let (from, to) = memory.split_at_mut(2_000);
        to[..len].copy_from_slice(&from[black_box(1)..=len]);
        from[..len].fill(black_box(7));
        black_box(from[..len] == to[..len]);
    }
}

#[inline(never)]
fn measured_segment_in(bench: &mut Bench, client: &mut fixture::Client, segment: &[u8]) {
    bench.take_data(client, segment, MSS);
    black_box(bench.stack.next_timeout());
}

#[inline(never)]
fn measured_segment_out(bench: &mut Bench, client: &mut fixture::Client, data: &[u8]) {
    bench.give_data(client, data);
    black_box(bench.stack.next_timeout());
}

#[inline(never)]
fn measured_acknowledgement(bench: &mut Bench, client: &fixture::Client, segment: &[u8]) {
    bench.take_ack(client, segment);
    black_box(bench.stack.next_timeout());
}

fn segments() {
    let mut bench = Bench::new(CALLS);
    let mut client = bench.open();
    for _ in 0..CALLS {
        bench.tick();
        let segment = bench.segment(&client, Flags::ACK, MSS);
        measured_segment_in(&mut bench, &mut client, &segment);
    }
    bench.widen(&mut client, MSS);
    let data = vec![0x11; MSS];
    for _ in 0..CALLS {
        bench.now += Duration::from_millis(1);
        bench.tick();
        measured_segment_out(&mut bench, &mut client, &data);
        let segment = bench.segment(&client, Flags::ACK, 0);
        measured_acknowledgement(&mut bench, &client, &segment);
    }
}

#[inline(never)]
fn measured_forward(bench: &mut forwarding::Forwarding) {
    bench.take();
}

fn forwarded(flows: u32) {
    let mut bench = forwarding::Forwarding::new(flows);
    let before = bench.sent();
    for at in 0..CALLS as u32 {
        bench.set_flow(at.wrapping_mul(0x9e37_79b1) % flows);
        measured_forward(&mut bench);
    }
    assert_eq!(bench.sent() - before, CALLS as u64);
}

#[inline(never)]
fn measured_head(heads: &mut http::Heads, text: &str) -> usize {
    heads.read(text)
}

#[inline(never)]
fn measured_passed_request(heads: &mut http::Heads, text: &str) -> usize {
    heads.pass_request(text)
}

#[inline(never)]
fn measured_passed_response(heads: &mut http::Heads, text: &str) -> usize {
    heads.pass_response(text)
}

fn heads(text: &str, measured: fn(&mut http::Heads, &str) -> usize) {
    let mut heads = http::Heads::new();
    for _ in 0..CALLS {
        assert!(black_box(measured(&mut heads, black_box(text))) > 0);
    }
}

/// A scenario of the simulation without faults.
fn quiet() -> Scenario {
    Scenario {
        network_nodes: 1,
        network_workers: 1,
        edge: false,
        clocks_differ: false,
        lan: Default::default(),
        san: Default::default(),
        incident: Incident::None,
        stall: None,
        drain: None,
        cookies: false,
        logged: false,
        path_mtu: 1_500,
        lan_mtu: 1_500,
        marks: 0,
        moves: 0,
        work: Vec::new(),
        ..Scenario::of(7)
    }
}

fn requests(count: u32, download: u32, edge: bool, logged: bool) {
    let request = |n: u32| Transaction {
        start: Duration::from_millis(n.into()),
        by_process: None,
        hairpin: false,
        upload: 100,
        download,
        half_close: false,
        duplex: false,
        abort_after: None,
        refusal: None,
        late: false,
        deaf: None,
    };
    let report =
        World::new(Scenario { edge, logged, work: (0..count).map(request).collect(), ..quiet() }).run();
    assert_eq!((report.complete, report.violations), (count as usize, Vec::new()));
    assert_eq!(report.handed_over > 0, edge);
}

fn messages(count: u32) {
    let peer = |role, start| PeerPlan {
        channel: 0,
        place: Place::Outside,
        minor: 1,
        start,
        role,
        leaves: Leaves::Last,
        late: false,
    };
    let receives = || peer(Role::Receives { topics: vec![b""], deaf: None }, None);
    let every = Duration::from_micros(10);
    let sends = Role::Sends { messages: count, len_max: 200, every, topics: vec![b"a"], closes: false };
    let peers = vec![receives(), receives(), peer(sends, Some(Duration::ZERO))];
    let scenario = MessageScenario { peers, ..MessageScenario::quiet(quiet()) };
    assert_eq!(MessageWorld::new(scenario).run().violations, Vec::<String>::new());
}

/// Runs what is counted.
fn run(what: &str, count: u32) {
    match what {
        "library" => measured_library(&mut [3; 4_000]),
        "segments" => segments(),
        "forwarded few" => forwarded(FLOWS[0]),
        "forwarded many" => forwarded(FLOWS[1]),
        "http curl" => heads(http::CURL, measured_head),
        "http chrome" => heads(http::CHROME, measured_head),
        "http request" => heads(http::CHROME, measured_passed_request),
        "http response" => heads(http::RESPONSE, measured_passed_response),
        "requests" => requests(count, 1_000, false, false),
        "logged requests" => requests(count, 1_000, false, true),
        "downloads" => requests(count, 50_000, true, false),
        "messages" => messages(count),
        _ => panic!("nothing is called {what}"),
    }
}

/// Returns the instructions of the functions whose name contains `function`.
fn collect(function: &str, what: &str, count: u32) -> f64 {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect=*{function}*"));
    command
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512VL,-AVX2,-AVX,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM");
    let output = command.arg(own).args([RUN, what, &count.to_string()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let found = collected.and_then(|(_, number)| number.split_whitespace().next()?.parse().ok());
    assert!(output.status.success(), "{what}: {text}");
    found.unwrap_or_else(|| panic!("callgrind counts nothing:\n{text}"))
}

fn count((name, what, function, difference): Case) -> f64 {
    let counted = match difference {
        true => (collect(function, what, 2 * FEW) - collect(function, what, FEW)) / f64::from(FEW),
        false if ["segments", "forwarded", "http"].iter().any(|start| what.starts_with(start)) => {
            collect(function, what, 0) / CALLS as f64
        }
        false => collect(function, what, 0),
    };
    assert!(counted > 0.0, "{name}: nothing was counted");
    counted.round()
}

fn figures() -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(FIGURES).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    lines.map(|(name, figure)| (name.to_owned(), figure.parse().unwrap())).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, what, count] = &arguments[..]
        && first == RUN
    {
        run(what, count.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    // A test runner that lists, or wants others: there is one test here.
    let others = |at: usize| {
        let value = at > 0 && ["--test-threads", "--color", "--format"].contains(&arguments[at - 1].as_str());
        !arguments[at].starts_with('-') && !value || ["--list", "--ignored"].contains(&arguments[at].as_str())
    };
    if (0..arguments.len()).any(others) {
        return ExitCode::SUCCESS;
    }
    let began = std::time::Instant::now();
    if !csp_support::installed("valgrind", "valgrind") {
        return ExitCode::SUCCESS;
    }
    let counts: Vec<(&str, f64)> = CASES.into_iter().map(|case| (case.0, count(case))).collect();
    if std::env::var("CSP_INSTRUCTIONS").is_ok_and(|value| value == "write") {
        let text = counts.iter().fold(String::new(), |mut text, (name, counted)| {
            let _ = writeln!(text, "{name}\t{counted}");
            text
        });
        std::fs::write(FIGURES, text).unwrap();
        return ExitCode::SUCCESS;
    }
    let failed = compare(&counts);
    let (passed, outcome) = (counts.len() - failed, if failed == 0 { "ok" } else { "FAILED" });
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in {seconds:.2}s"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints each count beside its figure; returns how many are too high or have none.
fn compare(counts: &[(&str, f64)]) -> usize {
    let figures = figures();
    let comparable =
        counts.iter().all(|(name, counted)| *name != LIBRARY || figures.get(*name) == Some(counted));
    let mut failed = 0;
    for (name, counted) in counts {
        let Some(figure) = figures.get(*name) else {
            eprintln!("{name}: {FIGURES} has no figure; {counted} were counted");
            failed += 1;
            continue;
        };
        let ratio = counted / figure;
        let verdict = match ratio {
            _ if !comparable => "not compared: another C library",
            more if more > LIMIT => "FAILED: more than 3 % above",
            less if less < IMPROVED => "fewer: CSP_INSTRUCTIONS=write makes this the figure",
            _ => "ok",
        };
        println!("{name:<42} {counted:>10} of {figure:>10}  {ratio:>6.3}  {verdict}");
        failed += usize::from(verdict.starts_with("FAILED"));
    }
    failed + usize::from(!is_independent_of_flows(counts))
}

/// What a packet costs must not depend on the number of flows.
fn is_independent_of_flows(counts: &[(&str, f64)]) -> bool {
    let of = |name| counts.iter().find(|(known, _)| *known == name).map_or(0.0, |(_, counted)| *counted);
    let [few, many] = FORWARDED.map(of);
    let holds = many <= few * FLOWS_LIMIT;
    if !holds {
        println!("FAILED: a packet of many flows costs {many}, one of few {few}");
    }
    holds
}
