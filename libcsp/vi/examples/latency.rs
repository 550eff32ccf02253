//! Prints half-round-trip latencies between two processes that poll: `latency [rounds]`.
//!
//! The child is a process of its own, so that the memory is really mapped twice. Copies in and out of the ring count.
#![allow(clippy::disallowed_types, reason = "a benchmark owns its clock")]

use std::process::{Command, ExitCode};
use std::time::Instant;

use csp_vi::shm::ShmProvider;
use csp_vi::{Completion, Event, Provider, ViAddress, ViConfig, ViId};

const CONFIG: ViConfig = ViConfig { receive_depth: 64, send_depth: 64, message_len: 16384 };
const SIZES: [usize; 4] = [64, 1024, 4096, 16384];

fn echo(provider: &mut ShmProvider, vi: ViId) {
    let mut bytes = vec![0; CONFIG.message_len as usize];
    loop {
        if let Some(Completion::Received { buffer, len, .. }) = provider.poll() {
            let len = len as usize;
            if provider.read(vi, buffer, 0, &mut bytes[..len]).is_err()
                || provider.post_recv(vi, buffer).is_err()
                || provider.post_send(vi, 0, 0, &[&bytes[..len]], false).is_err()
            {
                return;
            }
        } else if matches!(provider.poll_event(), Some(Event::Disconnected { .. })) {
            return;
        }
    }
}

fn child(path: &str) -> Result<(), csp_vi::ViError> {
    let mut provider = ShmProvider::new()?;
    let address = ViAddress::Path(path.into());
    let (vi, _) = provider.connect_wait(&address, CONFIG, b"", 5000)?;
    echo(&mut provider, vi);
    Ok(())
}

fn measure(provider: &mut ShmProvider, vi: ViId, len: usize, rounds: usize) -> Vec<u64> {
    let mut bytes = vec![7; len];
    let mut nanos = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        provider.post_send(vi, 0, 0, &[&bytes], false).expect("the window is never full");
        loop {
            if let Some(Completion::Received { buffer, .. }) = provider.poll() {
                provider.read(vi, buffer, 0, &mut bytes).expect("held");
                provider.post_recv(vi, buffer).expect("held");
                break;
            }
        }
        nanos.push(start.elapsed().as_nanos() as u64 / 2);
    }
    nanos.sort_unstable();
    nanos
}

fn run(rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("csp-vi-latency-{}.sock", std::process::id()));
    let mut provider = ShmProvider::new()?;
    provider.listen(&ViAddress::Path(path.clone()))?;
    let mut child = Command::new(std::env::current_exe()?).arg("--child").arg(&path).spawn()?;
    let vi = loop {
        match provider.poll_event() {
            Some(Event::Request(request)) => {
                provider.accept(request.id, CONFIG, b"")?;
            }
            Some(Event::Established { vi, .. }) => break vi,
            _ => {}
        }
    };
    println!("shm, polling, half round trip in ns (median, 99th percentile) of {rounds} rounds");
    for len in SIZES {
        measure(&mut provider, vi, len, rounds / 10 + 1);
        let nanos = measure(&mut provider, vi, len, rounds);
        println!("{len:>6} B {:>8} {:>8}", nanos[rounds / 2], nanos[rounds * 99 / 100]);
    }
    provider.disconnect(vi)?;
    child.wait()?;
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let result = match arguments.get(1).map(String::as_str) {
        Some("--child") => child(arguments.get(2).map_or("", |path| path)).map_err(Into::into),
        rounds => run(rounds.and_then(|r| r.parse().ok()).unwrap_or(200_000)),
    };
    if let Err(error) = result {
        eprintln!("latency: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
