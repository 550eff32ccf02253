//! Watches a row's sockets: which ones the agent reports, and whether the kernel has any of the service's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};
use csp_api::app::Socket;

use super::stage::Stage;
use crate::cluster::Tier;
use crate::demo::kernel_tcp;
use crate::host::Host;
use crate::identities;

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_millis(250);

/// What was seen of a row's sockets.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    /// Connections that processes accepted from proxies.
    pub accepted: u64,
    /// Connections that processes opened through proxies.
    pub opened: u64,
    /// Connections over a Unix socket of the agent, because several processes shared them.
    pub shared: u64,
    /// Listeners known to proxies.
    pub listeners: u64,
    /// Listeners and connections left to the kernel, by kind and reason.
    pub kernel: BTreeMap<String, u64>,
    /// A kernel TCP socket of the service, as printed by `ss`.
    pub kernel_tcp: Option<String>,
}

impl Seen {
    /// Adds what was seen of the same row over another SAN.
    pub fn add(&mut self, other: Seen) {
        self.accepted += other.accepted;
        self.opened += other.opened;
        self.shared += other.shared;
        self.listeners += other.listeners;
        for (what, count) in other.kernel {
            *self.kernel.entry(what).or_default() += count;
        }
        self.kernel_tcp = self.kernel_tcp.take().or(other.kernel_tcp);
    }
}

/// A thread that checks until it is stopped.
#[derive(Debug)]
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Looks>>,
}

#[derive(Default)]
struct Looks {
    kernel_tcp: Option<String>,
    /// Kind and reason of the kernel sockets in pages, one for each process, descriptor and address.
    kernel: BTreeMap<(String, String), String>,
}

impl Watch {
    /// Starts watching the hosts of app node and proxy node.
    pub fn start(hosts: [Host; 2], scratch: PathBuf, ports: &'static [u16]) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let mut looks = Looks::default();
            let mut last = false;
            while !last {
                last = stop.load(Ordering::Relaxed);
                look(&hosts, &scratch, ports, &mut looks, last)?;
                if !last {
                    std::thread::park_timeout(INTERVAL);
                }
            }
            Ok(looks)
        })?;
        Ok(Watch { over, thread })
    }

    /// Checks once more, and adds the counters in the pages of all processes.
    pub fn end(self, stage: &Stage) -> Result<Seen> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        let looks = self.thread.join().map_err(|_| anyhow!("the watch panicked"))??;
        let processes = stage.processes()?;
        let sum = |name: &str| -> u64 {
            processes.iter().filter_map(|process| process.counters.get(&name.into())).sum()
        };
        let mut seen = Seen {
            accepted: sum("accepted"),
            opened: sum("connects"),
            shared: sum("connections_shared"),
            listeners: sum("listeners_accelerated"),
            kernel: BTreeMap::new(),
            kernel_tcp: looks.kernel_tcp,
        };
        for (kind, counter) in [("listener", "listeners_kernel"), ("connection", "connects_kernel")] {
            let count = sum(counter);
            if count > 0 {
                seen.kernel.insert(format!("{kind}: {}", reasons(&looks.kernel, kind)), count);
            }
        }
        Ok(seen)
    }
}

/// Returns the reasons in pages for kernel sockets of a kind.
fn reasons(kernel: &BTreeMap<(String, String), String>, kind: &str) -> String {
    let wanted = format!("kernel-{kind}");
    let mut found: Vec<&str> =
        kernel.iter().filter(|((k, _), _)| *k == wanted).map(|(_, r)| r.as_str()).collect();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() { "reason not seen".to_owned() } else { found.join(", ") }
}

/// Checks once. If the agent does not answer, that is an error only if `must` is set: the row may have killed
/// it just now.
fn look(hosts: &[Host; 2], scratch: &Path, ports: &[u16], looks: &mut Looks, must: bool) -> Result<()> {
    for host in hosts {
        if looks.kernel_tcp.is_none() {
            looks.kernel_tcp = kernel_tcp(host, ports)?;
        }
    }
    let path = "/v1/sockets?limit=10000";
    let text = match identities::ask(&hosts[0], scratch, &Tier::AppNode.admin(), path) {
        Err(error) if must => return Err(error),
        answer => answer.unwrap_or_default(),
    };
    if text.is_empty() {
        return Ok(());
    }
    for socket in serde_json::from_str::<Vec<Socket>>(&text)? {
        if socket.kind.starts_with("kernel-") {
            let what = format!("{} {} {} {}", socket.process, socket.fd, socket.local, socket.remote);
            looks.kernel.insert((socket.kind.into(), what), socket.reason.into());
        }
    }
    Ok(())
}
