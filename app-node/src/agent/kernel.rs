//! Permissions that the kernel of this host would grant a process, read from /proc and from the sockets that
//! the process holds.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use csp_types::grant::{HELD_MAX, Held, Ports};
use csp_vi::kernel::{Credentials, network_of};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Largest number of a process's descriptors that are examined.
const DESCRIPTORS_MAX: usize = 4096;
/// The capability to bind low ports (capabilities(7)).
const CAP_NET_BIND_SERVICE: u32 = 10;
/// The first port that any user may bind, if the kernel reports no other.
const UNPRIVILEGED_START: u16 = 1024;
const ROOT: u32 = 0;

/// Returns the ports that a process could bind in this host's network namespace; `None` if it is in another
/// one. Reads /proc only, none of the process's files.
pub fn bindable(peer: Credentials) -> Option<Ports> {
    if !shares_namespace(peer.pid, "net") {
        return None;
    }
    let capable = || shares_namespace(peer.pid, "user") && has_capability(peer.pid) && is_of_its_user(peer);
    let first = if peer.uid == ROOT || capable() { 0 } else { unprivileged_start() };
    Some(Ports { first, last: u16::MAX })
}

/// Returns the TCP sockets of this host that a process holds, whichever user created them. Duplicates
/// descriptors of the process and closes them, so it has to run on a [helper](super::helper).
pub fn held(peer: Credentials) -> Vec<Held> {
    let pid = i32::try_from(peer.pid).ok().and_then(Pid::from_raw);
    let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return Vec::new();
    };
    let held = held_sockets(peer.pid, &pidfd);
    if is_of_its_user(peer) { held } else { Vec::new() }
}

/// Returns whether the process still has the user in its credentials. Called last, this proves that the
/// process id was not reassigned to another user's process before.
fn is_of_its_user(peer: Credentials) -> bool {
    effective_user(peer.pid) == Some(peer.uid)
}

/// Returns whether a process is in the agent's namespace of this kind.
fn shares_namespace(pid: u32, kind: &str) -> bool {
    let identity = |of: &str| fs::metadata(format!("/proc/{of}/ns/{kind}")).map(|m| (m.dev(), m.ino())).ok();
    identity("self").is_some_and(|own| identity(&pid.to_string()) == Some(own))
}

/// Returns the value of a line of /proc/PID/status.
fn status(pid: u32, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|rest| rest.trim().to_owned())
}

fn effective_user(pid: u32) -> Option<u32> {
    status(pid, "Uid")?.split_whitespace().nth(1)?.parse().ok()
}

fn has_capability(pid: u32) -> bool {
    let effective = status(pid, "CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    effective.is_some_and(|set| set >> CAP_NET_BIND_SERVICE & 1 == 1)
}

fn unprivileged_start() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(UNPRIVILEGED_START)
}

/// Returns the TCP sockets of this host that the process holds and that are bound to a port, each pair of
/// port and creator once.
fn held_sockets(pid: u32, pidfd: &OwnedFd) -> Vec<Held> {
    let Some(own) = own_network() else { return Vec::new() };
    let Ok(folder) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in folder.flatten().take(DESCRIPTORS_MAX) {
        let is_socket =
            fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|_| is_socket && found.len() < HELD_MAX) else { continue };
        let Ok(socket) = pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()) else { continue };
        match bound(&socket, own) {
            Some(held) if !found.contains(&held) => found.push(held),
            _ => {}
        }
    }
    found
}

fn own_network() -> Option<u64> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    network_of(&socket).ok()
}

/// Returns port and creator of a TCP socket that is in this network namespace, bound, and not connected.
fn bound(socket: &OwnedFd, network: u64) -> Option<Held> {
    let family = sockopt::socket_domain(socket).ok()?;
    let stream = sockopt::socket_type(socket).ok()? == SocketType::STREAM;
    if !stream
        || !matches!(family, AddressFamily::INET | AddressFamily::INET6)
        || network_of(socket).ok()? != network
    {
        return None;
    }
    // The port of a connection is that of its listener, or was chosen by the kernel.
    if rustix::net::getpeername(socket).is_ok_and(|peer| peer.is_some()) {
        return None;
    }
    let name = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    // fstat of a socket never waits for a file system. The kernel stores its creator, which only CAP_CHOWN
    // can change.
    let uid = rustix::fs::fstat(socket).ok()?.st_uid;
    Some(Held { port: name.port(), uid }).filter(|held| held.port != 0)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_ports_of_held_sockets_are_found_and_those_of_connections_are_not() {
        let pid = std::process::id();
        let pidfd = pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (held, uid) = (held_sockets(pid, &pidfd), rustix::process::geteuid().as_raw());
        let is_held = |address: SocketAddr| held.contains(&Held { port: address.port(), uid });
        assert!(is_held(listener.local_addr().unwrap()), "{held:?}");
        assert!(!is_held(client.local_addr().unwrap()), "{held:?}");
    }

    #[test]
    fn this_process_has_its_own_namespaces_and_user() {
        let pid = std::process::id();
        assert!(shares_namespace(pid, "net") && shares_namespace(pid, "user") && !shares_namespace(0, "net"));
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(effective_user(pid), Some(uid));
        let ports = bindable(Credentials { pid, uid, gid: 0 }).unwrap();
        assert!(ports.contains(unprivileged_start()) && (uid != ROOT || ports.contains(80)), "{ports:?}");
        assert!(
            held(Credentials { pid, uid: uid + 1, gid: 0 }).is_empty(),
            "another user's process has this number"
        );
    }
}
