//! Signal handlers: which a process has beside modules in compared and in guarded memory, and beside UCX,
//! whose handlers and whose messages go on while modules trap, loop and grow.
//!
//! Handlers are a process's: each test runs in a process of its own, which is this program again with its
//! role in the environment.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "tests own deadlines and may panic")]

mod common;

use std::process::{Command, Output};
use std::time::{Duration, Instant as Wall};

use common::{FakePort, Fixture, with};
use csp_handlers::Stop;
use csp_sandbox::{Backoff, Confinement, Engine, Finally, Limits, OnStop, Reason, StopPolicy};
use csp_vi::{Completion, Event, Provider, ViAddress, ViConfig, ViId};

const ROLE: &str = "CSP_SANDBOX_ROLE";
const PATIENCE: Duration = Duration::from_secs(20);
/// SIGILL, SIGBUS, SIGFPE, SIGSEGV, as bits of SigCgt.
const ALL: u64 = 1 << 3 | 1 << 6 | 1 << 7 | 1 << 10;

/// The signals for which the process has handlers.
fn caught() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("SigCgt:")).unwrap();
    u64::from_str_radix(line.trim_start_matches("SigCgt:").trim(), 16).unwrap() & ALL
}

fn engine(confinement: Confinement) -> Engine {
    Engine::new(Limits { confinement, ..Limits::default() }).unwrap()
}

