//! What keepalived with HAProxy does under two faults of `takeover.rs`, for comparison: two hosts of one LAN,
//! HAProxy in mode tcp on both, an address that VRRP gives to one of them, and a web server behind.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use csp_cluster::prober::{Prober, now_s};
use csp_cluster::steady::{SETTLED, Steady, end, going_on};
use csp_cluster::testing::{obstacle, pattern};
use csp_cluster::{Host, Process, wait_until};

const VIP: &str = "10.79.0.100";
const SERVER: &str = "10.79.0.30";
const CLIENTS: usize = 6;

/// What happens to the host that has the address.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Its processes are killed; its kernel keeps the address.
    Kill,
    /// The cable of its LAN is pulled.
    LanCut,
}

struct Pair {
    hosts: [Host; 2],
    running: [Vec<Process>; 2],
    client: Host,
    scratch: PathBuf,
    /// Seconds between advertisements of VRRP.
    interval: &'static str,
    _server: (Host, Process),
    _switch: Host,
}

impl Pair {
    fn new(scratch: &Path, interval: &'static str) -> Self {
        let tag = format!("vrrp{}", std::process::id());
        let host = |name: &str| Host::new(&tag, name).unwrap();
        let switch = host("switch");
        switch.ip(&["link", "add", "lan", "type", "bridge"]).unwrap();
        switch.ip(&["link", "set", "lan", "up"]).unwrap();
        let joined = |name: &str, address: &str| {
            let joined = host(name);
            let port = format!("to-{name}");
            joined.join("lan0", &switch, &port).unwrap();
            switch.ip(&["link", "set", &port, "master", "lan"]).unwrap();
            joined.address("lan0", &format!("{address}/24")).unwrap();
            joined
        };
        let server = joined("server", SERVER);
        let nginx = nginx(&server, scratch);
        let mut pair = Pair {
            hosts: [joined("one", "10.79.0.11"), joined("two", "10.79.0.12")],
            running: [Vec::new(), Vec::new()],
            client: joined("client", "10.79.0.1"),
            scratch: scratch.to_owned(),
            interval,
            _server: (server, nginx),
            _switch: switch,
        };
        pair.start(0);
        pair.start(1);
        pair
    }

    /// Starts keepalived and HAProxy; the first host is the preferred one.
    fn start(&mut self, at: usize) {
        let dir = self.scratch.join(format!("host-{at}"));
        std::fs::create_dir_all(&dir).unwrap();
        let file = |name: &str, text: String| {
            std::fs::write(dir.join(name), text).unwrap();
            dir.join(name).display().to_string()
        };
        let (priority, interval) = (150 - 50 * at, self.interval);
        let keepalived = file(
            "keepalived.conf",
            format!(
                "global_defs {{\n vrrp_version 3\n}}\nvrrp_instance vip {{\n state BACKUP\n interface lan0\n \
                 virtual_router_id 51\n priority {priority}\n advert_int {interval}\n \
                 virtual_ipaddress {{\n {VIP}/24\n }}\n}}\n"
            ),
        );
        let haproxy = file(
            "haproxy.cfg",
            format!(
                "defaults\n mode tcp\n timeout connect 3s\n timeout client 60s\n timeout server 60s\n\
                 listen web\n bind *:80\n server web {SERVER}:80\n"
            ),
        );
        let pid = |name: &str| dir.join(name).display().to_string();
        let spawn = |program: &str, arguments: &[&str]| {
            let mut command = self.hosts[at].command(program);
            command.args(arguments);
            let log = self.scratch.join(format!("log/{program}-{at}.log"));
            Process::spawn(program, command, &log).unwrap()
        };
        let (main, vrrp) = (pid("keepalived.pid"), pid("vrrp.pid"));
        self.running[at] = vec![
            spawn("haproxy", &["-db", "-f", &haproxy]),
            spawn(
                "keepalived",
                &["--dont-fork", "--log-console", "--vrrp", "-f", &keepalived, "-p", &main, "-r", &vrrp],
            ),
        ];
    }

