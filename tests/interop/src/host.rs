//! Threads as hosts: each in its own network namespace, with interfaces configured by `ip` and `ethtool`.

#![allow(unsafe_code, reason = "two calls that rustix leaves to the caller's judgement")]

use std::os::fd::{BorrowedFd, RawFd};
use std::process::Command;

use anyhow::{Context, Result, bail};
use csp_types::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::UnshareFlags;

/// Real-time priority of the fault device, which must not wait for any host.
pub const DEVICE_PRIORITY: u8 = 3;
/// Real-time priority of clients and servers, including the engine's.
pub const HOST_PRIORITY: u8 = 2;

/// Moves the calling thread to a new network namespace, which exists as long as a thread or a link uses it.
pub fn enter_new_network() -> Result<()> {
    // SAFETY: only the network namespace is unshared. File descriptor table, file system context and memory
    // remain shared, so no other thread's view of them changes.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .context("a network namespace needs root")?;
    run("ip", &["link", "set", "lo", "up"])?;
    // Avoids router solicitations and duplicate address detection during measurements.
    write_setting("ipv6/conf/all/disable_ipv6", "1")?;
    write_setting("ipv6/conf/default/disable_ipv6", "1")
}

/// Returns the calling thread's id, which identifies its namespace for `ip`.
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

/// Limits every packet on `interface` to the MTU, so that faults apply to packets and not to frames of 64 KB.
pub fn disable_segmentation(interface: &str) -> Result<()> {
    run("ethtool", &["-K", interface, "tso", "off", "gso", "off", "gro", "off"])
}

/// Gives the calling thread a real-time priority, so that other load on the machine does not affect the
/// results. The kernel's TCP does not need it: it runs in the context where packets arrive.
pub fn raise_priority(priority: u8) -> Result<()> {
    run("chrt", &["--fifo", "--pid", &priority.to_string(), &thread_id()])
}

/// Returns CLOCK_MONOTONIC.
pub fn now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Waits until a descriptor is readable or until the time `until`. The descriptors must stay open during the
/// call.
pub fn wait_readable(descriptors: &[RawFd], until: Instant) {
    // SAFETY: the descriptors belong to LAN ports that the callers own and keep open during the call.
    let borrowed = descriptors.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
    let mut polled: Vec<PollFd<'_>> =
        borrowed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let nanos = (until - now()).as_nanos() as i64;
    let timeout = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
    // After EINTR the caller checks for work as after any other return.
    let _ = poll(&mut polled, Some(&timeout));
}
