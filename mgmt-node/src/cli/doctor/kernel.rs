//! Checks of the kernel: its release and features, the BPF file system, TAP devices, memory, processors,
//! clock.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use csp_types::Role;

use super::super::table::bytes;
use super::finding::{Findings, Level};
use super::{Seen, processes};

/// What the agent needs (`pidfd_getfd`).
const RELEASE_MIN: (u64, u64) = (5, 6);
/// What packet plug-ins in the driver need (decision 0060).
const RELEASE_LEVEL_1: (u64, u64) = (5, 18);
/// Longest configuration of a kernel, in bytes.
const CONFIG_LEN_MAX: u64 = 4 << 20;
/// The network node's folder in the BPF file system.
const BPF_FOLDER: &str = "/sys/fs/bpf/csp-network";
/// Locked memory below which RDMA is not to be expected to work, in bytes.
const MEMLOCK_MIN: u64 = 64 << 20;
/// Difference of clocks that shows in traces and certificates, in milliseconds.
const SKEW_MS: i64 = 2_000;
/// Difference of clocks at which new certificates may not be valid yet, in milliseconds.
const SKEW_MS_MAX: i64 = 60_000;

/// `kernel`: its release and what it was built with.
pub fn kernel(seen: &Seen, findings: &mut Findings) {
    let Some(text) = seen.host.text("/proc/sys/kernel/osrelease") else {
        return findings.not_checked("the kernel's release", "/proc is not there");
    };
    let release = release(&text);
    if release < RELEASE_MIN {
        findings.error(
            format!("Linux {text}"),
            format!(
                "the agent takes sockets over by pidfd_getfd, which came with Linux {}",
                dotted(RELEASE_MIN)
            ),
            "install a later kernel",
        );
    } else if release < RELEASE_LEVEL_1 && seen.has(Role::NetworkNode) {
        findings.warning(
            format!("Linux {text}"),
            format!("packet plug-ins in the driver (level 1) need Linux {}", dotted(RELEASE_LEVEL_1)),
            "install a later kernel, or keep plug-ins at level 2",
        );
    } else {
        findings.ok(format!("Linux {text}"));
    }
    if !seen.has(Role::NetworkNode) {
        return;
    }
    if seen.host.number("/proc/sys/net/core/bpf_jit_enable") == Some(0) {
        findings.warning(
            "the BPF compiler is off",
            "programs in the driver run interpreted, or are refused",
            "sysctl -w net.core.bpf_jit_enable=1",
        );
    }
    match options(seen, &text) {
        Some(options) => features(seen, &options, findings),
        None => findings.not_checked(
            "what the kernel was built with",
            format!("neither /boot/config-{text} nor /proc/config.gz can be read"),
        ),
    }
}

/// The options that a network node uses, and what each is for.
const OPTIONS: [(&str, &str); 6] = [
    ("PACKET", "LAN ports read and write frames by AF_PACKET"),
    ("BPF_SYSCALL", "frames are distributed among workers, and plug-ins run in the driver, by BPF"),
    ("XDP_SOCKETS", "ports of the kind af_xdp"),
    ("TUN", "ports of the kind af_xdp give the kernel its packets by a TAP device"),
    ("NET_CLS_BPF", "packets of AF_XDP ports reach the host's kernel (decision 0071)"),
    ("NET_ACT_MIRRED", "packets of AF_XDP ports reach the host's kernel (decision 0071)"),
];

fn features(seen: &Seen, options: &BTreeSet<String>, findings: &mut Findings) {
    let needed = |option: &str| match option {
        "PACKET" => Level::Error,
        "BPF_SYSCALL" => Level::Warning,
        _ if seen.has_xdp_ports() => Level::Error,
        _ => Level::Info,
    };
    let missing: Vec<_> = OPTIONS.iter().filter(|(name, _)| !options.contains(*name)).collect();
    for (name, why) in &missing {
        let remedy = format!("install a kernel with CONFIG_{name}");
        findings.add(needed(name), format!("the kernel has no CONFIG_{name}"), *why, remedy);
    }
    if missing.is_empty() {
        findings.ok("it has AF_PACKET, AF_XDP, BPF, TAP devices and the traffic control that they need");
    }
}

/// The options that are built in or modules, without `CONFIG_`.
fn options(seen: &Seen, release: &str) -> Option<BTreeSet<String>> {
    let plain = seen.host.bytes(Path::new(&format!("/boot/config-{release}")), CONFIG_LEN_MAX);
    let packed = || {
        let bytes = seen.host.bytes(Path::new("/proc/config.gz"), CONFIG_LEN_MAX)?;
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&*bytes).take(CONFIG_LEN_MAX).read_to_end(&mut text).ok()?;
        Some(text)
    };
    let text = plain.or_else(packed)?;
    let text = String::from_utf8_lossy(&text);
    let on = text.lines().filter_map(|line| line.strip_prefix("CONFIG_")?.split_once('='));
    Some(on.filter(|(_, value)| matches!(*value, "y" | "m")).map(|(name, _)| name.to_owned()).collect())
}

