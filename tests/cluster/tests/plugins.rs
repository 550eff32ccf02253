//! Packet plug-ins: rules and plug-ins change while requests run; a blocked client is refused and others are
//! served; what is captured and marked arrives so; supplied modules run and are stopped; plug-ins move to a
//! host across the SAN and back. IPv4 and IPv6.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

#[path = "plugins/auto.rs"]
mod auto;
#[path = "plugins/host.rs"]
mod host;
#[path = "plugins/kernel.rs"]
mod kernel;
#[path = "plugins/objects.rs"]
mod objects;
#[path = "plugins/supplied.rs"]
mod supplied;

use std::fs;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use csp_classify::multifield::{Direction, parse_ethernet};
use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Process, Tier, VIP, configs, testing, wait_until};
use csp_plugins::pcap;
use serde_json::Value;

const VIP6: &str = "2001:db8:76::100";
/// Where nginx listens for IPv6.
const PORT6: u16 = 8086;
/// The client's second addresses, which are blocked.
const BLOCKED: [&str; 2] = ["10.76.0.9", "2001:db8:76::9"];
const OTHERS: [&str; 2] = [configs::CLIENT_ADDRESS, "2001:db8:76::1"];
const URLS: [&str; 2] = ["http://10.76.0.100/1KiB", "http://[2001:db8:76::100]/1KiB"];

/// Prints the codepoints of a SYN/ACK of each family from port 80, and ends.
const WATCH: &str = r#"
import socket, struct, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("lan0", 0))
seen = {}
while len(seen) < 2:
    f, of = s.recvfrom(65535)
    if of[2] == 4:  # outgoing
        continue
    kind = struct.unpack("!H", f[12:14])[0]
    if kind == 0x800 and f[23] == 6:
        tcp, dscp = f[14 + (f[14] & 15) * 4:], f[15] >> 2
    elif kind == 0x86dd and f[20] == 6:
        tcp, dscp = f[54:], (f[14] << 4 & 0xff | f[15] >> 4) >> 2
    else:
        continue
    if struct.unpack("!H", tcp[:2])[0] == 80 and tcp[13] & 0x12 == 0x12:
        seen[kind] = dscp
print("dscp", seen[0x800], seen[0x86dd])
"#;

fn cluster(name: &str, prepare: impl FnOnce(&Cluster)) -> Option<Cluster> {
    let mut cluster = testing::lay_out(name)?;
    prepare(&cluster);
    cluster.client.address("lan0", &format!("{}/24", BLOCKED[0])).unwrap();
    for address in [OTHERS[1], BLOCKED[1]] {
        let address = format!("{address}/64");
        cluster.client.ip(&["address", "add", &address, "dev", "lan0", "nodad"]).unwrap();
    }
    fs::write(cluster.scratch().join("www/1KiB"), testing::pattern(1 << 10)).unwrap();
    // A listener of its own for IPv6.
    let conf = cluster.scratch().join("nginx.conf");
    let both = format!("listen 80;\n    listen [::]:{PORT6};");
    fs::write(&conf, fs::read_to_string(&conf).unwrap().replacen("listen 80;", &both, 1)).unwrap();
    cluster.start_daemons().unwrap();
    cluster.start_nginx().unwrap();
    let second = format!(
        "services:\n  - {{name: web6, vip: \"{VIP6}\", port: 80, pool: [{{node: an-1, port: {PORT6}}}]}}\n"
    );
    let file = cluster.scratch().join("both.yaml");
    let policy = configs::policy().replacen("services:\n", &second, 1) + &host::policy(&cluster);
    fs::write(&file, policy).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    for (url, from) in URLS.iter().zip(OTHERS) {
        wait_until("an answer", SERVING_DEADLINE, || fetch(&cluster, url, from).then_some(()))
            .unwrap_or_else(|error| panic!("{url} from {from}: {error}\n{}", cluster.all_logs()));
    }
    Some(cluster)
}

/// Returns whether a request from this address is answered within 2 s.
fn fetch(cluster: &Cluster, url: &str, from: &str) -> bool {
    let arguments = ["-sf", "-m", "2", "-o", "/dev/null", "--interface", from, url];
    cluster.client.output("curl", &arguments).is_ok_and(|output| output.status.success())
}

fn json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let mut all = arguments.to_vec();
    all.extend(["-o", "json"]);
    serde_json::from_str(&cluster.cspctl(&all).unwrap()).unwrap()
}

