//! Instructions per segment, acknowledgement and connection, counted by callgrind (Debian package valgrind):
//! figures that do not depend on the machine's load. Fails if the cost of a segment grows with the number of
//! connections. Then the cache lines that a segment touches: the misses of callgrind's 32 KiB cache when
//! connections alternate.
//!
//! Run without arguments it runs itself under callgrind once for each case; only the functions `measured_*`
//! are counted.
#![allow(missing_docs, clippy::unwrap_used, reason = "a failed unwrap ends the bench")]

mod fixture;

use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::time::Duration;

use csp_wire::tcp::Flags;
use fixture::{Bench, Client, LARGE, MSS};

/// Operations counted in one case.
const COUNT: usize = 256;
/// Number of alternating connections, and of a batch: data in flight must not wait long enough to trigger a
/// probe.
const IN_TURN: usize = 256;
const BATCH: usize = 32;
/// Largest cost of a segment with 100,000 connections, relative to the cost with one.
const GROWTH_MAX: f64 = 1.05;

#[inline(never)]
fn measured_data_in(bench: &mut Bench, client: &mut Client, bytes: &[u8], len: usize) {
    bench.take_data(client, bytes, len);
    black_box(bench.stack.next_timeout());
}

#[inline(never)]
fn measured_segment_in(bench: &mut Bench, client: &Client, bytes: &[u8]) {
    bench.receive(client, bytes);
}

#[inline(never)]
fn measured_data_out(bench: &mut Bench, client: &mut Client, bytes: &[u8]) {
    bench.give_data(client, bytes);
    black_box(bench.stack.next_timeout());
}

#[inline(never)]
fn measured_ack(bench: &mut Bench, client: &Client, bytes: &[u8]) {
    bench.take_ack(client, bytes);
    black_box(bench.stack.next_timeout());
}

#[inline(never)]
fn measured_set_up(bench: &mut Bench, client: &mut Client, syn: &[u8]) {
    bench.take_syn(client, syn);
}

#[inline(never)]
fn measured_set_up_end(bench: &mut Bench, client: &mut Client, ack: &[u8]) {
    bench.take_handshake_ack(client, ack);
}

#[inline(never)]
fn measured_tear_down(bench: &mut Bench, client: &mut Client, fin: &[u8]) {
    bench.take_fin(client, fin);
}

#[inline(never)]
fn measured_tear_down_end(bench: &mut Bench, client: &Client, ack: &[u8]) {
    bench.take_ack(client, ack);
}

/// Runs one case with this number of connections; callgrind's options determine what is counted.
fn run(connections: usize, len: usize) {
    let mut bench = Bench::new(connections + COUNT);
    let mut clients: Vec<Client> = (0..connections).map(|_| bench.open()).collect();
    let probe = connections / 2;
    let client = &mut clients[probe];
    for _ in 0..COUNT {
        bench.tick();
        let segment = bench.segment(client, Flags::ACK, len);
        measured_data_in(&mut bench, client, &segment, len);
    }
    bench.widen(client, len);
    let data = vec![0x11; len];
    for _ in 0..COUNT {
        bench.now += Duration::from_millis(1);
        bench.tick();
        measured_data_out(&mut bench, client, &data);
        let ack = bench.segment(client, Flags::ACK, 0);
        measured_ack(&mut bench, client, &ack);
    }
    let mut more: Vec<Client> = (0..COUNT).map(|_| bench.client()).collect();
    for client in &mut more {
        bench.tick();
        let syn = bench.segment(client, Flags::SYN, 0);
        measured_set_up(&mut bench, client, &syn);
        let ack = bench.segment(client, Flags::ACK, 0);
        measured_set_up_end(&mut bench, client, &ack);
    }
    for client in &mut more {
        bench.tick();
        let fin = bench.segment(client, Flags::FIN | Flags::ACK, 0);
        measured_tear_down(&mut bench, client, &fin);
        let ack = bench.segment(client, Flags::ACK, 0);
        measured_tear_down_end(&mut bench, client, &ack);
    }
}

/// Evicts all state of connections from callgrind's first-level cache.
fn fill_cache() {
    black_box(vec![1u64; 1 << 13].iter().sum::<u64>());
}