fn release(text: &str) -> (u64, u64) {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn dotted((major, minor): (u64, u64)) -> String {
    format!("{major}.{minor}")
}

/// `bpf-fs`: the file system in which packet plug-ins of level 1 are kept.
pub fn bpf_fs(seen: &Seen, findings: &mut Findings) {
    if !seen.has(Role::NetworkNode) {
        return findings.ok("not needed: this host has no network node");
    }
    let Some(mounts) = seen.host.text("/proc/mounts") else {
        return findings.not_checked("the BPF file system", "/proc is not there");
    };
    let mounted = mounts.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some("/sys/fs/bpf") && fields.next() == Some("bpf")
    });
    let why = "rules of level 1 stay at level 2, and programs of AF_XDP ports do not outlive the daemon";
    if !mounted {
        return findings.warning("/sys/fs/bpf is not mounted", why, "mount -t bpf bpf /sys/fs/bpf");
    }
    let packaged = seen.host.exists("/usr/lib/systemd/system/csp-network-node.service");
    match seen.host.has(BPF_FOLDER) {
        Ok(false) if packaged => {
            let remedy = "systemd-tmpfiles --create && systemctl restart csp-network-node";
            findings.warning(format!("{BPF_FOLDER}, the node's own folder, is missing"), why, remedy);
        }
        // The file system is its owner's alone.
        Err(error) if packaged => findings.not_checked(BPF_FOLDER, error),
        _ => findings.ok("/sys/fs/bpf is mounted"),
    }
}

/// `tun`: TAP devices, by which AF_XDP ports give the host's kernel its packets.
pub fn tun(seen: &Seen, findings: &mut Findings) {
    let there = seen.host.exists("/dev/net/tun");
    let why = "an AF_XDP port gives the host's own packets to its kernel by a TAP device";
    if !seen.host.exists("/dev/null") {
        return findings.not_checked("TAP devices", "/dev has no devices");
    }
    match (there, seen.has_xdp_ports()) {
        (true, _) => findings.ok("/dev/net/tun is there"),
        (false, true) => findings.error("/dev/net/tun is missing", why, "modprobe tun"),
        (false, false) => {
            findings.ok("/dev/net/tun is missing and not needed: no port is of the kind af_xdp")
        }
    }
}

/// `memlock`: how much memory the daemons may lock.
pub fn memlock(seen: &Seen, findings: &mut Findings) {
    let forced = seen.daemons.iter().any(|daemon| daemon.provider() == "verbs") || seen.has_xdp_ports();
    let rdma = !seen.host.names("/sys/class/infiniband").is_empty();
    let why = "RDMA and AF_XDP lock the memory that they transfer from";
    let mut judge = |who: String, limit: Option<u64>, unit: &str| match limit {
        None => findings.ok(format!("{who} may lock any amount of memory")),
        Some(limit) if limit >= MEMLOCK_MIN => {
            findings.ok(format!("{who} may lock {}", bytes(limit)));
        }
        Some(limit) => {
            let level = match (forced, rdma) {
                (true, _) => Level::Error,
                (false, true) => Level::Warning,
                (false, false) => Level::Info,
            };
            let found = format!("{who} may lock {} only", bytes(limit));
            let remedy = format!("systemctl edit {unit}    # [Service] LimitMEMLOCK=infinity");
            findings.add(level, found, why, remedy);
        }
    };
    let running = processes::all(&seen.host);
    let known =
        running.iter().filter_map(|process| Some((process, processes::memlock(&seen.host, process.pid)?)));
    let known: Vec<_> = known.filter(|(process, _)| process.program != "csp-mgmt-node").collect();
    for (process, limit) in &known {
        judge(format!("{} (pid {})", process.program, process.pid), *limit, process.program);
    }
    if !known.is_empty() {
        return;
    }
    let Some(first) = seen.daemons.first() else {
        return findings.ok("no node is configured on this host");
    };
    match seen.host.memlock() {
        // Daemons do not have the limit of the shell.
        Some(Some(limit)) if limit < MEMLOCK_MIN => findings.info(
            format!("no daemon runs; a process of this shell may lock {} only", bytes(limit)),
            "a daemon has the limit of its unit",
            format!("systemctl show --property=LimitMEMLOCK {}", first.unit(&seen.host)),
        ),
        Some(limit) => judge("no daemon runs; a process of this shell".to_owned(), limit, ""),
        None => findings.not_checked("how much memory daemons may lock", "none of them runs"),
    }
}

/// `hugepages`: what is reserved and used by nobody.
pub fn hugepages(seen: &Seen, findings: &mut Findings) {
    let text = seen.host.text("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    match (of("HugePages_Free").unwrap_or(0), of("Hugepagesize").unwrap_or(2048)) {
        (0, _) => findings.ok("no huge pages lie idle; CSP needs none"),
        (free, kib) => findings.info(
            format!("{free} huge pages of {kib} KiB are reserved and free"),
            "CSP uses none: the memory is lost to others unless another program wants it",
            "sysctl -w vm.nr_hugepages=0",
        ),
    }
}

