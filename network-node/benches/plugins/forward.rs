//! Forwarding from one veth to another: by the kernel, with and without nftables, and by `redirect` of levels
//! 2 and 1, in a network namespace of the bench's own.
//!
//! ```text
//!  sender ─ cspf1 ═ cspf0 ─ forwards ─ cspf2 ═ cspf3 ─ counts and drops
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use csp_classify::multifield::{Match, Rule};
use csp_lan::LanPort;
use csp_lan::af_packet::{self, AfPacketConfig};
use csp_lan::af_xdp::{self, AfXdpConfig};
use csp_network_node::NetworkWorker;
use csp_network_node::core::{
    CoreConfig, PluginChange, Pool, PoolServer, Pools, PortConfig as CorePort, RuleSet,
};
use csp_plugins::{Binding, DRIVER, Fallback, HashKey, Level, Manager, ManagerConfig, builtin};
use csp_types::{Instant, MacAddr, Prefix, Transport};
use csp_xdp::{Driver, Plan, PortConfig};

use crate::load::{self, CLIENT_MAC, Case, OUR_MAC, frames};
use crate::sets;
use crate::veth::{beside_sender, ip};

const SECONDS: u64 = 2;
/// The MAC address of the port out of which frames go, and of its peer.
const OUT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xc]);
const SINK_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xd]);

/// The server at the other end of the second veth, an address there that nobody has, and the one in whose
/// name the server is asked for.
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 88, 0, 9));
const BEHIND: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 10);
const EGRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 88, 0, 8));

/// What forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Nothing: frames are dropped where they arrive.
    Nothing,
    Kernel,
    /// The kernel, with rules in its chain `forward`.
    Filtered,
    /// A chain at the ingress of the device, whose last rule gives frames to the other device.
    Given,
    AfPacket,
    AfXdp,
    Driver,
    /// The kernel, which translates the destination into a server's address.
    Translated,
    /// A service that is forwarded to a server.
    ServerAfPacket,
    ServerAfXdp,
}

impl Way {
    const ALL: [Way; 10] = [
        Way::Nothing,
        Way::Kernel,
        Way::Filtered,
        Way::Given,
        Way::AfPacket,
        Way::AfXdp,
        Way::Driver,
        Way::Translated,
        Way::ServerAfPacket,
        Way::ServerAfXdp,
    ];

    const fn is_server(self) -> bool {
        matches!(self, Way::ServerAfPacket | Way::ServerAfXdp)
    }

    const fn name(self) -> &'static str {
        match self {
            Way::Nothing => "dropped at ingress",
            Way::Kernel => "kernel, no rules",
            Way::Filtered => "kernel, nftables in `forward`, the last rule accepts",
            Way::Given => "nftables at ingress, the last rule is `fwd to`",
            Way::AfPacket => "level 2, AF_PACKET, the last rule is `redirect`",
            Way::AfXdp => "level 2, AF_XDP, the last rule is `redirect`",
            Way::Driver => "level 1, the last rule is `redirect`",
            Way::Translated => "kernel, nftables `dnat to` a server, 4,096 connections",
            Way::ServerAfPacket => "`via: network` to a server, AF_PACKET, 4,096 connections",
            Way::ServerAfXdp => "`via: network` to a server, AF_XDP, 4,096 connections",
        }
    }
}

/// Processor time of this process and of the kernel's threads for soft interrupts.
fn processor_time() -> Duration {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let mut sum = Duration::new(own.tv_sec as u64, own.tv_nsec as u32);
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if read("comm").starts_with("ksoftirqd/") {
            let nanoseconds = read("schedstat").split(' ').next().and_then(|word| word.parse().ok());
            sum += Duration::from_nanos(nanoseconds.unwrap_or(0));
        }
    }
    sum
}

/// The rules that match none of the frames.
fn rules() -> Vec<Rule> {
    load::rules(Case::Unmatched)
}

fn destination() -> Prefix {
    Prefix::new(load::service().ip(), 32).unwrap()
}

