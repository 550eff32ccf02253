//! The stage of a row: a cluster with the row's services, programs on its hosts, clients with the row's time
//! limit.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::cell::Cell;
use super::hosts::Hosts;
use super::watch::Watch;
use super::{Options, Row};
use crate::cluster::{self, Cluster, San, Tier};
use crate::configs::{self, VIP};
use crate::host::Host;
use crate::identities;
use crate::process::{Process, wait_until};
use crate::testing::pattern;

/// The files that HTTP and FTP servers serve: name and length in bytes.
pub const FILES: [(&str, usize); 4] =
    [("0B", 0), ("1KiB", 1 << 10), ("64KiB", 64 << 10), ("16MiB", 16 << 20)];
/// Address of programs that run beside the cluster, on kernel TCP.
pub const BESIDE_ADDRESS: &str = "10.78.0.2";
/// The client's address on the veth to their host.
const BESIDE_CLIENT: &str = "10.78.0.1";
/// How long a program may take until it answers the client.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);
/// How long remaining processes on the app host may take to end after SIGTERM.
const SWEEP_DEADLINE: Duration = Duration::from_secs(5);

/// A row's cluster, with its daemons and policy.
#[derive(Debug)]
pub struct Stage {
    /// Its hosts, and the commands run on them within the row's time limit.
    pub hosts: Hosts,
    /// Results of the row's loads, if it has any.
    pub cells: Vec<Cell>,
    cluster: Cluster,
    /// Outlives the programs on it, which belong to the cluster.
    beside: Option<Host>,
    ports: &'static [u16],
    san: San,
    tag: String,
    quick: bool,
    /// Network node and proxy node are one process.
    edge: bool,
}