/// `processors`: workers against the processors that there are.
pub fn processors(seen: &Seen, findings: &mut Findings) {
    let online = cpus(&seen.host.text("/sys/devices/system/cpu/online").unwrap_or_default());
    if online.is_empty() {
        return findings.not_checked("the processors", "/sys/devices/system/cpu/online cannot be read");
    }
    let mut used: Vec<(u64, String)> = Vec::new();
    for daemon in seen.daemons.iter().filter(|daemon| daemon.workers() > 0) {
        let (file, workers) = (&daemon.file, daemon.workers());
        let absent: Vec<_> = daemon.config.cpus.iter().filter(|cpu| !online.contains(cpu)).collect();
        if !absent.is_empty() {
            findings.error(
                format!("{file}: cpus names {absent:?}; this host has {}", ranges(&online)),
                "a worker cannot run on a processor that is not there",
                format!("${{EDITOR:-vi}} {file}"),
            );
        }
        if workers > online.len() as u64 {
            findings.warning(
                format!("{file}: {workers} workers, and this host has {} processors", online.len()),
                "workers poll, and take processors from each other",
                format!("${{EDITOR:-vi}} {file}    # workers: {}", online.len()),
            );
        }
        let edge = daemon.unit(&seen.host) == "csp-edge-node";
        for cpu in daemon.config.cpus.iter().take(workers as usize) {
            let other = used.iter().find(|(of, _)| of == cpu).filter(|_| !edge);
            if let Some((_, other)) = other {
                findings.warning(
                    format!("processor {cpu} is in cpus of {other} and of {file}"),
                    "two workers share it, while each would use it whole",
                    format!("${{EDITOR:-vi}} {file}"),
                );
            }
            used.push((*cpu, file.clone()));
        }
    }
    let governor = seen.host.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    if governor.as_deref() == Some("powersave") {
        findings.info(
            "processors follow the governor powersave",
            "on some of them the clock stays low, and latency is higher",
            "cpupower frequency-set -g performance",
        );
    }
    if findings.is_well() {
        let workers: u64 = seen.daemons.iter().map(super::configuration::Daemon::workers).sum();
        findings.ok(format!("{} processors; {workers} workers are configured", online.len()));
    }
}

/// Reads a list such as `0-3,8`.
fn cpus(text: &str) -> BTreeSet<u64> {
    let parts = text.split(',').filter_map(|part| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?))
    });
    // A kernel numbers at most 8,192.
    parts.flat_map(|(first, last)| first..=last.min(8_191)).collect()
}

fn ranges(cpus: &BTreeSet<u64>) -> String {
    match (cpus.first(), cpus.last()) {
        (Some(first), Some(last)) if last - first + 1 == cpus.len() as u64 => format!("{first} to {last}"),
        _ => format!("{cpus:?}"),
    }
}

/// `clock`: it is kept by somebody, and agrees with the management node's.
pub fn clock(seen: &Seen, findings: &mut Findings) {
    let why = "certificates are valid from a time on, and times of traces and events of hosts are compared";
    match synchronised(seen) {
        Ok(true) => findings.ok("the clock is synchronised"),
        Ok(false) => {
            findings.warning(
                "the clock is not synchronised",
                why,
                "timedatectl set-ntp true    # or: apt install chrony",
            );
        }
        Err(reason) => findings.not_checked("whether the clock is synchronised", reason),
    }
    let Some(cluster) = &seen.cluster else { return };
    let (ms, error) = cluster.clock_ahead_ms;
    let level = match ms.abs() - error {
        beyond if beyond > SKEW_MS_MAX => Level::Error,
        beyond if beyond > SKEW_MS => Level::Warning,
        _ => Level::Ok,
    };
    let ahead = if ms < 0 { "behind" } else { "ahead of" };
    let found = format!("the clock is {} ms {ahead} the management node's, ± {error} ms", ms.abs());
    match level {
        Level::Ok => findings.ok(found),
        level => findings.add(level, found, why, "chronyc tracking    # on both hosts"),
    }
}

fn synchronised(seen: &Seen) -> Result<bool, String> {
    if seen.host.exists("/run/systemd/timesync/synchronized") {
        return Ok(true);
    }
    if let Ok(ran) = seen.host.run("chronyc", &["-n", "tracking"])
        && let Some(status) = ran.out.lines().find_map(|line| line.strip_prefix("Leap status"))
    {
        return Ok(!status.contains("Not synchronised"));
    }
    let ran = seen.host.run("timedatectl", &["show", "--property=NTPSynchronized", "--value"]);
    match ran {
        Ok(ran) if ran.out.trim() == "yes" => Ok(true),
        Ok(ran) if ran.out.trim() == "no" => Ok(false),
        Ok(ran) => Err(ran.err.lines().next().unwrap_or("timedatectl says nothing").to_owned()),
        Err(reason) => Err(reason.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(cpus("0-2,7"), BTreeSet::from([0, 1, 2, 7]));
        assert_eq!(cpus("0-99999999999").len(), 8_192);
        assert_eq!((cpus(""), cpus("x-1")), (BTreeSet::new(), BTreeSet::new()));
    }

    #[test]
    fn releases_are_read() {
        assert_eq!((release("6.18.44-fc-v657"), release("5.6"), release("")), ((6, 18), (5, 6), (0, 0)));
    }
}