/// These rules, and a last one for the frames, which are redirected to the second port.
fn redirecting(environment: &'static str, level: Level) -> Manager {
    let config =
        ManagerConfig { rules_max: 16_384, instances_max: 16, ..ManagerConfig::new(1, HashKey(1, 2)) };
    let mut manager = Manager::new(config);
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment(environment, level).unwrap();
    manager.start(environment).unwrap();
    let mut bound = |name, module, settings: &[(&str, &str)]| {
        let instance = manager.create(name, module, environment, settings).unwrap();
        Binding { instance, fallback: Fallback::Pass }.encode()
    };
    let (other, out) = (bound("other", "no-op", &[]), bound("out", "redirect", &[("interface", "1")]));
    let mut rules: Vec<Rule> = rules().into_iter().map(|rule| Rule { instance: other, ..rule }).collect();
    let fields =
        Match { destination: Some(destination()), direction: rules[0].fields.direction, ..Match::ANY };
    rules.push(Rule { name: "last".into(), priority: 1_000_000, fields, instance: out });
    manager.replace_rules(rules).unwrap();
    manager
}

/// The ruleset of a way; what arrives behind it is counted and dropped at the ingress of the other end.
fn ruleset(way: Way) -> String {
    let sink = "table netdev sink\ndelete table netdev sink\ntable netdev sink {\nchain c {\ntype filter hook ingress device cspf3 priority 0; policy drop;\nether type arp accept\ncounter\n}\n}\n";
    let (maps, lines, _) = match way {
        Way::Filtered | Way::Given => sets::maps(&sets::five_fields(&rules()), "drop"),
        _ => Default::default(),
    };
    let ingress = "type filter hook ingress device cspf0 priority 0;";
    let own = match way {
        Way::Nothing => sets::table("netdev", "", &format!("{ingress} policy drop;"), "counter\n"),
        Way::Filtered => {
            let last = format!("{lines}ip daddr {} counter accept\n", load::service().ip());
            sets::table("ip", &maps, "type filter hook forward priority 0; policy drop;", &last)
        }
        Way::Given => {
            let last = format!("{lines}ip daddr {} fwd to cspf2\n", load::service().ip());
            sets::table("netdev", &maps, ingress, &last)
        }
        Way::Translated => {
            let rule = format!("ip daddr {} dnat to {}\n", load::service().ip(), BEHIND);
            sets::table("ip", "", "type nat hook prerouting priority dstnat;", &rule)
        }
        _ => String::new(),
    };
    format!("flush ruleset\n{sink}{own}")
}

/// Frames that the counter of the first chain has, of the sink or, if nothing is forwarded, of the ingress.
fn arrived(way: Way) -> u64 {
    let table = if way == Way::Nothing { "csp" } else { "sink" };
    let output = std::process::Command::new("nft").args(["list", "table", "netdev", table]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let packets = text.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next());
    packets.and_then(|packets| packets.parse().ok()).unwrap_or(0)
}

/// The program at ports in the order of their numbers.
fn program(ports: &[(&str, MacAddr)], has_sockets: bool) -> Driver {
    let mut driver = Driver::open(None).unwrap();
    let ports: Vec<_> = ports.iter().map(|(name, mac)| PortConfig::of(name, *mac, has_sockets)).collect();
    driver.set_ports(&ports).unwrap();
    ports.iter().flatten().for_each(|port| driver.attach(port.ifindex).unwrap());
    driver
}

const PORTS: [(&str, MacAddr); 2] = [("cspf0", OUR_MAC), ("cspf2", OUT_MAC)];

/// Opens both ports; the program ends with what is returned beside them.
fn open(way: Way) -> (Vec<LanPort>, Option<Driver>) {
    if matches!(way, Way::AfPacket | Way::ServerAfPacket) {
        let port = |(name, _): (&str, MacAddr)| af_packet::open(&AfPacketConfig::new(name)).unwrap();
        return (PORTS.map(port).into(), None);
    }
    let mut driver = program(&PORTS, true);
    let mut lan = Vec::new();
    for (number, (name, _)) in PORTS.into_iter().enumerate() {
        let open = af_xdp::open(&AfXdpConfig::new(name)).unwrap();
        for (queue, socket) in &open.sockets {
            driver.set_socket(number, *queue, socket.as_raw_fd()).unwrap();
        }
        lan.push(open.port);
    }
    driver.classify(false, csp_xdp::Diverted::Nothing).unwrap();
    driver.set_addresses([load::service().ip(), EGRESS].into_iter()).unwrap();
    (lan, Some(driver))
}