/// Runs `cspctl` with the words of a line.
fn control(cluster: &Cluster, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    cluster.cspctl(&words).unwrap_or_else(|error| panic!("cspctl {line}: {error}"))
}

/// Runs `cspctl` with the words of a line, which is refused. Returns its exit code and what it reports.
fn refused(cluster: &Cluster, line: &str) -> (i32, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = cluster.cspctl_output(&words).unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The sources of SYNs in a capture.
fn sources(file: &[u8]) -> Vec<IpAddr> {
    let records = pcap::records(file).expect("a pcap file");
    let of = |record: &pcap::Record<'_>| {
        let fields = parse_ethernet(record.bytes, 0, Direction::Ingress).unwrap().fields;
        assert_eq!(fields.tcp_flags.unwrap() & 0x12, 2, "the filter lets SYNs pass alone");
        assert_eq!(fields.ports.unwrap().1, 80);
        fields.source
    };
    records.iter().map(of).collect()
}

/// Rules and plug-ins come, one by one, as an operator makes them.
fn install(cluster: &Cluster) {
    cluster
        .cspctl(&["plugin", "create", "tap", "capture", "filter=proto tcp dport 80 flags syn/syn,ack"])
        .unwrap();
    for line in [
        "plugin create blocked block-list prefixes_max=1000",
        "plugin connect tap 0 blocked",
        "plugin create mark dscp dscp=46",
        "rule add from-clients prio 10 proto tcp dport 80 ingress plugin tap",
        "rule add to-clients proto tcp sport 80 egress plugin mark",
    ] {
        control(cluster, line);
    }
    let listed = control(cluster, "rule list");
    assert_eq!(
        listed,
        "from-clients prio 10 proto tcp dport 80 ingress plugin tap\nto-clients prio 1000 proto tcp sport 80 egress plugin mark\n"
    );
}

fn wrong_changes_are_refused(cluster: &Cluster) {
    let (code, text) = refused(cluster, "rule add x proto tpc plugin tap");
    assert!(code == 64 && text.contains("proto tpc: expected tcp, udp"), "{code} {text}");
    let (code, text) = refused(cluster, "rule add x plugin tab");
    assert!(code == 65 && text.contains("there is no instance tab; did you mean tap?"), "{code} {text}");
    let (code, text) = refused(cluster, "plugin connect blocked 0 tap");
    assert!(code == 65 && text.contains("would close a cycle"), "{code} {text}");
    let (code, text) = refused(cluster, "plugin remove blocked");
    assert!(code == 65 && text.contains("there is no instance blocked"), "{code} {text}");
    let (code, text) = refused(cluster, "plugin call blocked add prefix=10.0.0.0/40");
    assert!(code == 1 && text.contains("nn-1: ") && text.contains("prefix=10.0.0.0/40"), "{code} {text}");
    let words = ["rule", "add", "shadow", "prio", "20", "proto", "tcp", "dport", "80", "src", "10.76.0.0/24"];
    let words: Vec<&str> = words.into_iter().chain(["ingress", "plugin", "tap"]).collect();
    let output = cluster.cspctl_output(&words).unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let warning = "warning: rule shadow is never matched: from-clients matches all that it matches";
    assert!(output.status.success() && text.contains(warning), "{text}");
    control(cluster, "rule del shadow");
}

