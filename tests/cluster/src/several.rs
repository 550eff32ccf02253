//! Several of each tier: two network nodes, three proxies, three application hosts, on a host each.
//!
//! ```text
//!        LANs 10.76.0.0/24                      SAN and control network 10.77.0.0/24 (a bridge)
//!  [client .1]──[nn-1, 2 workers]──┬──[pn-1, 2 workers]──┬──[an-1]──┬──[mgmt + etcd]
//!  [client .2]──[nn-2, 2 workers]──┤  [pn-2, 2 workers]  ├──[an-2]  │
//!                                  └──[pn-3, 2 workers]  └──[an-3]──┘
//! ```
//! The network nodes have a LAN each, and own all addresses ([`Lans::Apart`]); or they share one, and each
//! owns a VIP and an egress address ([`Lans::Shared`]), or is given them by election ([`Lans::Elected`]).
//! Or a router spreads the clients' packets over both ([`Lans::Routed`]).
//! Every application host runs nginx and the upload application under `csp-run`.

mod lans;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use csp_api::mgmt::{NodeState, NodesView};

use crate::client::Digest;
use crate::cluster::{San, Scratch, Tier};
use crate::configs::{self, MGMT, Place, UPLOAD_PORT};
use crate::host::Host;
use crate::process::{Process, wait_until};
use crate::testing;
use crate::{identities, keys};

pub use lans::{Lans, OWNED};

/// The management node.
pub const MGMT_NODE: &str = MGMT.id;
/// Network nodes.
pub const NETWORK_NODES: [&str; 2] = ["nn-1", "nn-2"];
/// Proxy nodes.
pub const PROXIES: [&str; 3] = ["pn-1", "pn-2", "pn-3"];
/// Application nodes.
pub const APP_NODES: [&str; 3] = ["an-1", "an-2", "an-3"];
/// Port of the clients' plain web servers, which applications reach by egress ([`Lans::outside`]).
const OUTSIDE_PORT: u16 = 7000;
/// Port of the service whose pool is nginx on application node `at` alone: the first, then one more for each.
pub const SINGLE_PORT: u16 = 8001;
/// How long a daemon may take until it is ready.
const READY_DEADLINE: Duration = Duration::from_secs(30);

/// Every daemon with its tier and place.
const MEMBERS: [(Tier, Place); 9] = [
    (Tier::NetworkNode, Place { id: "nn-1", octet: 11, workers: 2 }),
    (Tier::NetworkNode, Place { id: "nn-2", octet: 12, workers: 2 }),
    (Tier::ProxyNode, Place { id: "pn-1", octet: 21, workers: 2 }),
    (Tier::ProxyNode, Place { id: "pn-2", octet: 22, workers: 2 }),
    (Tier::ProxyNode, Place { id: "pn-3", octet: 23, workers: 2 }),
    (Tier::AppNode, Place { id: "an-1", octet: 31, workers: 0 }),
    (Tier::AppNode, Place { id: "an-2", octet: 32, workers: 0 }),
    (Tier::AppNode, Place { id: "an-3", octet: 33, workers: 0 }),
    (Tier::MgmtNode, MGMT),
];

/// A daemon with its host.
#[derive(Debug)]
struct Member {
    tier: Tier,
    place: Place,
    process: Option<Process>,
    host: Host,
}

/// A running cluster. Fields drop in order: programs, daemons with their hosts, clients, scratch folder.
#[derive(Debug)]
pub struct Several {
    programs: Vec<Process>,
    members: Vec<Member>,
    /// The clients' hosts: the first on the LAN of `nn-1`, the second on that of `nn-2`.
    pub clients: [Host; 2],
    /// The bridge of the SAN; that of the clients' LAN, or their router.
    switches: [Host; 2],
    /// The network nodes' LANs.
    pub lans: Lans,
    scratch: Scratch,
    binaries: PathBuf,
}