/// Returns the first number with dots in the output of `command`.
pub fn version(command: &[&str]) -> Result<String> {
    let (program, arguments) = command.split_first().context("a command that prints the version")?;
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("{program} is not installed (`make packages-apps`)"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    let found = words.map(|word| word.trim_matches('.')).find(|word| word.contains('.'));
    found.map(str::to_owned).with_context(|| format!("{program} does not print its version: {text}"))
}

impl Stage {
    /// Creates hosts, daemons, policy, and the files in `www`.
    pub fn build(row: &Row, san: San, options: &Options) -> Result<Self> {
        let binaries = std::env::current_exe()?.parent().context("the program's own folder")?.to_owned();
        let tag = std::process::id().to_string();
        let edge = options.edge && san == San::Shm;
        let mut cluster = Cluster::lay_out(cluster::Options { binaries, san, edge, tag: tag.clone() })?;
        fs::write(cluster.scratch().join("demo.yaml"), configs::policy_for(row.ports))?;
        let config = cluster.config(Tier::AppNode);
        // A server that is reloaded under load leaves more exited processes than the agent keeps by default.
        let text = fs::read_to_string(&config)? + "capacity:\n  exited: 1024\n";
        fs::write(&config, text)?;
        for (name, len) in FILES {
            fs::write(cluster.scratch().join("www").join(name), pattern(len))?;
        }
        cluster.start_daemons()?;
        cluster.apply_policy()?;
        let hosts = Hosts::of(&cluster, Instant::now() + row.limit);
        let (ports, quick) = (row.ports, options.quick);
        Ok(Stage { hosts, cells: Vec::new(), cluster, beside: None, ports, san, tag, quick, edge })
    }

    /// Returns the length of a load that the issue specifies as a minute.
    pub fn load(&self) -> Duration {
        Duration::from_secs(if self.quick { 10 } else { 60 })
    }

    /// Returns whether loads are to be short.
    pub fn quick(&self) -> bool {
        self.quick
    }

    /// Returns what carries the SAN.
    pub fn san(&self) -> San {
        self.san
    }

    /// Starts a program under `csp-run` on the app host.
    pub fn start(&mut self, name: &str, program: &str, arguments: &[&str]) -> Result<()> {
        self.cluster.run_accelerated(name, program, arguments)
    }

    /// Starts a program on the app host without the filter.
    pub fn start_plain(&mut self, name: &str, program: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.cluster.host(Tier::AppNode).command(program);
        command.args(arguments);
        self.cluster.spawn(name, command)
    }

    /// Starts a program on kernel TCP, on a host of its own that the client reaches by a veth.
    pub fn start_beside(&mut self, name: &str, program: &str, arguments: &[&str]) -> Result<()> {
        if self.beside.is_none() {
            let (host, client) = (Host::new(&self.tag, "beside")?, &self.cluster.client);
            client.join("beside0", &host, "beside0")?;
            client.address("beside0", &format!("{BESIDE_CLIENT}/24"))?;
            host.address("beside0", &format!("{BESIDE_ADDRESS}/24"))?;
            self.beside = Some(host);
        }
        let host = self.beside.as_ref().context("the host beside")?;
        let mut command = host.command(program);
        command.args(arguments);
        self.cluster.spawn(name, command)
    }

    /// Starts a program on the client's host.
    pub fn start_outside(&mut self, name: &str, program: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.cluster.client.command(program);
        command.args(arguments);
        self.cluster.spawn(name, command)
    }

    /// Returns the process id of a program that was started.
    pub fn pid(&mut self, name: &str) -> Result<u32> {
        Ok(self.cluster.program(name).with_context(|| format!("{name} was not started"))?.pid())
    }

    /// Returns the process id of a daemon.
    pub fn daemon_pid(&mut self, tier: Tier) -> Result<u32> {
        Ok(self.daemon(tier)?.pid())
    }

    /// Returns the process that a daemon runs in.
    fn daemon(&mut self, tier: Tier) -> Result<&mut Process> {
        let process = self.process_of(tier);
        self.cluster.daemon(process).with_context(|| format!("{} was not started", tier.daemon()))
    }

    /// Returns the tier under which the cluster keeps that process.
    fn process_of(&self, tier: Tier) -> Tier {
        if self.edge && tier == Tier::ProxyNode { Tier::NetworkNode } else { tier }
    }

    /// Ends a daemon by SIGKILL and restarts it.
    pub fn kill_daemon(&mut self, tier: Tier) -> Result<()> {
        self.daemon(tier)?.kill();
        self.cluster.start(self.process_of(tier))?;
        self.cluster.wait_ready(tier)?;
        self.cluster.wait_live(tier)
    }

    /// Waits until a program ends by itself, and removes it from the cluster's list.
    pub fn ended(&mut self, name: &str) -> Result<()> {
        let program = self.cluster.program(name).with_context(|| format!("{name} was not started"))?;
        wait_until(&format!("{name} to end"), ANSWER_DEADLINE, || program.exited())?;
        self.cluster.remove_program(name);
        Ok(())
    }

    /// Ends a program, and removes it from the cluster's list.
    pub fn end(&mut self, name: &str) -> Result<()> {
        self.cluster.program(name).with_context(|| format!("{name} was not started"))?.stop()?;
        self.cluster.remove_program(name);
        Ok(())
    }

    /// Adds the VIP to the app host as described in docs/operations.md: on `lo`, and not announced on other
    /// interfaces.
    pub fn vip_on_lo(&self) -> Result<()> {
        self.cluster.vip_on_lo(Tier::AppNode)
    }

    /// Fails if a program or daemon has ended unexpectedly.
    pub fn alive(&mut self) -> Result<()> {
        let casualties = self.cluster.casualties();
        if !casualties.is_empty() {
            bail!("{casualties}");
        }
        Ok(())
    }

    /// Waits until `ready` returns true; fails at once if a program has ended.
    pub fn wait(&mut self, what: &str, mut ready: impl FnMut(&Hosts) -> bool) -> Result<()> {
        let limit = self.hosts.left().min(ANSWER_DEADLINE);
        wait_until(what, limit, || {
            if let Err(error) = self.alive() {
                return Some(Err(error));
            }
            ready(&self.hosts).then_some(Ok(()))
        })?
    }

    /// Waits until `port` of the VIP accepts a connection from the client.
    pub fn wait_port(&mut self, port: u16) -> Result<()> {
        let test = format!("exec 3<>/dev/tcp/{VIP}/{port}");
        self.wait(&format!("an answer from {VIP}:{port}"), |hosts| {
            hosts.client("timeout", &["2", "bash", "-c", &test]).is_ok()
        })
    }

    /// Starts watching the hosts' sockets.
    pub fn watch(&self) -> Result<Watch> {
        let hosts = [Tier::AppNode, Tier::ProxyNode].map(|tier| self.cluster.host(tier).borrow());
        Watch::start(hosts, self.cluster.scratch().to_owned(), self.ports)
    }

    /// Returns the response of a daemon's admin endpoint to `path`.
    pub fn ask(&self, tier: Tier, path: &str) -> Result<String> {
        self.cluster.ask(tier, path)
    }

    /// Returns the processes that the agent lists.
    pub fn processes(&self) -> Result<Vec<csp_api::app::Process>> {
        Ok(serde_json::from_str(&self.ask(Tier::AppNode, "/v1/processes")?)?)
    }

    /// Returns the last lines of all logs.
    pub fn logs(&self) -> String {
        let mut text = self.cluster.program_logs(15) + &self.cluster.all_logs();
        for entry in fs::read_dir(self.hosts.dir().join("log")).into_iter().flatten().flatten() {
            let path: PathBuf = entry.path();
            if path.extension().is_none_or(|e| e != "error") {
                continue;
            }
            let reported = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = reported.lines().collect();
            let tail = lines[lines.len().saturating_sub(15)..].join("\n");
            text += &format!("last lines of {}:\n{tail}\n", path.display());
        }
        text
    }

    /// Leaves everything running until Ctrl-C.
    pub fn wait_for_interrupt(&self, stop: &AtomicBool) {
        eprintln!("\neverything is left running; scratch folder {}", self.hosts.dir().display());
        eprintln!("  a client:      ip netns exec {} curl http://{VIP}/", self.cluster.client.namespace());
        let app = self.cluster.host(Tier::AppNode).namespace();
        let (who, admin) = (identities::curl(self.cluster.scratch()).join(" "), Tier::AppNode.admin());
        eprintln!("  its processes: ip netns exec {app} curl {who} https://{admin}/v1/processes");
        eprintln!("Ctrl-C ends it.");
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops programs and daemons, and ends processes that the programs left behind on the app host.
    pub fn clear(mut self) -> Result<()> {
        self.alive()?;
        let stopped = self.cluster.stop_programs();
        let app = self.cluster.host(Tier::AppNode).borrow();
        let agent = self.cluster.daemon(Tier::AppNode).map(|agent| agent.pid());
        let left =
            || app.pids().map(|ids| ids.into_iter().filter(|id| Some(*id) != agent).collect::<Vec<_>>());
        for signal in ["TERM", "KILL"] {
            for id in left()? {
                // It may have ended just now.
                let _ = Command::new("kill").args(["-s", signal, &id.to_string()]).output();
            }
            let gone = || left().ok().filter(Vec::is_empty);
            if wait_until("programs to end", SWEEP_DEADLINE, gone).is_ok() {
                break;
            }
        }
        self.cluster.stop()?;
        stopped
    }
}
