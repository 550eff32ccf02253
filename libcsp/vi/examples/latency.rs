//! Prints half-round-trip latencies between two processes: `latency [shm|ucx|verbs] [poll|wait] [rounds]`.
//! `CSP_VI_VERBS` holds the address of the RDMA device; compare with `ibv_rc_pingpong` on the same device.
//!
//! Both ends copy each message in and out. `poll` spins; `wait` arms the provider and blocks until it is
//! woken. The other end is a separate process, so the memory is mapped twice.
#![allow(clippy::disallowed_types, reason = "a benchmark owns its clock")]

use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::Instant;

use csp_vi::shm::ShmProvider;
use csp_vi::ucx::UcxProvider;
use csp_vi::verbs::VerbsProvider;
use csp_vi::{Armed, Completion, Event, Provider, ViAddress, ViConfig, ViId};

const CONFIG: ViConfig = ViConfig { receive_depth: 64, send_depth: 64, message_len: 16384 };
/// Round trips per reading of the clock. One reading costs more than a fifth of the shortest round trip.
const BATCH: u64 = 10;

const SIZES: [usize; 4] = [64, 1024, 4096, 16384];

type Failure = Box<dyn Error>;

fn provider(kind: &str) -> Result<Box<dyn Provider>, Failure> {
    match kind {
        "shm" => Ok(Box::new(ShmProvider::new()?)),
        "ucx" => Ok(Box::new(UcxProvider::new()?)),
        "verbs" => Ok(Box::new(VerbsProvider::new()?)),
        other => Err(format!("{other} is none of shm, ucx and verbs").into()),
    }
}

fn address(kind: &str, name: &str) -> Result<ViAddress, Failure> {
    Ok(match kind {
        "shm" => ViAddress::Path(name.into()),
        _ => ViAddress::Ip(name.parse()?),
    })
}

/// Receives the next message into `bytes` and returns its length. `None` at the end of the VI.
fn receive(provider: &mut dyn Provider, waiting: bool, bytes: &mut [u8]) -> Result<Option<usize>, Failure> {
    loop {
        if let Some(Completion::Received { vi, buffer, len, .. }) = provider.poll() {
            provider.read(vi, buffer, 0, &mut bytes[..len as usize])?;
            provider.post_recv(vi, buffer)?;
            return Ok(Some(len as usize));
        }
        match provider.poll_event() {
            Some(Event::Disconnected { .. }) => return Ok(None),
            None if waiting && provider.arm()? == Armed::Armed => block(provider),
            _ => {}
        }
    }
}

fn block(provider: &dyn Provider) {
    let mut descriptors = Vec::new();
    provider.wake(&mut descriptors);
    let mut polled: Vec<libc::pollfd> =
        descriptors.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: `polled` is a local array with as many entries as the count says, and outlives the call.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as u64, -1) };
}

fn established(provider: &mut dyn Provider) -> Result<ViId, Failure> {
    loop {
        match provider.poll_event() {
            Some(Event::Request(request)) => drop(provider.accept(request.id, CONFIG, b"")?),
            Some(Event::Established { vi, .. }) => return Ok(vi),
            Some(other) => return Err(format!("{other:?}").into()),
            None => drop(provider.poll()),
        }
    }
}

/// The other process: echoes every message.
fn echo(kind: &str, waiting: bool, name: &str) -> Result<(), Failure> {
    let mut provider = provider(kind)?;
    provider.connect(&address(kind, name)?, CONFIG, b"")?;
    let vi = established(provider.as_mut())?;
    let mut bytes = vec![0; CONFIG.message_len as usize];
    while let Some(len) = receive(provider.as_mut(), waiting, &mut bytes)? {
        provider.post_send(vi, 0, 0, &[&bytes[..len]], false)?;
    }
    Ok(())
}

fn measure(
    provider: &mut dyn Provider,
    vi: ViId,
    waiting: bool,
    len: usize,
    rounds: usize,
) -> Result<Vec<u64>, Failure> {
    let mut bytes = vec![7; len];
    let mut nanos = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..BATCH {
            provider.post_send(vi, 0, 0, &[&bytes], false)?;
            receive(provider, waiting, &mut bytes)?.ok_or("the other end is gone")?;
        }
        nanos.push(start.elapsed().as_nanos() as u64 / (2 * BATCH));
    }
    nanos.sort_unstable();
    Ok(nanos)
}

fn run(kind: &str, waiting: bool, rounds: usize) -> Result<(), Failure> {
    let name = match kind {
        "shm" => {
            let file = format!("csp-vi-latency-{}.sock", std::process::id());
            std::env::temp_dir().join(file).display().to_string()
        }
        "verbs" => format!("{}:7199", std::env::var("CSP_VI_VERBS")?),
        _ => "127.0.0.1:7199".to_owned(),
    };
    let mut provider = provider(kind)?;
    let provider = provider.as_mut();
    provider.listen(&address(kind, &name)?)?;
    let how = if waiting { "wait" } else { "poll" };
    let mut child = Command::new(std::env::current_exe()?).args(["--echo", kind, how, &name]).spawn()?;
    let vi = established(provider)?;
    println!(
        "{kind}, {how}: half round trip in ns (median, 99th percentile) of {rounds} times {BATCH} rounds"
    );
    for len in SIZES {
        measure(provider, vi, waiting, len, rounds / 10 + 1)?;
        let nanos = measure(provider, vi, waiting, len, rounds)?;
        println!("{len:>6} B {:>8} {:>8}", nanos[rounds / 2], nanos[rounds * 99 / 100]);
    }
    provider.disconnect(vi)?;
    while child.try_wait()?.is_none() {
        // A library that sends through a socket does so while it is polled.
        provider.poll();
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["--echo", kind, how, name] => echo(kind, how == "wait", name),
        [kind, how, rounds] => rounds
            .parse()
            .map_err(Into::into)
            .and_then(|rounds: usize| run(kind, how == "wait", rounds.max(1))),
        [kind, how] => run(kind, how == "wait", 5_000),
        [kind] => run(kind, false, 5_000),
        _ => run("shm", false, 5_000),
    };
    if let Err(error) = result {
        eprintln!("latency: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