/// Creates hosts and configuration files for the test `name`, over `san` and `lans`; `None` if this machine
/// cannot run it, and the test is skipped.
///
/// # Panics
/// As [`testing::lay_out`].
pub fn lay_out(name: &str, san: San, lans: Lans) -> Option<Several> {
    if let Some(obstacle) = testing::obstacle() {
        csp_support::skip(obstacle);
        return None;
    }
    let tag = format!("{name}{}", std::process::id());
    Some(Several::lay_out(&tag, testing::binaries().expect("built binaries"), san, lans).expect("hosts"))
}

/// Creates a host with a bridge of this name.
fn bridge(tag: &str, name: &str) -> Result<Host> {
    let host = Host::new(tag, name)?;
    host.ip(&["link", "add", name, "type", "bridge"])?;
    host.ip(&["link", "set", name, "up"])?;
    Ok(host)
}

impl Several {
    fn lay_out(tag: &str, binaries: PathBuf, san: San, lans: Lans) -> Result<Self> {
        let scratch = Scratch::create(tag)?;
        let [switch, lan_switch] = [bridge(tag, "san")?, bridge(tag, "lan")?];
        let mut members = Vec::new();
        for (tier, place) in MEMBERS {
            let host = Host::new(tag, place.id)?;
            host.join("san0", &switch, place.id)?;
            switch.ip(&["link", "set", place.id, "master", "san"])?;
            host.address("san0", &format!("10.77.0.{}/24", place.octet))?;
            members.push(Member { tier, place, process: None, host });
        }
        let clients = [Host::new(tag, "client-1")?, Host::new(tag, "client-2")?];
        for (at, client) in clients.iter().enumerate() {
            lans.connect(at, client, &members[at].host, &lan_switch)?;
        }
        let (programs, switches) = (Vec::new(), [switch, lan_switch]);
        let several = Several { programs, members, clients, switches, lans, scratch, binaries };
        several.write_files(san)?;
        if lans == Lans::Routed {
            several.route([1, 1])?;
        }
        Ok(several)
    }

    fn write_files(&self, san: San) -> Result<()> {
        let dir = self.scratch();
        let [of_network, of_proxy, of_processes] = san.providers();
        for Member { tier, place, .. } in &self.members {
            let text = match tier {
                Tier::NetworkNode => self.lans.network_node(place, dir, of_network),
                Tier::ProxyNode => place.proxy_node(dir, of_proxy),
                Tier::AppNode => place.app_node(dir, of_processes, &self.socket(place.id)),
                Tier::MgmtNode => configs::mgmt_node(dir),
            };
            fs::write(self.config(place.id), text)?;
        }
        if self.lans == Lans::Shared {
            NETWORK_NODES.iter().zip(OWNED).try_for_each(|(id, owned)| self.set_owned(id, &[owned]))?;
        }
        for id in APP_NODES {
            // nginx has its temporary files in a folder of its own; all serve the same files.
            let own = dir.join(id);
            fs::create_dir_all(&own)?;
            std::os::unix::fs::symlink(dir.join("www"), own.join("www"))?;
            fs::write(own.join("nginx.conf"), configs::nginx(&own))?;
        }
        fs::write(dir.join("upload.py"), include_str!("../apps/upload.py"))?;
        fs::write(dir.join("www/1KiB"), testing::pattern(1 << 10))?;
        fs::write(dir.join("www/4MiB"), testing::pattern(4 << 20))?;
        keys::generate(&self.binaries, dir)?;
        keys::derive(&self.binaries, dir, MEMBERS.map(|(tier, place)| (tier.role(), place.id)))?;
        let nodes = MEMBERS.map(|(tier, place)| (tier.role(), place.id, place.address()));
        identities::create(dir, &nodes)
    }

    /// Replaces in a network node's configuration the networks that it owns; it reads them when it starts.
    pub fn set_owned(&self, id: &str, networks: &[&str]) -> Result<()> {
        let text = fs::read_to_string(self.config(id))?;
        let others = text.lines().filter(|line| !line.starts_with("owns:"));
        let line = format!("owns: [{}]", networks.join(", "));
        let lines: Vec<&str> = others.chain([line.as_str(), ""]).collect();
        Ok(fs::write(self.config(id), lines.join("\n"))?)
    }

