//! The daemons of CSP that run on this host, from /proc.

use super::host::Host;

/// Programs of CSP that run as daemons. The kernel cuts the name of a process to 15 bytes.
const PROGRAMS: [&str; 6] =
    ["csp-network-node", "csp-proxy-node", "csp-edge-node", "csp-app-node", "csp-mgmt-node", "csp-context"];
/// Longest name of a process in /proc.
const COMM_LEN_MAX: usize = 15;

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its program.
    pub program: &'static str,
    /// Whether the program's file was replaced or removed since it started.
    pub replaced: bool,
}

/// Returns the daemons that run.
pub fn all(host: &Host) -> Vec<Process> {
    let pids = host.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let comm = host.text(format!("/proc/{pid}/comm"))?;
        let program = PROGRAMS.iter().find(|name| name[..name.len().min(COMM_LEN_MAX)] == *comm)?;
        let file = host.link(&format!("/proc/{pid}/exe"));
        let replaced = file.is_some_and(|file| file.to_string_lossy().ends_with(" (deleted)"));
        Some(Process { pid, program, replaced })
    })
    .collect()
}

/// Returns the limit of locked memory of a process in bytes, `Some(None)` if it has none; `None` if it is not
/// known.
pub fn memlock(host: &Host, pid: u32) -> Option<Option<u64>> {
    let limits = host.text(format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    }
}
