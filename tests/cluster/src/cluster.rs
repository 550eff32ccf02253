//! The demo cluster: five hosts, etcd, four daemons, nginx and a Python application.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result};
use csp_identity::IdentityRole;

use crate::configs;
use crate::host::Host;
use crate::process::{Process, wait_until};
use crate::{identities, keys};

const READY_DEADLINE: Duration = Duration::from_secs(20);

/// Provider of the SAN between network node and proxy node, and between processes and proxy node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum San {
    /// Shared memory rings.
    Shm,
    /// Network node and proxy node on two hosts; processes are on the proxy's host and reach it by shared
    /// memory.
    BetweenNodes(Far),
    /// Shared memory between network node and proxy node, which are on one host; processes on another,
    /// through their agent.
    ToProcesses(Far),
    /// As if every tier had a host of its own, with processes going through their agent.
    Apart(Far),
}

/// Provider of the SAN between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Far {
    /// Kernel TCP.
    Tcp,
    /// UCX over TCP.
    Ucx,
}

impl Far {
    /// Returns its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Far::Tcp => "tcp",
            Far::Ucx => "ucx",
        }
    }
}

impl San {
    /// Returns `san.provider` of network nodes, proxy nodes and agents. A proxy serves processes of its own
    /// host by shared memory in any case.
    pub(crate) const fn providers(self) -> [&'static str; 3] {
        match self {
            San::Shm => ["shm"; 3],
            San::BetweenNodes(far) => [far.name(), far.name(), "shm"],
            San::ToProcesses(far) => ["shm", "auto", far.name()],
            San::Apart(far) => [far.name(); 3],
        }
    }
}

/// How to build a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder with the built binaries and libcsp_sockfilter.so.
    pub binaries: PathBuf,
    /// What carries the SAN.
    pub san: San,
    /// Network node and proxy node are one process, on the network node's host.
    pub edge: bool,
    /// A short tag for this cluster's namespaces and scratch folder, unique on the machine.
    pub tag: String,
}

/// The four daemons, in the order in which a request passes them, then the management node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// csp-network-node
    NetworkNode = 0,
    /// csp-proxy-node
    ProxyNode = 1,
    /// csp-app-node
    AppNode = 2,
    /// csp-mgmt-node
    MgmtNode = 3,
}

impl Tier {
    /// All tiers.
    pub const ALL: [Tier; 4] = [Tier::NetworkNode, Tier::ProxyNode, Tier::AppNode, Tier::MgmtNode];

    /// Returns the daemon's name.
    pub const fn daemon(self) -> &'static str {
        match self {
            Tier::NetworkNode => "csp-network-node",
            Tier::ProxyNode => "csp-proxy-node",
            Tier::AppNode => "csp-app-node",
            Tier::MgmtNode => "csp-mgmt-node",
        }
    }

    /// Returns the role in its certificate.
    pub const fn role(self) -> IdentityRole {
        match self {
            Tier::NetworkNode => IdentityRole::NetworkNode,
            Tier::ProxyNode => IdentityRole::ProxyNode,
            Tier::AppNode => IdentityRole::AppNode,
            Tier::MgmtNode => IdentityRole::MgmtNode,
        }
    }

    /// Returns the address of its admin endpoint.
    pub fn admin(self) -> String {
        format!("10.77.0.{}:{}", self as usize + 1, configs::ADMIN_PORTS[self as usize])
    }
}

/// A running cluster. Fields drop in order: programs, daemons, hosts, scratch folder.
#[derive(Debug)]
pub struct Cluster {
    programs: Vec<Process>,
    daemons: [Option<Process>; 4],
    /// The clients' host.
    pub client: Host,
    hosts: [Host; 4],
    _switch: Host,
    scratch: Scratch,
    options: Options,
}