    /// Starts all daemons, nginx and the upload application on every application host, and a plain web server
    /// on both clients; applies the policy with every service, and waits until all nodes are ready and all
    /// services answer.
    pub fn serve(&mut self) -> Result<()> {
        self.start(MGMT.id)?;
        self.wait_endpoint(MGMT.id, "/readyz")?;
        let nodes = MEMBERS.map(|(tier, place)| (tier.role(), place.id));
        let arguments = identities::etcd_setup(self.scratch(), &nodes);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.host(MGMT.id).run(&self.binaries.join("cspctl").to_string_lossy(), &arguments)?;
        let others = || MEMBERS.iter().map(|(_, place)| place.id).filter(|id| *id != MGMT.id);
        others().try_for_each(|id| self.start(id))?;
        others().try_for_each(|id| self.wait_endpoint(id, "/healthz"))?;
        APP_NODES.iter().try_for_each(|id| self.start_programs(id))?;
        for at in 0..self.clients.len() {
            let mut command = self.clients[at].command("/usr/bin/python3");
            let port = OUTSIDE_PORT.to_string();
            let address = self.lans.outside(at).0;
            command.args(["-m", "http.server", &port, "--bind", address, "--directory"]);
            command.arg(self.scratch().join("www"));
            self.spawn(&format!("outside-{at}"), command)?;
        }
        self.apply(true)?;
        self.wait_served()
    }

    fn start_programs(&mut self, id: &str) -> Result<()> {
        let conf = self.scratch().join(id).join("nginx.conf");
        let mut nginx = self.accelerated(id, "nginx")?;
        nginx.arg("-c").arg(conf);
        self.spawn(&format!("nginx-{id}"), nginx)?;
        let mut upload = self.accelerated(id, "/usr/bin/python3")?;
        upload.arg(self.scratch().join("upload.py")).args(["0.0.0.0", &UPLOAD_PORT.to_string()]);
        self.spawn(&format!("upload-{id}"), upload)
    }

    /// Returns a command that runs a program through `csp-run` on an application host.
    pub fn accelerated(&self, id: &str, program: &str) -> Result<Command> {
        self.scratch.accelerated(&self.binaries, self.host(id), &self.socket(id), program)
    }

    fn spawn(&mut self, name: &str, mut command: Command) -> Result<()> {
        // A process group of its own: servers signal their whole group when they end.
        command.process_group(0);
        let log = self.log(name);
        self.programs.push(Process::spawn(name, command, &log)?);
        Ok(())
    }

    /// Starts a daemon.
    pub fn start(&mut self, id: &str) -> Result<()> {
        let (config, log) = (self.config(id), self.log(id));
        let binaries = self.binaries.clone();
        let member = self.member(id);
        let binary = binaries.join(member.tier.daemon());
        let mut command = member.host.command(&binary.to_string_lossy());
        command.arg("--config").arg(config);
        member.process = Some(Process::spawn(id, command, &log)?);
        Ok(())
    }

    /// Stops a daemon by SIGTERM, and returns when it has ended with success.
    pub fn stop_daemon(&mut self, id: &str) -> Result<()> {
        let status = self.daemon(id)?.stop()?;
        if !status.success() {
            bail!("{id} stopped with {status}");
        }
        Ok(())
    }

    /// Returns a running daemon.
    pub fn daemon(&mut self, id: &str) -> Result<&mut Process> {
        self.member(id).process.as_mut().with_context(|| format!("{id} was not started"))
    }

    fn wait_endpoint(&self, id: &str, path: &str) -> Result<()> {
        let answers = || self.ask(id, path).is_ok().then_some(());
        wait_until(&format!("{id} {path}"), READY_DEADLINE, answers).with_context(|| self.logs())
    }

    /// Waits until `/readyz` of a daemon answers, then until all nodes are ready and all services answer.
    pub fn wait_recovered(&self, id: &str) -> Result<()> {
        self.wait_endpoint(id, "/readyz")?;
        self.wait_served()
    }

