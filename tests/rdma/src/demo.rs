//! The whole path between guests: client and network node, proxy node, and application on one guest each.
//!
//! ```text
//!  guest 1                                         guest 2             guest 3
//!  [client]──veth──[network-node]  [mgmt-node     [proxy-node]        [app-node agent]──shm──[nginx under csp-run]
//!   10.76.0.1       10.77.0.1       + etcd .4]     10.77.0.2           10.77.0.3
//!                        └──────────── SAN ────────────┴────── SAN ─────────┘
//! ```
//! Besides nginx there are a Python http.server application that accepts uploads, and libcsp's example
//! server, which reaches the proxy by queue pairs of its own if verbs carry the SAN, and csp-context with a
//! handler of a channel's path. The client is a network namespace of guest 1. All traffic between guests uses
//! their one Ethernet and the selected provider. Addresses and configuration files are those of `make demo`.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use csp_cluster::demo::{is_placeholder, step};
use csp_cluster::{
    ADMIN_PORTS, CLIENT_ADDRESS, Digest, UPLOAD_PORT, VIP, configs, identities, keys, wait_until,
};

mod contexts;
mod library;
mod notice;

use notice::{Line, wait_for_lines};

use crate::kernel::Kernel;
use crate::{Fleet, Guest, Output, Program, Sizes};

/// The files of the web service: name and length in bytes.
const FILES: [(&str, u64); 6] =
    [("0B", 0), ("1B", 1), ("1KiB", 1 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20), ("4MiB", 4 << 20)];
const SIZES: Sizes = Sizes { memory_mib: 1024, cpus: 2, mtu: 1500 };
/// Indices of the guests. The application has a guest of its own unless `together` is set.
const NETWORK: usize = 0;
const PROXY: usize = 1;
/// Time limit of a step in a guest, which is emulated and shares its host.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time limit for detecting the silent death of a host (SPECIFICATION.md: 1 s), not counting how long a guest
/// stood still.
const SILENCE_DEADLINE: Duration = Duration::from_secs(1);
/// Longest standstill of a guest in a valid measurement: behind a longer one, a protocol that is too slow
/// would not show.
const STANDSTILL_MAX: Duration = Duration::from_millis(500);

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// `san.provider` of the daemons: verbs, ucx or auto.
    pub provider: String,
    /// The application runs on the proxy node's guest, without an agent as relay: two guests.
    pub together: bool,
    /// The directory of the built binaries and libcsp_sockfilter.so.
    pub binaries: PathBuf,
}

impl Options {
    /// Returns whether libcsp programs reach the proxy by verbs of their own.
    fn direct(&self) -> bool {
        self.provider == "verbs" && !self.together
    }
}

/// The guests and the programs on them.
struct Machines {
    scratch: Scratch,
    options: Options,
    fleet: Fleet,
    programs: Vec<Program>,
}

/// The directory of configuration files, `www` and logs; removed when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs and prints all steps. After a failed step it prints the daemons' logs.
pub fn run(kernel: &Kernel, options: Options) -> Result<()> {
    println!(
        "CSP between guests: client → network-node → proxy-node → app-node (SAN: {})\n",
        options.provider
    );
    let scratch = step("configuration and files of 0 B to 4 MiB", || lay_out(&options))?;
    let count = if options.together { 2 } else { 3 };
    let name = format!("{count} guests with Soft-RoCE");
    let fleet = step(&name, || Fleet::boot(kernel, count, SIZES))?;
    let mut path = Machines { scratch, options, fleet, programs: Vec::new() };
    let outcome = path.prove();
    if outcome.is_err() {
        eprintln!("{}", path.logs());
    }
    outcome
}

/// Writes all files that the guests read, before they boot, so that no guest has an earlier state in its
/// cache.
fn lay_out(options: &Options) -> Result<Scratch> {
    let scratch = Scratch(std::env::temp_dir().join(format!("csp-guests-{}", std::process::id())));
    let (dir, provider) = (scratch.0.as_path(), options.provider.as_str());
    let reach = if options.together { "shm" } else { provider };
    for folder in ["run", "state", "www", "log"] {
        fs::create_dir_all(dir.join(folder))?;
    }
    let files = [
        ("csp-network-node.yaml", configs::network_node(dir, provider)),
        ("csp-proxy-node.yaml", configs::proxy_node(dir, provider)),
        (
            "csp-app-node.yaml",
            configs::app_node(dir, reach) + if options.direct() { "  direct: true\n" } else { "" },
        ),
        ("csp-mgmt-node.yaml", configs::mgmt_node(dir)),
        ("demo.yaml", contexts::add_channel(&library::add_service(&configs::policy()))),
        ("nginx.conf", configs::nginx(dir)),
        ("upload.py", include_str!("../../cluster/apps/upload.py").to_owned()),
        ("zmq_pipe.py", contexts::PIPE.to_owned()),
    ];
    for (name, text) in files {
        fs::write(dir.join(name), text)?;
    }
    for (name, len) in FILES {
        fs::write(dir.join("www").join(name), csp_cluster::testing::pattern(len as usize))?;
    }
    library::compile(&options.binaries, dir)?;
    keys::generate(&options.binaries, dir)?;
    keys::derive(&options.binaries, dir, configs::NODES.map(|(role, place)| (role, place.id)))?;
    identities::create(dir, &configs::NODES.map(|(role, place)| (role, place.id, place.address())))?;
    Ok(scratch)
}