/// A worker with both ports, which runs until the time is over.
fn at_level2(way: Way, config: CoreConfig) -> (Box<dyn FnOnce()>, Option<Driver>) {
    let (lan, driver) = open(way);
    let mut ports = PORTS.map(|(_, mac)| CorePort::new(mac, 1500));
    ports[1].on_link = vec![Prefix::new(SERVER, 32).unwrap()];
    let mut worker = load::worker(CoreConfig { ports: ports.into(), ..config }, lan);
    if way.is_server() {
        forward_to_server(&mut worker);
    } else {
        redirect(&mut worker);
    }
    let run = move || {
        let (begin, end) = (std::time::Instant::now(), Duration::from_secs(SECONDS));
        while begin.elapsed() < end {
            let now = Instant::from_nanos(10_000_000_000 + begin.elapsed().as_nanos() as u64);
            if !worker.turn(now, 1_800_000_000) {
                std::thread::yield_now();
            }
        }
    };
    (Box::new(run), driver)
}

/// Gives a worker a service whose packets go to the server at the other end of the second veth.
fn forward_to_server(worker: &mut NetworkWorker) {
    let server = PoolServer { id: 1, address: SERVER, tunnel: None, weight: 1, up: true };
    let pool = Pool::new(load::service(), Transport::Tcp, vec![server]);
    let pools = Arc::new(Pools::new(1, vec![pool]));
    let mut rules = RuleSet::new(16, &[], &[], pools, &[EGRESS], &[load::service().ip()]).unwrap();
    worker.exchange_rules(Instant::from_nanos(1), &mut rules);
    // The server's Ethernet address is learnt before frames come.
    let begin = std::time::Instant::now();
    while worker.core().forward_servers().all(|server| server.mac.is_none()) {
        assert!(begin.elapsed() < Duration::from_secs(5), "the server is not found");
        let now = Instant::from_nanos(2_000_000_000 + 2 * begin.elapsed().as_nanos() as u64);
        worker.turn(now, 1_800_000_000);
        let mut same = Arc::new(worker.core().forward_pools().clone());
        worker.set_pools(now, &mut same);
    }
}

fn redirect(worker: &mut NetworkWorker) {
    let mut manager = redirecting("workers", Level::Worker);
    let commands: Vec<_> = std::iter::from_fn(|| manager.poll_command(0)).collect();
    let (table, directions) = (Some(manager.publish_rules()), (true, false));
    let mut change = PluginChange {
        commands,
        table,
        directions,
        retired: Vec::with_capacity(8),
        ..PluginChange::default()
    };
    worker.change_plugins(&mut change, &[]);
}

/// The programs of level 1: that which redirects, and one at the other end of the veth, without which the
/// kernel gives it no frames.
fn at_level1() -> (Driver, Driver) {
    let mut driver = program(&PORTS, false);
    let mut manager = redirecting(DRIVER, Level::Driver);
    let table = manager.publish_rules().table;
    let plan = Plan::new(&manager, &table, driver.slots()).unwrap();
    assert!(plan.demoted.is_empty() && !plan.is_empty());
    driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
    let mut sink = program(&[("cspf3", SINK_MAC)], false);
    sink.classify(false, csp_xdp::Diverted::Nothing).unwrap();
    (driver, sink)
}