    /// Waits until all nodes are registered and ready, and every service answers every client.
    pub fn wait_served(&self) -> Result<()> {
        wait_until("all nodes to be ready", READY_DEADLINE, || {
            let view: NodesView = serde_json::from_str(&self.cspctl(&["nodes", "-o", "json"]).ok()?).ok()?;
            let ready = view.nodes.iter().filter(|node| node.state == NodeState::Ready).count();
            (ready == MEMBERS.len()).then_some(())
        })
        .with_context(|| self.cspctl(&["nodes"]).unwrap_or_default() + &self.logs())?;
        for port in self.ports() {
            wait_until(&format!("port {port} of the VIPs"), testing::SERVING_DEADLINE, || {
                (0..self.clients.len()).all(|client| self.answers(client, port)).then_some(())
            })
            .with_context(|| self.logs())?;
        }
        Ok(())
    }

    /// Returns the ports of each VIP: web, upload, and web of each application node.
    pub fn ports(&self) -> Vec<u16> {
        let singles = (SINGLE_PORT..).take(APP_NODES.len());
        [80, UPLOAD_PORT].into_iter().chain(singles).collect()
    }

    /// Returns the URL of a service for a client.
    fn url(&self, client: usize, port: u16) -> String {
        format!("http://{}:{port}", self.lans.vip(client))
    }

    /// Returns whether a port of the VIP answers a client within 2 s.
    pub fn answers(&self, client: usize, port: u16) -> bool {
        let url = format!("{}/1KiB", self.url(client, port));
        let output = self.clients[client].output("curl", &["-sf", "-m", "2", "-o", "/dev/null", &url]);
        output.is_ok_and(|output| output.status.success())
    }

    /// Opens `count` connections one after another from each client to each service; all must be answered.
    pub fn all_answered(&self, count: u32) -> Result<()> {
        for (at, client) in self.clients.iter().enumerate() {
            for port in self.ports() {
                let url = format!("{}/1KiB?[1-{count}]", self.url(at, port));
                let arguments = ["-sSf", "--http1.0", "-m", "30", "-o", "/dev/null", &url];
                client.run("curl", &arguments).with_context(|| self.logs())?;
            }
        }
        Ok(())
    }

    /// Downloads a file from the service at `port` and compares its SHA-256 with that of the file.
    pub fn download(&self, client: usize, port: u16, file: &str) -> Result<()> {
        let got = self.scratch().join(format!("got-{client}-{port}"));
        let url = format!("{}/{file}", self.url(client, port));
        self.clients[client].run("curl", &["-sSf", "-m", "30", "-o", &got.to_string_lossy(), &url])?;
        self.compare(&got, file).context(url)
    }

    /// Uploads a file and compares the SHA-256 that the application returns.
    pub fn upload(&self, client: usize, file: &str) -> Result<()> {
        let path = self.scratch().join("www").join(file);
        let (url, body) = (self.url(client, UPLOAD_PORT) + "/", format!("@{}", path.display()));
        let arguments = ["-sSf", "-m", "30", "-X", "PUT", "-H", "Expect:", "--data-binary", &body, &url];
        let (answer, wanted) = (self.clients[client].run("curl", &arguments)?, Digest::of_file(&path)?);
        if answer.trim() != wanted.0 {
            bail!("{url}: the application received {}, the file is {}", answer.trim(), wanted.0);
        }
        Ok(())
    }

    /// Downloads a file from a client's web server by a program of an application host, and compares its
    /// SHA-256.
    pub fn egress(&self, id: &str, client: usize, file: &str) -> Result<()> {
        let got = self.scratch().join(format!("got-{id}"));
        let mut command = self.accelerated(id, "curl")?;
        command.args(["-sSf", "-m", "30", "-o"]).arg(&got);
        let (address, _) = self.lans.outside(client);
        let output = command.arg(format!("http://{address}:{OUTSIDE_PORT}/{file}")).output()?;
        if !output.status.success() {
            bail!("egress from {id}: {}", String::from_utf8_lossy(&output.stderr));
        }
        self.compare(&got, file).with_context(|| format!("egress from {id}"))
    }

    fn compare(&self, got: &Path, file: &str) -> Result<()> {
        let (found, wanted) =
            (Digest::of_file(got)?, Digest::of_file(&self.scratch().join("www").join(file))?);
        fs::remove_file(got)?;
        if found != wanted {
            bail!("{file}: SHA-256 is {}, the file's is {}", found.0, wanted.0);
        }
        Ok(())
    }