/// What hostile modules do, and why each is stopped.
fn hostile() -> Vec<(String, Reason)> {
    let body = |body: &str| {
        with(&format!(r#"(func (export "on_message") (param i32 i32 i32) (result i32) {body})"#))
    };
    let deep = with(
        "(func $deep (param i32) (result i32)
            (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (local.get 0)))
        (func (export \"on_message\") (param i32 i32 i32) (result i32) (call $deep (i32.const 0)))",
    );
    let table = with(
        "(type $none (func (result i32))) (table 2 2 funcref)
        (func (export \"on_message\") (param i32 i32 i32) (result i32) (call_indirect (type $none) (i32.const 77)))",
    );
    vec![
        (body("unreachable"), Reason::Trap),
        (body("(i32.load (i32.const 65536))"), Reason::Trap),
        (body("(i32.load (i32.const -4))"), Reason::Trap),
        (body("(i32.load offset=0xfffffff0 (i32.const -4))"), Reason::Trap),
        (body("(i32.store8 offset=33554432 (local.get 0) (i32.const 1)) i32.const 0"), Reason::Trap),
        (body("(i32.div_u (i32.const 1) (i32.const 0))"), Reason::Trap),
        (body("(i32.div_s (i32.const -2147483648) (i32.const -1))"), Reason::Trap),
        (table, Reason::Trap),
        (body("(loop $again br $again) unreachable"), Reason::Fuel),
        (body("(loop $again (drop (memory.grow (i32.const 1))) br $again) unreachable"), Reason::Memory),
        (deep, Reason::Stack),
    ]
}

/// Runs every hostile module twice, with a good one in between; `between` is called after each stop.
fn run_hostile(engine: &Engine, mut between: impl FnMut()) {
    let at_once = Backoff {
        first: csp_types::Duration::ZERO,
        most: csp_types::Duration::ZERO,
        forgiven_after: csp_types::Duration::ZERO,
        restarts_max: u32::MAX,
    };
    let mut good = Fixture::new(engine, &common::no_op(), OnStop::default(), "");
    for (text, reason) in hostile() {
        let mut it = Fixture::new(engine, &text, StopPolicy::Restart(at_once, Finally::EndPath), "");
        for round in 0..2 {
            let mut port = FakePort::new(b"message");
            let stopped = it.send(&mut port, round);
            assert!(matches!(stopped, Err(Stop::Fault(_))), "{text}: {stopped:?}");
            between();
            let mut port = FakePort::new(b"good");
            good.send(&mut port, round).unwrap();
            assert_eq!(port.emitted, [(0, 7, b"good".to_vec())]);
        }
        assert_eq!(it.handler.report().status().stops, [(reason, 2)], "{text}");
    }
}

/// Two ends of a VI over UCX in this process.
struct Ends {
    providers: [csp_vi::ucx::UcxProvider; 2],
    vis: [ViId; 2],
    sent: u32,
}

fn wait<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let end = Wall::now() + PATIENCE;
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(Wall::now() < end, "no {what} came");
        std::thread::yield_now();
    }
}

impl Ends {
    fn new() -> Self {
        let [mut a, mut b] = [(); 2].map(|()| csp_vi::ucx::UcxProvider::new().unwrap());
        let config = ViConfig { message_len: 4096, receive_depth: 16, send_depth: 16 };
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = ViAddress::Ip(port);
        b.listen(&address).unwrap();
        let from_a = a.connect(&address, config, b"").unwrap();
        let request = wait("request", || {
            a.poll_event();
            match b.poll_event() {
                Some(Event::Request(request)) => Some(request.id),
                _ => None,
            }
        });
        let from_b = b.accept(request, config, b"").unwrap();
        let mut up = [false; 2];
        wait("connection", || {
            up[0] |= matches!(a.poll_event(), Some(Event::Established { .. }));
            up[1] |= matches!(b.poll_event(), Some(Event::Established { .. }));
            up.iter().all(|up| *up).then_some(())
        });
        Ends { providers: [a, b], vis: [from_a, from_b], sent: 0 }
    }

    /// Sends a message there and another one back.
    fn exchange(&mut self) {
        for from in [0, 1] {
            self.sent += 1;
            let bytes = self.sent.to_le_bytes().repeat(500);
            let vi = self.vis[from];
            wait("room", || self.providers[from].post_send(vi, 0, self.sent, &[&bytes], false).ok());
            let (vi, buffer, len) = wait("message", || {
                self.providers[from].poll();
                match self.providers[1 - from].poll() {
                    Some(Completion::Received { vi, buffer, len, .. }) => Some((vi, buffer, len)),
                    _ => None,
                }
            });
            let mut read = vec![0; len as usize];
            self.providers[1 - from].read(vi, buffer, 0, &mut read).unwrap();
            assert_eq!(read, bytes);
            self.providers[1 - from].post_recv(vi, buffer).unwrap();
        }
    }
}

/// Runs the calling test in a process of its own; `Some`: this is the parent, and how the child ended.
fn in_child(test: &str, prepare: impl FnOnce(&mut Command)) -> Option<Output> {
    if std::env::var_os(ROLE).is_some_and(|role| role == test) {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, test);
    prepare(&mut command);
    Some(command.output().unwrap())
}

fn succeeded(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{errors}");
}

#[test]
fn guarded_memory_stops_what_compared_memory_stops() {
    if let Some(output) = in_child("guarded_memory_stops_what_compared_memory_stops", |_| {}) {
        return succeeded(&output);
    }
    let before = caught();
    run_hostile(&engine(Confinement::Compared), || {});
    assert_eq!(caught(), before, "compared memory installs no handler");
    let guarded = engine(Confinement::Guarded);
    run_hostile(&guarded, || {});
    assert_eq!(caught(), ALL);
    // As many as there may be fit the address space, and their memory comes back.
    let module = common::compile(&guarded, &common::no_op()).unwrap();
    let start = || {
        csp_sandbox::Supplied::new(&module, std::sync::Arc::new(csp_sandbox::NoFields), OnStop::default(), "")
    };
    let admitted: Vec<_> = std::iter::from_fn(|| start().ok()).collect();
    assert_eq!(admitted.len() as u64, 128 / 4, "{:?}", guarded.usage());
    drop(admitted);
    assert_eq!(guarded.usage().instances, 0);
}

/// The provider loads UCX without its handlers, and carries messages between stops of modules.
#[test]
fn messages_over_ucx_go_on_while_modules_trap_loop_and_grow() {
    if let Some(output) = in_child("messages_over_ucx_go_on_while_modules_trap_loop_and_grow", |_| {}) {
        return succeeded(&output);
    }
    let before = caught();
    csp_vi::ucx::load().unwrap();
    let mut ends = Ends::new();
    ends.exchange();
    assert_eq!(caught(), before, "UCX is loaded without its handlers");
    run_hostile(&engine(Confinement::Compared), || ends.exchange());
    assert_eq!(caught(), before);
    let guarded = engine(Confinement::Guarded);
    run_hostile(&guarded, || ends.exchange());
    // UCX that comes later leaves the handlers in place.
    let mut later = Ends::new();
    run_hostile(&guarded, || {
        ends.exchange();
        later.exchange();
    });
    assert_eq!(caught(), ALL);
}

/// UCX's library with its error handlers, before anything else of the process: as in a program that loads it
/// by itself.
fn with_handlers_of_ucx(command: &mut Command) {
    command
        .env("LD_PRELOAD", "libucs.so.0")
        .env("UCX_HANDLE_ERRORS", "bt")
        .env("UCX_ERROR_SIGNALS", "ILL,SEGV,BUS,FPE");
}

/// Runs hostile modules beside UCX's handlers, then has the process get a SIGSEGV of its own: UCX's handler
/// is to report it.
fn beside_handlers_of_ucx(confinement: Confinement) {
    assert_eq!(caught(), ALL, "UCX has installed its handlers");
    run_hostile(&engine(confinement), || {});
    assert_eq!(caught(), ALL);
    println!("the modules were stopped");
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::SEGV).unwrap();
    std::thread::sleep(PATIENCE);
}

fn was_reported_by_ucx(output: &Output) {
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(text.contains("the modules were stopped"), "{text}");
    assert!(text.contains("Caught signal 11"), "UCX has not reported the signal: {text}");
    assert!(!output.status.success());
}

#[test]
fn handlers_of_ucx_stay_beside_compared_memory() {
    match in_child("handlers_of_ucx_stay_beside_compared_memory", with_handlers_of_ucx) {
        Some(output) => was_reported_by_ucx(&output),
        None => beside_handlers_of_ucx(Confinement::Compared),
    }
}

#[test]
fn handlers_of_ucx_get_what_is_not_a_module_s_beside_guarded_memory() {
    match in_child("handlers_of_ucx_get_what_is_not_a_module_s_beside_guarded_memory", with_handlers_of_ucx) {
        Some(output) => was_reported_by_ucx(&output),
        None => beside_handlers_of_ucx(Confinement::Guarded),
    }
}
