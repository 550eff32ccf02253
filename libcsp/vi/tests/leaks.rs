//! Repeated connecting and disconnecting leaks nothing. One test, so that no other test opens descriptors
//! meanwhile.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "tests own deadlines and may panic")]

#[allow(dead_code, reason = "shared with the conformance suite")]
#[path = "conformance/bench.rs"]
mod bench;

use bench::{Bench, CONFIG, connect, wait};
use csp_vi::Event;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Returns a signal mask from a `status` file.
fn signals(task: &std::path::Path, mask: &str) -> u64 {
    let status = std::fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(mask)).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

fn tasks() -> Vec<std::path::PathBuf> {
    std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Checks that loading the library installs no signal handler, and that its thread blocks all signals.
fn check_signals() {
    let this = std::path::Path::new("/proc/self");
    let (caught, known) = (signals(this, "SigCgt:"), tasks());
    let _provider = Bench::new("ucx").provider();
    assert_eq!(signals(this, "SigCgt:"), caught);
    for task in tasks().iter().filter(|task| !known.contains(task)) {
        // All but SIGKILL, SIGSTOP and the two signals that the C library reserves.
        assert_eq!(signals(task, "SigBlk:") | 0x1_8004_0100, u64::MAX, "{task:?}");
    }
}

/// Returns the resident memory in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the number of connections: enough to detect a leak, or `CSP_VI_ROUNDS`.
fn rounds() -> u32 {
    std::env::var("CSP_VI_ROUNDS").map_or(240, |rounds| rounds.parse().unwrap())
}

/// Allowed growth in KiB: once, at some round, the allocator keeps a block of some MiB. A leaked VI costs 70
/// KiB, which is 14 MiB in all rounds.
const GROWTH_MAX: usize = 10 * 1024;

fn check(kind: &'static str) {
    let bench = Bench::new(kind);
    let address = bench.address();
    let (mut a, mut b) = (bench.provider(), bench.provider());
    b.listen(&address).unwrap();
    let mut seen = std::collections::HashSet::new();
    let mut round = |n: u32| {
        let (from_a, from_b) = connect(&mut a, &mut b, &address, CONFIG);
        assert!(seen.insert(from_a), "an id was reused");
        a.post_send(from_a, 0, n, &[&[1; 4096]], false).unwrap();
        assert_eq!(bench::message(&mut b, &mut a).immediate, n);
        // The sides take turns in disconnecting first.
        let (first, last, vi, other) = if n.is_multiple_of(2) {
            (&mut a, &mut b, from_a, from_b)
        } else {
            (&mut b, &mut a, from_b, from_a)
        };
        first.disconnect(vi).unwrap();
        let ended = wait("end", || {
            assert_eq!((first.poll(), first.poll_event(), last.poll()), (None, None, None));
            last.poll_event()
        });
        assert_eq!(ended, Event::Disconnected { vi: other, clean: true });
        last.disconnect(other).unwrap();
    };
    (0..40).for_each(&mut round);
    let before = (descriptors(), mappings(), resident(), tasks().len());
    (40..rounds()).for_each(&mut round);
    wait("the last to be closed", || {
        assert_eq!((a.poll(), a.poll_event(), b.poll(), b.poll_event()), (None, None, None, None));
        (descriptors() <= before.0).then_some(())
    });
    let after = (descriptors(), mappings(), resident(), tasks().len());
    assert!(
        after.1 <= before.1 + 4 && after.2 <= before.2 + GROWTH_MAX && after.3 <= before.3,
        "{kind}: {before:?} before, {after:?} after"
    );
}

#[test]
fn two_hundred_connections_in_a_row_leave_nothing_behind() {
    let start = descriptors();
    for kind in ["memory", "shm", "tcp"] {
        check(kind);
        assert_eq!(descriptors(), start, "{kind}");
    }
    check_signals();
    // The library keeps the descriptors of its own thread.
    check("ucx");
    let loaded = descriptors();
    check("ucx");
    assert_eq!(descriptors(), loaded);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn two_hundred_verbs_connections_leave_nothing_behind() {
    let start = descriptors();
    check("verbs");
    let loaded = descriptors();
    // The library keeps its own context of the device.
    assert!(loaded <= start + 2, "{start} before, {loaded} after");
    check("verbs");
    assert_eq!(descriptors(), loaded);
}