    /// Applies the policy, with the upload service or without it.
    pub fn apply(&self, with_upload: bool) -> Result<()> {
        let pool = |ids: &[&str], port: u16| -> String {
            ids.iter().map(|id| format!("      - {{node: {id}, port: {port}}}\n")).collect()
        };
        let (mut services, mut egress) = (String::new(), String::new());
        for client in self.lans.distinct() {
            let vip = self.lans.vip(client);
            let mut service = |name: &str, port: u16, pool: String| {
                services += &format!(
                    "  - name: {name}-{client}\n    vip: {vip}\n    port: {port}\n    pool:\n{pool}"
                );
            };
            service("web", 80, pool(&APP_NODES, 80));
            if with_upload {
                service("upload", UPLOAD_PORT, pool(&APP_NODES, UPLOAD_PORT));
            }
            for (port, id) in (SINGLE_PORT..).zip(APP_NODES) {
                service(&format!("web-{id}"), port, pool(&[id], 80));
            }
            let (outside, address) = self.lans.outside(client);
            egress += &format!("  - {{address: {address}, destinations: [\"{outside}/32\"]}}\n");
        }
        let groups = self.lans.groups();
        let text = format!("apiVersion: csp/v1\nservices:\n{services}egress:\n{egress}{groups}");
        let path = self.scratch().join("policy.yaml");
        fs::write(&path, text)?;
        self.cspctl(&["policy", "apply", &path.to_string_lossy()]).map(drop)
    }

    /// Runs `cspctl` on the management host; returns its standard output.
    pub fn cspctl(&self, arguments: &[&str]) -> Result<String> {
        let who = identities::cspctl(self.scratch(), &MGMT.admin());
        let all: Vec<&str> = who.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        self.host(MGMT.id).run(&self.binaries.join("cspctl").to_string_lossy(), &all)
    }

    /// Returns the response of a daemon's admin endpoint to `path`.
    pub fn ask(&self, id: &str, path: &str) -> Result<String> {
        let member = self.members.iter().find(|member| member.place.id == id);
        let admin = member.with_context(|| format!("no node {id}"))?.place.admin();
        identities::ask(self.host(id), self.scratch(), &admin, path)
    }

    /// Returns a daemon's host.
    ///
    /// # Panics
    /// If there is no daemon `id`.
    pub fn host(&self, id: &str) -> &Host {
        &self.members.iter().find(|member| member.place.id == id).expect("a node of this cluster").host
    }

    fn member(&mut self, id: &str) -> &mut Member {
        self.members.iter_mut().find(|member| member.place.id == id).expect("a node of this cluster")
    }

    /// Returns the scratch folder.
    pub fn scratch(&self) -> &Path {
        &self.scratch.0
    }

    fn socket(&self, id: &str) -> PathBuf {
        self.scratch().join("run").join(format!("{id}.agent.sock"))
    }

    fn config(&self, id: &str) -> PathBuf {
        self.scratch().join(format!("{id}.yaml"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.scratch().join("log").join(format!("{name}.log"))
    }

    /// Returns the last lines of every daemon's log.
    pub fn logs(&self) -> String {
        let daemons = self.members.iter().filter_map(|member| member.process.as_ref());
        daemons.map(|process| format!("{}:\n{}\n", process.name(), process.log_tail(12))).collect()
    }

    /// Returns the programs and daemons that have ended, with the last lines of their logs.
    pub fn casualties(&mut self) -> String {
        let daemons = self.members.iter_mut().filter_map(|member| member.process.as_mut());
        let ended = self.programs.iter_mut().chain(daemons).filter_map(|process| {
            let status = process.exited()?;
            Some(format!("{} ended with {status}:\n{}\n", process.name(), process.log_tail(12)))
        });
        ended.collect()
    }

    /// Stops programs, then daemons, management node last; every daemon must end with success.
    pub fn stop(&mut self) -> Result<()> {
        self.programs.iter_mut().try_for_each(|process| process.stop().map(drop))?;
        MEMBERS.iter().try_for_each(|(_, place)| self.stop_daemon(place.id))
    }
}
