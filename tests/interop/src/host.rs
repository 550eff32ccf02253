//! Threads that are hosts: each in a network namespace of its own, with its interfaces set up by `ip` and `ethtool`.

#![allow(unsafe_code, reason = "two calls that rustix leaves to the caller's judgement")]

use std::os::fd::{BorrowedFd, RawFd};
use std::process::Command;

use anyhow::{Context, Result, bail};
use csp_types::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::UnshareFlags;

/// Real-time priority of the fault device: it is the wire, and waits for nobody.
pub const DEVICE_PRIORITY: u8 = 3;
/// Real-time priority of clients and servers, the engine's among them.
pub const HOST_PRIORITY: u8 = 2;

/// Takes the calling thread to a new network namespace, which lasts as long as a thread or a link needs it.
pub fn enter_new_network() -> Result<()> {
    // SAFETY: only the network namespace is split off; descriptors, file system and memory stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .context("a network namespace needs root")?;
    run("ip", &["link", "set", "lo", "up"])?;
    // No router solicitations or duplicate address detection between the packets that count.
    write_setting("ipv6/conf/all/disable_ipv6", "1")?;
    write_setting("ipv6/conf/default/disable_ipv6", "1")
}

/// The calling thread's id, by which `ip` finds its namespace.
pub fn thread_id() -> String {
    rustix::thread::gettid().as_raw_nonzero().to_string()
}

/// Runs a command in the calling thread's namespace.
pub fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Writes a setting under `/proc/sys/net` of the calling thread's namespace.
pub fn write_setting(name: &str, value: &str) -> Result<()> {
    std::fs::write(format!("/proc/sys/net/{name}"), value).with_context(|| format!("net/{name} = {value}"))
}

/// Makes every packet on `interface` one of MTU size, so that faults strike packets and not 64 KB frames.
pub fn disable_segmentation(interface: &str) -> Result<()> {
    run("ethtool", &["-K", interface, "tso", "off", "gso", "off", "gro", "off"])
}

/// Gives the calling thread a real-time priority, so that other work on the machine does not show in the numbers. The
/// kernel's TCP needs none: it runs where packets arrive.
pub fn raise_priority(priority: u8) -> Result<()> {
    run("chrt", &["--fifo", "--pid", &priority.to_string(), &thread_id()])
}

/// CLOCK_MONOTONIC.
pub fn now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Waits until one of the descriptors is readable or `until` has come; each must stay open during the call.
pub fn wait_readable(descriptors: &[RawFd], until: Instant) {
    // SAFETY: the descriptors are those of LAN ports that their callers own and keep open.
    let borrowed = descriptors.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
    let mut polled: Vec<PollFd<'_>> =
        borrowed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let nanos = (until - now()).as_nanos() as i64;
    let timeout = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
    // EINTR is a reason to look again, like any other.
    let _ = poll(&mut polled, Some(&timeout));
}
