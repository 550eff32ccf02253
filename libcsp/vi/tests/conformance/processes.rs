//! Tests of the death of another process.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use csp_vi::{Armed, Completion, Event, ViAddress, ViId};

use crate::bench::{AnyProvider, Bench, CONFIG, block, connect, established, message, take, wait};

const ROLE: &str = "CSP_VI_CHILD";

/// Connects, sends the number of messages given, prints `sent` and waits to be killed.
#[test]
#[ignore = "the other process of these tests"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [kind, address, messages] = words[..] else { panic!("{role}") };
    let (bench, address) = match kind {
        "shm" => (Bench::new("shm"), ViAddress::Path(address.into())),
        "verbs" => (Bench::new("verbs"), ViAddress::Ip(address.parse().unwrap())),
        "tcp" => (Bench::new("tcp"), ViAddress::Ip(address.parse().unwrap())),
        _ => (Bench::new("ucx"), ViAddress::Ip(address.parse().unwrap())),
    };
    let mut provider = bench.provider();
    let vi = provider.connect(&address, CONFIG, b"").unwrap();
    established(&mut [(&mut provider, vi)]);
    for n in 0..messages.parse().unwrap() {
        provider.post_send(vi, 0, n, &[&[n as u8; 1000]], true).unwrap();
        wait("completion", || provider.poll());
    }
    // A library that sends through a socket does so while it is polled.
    for _ in 0..if kind == "shm" { 0 } else { 5000 } {
        assert_eq!((provider.poll(), provider.poll_event()), (None, None));
    }
    println!("\nsent");
    std::thread::sleep(Duration::from_secs(60));
}

/// The user id of a user other than root.
const NOBODY: u32 = 65534;

/// Processes of different users can connect, and the listener gets the user id of the connector.
pub fn another_user_may_connect(bench: &Bench) {
    if !csp_support::is_root("the test starts a process of another user") {
        return;
    }
    let (mut b, _, child) = child_of(bench, 3, Some(NOBODY));
    for n in 0..3 {
        assert_eq!(wait("message", || take(&mut b)).immediate, n);
    }
    kill(child);
}

/// Returns a provider with a VI to a child process that has sent `messages` messages.
fn child_that_sent(bench: &Bench, messages: u32) -> (AnyProvider, ViId, Child) {
    child_of(bench, messages, None)
}

/// Returns the same with a child that runs as `user`, if given.
fn child_of(bench: &Bench, messages: u32, user: Option<u32>) -> (AnyProvider, ViId, Child) {
    let address = bench.address();
    let mut b = bench.provider();
    b.listen(&address).unwrap();
    let mut program = std::env::current_exe().unwrap();
    let copy = std::env::temp_dir().join(format!("csp-vi-child-{}", std::process::id()));
    if user.is_some() {
        // Other users may not be able to read the build directory, hence the copy. `cp` makes it, not this
        // process: a child forked by another test would inherit the file open for writing until its exec, and
        // executing the copy would fail (ETXTBSY).
        let copied = Command::new("cp").arg(&program).arg(&copy).status().unwrap();
        assert!(copied.success());
        program = copy.clone();
    }
    let mut child = spawn(bench, &address, messages, &program, user);
    let request = wait("request", || match b.poll_event() {
        Some(Event::Request(request)) => Some(request),
        None => None,
        other => panic!("{other:?}"),
    });
    assert!(user.is_none() || request.peer_uid == user, "{request:?}");
    let vi = b.accept(request.id, CONFIG, b"").unwrap();
    established(&mut [(&mut b, vi)]);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let sent = std::thread::spawn(move || lines.map_while(Result::ok).any(|line| line == "sent"));
    wait("output of the child", || {
        // A library that sends through a socket does so while it is polled. Messages stay in their queue.
        assert_eq!(b.poll_event(), None);
        sent.is_finished().then_some(())
    });
    assert!(sent.join().unwrap(), "the child failed");
    let _ = std::fs::remove_file(copy);
    (b, vi, child)
}

fn spawn(bench: &Bench, address: &ViAddress, messages: u32, program: &Path, user: Option<u32>) -> Child {
    let mut child = Command::new(program);
    if let Some(user) = user {
        child.uid(user);
    }
    child
        .args(["--exact", "processes::child", "--ignored", "--nocapture"])
        .env(ROLE, format!("{} {} {messages}", bench.kind, text(address)))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn text(address: &ViAddress) -> String {
    match address {
        ViAddress::Path(path) => path.display().to_string(),
        other => other.to_string(),
    }
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Messages sent before the kill are received; then the end is reported as unclean.
pub fn what_a_killed_process_sent_still_arrives(bench: &Bench) {
    let (mut b, vi, child) = child_that_sent(bench, CONFIG.receive_depth);
    kill(child);
    let mut got = 0;
    let ended = wait("end", || {
        while let Some(message) = take(&mut b) {
            assert_eq!((message.immediate, message.bytes), (got, vec![got as u8; 1000]));
            got += 1;
        }
        b.poll_event()
    });
    assert_eq!((ended, got), (Event::Disconnected { vi, clean: false }, CONFIG.receive_depth));
    b.disconnect(vi).unwrap();
}

/// A connector killed at any moment leaves only unclean ends behind, and others are served.
pub fn a_connector_killed_at_any_moment_is_survived(bench: &Bench) {
    let address = bench.address();
    let (mut a, mut b) = (bench.provider(), bench.provider());
    b.listen(&address).unwrap();
    let mut accepted = Vec::new();
    let mut step = |b: &mut AnyProvider| {
        assert_eq!(b.poll(), None);
        match b.poll_event() {
            Some(Event::Request(request)) => accepted.extend(b.accept(request.id, CONFIG, b"")),
            Some(Event::Disconnected { vi, clean }) => {
                assert!(!clean);
                accepted.retain(|of| *of != vi);
                b.disconnect(vi).unwrap();
            }
            Some(Event::Established { .. }) | None => {}
            Some(other) => panic!("{other:?}"),
        }
        accepted.len()
    };
    for n in 0..12 {
        let child = spawn(bench, &address, 0, &std::env::current_exe().unwrap(), None);
        let end = Instant::now() + Duration::from_millis(n * 15);
        while Instant::now() < end {
            step(&mut b);
        }
        kill(child);
    }
    wait("all ends", || (step(&mut b) == 0).then_some(()));
    let (from_a, _) = connect(&mut a, &mut b, &address, CONFIG);
    a.post_send(from_a, 0, 3, &[b"served"], false).unwrap();
    assert_eq!(message(&mut b, &mut a).immediate, 3);
}

/// A blocked process is woken by the death of its peer; otherwise it would sleep for the patience of these
/// tests.
pub fn the_death_of_a_peer_wakes_a_waiting_process(bench: &Bench) {
    let (mut b, vi, child) = child_that_sent(bench, 0);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        kill(child);
    });
    let ended = wait("end", || {
        assert_eq!(b.poll(), None::<Completion>);
        let event = b.poll_event();
        if event.is_none() && b.arm() == Ok(Armed::Armed) {
            block(&mut b);
        }
        event
    });
    assert_eq!(ended, Event::Disconnected { vi, clean: false });
    killer.join().unwrap();
}