/// Alternates between connections, so that the state of each is out of the cache.
fn run_in_turn(len: usize) {
    let mut bench = Bench::new(IN_TURN);
    let mut clients: Vec<Client> = (0..IN_TURN).map(|_| bench.open()).collect();
    let data = vec![0x11; len];
    for client in &mut clients {
        // More than the number acknowledged one by one at the start.
        for _ in 0..19 {
            bench.tick();
            let segment = bench.segment(client, Flags::ACK, len);
            bench.take_data(client, &segment, len);
        }
        bench.widen(client, len);
    }
    for batch in clients.chunks_mut(BATCH) {
        fill_cache();
        for client in &mut *batch {
            bench.tick();
            let segment = bench.segment(client, Flags::ACK, len);
            measured_segment_in(&mut bench, client, &segment);
            bench.settle_data(client, len);
        }
        fill_cache();
        for client in &mut *batch {
            bench.tick();
            measured_data_out(&mut bench, client, &data);
        }
        fill_cache();
        for client in &mut *batch {
            bench.tick();
            let ack = bench.segment(client, Flags::ACK, 0);
            measured_ack(&mut bench, client, &ack);
        }
    }
}

/// Returns the misses of the first-level data cache in one call of `function`, with alternating connections.
fn misses(function: &str) -> Option<f64> {
    let collected = collect(function, &["--cache-sim=yes"], &[IN_TURN_ARGUMENT.to_owned()])?;
    // Ir Dr Dw I1mr D1mr D1mw …
    Some((collected.get(4)? + collected.get(5)?) / IN_TURN as f64)
}

/// Returns the instructions of one call of the functions whose name begins with `function`.
fn count(function: &str, connections: usize, len: usize) -> Option<f64> {
    let collected = collect(function, &[], &[connections.to_string(), len.to_string()])?;
    collected.first().map(|all| all / COUNT as f64)
}

/// Returns callgrind's counts of the functions whose name begins with `function`, for a run with `arguments`.
fn collect(function: &str, options: &[&str], arguments: &[String]) -> Option<Vec<f64>> {
    let own = std::env::current_exe().ok()?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect=*{function}*"));
    let output = command.args(options).arg(own).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : "))?.1;
    collected.split_whitespace().map(|n| n.parse().ok()).collect()
}

/// With this argument the program runs [`run_in_turn`].
const IN_TURN_ARGUMENT: &str = "in-turn";

fn main() -> ExitCode {
    if std::env::args().any(|a| a == IN_TURN_ARGUMENT) {
        run_in_turn(MSS);
        return ExitCode::SUCCESS;
    }
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    if let [connections, len] = numbers[..] {
        run(connections, len);
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("SKIPPED instructions: valgrind is not installed (Debian package valgrind)");
        return ExitCode::SUCCESS;
    }
    let mut failed = false;
    println!("instructions a call        1 connection      1,000    100,000   growth");
    let cases = [
        ("data in, 1,448 B", "measured_data_in", MSS),
        ("data out, 1,448 B", "measured_data_out", MSS),
        ("ACK of 1,448 B", "measured_ack", MSS),
        ("set up", "measured_set_up", MSS),
        ("tear down", "measured_tear_down", MSS),
    ];
    for (name, function, len) in cases {
        let found: Vec<f64> = [1, 1_000, 100_000].iter().filter_map(|n| count(function, *n, len)).collect();
        let [one, thousand, many] = found[..] else {
            eprintln!("{name}: callgrind reported no count");
            return ExitCode::FAILURE;
        };
        let growth = many.max(thousand) / one;
        println!("{name:<26} {one:>12.0} {thousand:>10.0} {many:>10.0}   {growth:.3}");
        failed |= growth > GROWTH_MAX;
    }
    for (name, function) in [
        ("data in, 65,024 B", "measured_data_in"),
        ("data out, 65,024 B", "measured_data_out"),
        ("ACK of 65,024 B", "measured_ack"),
    ] {
        match count(function, 1, LARGE) {
            Some(one) => println!("{name:<26} {one:>12.0}"),
            None => failed = true,
        }
    }
    println!("cache lines missed a call, 256 connections in turn");
    for (name, function) in [
        ("segment in, 1,448 B (23 lines of them payload)", "measured_segment_in"),
        ("data out, 1,448 B (23 lines of them payload)", "measured_data_out"),
        ("ACK of 1,448 B", "measured_ack"),
    ] {
        match misses(function) {
            Some(lines) => println!("{name:<48} {lines:>6.1}"),
            None => failed = true,
        }
    }
    if failed {
        eprintln!(
            "instructions: the cost of a segment grows with the number of connections by more than {GROWTH_MAX}"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