/// Frames that arrived, frames that were sent, and the processor time of both.
fn run(way: Way, config: CoreConfig, len: usize) -> (u64, u64, Duration) {
    let forwards = matches!(way, Way::Kernel | Way::Filtered | Way::Translated);
    std::fs::write("/proc/sys/net/ipv4/ip_forward", if forwards { "1" } else { "0" }).unwrap();
    sets::nft(&ruleset(way)).unwrap();
    let pause: Box<dyn FnOnce()> = Box::new(|| std::thread::sleep(Duration::from_secs(SECONDS)));
    let (measured, _programs) = match way {
        Way::AfPacket | Way::AfXdp | Way::ServerAfPacket | Way::ServerAfXdp => {
            let (run, driver) = at_level2(way, config);
            (run, driver.map(|driver| (driver, None)))
        }
        Way::Driver => {
            let (driver, sink) = at_level1();
            (pause, Some((driver, Some(sink))))
        }
        _ => (pause, None),
    };
    // The connections' first segments are left out: conntrack takes connections up that it did not see begin.
    let frames = frames(Case::Unmatched, len).split_off(4_096);
    let (before, begin) = (arrived(way), processor_time());
    let ((), sent) = beside_sender("cspf1", frames, measured);
    (arrived(way) - before, sent, processor_time() - begin)
}

fn set_up() {
    for (left, left_mac, right, right_mac) in
        [("cspf0", OUR_MAC, "cspf1", CLIENT_MAC), ("cspf2", OUT_MAC, "cspf3", SINK_MAC)]
    {
        let (ours, theirs) = (left_mac.to_string(), right_mac.to_string());
        ip(&[
            "link", "add", left, "address", &ours, "type", "veth", "peer", "name", right, "address", &theirs,
        ]);
        ip(&["link", "set", left, "up"]);
        ip(&["link", "set", right, "up"]);
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{left}/rp_filter"), "0").unwrap();
    }
    std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
    let address = load::service().ip().to_string();
    ip(&["route", "add", &address, "dev", "cspf2"]);
    ip(&["address", "add", &format!("{SERVER}/32"), "dev", "cspf3"]);
    ip(&["route", "add", &BEHIND.to_string(), "dev", "cspf2"]);
    let behind = BEHIND.to_string();
    ip(&["neighbour", "add", &behind, "lladdr", &SINK_MAC.to_string(), "dev", "cspf2", "nud", "permanent"]);
    ip(&["neighbour", "add", &address, "lladdr", &SINK_MAC.to_string(), "dev", "cspf2", "nud", "permanent"]);
}

/// Measures all ways; returns a section of evaluation.md, which is empty without nft.
pub fn measure(config: &CoreConfig) -> String {
    if let Err(error) = sets::nft("flush ruleset") {
        eprintln!("SKIPPED forwarding: {error}");
        return String::new();
    }
    set_up();
    let mut text = format!(
        "\n## Forwarding from one veth to another\n\nOne thread sends as fast as it can for {SECONDS} s. The kernel forwards in that thread's system calls, as do nftables and level 1; level 2 has a worker \
         in a thread of its own. Frames count that arrive at the other end of the second veth, where a chain of nftables counts and drops them. {} rules that match none of the frames, in {} maps of nftables (see [nftables.md](nftables.md)), \
         and a last one that does; `redirect` and `fwd to` leave Ethernet addresses and TTL as they are. Processor time is that of this process, sender and \
         soft interrupts in its system calls included, and of the kernel's threads ksoftirqd; the last column is without that of a frame that is dropped where it arrives, which \
         is the sender's. At AF_PACKET the kernel drops its own copy of each frame.\n\n| way | bytes | k frames/s | of what was sent | µs of all processors a frame | without the sender |\n|---|---|---|---|---|---|\n",
        sets::five_fields(&rules()).len(),
        sets::divide(&sets::five_fields(&rules())).1,
    );
    for len in [72, 1460] {
        let mut sending = 0.0;
        for way in Way::ALL {
            let (arrived, sent, busy) = run(way, config.clone(), len);
            let each = busy.as_secs_f64() * 1e6 / arrived as f64;
            if way == Way::Nothing {
                sending = each;
            }
            let share = arrived as f64 / sent as f64;
            let line = format!(
                "| {} | {len} | {:.0} | {share:.2} | {each:.2} | {:.2} |",
                way.name(),
                arrived as f64 / SECONDS as f64 / 1e3,
                each - sending
            );
            eprintln!("{line}");
            let _ = writeln!(text, "{line}");
        }
    }
    sets::nft("flush ruleset").unwrap();
    ip(&["link", "delete", "cspf0"]);
    ip(&["link", "delete", "cspf2"]);
    text
}
