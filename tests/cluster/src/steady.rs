//! Clients that ask again and again over one connection each, to see which connections a failure ends.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cluster::{Cluster, Tier};
use crate::configs::VIP;
use crate::process::{Process, wait_until};

/// How long a connection may take to go on, or to end, after a failure.
pub const SETTLED: Duration = Duration::from_secs(12);
/// How many [`steady_clients`] there are.
pub const CONNECTIONS: usize = 6;

/// A client with one kept-alive connection that asks again and again, and ends when the connection does.
#[derive(Debug)]
pub struct Steady(Process);

impl Steady {
    fn start(cluster: &Cluster) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let at = STARTED.fetch_add(1, Ordering::Relaxed);
        let script = cluster.scratch().join("steady.py");
        // Once: an earlier one may be reading it just now.
        if !script.exists() {
            fs::write(&script, include_str!("../apps/steady.py")).expect("the scratch folder can be written");
        }
        let mut command = cluster.client.command("/usr/bin/python3");
        command.arg(&script).args([VIP, "80", "/1KiB"]);
        let log = cluster.scratch().join(format!("log/steady-{at}.log"));
        Steady(Process::spawn("steady client", command, &log).expect("python3 starts"))
    }

    fn answers(&self) -> usize {
        let text = fs::read_to_string(self.0.log()).unwrap_or_default();
        text.lines().filter(|line| *line == "answer 200 1024").count()
    }

    /// Waits until it was answered again or has ended; whether it goes on.
    ///
    /// # Panics
    /// When neither happens.
    pub fn goes_on(&mut self) -> bool {
        let before = self.answers();
        wait_until("a client to be answered or cut off", SETTLED, || {
            let more = self.answers() > before + 1;
            (more || self.0.exited().is_some()).then_some(more)
        })
        .unwrap_or_else(|error| panic!("{error:#}: it hangs after {before} answers"))
    }

    /// The last line that it wrote: an answer, or how its connection ended.
    pub fn last(&self) -> String {
        self.0.log_tail(1)
    }
}

/// [`CONNECTIONS`] of them, each answered at least twice.
///
/// # Panics
/// When one is not.
pub fn steady_clients(cluster: &Cluster) -> Vec<Steady> {
    let mut all: Vec<Steady> = (0..CONNECTIONS).map(|_| Steady::start(cluster)).collect();
    let still: Vec<bool> = all.iter_mut().map(Steady::goes_on).collect();
    let last: Vec<String> = all.iter().map(Steady::last).collect();
    assert_eq!(still, [true; CONNECTIONS], "clients before the failure: {last:#?}\n{}", cluster.all_logs());
    all
}

/// [`steady_clients`], so many that each of these processes serves one. Connections go to whoever takes them first: on a busy
/// machine to one worker alone for a while.
///
/// # Panics
/// When one of them serves none in the end.
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

/// How many of them go on.
pub fn going_on(all: &mut [Steady]) -> usize {
    all.iter_mut().map(Steady::goes_on).filter(|goes_on| *goes_on).count()
}

/// Ends them.
pub fn end(all: Vec<Steady>) {
    for mut steady in all {
        steady.0.kill();
    }
}

/// Process ids of the children of `pid` whose program is called `name`.
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

/// Sends a process a signal, by the name that kill(1) knows.
///
/// # Panics
/// When there is no such process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill runs");
    assert!(status.success(), "kill -s {name} {pid}");
}