    fn kill(&self) {
        let pids: Vec<String> = self.hosts[0].pids().unwrap().iter().map(u32::to_string).collect();
        let mut arguments = vec!["-KILL"];
        arguments.extend(pids.iter().map(String::as_str));
        self.hosts[0].run("kill", &arguments).unwrap();
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Kill => self.kill(),
            Fault::LanCut => self.hosts[0].ip(&["link", "set", "lan0", "down"]).unwrap(),
        }
    }

    fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::Kill => self.start(0),
            Fault::LanCut => self.hosts[0].ip(&["link", "set", "lan0", "up"]).unwrap(),
        }
    }

    /// Waits until the preferred host has the address.
    fn wait_preferred(&self) {
        wait_until("the preferred host to have the address", SETTLED, || {
            let has = |host: &Host| host.run("ip", &["-o", "addr", "show", "lan0"]).unwrap().contains(VIP);
            (has(&self.hosts[0]) && !has(&self.hosts[1])).then_some(())
        })
        .unwrap();
    }

    /// Returns for how long the address did not answer, in seconds, and how many connections went on.
    fn round(&mut self, fault: Fault) -> (f64, usize) {
        self.wait_preferred();
        let prober = Prober::start(&self.client, &self.scratch, VIP, 80);
        let start = now_s();
        wait_until("the address to answer", SETTLED, || prober.is_up_since(start).then_some(())).unwrap();
        let mut all: Vec<Steady> =
            (0..CLIENTS).map(|_| Steady::connect(&self.client, &self.scratch, VIP, 80)).collect();
        assert_eq!(going_on(&mut all), CLIENTS, "clients before {fault:?}");
        let began = now_s();
        self.begin(fault);
        // Its election takes three intervals and a part of one.
        std::thread::sleep(Duration::from_secs(5));
        let settled = now_s();
        wait_until("the address to answer", SETTLED, || prober.is_up_since(settled).then_some(())).unwrap();
        let gap = prober.longest_gap(began - 0.2);
        let go_on = going_on(&mut all);
        self.mend(fault);
        end(all);
        (gap, go_on)
    }
}

fn nginx(server: &Host, scratch: &Path) -> Process {
    let shown = scratch.display();
    std::fs::create_dir_all(scratch.join("www")).unwrap();
    std::fs::create_dir_all(scratch.join("log")).unwrap();
    std::fs::write(scratch.join("www/1KiB"), pattern(1 << 10)).unwrap();
    let text = format!(
        "daemon off;\nworker_processes 1;\npid {shown}/server.pid;\nerror_log {shown}/log/server.log;\nuser root;\n\
         events {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\nkeepalive_requests 10000000;\n\
         server {{\nlisten 80;\nroot {shown}/www;\n}}\n}}\n"
    );
    std::fs::write(scratch.join("server.conf"), text).unwrap();
    let mut nginx = server.command("nginx");
    nginx.args(["-c", &scratch.join("server.conf").display().to_string()]);
    Process::spawn("nginx", nginx, &scratch.join("log/nginx.log")).unwrap()
}

/// With an advertisement a second, which is usual, and with ten.
#[test]
#[ignore = "a comparison: make test-front"]
fn keepalived_with_haproxy_beside() {
    if let Some(obstacle) = obstacle() {
        return csp_support::skip(obstacle);
    }
    if !["keepalived", "haproxy"].into_iter().all(|program| csp_support::installed(program, program)) {
        return;
    }
    let rounds = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    for interval in ["1", "0.1"] {
        let scratch = std::env::temp_dir().join(format!("csp-vrrp-{}", std::process::id()));
        let mut pair = Pair::new(&scratch, interval);
        // Of a stopped HAProxy the kernel accepts connections that nobody serves: that is no outage to the
        // prober.
        for fault in [Fault::Kill, Fault::LanCut] {
            let mut all: Vec<(f64, usize)> = (0..rounds).map(|_| pair.round(fault)).collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (middle, longest) = (all[rounds / 2].0 * 1e3, all[rounds - 1].0 * 1e3);
            let go_on: usize = all.iter().map(|(_, go_on)| go_on).sum();
            println!(
                "  keepalived, an advertisement every {interval} s, {fault:?}, {rounds} times: no answer for {middle:.0} ms in the median, \
                 worst {longest:.0} ms; {go_on} of {} connections go on",
                rounds * CLIENTS
            );
        }
        drop(pair);
        let _ = std::fs::remove_dir_all(&scratch);
    }
}