fn blocks(cluster: &Cluster) {
    for address in BLOCKED {
        control(cluster, &format!("blocks add {address} --time 1h --from web-shop"));
    }
    for (url, from) in URLS.iter().zip(BLOCKED) {
        assert!(!fetch(cluster, url, from), "{from} is blocked");
    }
    let listed = json(cluster, &["blocks", "list"]);
    let rows = listed["nodes"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{listed}");
    for row in rows {
        assert_eq!(row["note"], "web-shop");
        assert!(row["numbers"].as_array().unwrap().iter().any(|n| n["name"] == "packets" && n["value"] != 0));
    }
    let stats = json(cluster, &["rule", "stats", "from-clients"]);
    assert!(stats["nodes"][0]["rules"][0]["packets_total"].as_u64() > Some(2), "{stats}");
    let labels = "instance=\"blocked\"";
    wait_until("metrics have the drops", SERVING_DEADLINE, || {
        let dropped = cluster.metric(Tier::NetworkNode, "csp_plugin_dropped_total", labels).ok()?;
        (dropped >= 2.0).then_some(())
    })
    .unwrap();
}

fn captured(cluster: &Cluster) {
    let file = cluster.scratch().join("tap.pcap");
    cluster.cspctl(&["capture", "--write", &file.to_string_lossy()]).unwrap();
    let bytes = fs::read(&file).unwrap();
    let seen = sources(&bytes);
    for address in BLOCKED.iter().chain(&OTHERS) {
        assert!(seen.contains(&address.parse().unwrap()), "{address} is missing: {seen:?}");
    }
    for (program, package) in [("tcpdump", "tcpdump"), ("tshark", "tshark")] {
        if csp_support::has(program) {
            let path = file.to_string_lossy().into_owned();
            let text = cluster.client.run(program, &["-n", "-r", &path]).unwrap();
            assert!(text.contains(BLOCKED[0]) && text.contains(BLOCKED[1]), "{package}: {text}");
        }
    }
}

fn marked(cluster: &Cluster) {
    let mut command = cluster.client.command("/usr/bin/python3");
    command.args(["-u", "-c", WATCH]);
    let mut watch = Process::spawn("watch", command, &cluster.scratch().join("log/watch.log")).unwrap();
    let status = wait_until("both codepoints are seen", SERVING_DEADLINE, || {
        for (url, from) in URLS.iter().zip(OTHERS) {
            fetch(cluster, url, from);
        }
        watch.exited()
    })
    .unwrap();
    assert!(status.success() && watch.log_tail(1).contains("dscp 46 46"), "{}", watch.log_tail(5));
}

#[test]
fn rules_and_plug_ins_change_while_requests_run() {
    let Some(mut cluster) = cluster("plugins", |_| {}) else { return };
    let (stop, served, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let cluster = &cluster;
        let (stop, served, failed) = (&stop, &served, &failed);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for (url, from) in URLS.iter().zip(OTHERS) {
                    let count = if fetch(cluster, url, from) { served } else { failed };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        // A panic would leave the other thread running.
        let steps = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            install(cluster);
            wrong_changes_are_refused(cluster);
            blocks(cluster);
            captured(cluster);
            marked(cluster);
            for address in BLOCKED {
                control(cluster, &format!("blocks remove {address}"));
            }
            for (url, from) in URLS.iter().zip(BLOCKED) {
                assert!(fetch(cluster, url, from), "{from} is blocked no longer");
            }
            supplied::runs(cluster);
            host::moves(cluster);
            control(cluster, "rule del from-clients to-clients");
            control(cluster, "plugin connect tap 0 -");
            control(cluster, "plugin remove blocked");
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = steps {
            eprintln!("{}", cluster.log_tail(Tier::NetworkNode));
            std::panic::resume_unwind(panic);
        }
    });
    let (served, failed) = (served.into_inner(), failed.into_inner());
    assert!(served > 10 && failed == 0, "{failed} of {} requests failed", served + failed);
    let listed = json(&cluster, &["plugin", "list"]);
    let names: Vec<&str> = listed["nodes"][0]["instances"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|instance| instance["name"].as_str())
        .collect();
    assert_eq!(names, ["tap", "mark"], "{listed}");
    assert!(cluster.answers(&format!("http://{VIP}/1KiB")));
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}

/// A BPF file system in the cluster's folder, for the programs of its network node. Unmounted when dropped.
struct Programs(std::path::PathBuf);

impl Programs {
    /// `None` if BPF file systems cannot be mounted here.
    fn mount() -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("csp-programs-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mounted = std::process::Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&folder).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Programs(folder));
        }
        csp_support::skip("needs a BPF file system: mount -t bpf was refused");
        None
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

/// The level at which the node decides on the rule, and its packets.
fn level(cluster: &Cluster, rule: &str) -> (u64, u64) {
    let stats = json(cluster, &["rule", "stats", rule]);
    let rule = &stats["nodes"][0]["rules"][0];
    (rule["level"].as_u64().unwrap(), rule["packets_total"].as_u64().unwrap())
}

/// Packets that the block list has stopped, of all its entries, of which there are two.
fn stopped(cluster: &Cluster) -> u64 {
    let listed = json(cluster, &["blocks", "list"]);
    let rows = listed["nodes"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{listed}");
    let packets = |row: &Value| {
        assert_eq!(row["note"], "web-shop");
        let numbers = row["numbers"].as_array().unwrap();
        numbers.iter().find(|number| number["name"] == "packets").unwrap()["value"].as_u64().unwrap()
    };
    rows.iter().map(packets).sum()
}

fn blocked_and_served(cluster: &Cluster, what: &str) {
    for ((url, blocked), other) in URLS.iter().zip(BLOCKED).zip(OTHERS) {
        assert!(!fetch(cluster, url, blocked), "{what}: {blocked} is blocked");
        assert!(fetch(cluster, url, other), "{what}: {other} is served");
    }
}

/// Whether a program runs at the network node's port.
fn has_program(cluster: &Cluster) -> bool {
    cluster.host(Tier::NetworkNode).run("ip", &["link", "show", "lan0"]).unwrap().contains("prog/xdp")
}

/// An instance of level 1 runs at level 2 while its packets can reach a plug-in that is not in the driver,
/// and the node reports why.
fn held_by_what_follows(cluster: &Cluster) {
    let held = |cluster: &Cluster| {
        let listed = json(cluster, &["plugin", "list"]);
        let instances = listed["nodes"][0]["instances"].as_array().unwrap().clone();
        instances.iter().find(|one| one["name"] == "blocked").unwrap()["held"].clone()
    };
    assert_eq!(held(cluster), Value::Null);
    control(cluster, "plugin create seen counter");
    control(cluster, "plugin connect blocked 0 seen");
    let reason = "runs at level 2 for rule from-clients: packets can reach seen, which is not at level 1";
    assert_eq!(held(cluster), reason);
    assert!(control(cluster, "plugin list").contains(reason));
    control(cluster, "plugin connect blocked 0 -");
    control(cluster, "plugin remove seen");
    assert_eq!(held(cluster), Value::Null);
}

#[test]
fn what_the_driver_blocks_stays_blocked_when_the_daemon_is_killed_and_when_it_moves() {
    if !csp_support::is_root("it loads BPF programs") {
        return;
    }
    let Some(programs) = Programs::mount() else { return };
    let cluster = cluster("driver", |cluster| {
        let file = cluster.config(Tier::NetworkNode);
        let folder = programs.0.display();
        fs::write(&file, fs::read_to_string(&file).unwrap() + &format!("driver:\n  folder: {folder}\n"))
            .unwrap();
    });
    let Some(mut cluster) = cluster else { return };
    control(&cluster, "plugin create blocked block-list prefixes_max=1000 --level 1");
    control(&cluster, "rule add from-clients prio 10 proto tcp dport 80 ingress plugin blocked");
    assert_eq!(level(&cluster, "from-clients").0, 1, "{}", cluster.log_tail(Tier::NetworkNode));
    assert!(has_program(&cluster));
    for address in BLOCKED {
        control(&cluster, &format!("blocks add {address} --time 1h --from web-shop"));
    }
    blocked_and_served(&cluster, "in the driver");
    let (_, packets) = level(&cluster, "from-clients");
    let before = stopped(&cluster);
    assert!(before >= 2 && packets > before, "{before} of {packets} packets were stopped");

    cluster.daemon(Tier::NetworkNode).unwrap().kill();
    for (url, from) in URLS.iter().zip(BLOCKED) {
        assert!(!fetch(&cluster, url, from));
    }
    assert!(has_program(&cluster), "a daemon that is killed leaves its program");
    cluster.start(Tier::NetworkNode).unwrap();
    for (url, from) in URLS.iter().zip(OTHERS) {
        wait_until("an answer", SERVING_DEADLINE, || fetch(&cluster, url, from).then_some(())).unwrap();
    }
    blocked_and_served(&cluster, "after a restart");
    let after = stopped(&cluster);
    assert!(after >= before + 2, "the program went on: {before}, {after}");

    control(&cluster, "plugin move blocked 2");
    assert_eq!(level(&cluster, "from-clients").0, 2);
    assert!(!has_program(&cluster));
    blocked_and_served(&cluster, "at level 2");
    control(&cluster, "plugin move blocked 1");
    blocked_and_served(&cluster, "in the driver again");
    let (level, packets) = level(&cluster, "from-clients");
    assert!(level == 1 && packets >= 16, "{packets} packets, each counted once at either level");
    let egress = refused(&cluster, "rule add back egress plugin blocked");
    assert!(egress.0 == 65 && egress.1.contains("egress, but blocked is at level 1"), "{egress:?}");
    held_by_what_follows(&cluster);
    auto::is_placed(&cluster);
    for address in BLOCKED {
        control(&cluster, &format!("blocks remove {address}"));
    }
    objects::run(&mut cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
    assert_eq!(
        fs::read_dir(programs.0.join("nn-1")).map_or(0, Iterator::count),
        0,
        "a clean stop removes everything"
    );
}