impl Machines {
    fn prove(&mut self) -> Result<()> {
        step("addresses and the client's network", || self.address())?;
        step("mgmt-node with etcd, network-node, proxy-node, app-node", || self.start_daemons())?;
        step("unmodified nginx under csp-run", || self.start_nginx())?;
        step("unmodified Python http.server under csp-run", || self.start_upload())?;
        step("libcsp's http_server", || self.start_library())?;
        step("csp-context under csp-run", || self.start_context())?;
        step("cspctl policy apply", || self.apply_policy())?;
        step("all services answer", || {
            [80, UPLOAD_PORT, library::PORT]
                .into_iter()
                .try_for_each(|port| self.shell(NETWORK, &until_answer(port)).map(drop))
        })?;
        let before = self.rdma_packets()?;
        for (name, _) in FILES {
            step(&format!("GET {name}: SHA-256 equal to the file on disk"), || self.fetch(80, name))?;
        }
        step("PUT 4 MiB to the Python application: SHA-256 equal", || self.upload("4MiB"))?;
        let direct = self.options.direct();
        let how = if direct { "by queue pairs of the program's own" } else { "as streams" };
        step(&format!("GET 4MiB of libcsp's http_server, {how}"), || {
            self.fetch(library::PORT, "4MiB")?;
            if direct { self.has_device_open() } else { Ok(()) }
        })?;
        step("messages pass a handler of csp-context: once and in order", || self.pass_context())?;
        step("only the client has kernel TCP sockets of the services", || self.no_kernel_tcp())?;
        let after = self.rdma_packets()?;
        self.carried(&before, &after)?;
        self.lose_proxy()
    }

    /// Runs a shell command in a guest and returns its output.
    fn shell(&mut self, guest: usize, command: &str) -> Result<String> {
        self.guest(guest)?.run(&["/bin/sh", "-ec", command], DEADLINE)
    }

    fn guest(&mut self, guest: usize) -> Result<&mut Guest> {
        self.fleet.guests.get_mut(guest).context("no guest with this number was booted")
    }

    /// Returns the index of the application's guest.
    fn application(&self) -> usize {
        if self.options.together { PROXY } else { 2 }
    }

    fn address(&mut self) -> Result<()> {
        // UCX over TCP uses the first address of an interface, which must therefore be that of the SAN.
        for guest in NETWORK..self.fleet.guests.len() {
            self.shell(guest, "ip -4 address flush dev eth0")?;
        }
        for (guest, octet) in [(NETWORK, 1), (NETWORK, 4), (PROXY, 2), (self.application(), 3)] {
            self.shell(guest, &format!("ip address add 10.77.0.{octet}/24 dev eth0"))?;
        }
        let client = "ip netns exec client";
        self.shell(
            NETWORK,
            &format!(
                "ip netns add client
                ip link add lan0 type veth peer name lan0 netns client
                ip link set lan0 up
                {client} ip link set lo up
                {client} ip link set lan0 up
                {client} ip address add {CLIENT_ADDRESS}/24 dev lan0"
            ),
        )?;
        Ok(())
    }

    fn start_daemons(&mut self) -> Result<()> {
        // The management node runs on the network node's guest, at address .4.
        self.start_daemon(NETWORK, "csp-mgmt-node", 4, "/readyz")?;
        let nodes = configs::NODES.map(|(role, place)| (role, place.id));
        let cspctl = self.options.binaries.join("cspctl").display().to_string();
        let arguments = identities::etcd_setup(&self.scratch.0, &nodes).join(" ");
        self.shell(NETWORK, &format!("{cspctl} {arguments}"))?;
        self.start_daemon(PROXY, "csp-proxy-node", 2, "/healthz")?;
        self.start_daemon(NETWORK, "csp-network-node", 1, "/healthz")?;
        self.start_daemon(self.application(), "csp-app-node", 3, "/healthz")
    }

