//! Every target with its examples, with the inputs that have found a fault (`inputs/TARGET`), and with
//! `CSP_FUZZ_INPUTS` (1,000) inputs made of the seeds from `CSP_SEED` (0) on. An input that fails is written
//! to a file, which `CSP_FUZZ_FILE` replays.
#![allow(clippy::disallowed_types, reason = "the watch over inputs that hang runs on real time")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use csp_fuzz::{Check, Outcome, Target, seeded};
use csp_support::allocation;

/// Longest time of one input, which `Target::run` cannot end: it prints the input, and the test's process
/// ends.
const HANGS_AFTER: Duration = Duration::from_secs(180);
/// Most bytes that the process holds before it ends, for the same reason.
const HELD_MAX: i64 = 4 << 30;

/// The input that a test is at.
type Current = Mutex<(String, Vec<u8>, Instant)>;

/// Ends the process when an input never ends, or takes all memory.
fn watch(target: &'static Target) -> Arc<Current> {
    let current = Arc::new(Mutex::new((String::new(), Vec::new(), Instant::now())));
    let watched = Arc::downgrade(&current);
    std::thread::spawn(move || {
        while let Some(current) = watched.upgrade() {
            end_if_lost(target, &current);
            drop(current);
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    current
}

fn end_if_lost(target: &Target, current: &Current) {
    let (which, bytes, since) = &*current.lock().unwrap_or_else(PoisonError::into_inner);
    if since.elapsed() > HANGS_AFTER || allocation::process_held() > HELD_MAX {
        let file = kept(target, which, bytes);
        eprintln!("{} {which}: hangs, or takes all memory: {}", target.name, file.display());
        std::process::abort();
    }
}

/// Writes an input that has failed to a file.
fn kept(target: &Target, which: &str, bytes: &[u8]) -> PathBuf {
    let name = format!("{}-{}", target.name, which.replace([' ', '/'], "-"));
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if let Err(error) = std::fs::write(&file, bytes) {
        eprintln!("{}: {error}: {}", file.display(), bytes.escape_ascii());
    }
    file
}

fn number(variable: &str, default: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// The inputs of `inputs/TARGET`, by name.
fn found_before(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs").join(target.name);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), bytes)
    };
    let mut inputs: Vec<_> = entries.map(|entry| read(entry.expect("it can be read").path())).collect();
    inputs.sort();
    inputs
}

fn every_input(target: &'static Target) {
    csp_fuzz::report_own_panics_only();
    let current = watch(target);
    let run = |which: String, bytes: Vec<u8>| {
        *current.lock().unwrap_or_else(PoisonError::into_inner) =
            (which.clone(), bytes.clone(), Instant::now());
        match catch_unwind(AssertUnwindSafe(|| target.run(&bytes))) {
            Ok(outcome) => outcome,
            Err(panic) => {
                eprintln!(
                    "{} {which}: failed; the input is {}",
                    target.name,
                    kept(target, &which, &bytes).display()
                );
                resume_unwind(panic)
            }
        }
    };
    if let Ok(file) = std::env::var("CSP_FUZZ_FILE") {
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        println!("{}: {:?}", target.name, run(file, bytes));
        return;
    }
    let examples = (target.examples)();
    let is_refused =
        |(at, example): &(usize, &Vec<u8>)| !run(format!("example {at}"), (*example).clone()).accepted;
    let refused: Vec<_> = examples.iter().enumerate().filter(is_refused).collect();
    assert!(refused.is_empty(), "{}: refused: {refused:?}", target.name);
    for (name, bytes) in found_before(target) {
        run(name, bytes);
    }
    let (from, count) = (number("CSP_SEED", 0), number("CSP_FUZZ_INPUTS", 1_000));
    let mut sum = Sum::default();
    for seed in from..from + count {
        let input = seeded::input(target, &examples, seed);
        let len = input.len();
        sum.add(len, run(format!("seed {seed}"), input));
    }
    println!("{}: {sum:?}", target.name);
    let is_parser = matches!(target.check, Check::Parser(_));
    assert!(
        !is_parser || count < 1_000 || sum.accepted >= count / 100 && sum.refused > 0,
        "{}: {sum:?}",
        target.name
    );
}

/// What became of the inputs of seeds, to choose bounds by: the most bytes held, and how many for each byte
/// of the input.
#[derive(Debug, Default)]
struct Sum {
    accepted: u64,
    refused: u64,
    held_max: i64,
    held_max_by_len: i64,
    allocated_max: u64,
    allocated_max_by_len: u64,
    took_max: Duration,
}

impl Sum {
    fn add(&mut self, len: usize, Outcome { accepted, used, took }: Outcome) {
        *(if accepted { &mut self.accepted } else { &mut self.refused }) += 1;
        self.held_max = self.held_max.max(used.held_max);
        self.allocated_max = self.allocated_max.max(used.bytes);
        // Short inputs show the constant part.
        if len >= 1_000 {
            self.held_max_by_len = self.held_max_by_len.max(used.held_max / len as i64);
            self.allocated_max_by_len = self.allocated_max_by_len.max(used.bytes / len as u64);
        }
        self.took_max = self.took_max.max(took);
    }
}

macro_rules! targets {
    ($($name:ident: $target:ident,)*) => {
        $(#[test]
        fn $name() {
            assert_eq!(csp_fuzz::$target.name, stringify!($name));
            every_input(&csp_fuzz::$target);
        })*

        /// The programs of libFuzzer are those of the tests.
        #[test]
        fn every_target_has_a_program() {
            let manifest = include_str!("../libfuzzer/Cargo.toml");
            let mut programs: Vec<&str> = manifest
                .split("[[bin]]\nname = \"")
                .skip(1)
                .filter_map(|rest| Some(rest.split_once('"')?.0))
                .collect();
            let mut tests = vec!["objects", $(stringify!($name)),*];
            programs.sort_unstable();
            tests.sort_unstable();
            assert_eq!(programs, tests);
        }

        /// Writes the examples of every target to a folder for each below the one named, for libFuzzer.
        #[test]
        fn examples_are_written_where_a_folder_is_named() {
            let Some(folder) = std::env::var_os("CSP_FUZZ_CORPUS") else { return };
            for target in [&csp_fuzz::OBJECTS, $(&csp_fuzz::$target),*] {
                let folder = Path::new(&folder).join(target.name);
                std::fs::create_dir_all(&folder).expect("the folder can be made");
                for (at, example) in (target.examples)().iter().enumerate() {
                    std::fs::write(folder.join(format!("example-{at}")), example).expect("the file can be written");
                }
            }
        }
    };
}

/// Needs clang for its examples.
#[test]
fn objects() {
    if csp_support::installed("clang", "clang") {
        every_input(&csp_fuzz::OBJECTS);
    }
}

targets! {
    agent: AGENT,
    arp: ARP,
    channel: CHANNEL,
    client_hello: CLIENT_HELLO,
    context: CONTEXT,
    declarations: DECLARATIONS,
    election: ELECTION,
    ethernet: ETHERNET,
    formats_json: FORMATS_JSON,
    formats_message: FORMATS_MESSAGE,
    formats_schema: FORMATS_SCHEMA,
    grants: GRANTS,
    http2_client: HTTP2_CLIENT,
    http2_member: HTTP2_MEMBER,
    http_body: HTTP_BODY,
    http_exchange: HTTP_EXCHANGE,
    http_head: HTTP_HEAD,
    http_filters: HTTP_FILTERS,
    http_route: HTTP_ROUTE,
    icmp: ICMP,
    ipv4: IPV4,
    ipv6: IPV6,
    link: LINK,
    packets: PACKETS,
    pcap_merge: PCAP_MERGE,
    policy: POLICY,
    proxy_protocol: PROXY_PROTOCOL,
    queries_like: QUERIES_LIKE,
    queries_sql: QUERIES_SQL,
    remote: REMOTE,
    requests: REQUESTS,
    rules: RULES,
    shm_rendezvous: SHM_RENDEZVOUS,
    shm_ring: SHM_RING,
    tcp: TCP,
    tcp_options: TCP_OPTIONS,
    tcp_stack: TCP_STACK,
    tokens: TOKENS,
    tunnel: TUNNEL,
    tcp_stream: TCP_STREAM,
    ucx_frame: UCX_FRAME,
    verbs_frame: VERBS_FRAME,
    zmtp: ZMTP,
}
