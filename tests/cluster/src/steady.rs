//! Clients that send requests continuously over one connection each, to find out which connections a failure
//! ends.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cluster::{Cluster, Tier};
use crate::configs::VIP;
use crate::host::Host;
use crate::process::{Process, wait_until};

/// How long a connection may take to continue or to end after a failure.
pub const SETTLED: Duration = Duration::from_secs(12);
/// The number of [`steady_clients`].
pub const CONNECTIONS: usize = 6;

/// A client with one kept-alive connection that sends requests continuously, and ends when the connection
/// does.
#[derive(Debug)]
pub struct Steady(Process);

impl Steady {
    fn start(cluster: &Cluster) -> Self {
        Steady::connect(&cluster.client, cluster.scratch(), VIP, 80)
    }

    /// Starts a client on host `client` that connects to a port of `vip`. Script and log are in the folder
    /// `scratch`.
    ///
    /// # Panics
    /// If Python cannot be started.
    pub fn connect(client: &Host, scratch: &Path, vip: &str, port: u16) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let at = STARTED.fetch_add(1, Ordering::Relaxed);
        let script = scratch.join("steady.py");
        // Written once: an earlier client may be reading it.
        if !script.exists() {
            fs::write(&script, include_str!("../apps/steady.py")).expect("the scratch folder can be written");
        }
        let mut command = client.command("/usr/bin/python3");
        command.arg(&script).args([vip, &port.to_string(), "/1KiB"]);
        let log = scratch.join(format!("log/steady-{at}.log"));
        Steady(Process::spawn("steady client", command, &log).expect("python3 starts"))
    }

    fn answers(&self) -> usize {
        let text = fs::read_to_string(self.0.log()).unwrap_or_default();
        text.lines().filter(|line| *line == "answer 200 1024").count()
    }

    /// Waits until it was answered again or has ended; returns whether it continues.
    ///
    /// # Panics
    /// If neither happens.
    pub fn goes_on(&mut self) -> bool {
        let before = self.answers();
        wait_until("a client to be answered or cut off", SETTLED, || {
            let more = self.answers() > before + 1;
            (more || self.0.exited().is_some()).then_some(more)
        })
        .unwrap_or_else(|error| panic!("{error:#}: it hangs after {before} answers"))
    }

    /// Returns the last line of its log: an answer, or how its connection ended.
    pub fn last(&self) -> String {
        self.0.log_tail(1)
    }
}

/// Starts [`CONNECTIONS`] clients and waits until each has been answered at least twice.
///
/// # Panics
/// If one is not answered.
pub fn steady_clients(cluster: &Cluster) -> Vec<Steady> {
    let mut all: Vec<Steady> = (0..CONNECTIONS).map(|_| Steady::start(cluster)).collect();
    let still: Vec<bool> = all.iter_mut().map(Steady::goes_on).collect();
    let last: Vec<String> = all.iter().map(Steady::last).collect();
    assert_eq!(still, [true; CONNECTIONS], "clients before the failure: {last:#?}\n{}", cluster.all_logs());
    all
}

/// As [`steady_clients`], with enough clients that each of these processes serves one. The process that
/// accepts first gets a connection; on a busy machine one worker may get all of them for a while.
///
/// # Panics
/// If one of the processes serves none in the end.
pub fn steady_clients_of(cluster: &Cluster, servers: &[u32]) -> Vec<Steady> {
    let mut all = Vec::new();
    wait_until(&format!("connections at each of processes {servers:?}"), SETTLED, || {
        all.extend(steady_clients(cluster));
        let flows = cluster.ask(Tier::AppNode, "/v1/flows?limit=1000").ok()?;
        let flows: Vec<csp_api::app::Socket> = serde_json::from_str(&flows).expect("the agent's flows");
        let serves = |pid: &u32| flows.iter().any(|flow| flow.pid == *pid);
        servers.iter().all(serves).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", cluster.all_logs()));
    all
}

/// Returns the number of clients that continue.
pub fn going_on(all: &mut [Steady]) -> usize {
    all.iter_mut().map(Steady::goes_on).filter(|goes_on| *goes_on).count()
}

/// Ends the clients.
pub fn end(all: Vec<Steady>) {
    for mut steady in all {
        steady.0.kill();
    }
}

/// Returns the process ids of the children of `pid` whose program is called `name`.
pub fn children(pid: u32, name: &str) -> Vec<u32> {
    // A child is listed under the thread that started it.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let text: String = threads
        .map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default())
        .collect();
    let ids = text.split_whitespace().filter_map(|word| word.parse().ok());
    ids.filter(|id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm.trim() == name)
    })
    .collect()
}

/// Sends a process a signal, by its name in kill(1).
///
/// # Panics
/// If there is no such process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill runs");
    assert!(status.success(), "kill -s {name} {pid}");
}