    fn start_daemon(&mut self, guest: usize, name: &str, octet: usize, ready: &str) -> Result<()> {
        let binary = self.options.binaries.join(name).display().to_string();
        let config = self.scratch.0.join(format!("{name}.yaml")).display().to_string();
        self.start(guest, name, &[&binary, "--config", &config])?;
        let url = format!("https://10.77.0.{octet}:{}{ready}", ADMIN_PORTS[octet - 1]);
        let who = identities::curl(&self.scratch.0).join(" ");
        self.shell(guest, &format!("until curl -sf -m 2 {who} -o /dev/null {url}; do sleep 0.1; done"))
            .with_context(|| format!("{name} does not answer {url}"))?;
        Ok(())
    }

    /// Starts a program in the background, with its output in the scratch directory's `log`.
    fn start(&mut self, guest: usize, name: &str, command: &[&str]) -> Result<()> {
        let log = File::create(self.log(name))?;
        let program = self.guest(guest)?.start(command, Output::File(log))?;
        self.programs.push(program);
        Ok(())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.scratch.0.join("log").join(format!("{name}.log"))
    }

    fn start_nginx(&mut self) -> Result<()> {
        let conf = self.scratch.0.join("nginx.conf").display().to_string();
        self.accelerated("nginx", &["nginx", "-c", &conf])
    }

    fn start_upload(&mut self) -> Result<()> {
        let (script, port) =
            (self.scratch.0.join("upload.py").display().to_string(), UPLOAD_PORT.to_string());
        self.accelerated("upload", &["/usr/bin/python3", &script, "0.0.0.0", &port])
    }

    /// Starts an unmodified program in the application's guest through `csp-run`.
    fn accelerated(&mut self, name: &str, command: &[&str]) -> Result<()> {
        let run = self.options.binaries.join("csp-run").display().to_string();
        let socket = self.scratch.0.join("run/agent.sock").display().to_string();
        let all = [&[run.as_str(), "--agent", &socket], command].concat();
        self.start(self.application(), name, &all)
    }

    fn apply_policy(&mut self) -> Result<()> {
        let cspctl = self.options.binaries.join("cspctl");
        let file = self.scratch.0.join("demo.yaml");
        let who = identities::cspctl(&self.scratch.0, &format!("10.77.0.4:{}", ADMIN_PORTS[3])).join(" ");
        let command = format!("{} {who} policy apply {}", cspctl.display(), file.display());
        self.shell(NETWORK, &command).map(drop)
    }

    fn fetch(&mut self, port: u16, name: &str) -> Result<()> {
        let wanted = Digest::of_file(&self.scratch.0.join("www").join(name))?;
        let url = format!("http://{VIP}:{port}/{name}");
        let command = format!(
            "touch /tmp/got; ip netns exec client curl -sS -f -m 55 -o /tmp/got {url}; sha256sum < /tmp/got"
        );
        let text = self.shell(NETWORK, &format!("rm -f /tmp/got; {command}"))?;
        match text.split_whitespace().next() {
            Some(got) if got == wanted.0 => Ok(()),
            got => bail!("{url}: SHA-256 is {got:?}, the file's is {}", wanted.0),
        }
    }

    /// Uploads a file and compares the digest that the application returns.
    fn upload(&mut self, name: &str) -> Result<()> {
        let file = self.scratch.0.join("www").join(name);
        let (wanted, url) = (Digest::of_file(&file)?, format!("http://{VIP}:{UPLOAD_PORT}/"));
        let body = format!("--data-binary @{}", file.display());
        let command =
            format!("ip netns exec client curl -sS -f -m 55 -X PUT -H Expect: -H Content-Type: {body} {url}");
        let got = self.shell(NETWORK, &command)?;
        if got.trim() != wanted.0 {
            bail!("PUT {url}: the application received {}, the file is {}", got.trim(), wanted.0);
        }
        Ok(())
    }

    /// Checks that neither the proxy's nor the application's kernel has sockets of the services' connections,
    /// also none in TIME-WAIT.
    fn no_kernel_tcp(&mut self) -> Result<()> {
        for guest in [PROXY, self.application()] {
            let ports = [80, UPLOAD_PORT, library::PORT]
                .map(|port| format!("sport = {port} or dport = {port}"))
                .join(" or ");
            let sockets = self.shell(guest, &format!("ss -Htan '{ports}'"))?;
            if let Some(socket) = sockets.lines().map(str::trim).find(|s| !s.is_empty() && !is_placeholder(s))
            {
                bail!("guest {}: a kernel TCP socket: {socket}", guest + 1);
            }
        }
        Ok(())
    }

    /// Returns the packets that each guest's RDMA device has sent.
    fn rdma_packets(&mut self) -> Result<Vec<u64>> {
        let mut packets = Vec::new();
        for guest in NETWORK..self.fleet.guests.len() {
            let text = self.shell(guest, "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")?;
            packets.push(text.trim().parse().with_context(|| text.clone())?);
        }
        Ok(packets)
    }