/// A folder that is removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Creates the folder of the cluster `tag`, with folders for sockets, state, files and logs.
    pub(crate) fn create(tag: &str) -> Result<Self> {
        let scratch = Scratch(std::env::temp_dir().join(format!("csp-{tag}")));
        fs::create_dir_all(&scratch.0).with_context(|| scratch.0.display().to_string())?;
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755))?;
        for folder in ["run", "state", "www", "log"] {
            fs::create_dir_all(scratch.0.join(folder))?;
        }
        Ok(scratch)
    }

    /// Returns a command that runs a program through `csp-run` on an application host, with the agent at
    /// `socket`.
    pub(crate) fn accelerated(
        &self,
        binaries: &Path,
        host: &Host,
        socket: &Path,
        program: &str,
    ) -> Result<Command> {
        // A copy that every user can read: the build's folder may be inaccessible to the users that programs
        // change to.
        let filter = self.0.join("run/libcsp_sockfilter.so");
        if !filter.exists() {
            fs::copy(binaries.join("libcsp_sockfilter.so"), &filter).context("libcsp_sockfilter.so")?;
        }
        let mut command = host.command(&binaries.join("csp-run").to_string_lossy());
        command.env("CSP_SOCKFILTER", &filter);
        command.arg("--agent").arg(socket).arg(program);
        Ok(command)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Cluster {
    /// Creates the hosts and the scratch folder; starts nothing.
    pub fn lay_out(options: Options) -> Result<Self> {
        let scratch = Scratch::create(&options.tag)?;
        let host = |name| Host::new(&options.tag, name);
        let (client, switch) = (host("client")?, host("switch")?);
        let hosts = [host("nn")?, host("pn")?, host("an")?, host("mgmt")?];
        client.join("lan0", &hosts[0], "lan0")?;
        client.address("lan0", &format!("{}/24", configs::CLIENT_ADDRESS))?;
        switch.ip(&["link", "add", "san", "type", "bridge"])?;
        switch.ip(&["link", "set", "san", "up"])?;
        for (at, host) in hosts.iter().enumerate() {
            let port = format!("p{at}");
            host.join("san0", &switch, &port)?;
            switch.ip(&["link", "set", &port, "master", "san"])?;
            // The host of a proxy that runs elsewhere only asks.
            let asks = options.edge && at == Tier::ProxyNode as usize;
            host.address("san0", &format!("10.77.0.{}/24", if asks { 12 } else { at + 1 }))?;
        }
        if options.edge {
            hosts[0].address("san0", "10.77.0.2/24")?;
        }
        let cluster = Cluster {
            programs: Vec::new(),
            daemons: Default::default(),
            client,
            hosts,
            _switch: switch,
            scratch,
            options,
        };
        cluster.write_configs()?;
        Ok(cluster)
    }

    fn write_configs(&self) -> Result<()> {
        let [of_network, of_proxy, of_processes] = self.options.san.providers();
        let dir = self.scratch();
        let texts = [
            configs::network_node(dir, of_network),
            configs::proxy_node(dir, of_proxy),
            configs::app_node(dir, of_processes),
            configs::mgmt_node(dir),
        ];
        for (tier, text) in Tier::ALL.iter().zip(texts) {
            fs::write(self.config(*tier), text)?;
        }
        fs::write(dir.join("demo.yaml"), configs::policy())?;
        fs::write(dir.join("nginx.conf"), configs::nginx(dir))?;
        keys::generate(&self.options.binaries, dir)?;
        keys::derive(&self.options.binaries, dir, configs::NODES.map(|(role, place)| (role, place.id)))?;
        let nodes = configs::NODES.map(|(role, place)| (role, place.id, place.address()));
        identities::create(dir, &nodes)
    }

    /// Sets the number of data workers in a daemon's configuration; to be called before the daemon is
    /// started.
    pub fn set_workers(&self, tier: Tier, workers: u8) -> Result<()> {
        let text = fs::read_to_string(self.config(tier))?;
        let other = text.replace("workers: 1\n", &format!("workers: {workers}\n"));
        Ok(fs::write(self.config(tier), other)?)
    }

    /// Starts the management node with its etcd, then the other daemons, and waits until each of them is
    /// ready.
    pub fn start_daemons(&mut self) -> Result<()> {
        self.start(Tier::MgmtNode)?;
        self.wait_ready(Tier::MgmtNode)?;
        self.give_etcd_its_users()?;
        for tier in [Tier::ProxyNode, Tier::NetworkNode, Tier::AppNode] {
            self.start(tier)?;
        }
        for tier in [Tier::ProxyNode, Tier::NetworkNode, Tier::AppNode] {
            self.wait_live(tier)?;
        }
        Ok(())
    }

    /// Has etcd refuse everybody but the cluster's nodes.
    pub fn give_etcd_its_users(&self) -> Result<()> {
        let nodes = configs::NODES.map(|(role, place)| (role, place.id));
        let arguments = identities::etcd_setup(self.scratch(), &nodes);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let cspctl = self.binary("cspctl").to_string_lossy().into_owned();
        self.host(Tier::MgmtNode).run(&cspctl, &arguments).map(drop)
    }

    /// Starts one daemon. The proxy node of an edge is started with its network node.
    pub fn start(&mut self, tier: Tier) -> Result<()> {
        let is_edge = self.options.edge && matches!(tier, Tier::NetworkNode | Tier::ProxyNode);
        if is_edge && tier == Tier::ProxyNode {
            return Ok(());
        }
        let binary = self.binary(if is_edge { "csp-edge-node" } else { tier.daemon() });
        let mut command = self.host(tier).command(&binary.to_string_lossy());
        if is_edge {
            command.arg("--network-node").arg(self.config(Tier::NetworkNode));
            command.arg("--proxy-node").arg(self.config(Tier::ProxyNode));
        } else {
            command.arg("--config").arg(self.config(tier));
        }
        let log = self.scratch().join("log").join(format!("{}.log", tier.daemon()));
        self.daemons[tier as usize] = Some(Process::spawn(tier.daemon(), command, &log)?);
        Ok(())
    }

    /// Waits until `/readyz` of a daemon answers 200.
    pub fn wait_ready(&mut self, tier: Tier) -> Result<()> {
        self.wait_endpoint(tier, "/readyz")
    }

    /// Waits until `/healthz` of a daemon answers 200.
    pub fn wait_live(&mut self, tier: Tier) -> Result<()> {
        self.wait_endpoint(tier, "/healthz")
    }

    fn wait_endpoint(&mut self, tier: Tier, path: &str) -> Result<()> {
        let what = format!("{} {path}", tier.daemon());
        let end = wait_until(&what, READY_DEADLINE, || {
            if let Some(status) = self.daemons[tier as usize].as_mut().and_then(Process::exited) {
                return Some(Err(anyhow::anyhow!("{} ended with {status}", tier.daemon())));
            }
            let answer = identities::ask(&self.hosts[tier as usize], &self.scratch.0, &tier.admin(), path);
            answer.is_ok().then_some(Ok(()))
        });
        end.and_then(|r| r).with_context(|| self.log_tail(tier))
    }

    /// Returns the last lines of a daemon's log, for error messages.
    pub fn log_tail(&self, tier: Tier) -> String {
        match &self.daemons[tier as usize] {
            Some(process) => format!("last lines of {}:\n{}", process.log().display(), process.log_tail(25)),
            None => format!("{} was not started", tier.daemon()),
        }
    }

    /// Starts a program on the app host through `csp-run`.
    pub fn run_accelerated(&mut self, name: &str, program: &str, arguments: &[&str]) -> Result<()> {
        let socket = self.scratch().join("run/agent.sock");
        let host = self.host(Tier::AppNode);
        let mut command = self.scratch.accelerated(&self.options.binaries, host, &socket, program)?;
        command.args(arguments);
        self.spawn(name, command)
    }

    /// Starts a program that runs as long as the cluster; its output goes to a log file of its name.
    pub fn spawn(&mut self, name: &str, mut command: Command) -> Result<()> {
        // A process group of its own: servers signal their whole group when they end.
        command.process_group(0);
        let log = self.scratch().join("log").join(format!("{name}.log"));
        self.programs.push(Process::spawn(name, command, &log)?);
        Ok(())
    }

    /// Stops the programs, the last one started first.
    pub fn stop_programs(&mut self) -> Result<()> {
        self.programs.iter_mut().rev().try_for_each(|process| process.stop().map(drop))
    }

    /// Returns the last lines of every program's log.
    pub fn program_logs(&self, lines: usize) -> String {
        let one = |p: &Process| format!("last lines of {}:\n{}\n", p.log().display(), p.log_tail(lines));
        self.programs.iter().map(one).collect()
    }

    /// Starts Debian's nginx with two workers, serving `www` of the scratch folder on port 80.
    pub fn start_nginx(&mut self) -> Result<()> {
        let conf = self.scratch().join("nginx.conf").to_string_lossy().into_owned();
        self.run_accelerated("nginx", "nginx", &["-c", &conf])
    }

    /// Starts the upload application on Python's http.server.
    pub fn start_upload(&mut self) -> Result<()> {
        let script = self.scratch().join("upload.py");
        fs::write(&script, include_str!("../apps/upload.py"))?;
        let port = configs::UPLOAD_PORT.to_string();
        self.run_accelerated("upload", "/usr/bin/python3", &[&script.to_string_lossy(), "0.0.0.0", &port])
    }

    /// Starts a plain server on the client's host, program `outside`: Python's http.server with `www` of the
    /// scratch folder.
    pub fn start_outside(&mut self, port: u16) -> Result<()> {
        let www = self.scratch().join("www").to_string_lossy().into_owned();
        let mut server = self.client.command("/usr/bin/python3");
        server.args(["-m", "http.server", &port.to_string(), "--bind", configs::CLIENT_ADDRESS]);
        server.args(["--directory", &www]);
        self.spawn("outside", server)
    }

    /// Runs `cspctl` on the management host; returns its standard output.
    pub fn cspctl(&self, arguments: &[&str]) -> Result<String> {
        let binary = self.binary("cspctl").to_string_lossy().into_owned();
        let who = identities::cspctl(self.scratch(), &Tier::MgmtNode.admin());
        let mut all: Vec<&str> = who.iter().map(String::as_str).collect();
        all.extend_from_slice(arguments);
        self.host(Tier::MgmtNode).run(&binary, &all)
    }

    /// Runs `cspctl` on the management host; returns its output, whatever its exit status.
    pub fn cspctl_output(&self, arguments: &[&str]) -> Result<Output> {
        let binary = self.binary("cspctl").to_string_lossy().into_owned();
        let who = identities::cspctl(self.scratch(), &Tier::MgmtNode.admin());
        let mut all: Vec<&str> = who.iter().map(String::as_str).collect();
        all.extend_from_slice(arguments);
        self.host(Tier::MgmtNode).output(&binary, &all)
    }

    /// Applies the demo's policy.
    pub fn apply_policy(&self) -> Result<String> {
        self.cspctl(&["policy", "apply", &self.scratch().join("demo.yaml").to_string_lossy()])
    }

    /// Returns a running daemon.
    pub fn daemon(&mut self, tier: Tier) -> Option<&mut Process> {
        self.daemons[tier as usize].as_mut()
    }

    /// Returns a program started through `csp-run`, by its name.
    pub fn program(&mut self, name: &str) -> Option<&mut Process> {
        self.programs.iter_mut().find(|p| p.name() == name)
    }

    /// Removes a program from the list, so that another may be started under its name.
    pub fn remove_program(&mut self, name: &str) {
        self.programs.retain(|p| p.name() != name);
    }

    /// Returns the programs and daemons that have ended unexpectedly.
    pub fn casualties(&mut self) -> String {
        let mut text = String::new();
        for process in self.programs.iter_mut().chain(self.daemons.iter_mut().flatten()) {
            if let Some(status) = process.exited() {
                let _ = writeln!(
                    text,
                    "{} ended with {status}; last lines of its log:\n{}",
                    process.name(),
                    process.log_tail(15)
                );
            }
        }
        text
    }

    /// Stops programs, then daemons (management node last). The error names the first that did not end
    /// cleanly.
    pub fn stop(&mut self) -> Result<()> {
        let mut first_error = None;
        for process in &mut self.programs {
            process.stop()?;
        }
        for tier in Tier::ALL {
            let Some(process) = &mut self.daemons[tier as usize] else { continue };
            match process.stop() {
                Ok(status) if status.success() => {}
                Ok(status) => {
                    let tail = process.log_tail(15);
                    first_error
                        .get_or_insert(anyhow::anyhow!("{} stopped with {status}\n{tail}", tier.daemon()));
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Adds the VIP to a tier's host as described in docs/operations.md: on `lo`, and not announced on other
    /// interfaces.
    pub fn vip_on_lo(&self, tier: Tier) -> Result<()> {
        let host = self.host(tier);
        let settings = "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2";
        host.run("sh", &["-c", settings])?;
        host.address("lo", &format!("{}/32", configs::VIP))
    }

    /// Returns a tier's host.
    pub fn host(&self, tier: Tier) -> &Host {
        &self.hosts[tier as usize]
    }

    /// Returns the scratch folder: configurations, logs, `www`.
    pub fn scratch(&self) -> &Path {
        &self.scratch.0
    }

    /// Returns the path of a daemon's configuration file.
    pub fn config(&self, tier: Tier) -> PathBuf {
        self.scratch().join(format!("{}.yaml", tier.daemon()))
    }

    /// Returns the path of a built binary.
    pub fn binary(&self, name: &str) -> PathBuf {
        self.options.binaries.join(name)
    }
}