    /// Checks that RDMA carried the files if selected, by the devices' own counters rather than the daemons'
    /// reports.
    fn carried(&self, before: &[u64], after: &[u64]) -> Result<()> {
        let sent: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
        println!("  · RDMA packets sent by each guest: {sent:?}");
        if self.options.provider == "verbs" && sent.contains(&0) {
            bail!("a guest's RDMA device sent no packet");
        }
        Ok(())
    }

    /// Makes the proxy's guest silent by a pulled cable, stopped processors, and power loss. The other nodes
    /// must notice within the time limit, and the service must recover when the guest returns, which it does
    /// not after the power loss.
    fn lose_proxy(&mut self) -> Result<()> {
        for guest in self.watching() {
            let (command, log) = (notice::metronome(), self.log(&metronome(guest)));
            self.start(guest, &metronome(guest), &command.each_ref().map(String::as_str))?;
            let ticks = || fs::metadata(&log).is_ok_and(|file| file.len() > 0).then_some(());
            wait_until("a guest's metronome", DEADLINE, ticks)?;
        }
        self.lose("cable pulled", |guest| guest.plug(false))?;
        self.regain("cable restored", |guest| guest.plug(true))?;
        self.lose("processors stopped", |guest| guest.freeze(true))?;
        self.regain("processors resumed", |guest| guest.freeze(false))?;
        self.lose("power lost", |guest| {
            guest.kill();
            Ok(())
        })
    }

    fn lose(&mut self, how: &str, lose: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
        let watched = self.watch("tunnel lost", "proxy lost")?;
        let began = Instant::now();
        lose(self.guest(PROXY)?)?;
        let name = format!("proxy's guest, {how}: the other nodes notice");
        let noticed = step(&name, || wait_for_lines(&watched, began, DEADLINE))?;
        for (Line { name, .. }, notice) in watched.iter().zip(noticed) {
            let (after, still) = (notice.after.as_millis(), notice.stood_still.as_millis());
            println!("  · {name} after {after} ms, in which its guest stood still for {still} ms");
            if notice.stood_still > STANDSTILL_MAX {
                bail!("{name}: its guest stood still for {still} ms, which leaves nothing to measure");
            }
            if notice.protocol() > SILENCE_DEADLINE {
                bail!(
                    "{name} took {after} ms, {still} ms of them its guest; at most {SILENCE_DEADLINE:?} is promised"
                );
            }
        }
        Ok(())
    }

    fn regain(&mut self, how: &str, regain: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
        let watched = self.watch("tunnel up", "proxy reached")?;
        let began = Instant::now();
        regain(self.guest(PROXY)?)?;
        step(&format!("proxy's guest, {how}: the service answers again"), || {
            self.shell(NETWORK, &until_answer(80)).map(drop)
        })?;
        self.fetch(80, "64KiB")?;
        // The service may answer before network node and agent have both reached the proxy again.
        wait_for_lines(&watched, began, DEADLINE).map(drop)
    }

    /// The guests whose daemons notice that the proxy's is gone.
    fn watching(&self) -> Vec<usize> {
        let mut guests = vec![NETWORK];
        guests.extend((!self.options.together).then(|| self.application()));
        guests
    }

    /// Returns the lines that the network node and, if it relays, the agent must log from now on.
    fn watch(&self, network: &'static str, agent: &'static str) -> Result<Vec<Line>> {
        let lines = [("csp-network-node", network), ("csp-app-node", agent)];
        let line = |((name, words), guest)| {
            let (log, metronome) = (self.log(name), self.log(&metronome(guest)));
            let seen = fs::read_to_string(&log)?.len();
            Ok(Line { name, log, seen, words, metronome })
        };
        lines.into_iter().zip(self.watching()).map(line).collect()
    }

    /// Returns the last lines of every log.
    fn logs(&self) -> String {
        const LINES: usize = 20;
        let mut text = String::new();
        let programs = ["nginx", "upload", "http_server", "csp-context"];
        let daemons = ["csp-mgmt-node", "csp-network-node", "csp-proxy-node", "csp-app-node"];
        for name in daemons.into_iter().chain(programs) {
            let log = fs::read_to_string(self.log(name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LINES)..].join("\n");
            text += &format!("── last lines of {name}:\n{tail}\n");
        }
        text
    }
}

/// The name of a guest's metronome.
fn metronome(guest: usize) -> String {
    format!("metronome-{guest}")
}

/// Returns a shell command that ends when the service at this port has answered the client.
fn until_answer(port: u16) -> String {
    format!(
        "until ip netns exec client curl -sf -m 3 -o /dev/null http://{VIP}:{port}/1B; do sleep 0.1; done"
    )
}
