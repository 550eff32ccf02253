//! Who gets a frame at a port of AF_XDP sockets: the sockets or the kernel.
#![allow(clippy::unwrap_used, reason = "a test's module")]

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use csp_plugins::text::parse_match;
use csp_plugins::{Fallback, Level, Manager, WORKERS};
use csp_types::{Instant, MacAddr};
use csp_xdp::{Diverted, Driver, Plan, PortConfig};

use super::{DRIVER, LOOPBACK, XDP_DROP, XDP_PASS, fixture};

const XDP_REDIRECT: u32 = 4;
/// As `libcsp/plugins/tests/fixture` makes frames.
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// A socket that the program can give frames to. Nothing arrives there: the test runs end with the verdict.
pub fn socket() -> OwnedFd {
    // SAFETY: socket takes no pointers; its result is checked.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Puts rules into force, each `INSTANCE CONDITIONS`. The instances: `level1` counts and `drops` drops in the
/// driver, `level2` counts in the workers.
pub fn set(driver: &mut Driver, rules: &[&str]) {
    let mut manager = super::manager(64);
    manager.add_environment(WORKERS, Level::Worker).unwrap();
    manager.start(WORKERS).unwrap();
    manager.create("level1", "counter", DRIVER, &[]).unwrap();
    manager.create("drops", "drop", DRIVER, &[]).unwrap();
    manager.create("level2", "counter", WORKERS, &[]).unwrap();
    for (at, rule) in rules.iter().enumerate() {
        let (instance, conditions) = rule.split_once(' ').unwrap();
        let words: Vec<&str> = conditions.split_whitespace().collect();
        let fields = parse_match(&words).unwrap();
        manager.add_rule(&format!("r{at}"), 10, fields, instance, Fallback::Pass).unwrap();
    }
    apply(driver, &mut manager);
}

fn apply(driver: &mut Driver, manager: &mut Manager) {
    let table = manager.publish_rules().table;
    let plan = Plan::new(manager, &table, driver.slots()).unwrap();
    driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
}

/// The program at a port with a socket, with VIPs and, if `back`, with a way back to the kernel.
pub fn port(driver: &mut Driver, socket: &OwnedFd, back: bool) {
    driver.set_ports(&[Some(PortConfig { ifindex: LOOPBACK, mac: MAC, has_sockets: true })]).unwrap();
    driver.set_socket(0, 0, socket.as_raw_fd()).unwrap();
    let owned = ["198.51.100.80", "2001:db8::80"].map(|address| address.parse().unwrap());
    driver.set_addresses(owned.into_iter()).unwrap();
    driver.set_reinjection_ports(u32::from(back)).unwrap();
}

/// Where frames go, in a word each: of both families to a VIP, and to the host at ports 21 to 24; then what
/// is not plain to the host: with an IPv4 option, later fragments, with a priority tag; then a VLAN's, and
/// ARP.
fn ways(driver: &mut Driver) -> String {
    let mut all = Vec::new();
    for (family, source, vip, host) in [
        ("ipv4", "192.0.2.1", "198.51.100.80", "198.51.100.2"),
        ("ipv6", "2001:db8::1", "2001:db8::80", "2001:db8::2"),
    ] {
        let tcp = |to, port| vec![family, source, ">", to, "tcp", "1000", ">", port, "S"];
        all.push(fixture::build(&tcp(vip, "22")).0);
        all.extend(["21", "22", "23", "24"].map(|port| fixture::build(&tcp(host, port)).0));
    }
    let to_host = ["ipv4", "192.0.2.1", ">", "198.51.100.2", "tcp", "1000", ">", "21", "S"];
    let mut option = fixture::build(&to_host).0;
    option[14] = 0x46;
    all.push(option);
    all.push(fixture::build(&["ipv4", "192.0.2.1", ">", "198.51.100.2", "tcp", "later", "len", "9"]).0);
    all.push(fixture::build(&["ipv6", "2001:db8::1", ">", "2001:db8::2", "tcp", "later", "len", "9"]).0);
    for vlan in ["0", "5"] {
        all.push(fixture::build(&[&to_host[..], &["vlan", vlan]].concat()).0);
    }
    let mut arp = fixture::build(&to_host).0;
    arp[13] = 0x06;
    all.push(arp);
    let way = |frame: &Vec<u8>| match driver.test_run(frame, 1).unwrap().0 {
        XDP_PASS => "K",
        XDP_REDIRECT => "W",
        XDP_DROP => "-",
        other => panic!("{other}"),
    };
    let ways: Vec<&str> = all.iter().map(way).collect();
    format!("{} {} {}", ways[..5].concat(), ways[5..10].concat(), ways[10..].concat())
}

/// `W` the worker, `K` the kernel, `-` nobody; the order is that of [`ways`].
#[test]
fn workers_get_what_their_rules_decide_on_and_what_is_not_plain() {
    let Some(mut driver) = super::open(None) else { return };
    let socket = socket();
    port(&mut driver, &socket, true);
    assert_eq!(ways(&mut driver), "WKKKK WKKKK KKKKKK", "before a policy");
    for (rules, expected) in [
        (&[][..], "WKKKK WKKKK KKKKKK"),
        (&["level2 dport 22 egress"], "WKKKK WKKKK KKKKKK"),
        (&["level2 dport 22 proto tcp ingress"], "WKWKK WKWKK WWWWKK"),
        // Rules of level 1 alone: what is not plain gets its plug-in in the worker.
        (&["level1 dport 23 proto tcp ingress"], "WKKKK WKKKK WWWWKK"),
        (
            &[
                "level1 dport 23 proto tcp ingress",
                "level2 dport 22 proto tcp",
                "drops dport 24 proto tcp ingress",
            ],
            "WKWK- WKWK- WWWWKK",
        ),
        (&["level2 ingress"], "WWWWW WWWWW WWWWKK"),
        (&[], "WKKKK WKKKK KKKKKK"),
    ] {
        set(&mut driver, rules);
        assert_eq!(ways(&mut driver), expected, "{rules:?}");
    }
    // Rules that are no table: everything that is a packet.
    let plan = Plan::without_rules(driver.slots());
    driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
    assert_eq!(ways(&mut driver), "WWWWW WWWWW WWWWKK");
    driver.classify(false, Diverted::Nothing).unwrap();
    assert_eq!(ways(&mut driver), "WKKKK WKKKK KKKKKK");
}

#[test]
fn without_a_way_back_the_kernel_has_all_that_is_not_the_nodes() {
    let Some(mut driver) = super::open(None) else { return };
    let socket = socket();
    port(&mut driver, &socket, false);
    for (rules, expected) in [
        (&["level2 ingress"][..], "WKKKK WKKKK KKKKKK"),
        (
            &[
                "level1 dport 23 proto tcp ingress",
                "level2 dport 22 proto tcp",
                "drops dport 24 proto tcp ingress",
            ],
            "WKKK- WKKK- KKKKKK",
        ),
    ] {
        set(&mut driver, rules);
        assert_eq!(ways(&mut driver), expected, "{rules:?}");
    }
}

/// By BPF_PROG_TEST_RUN, without redirection itself.
#[test]
#[ignore = "a measurement (make bench-ports)"]
fn what_each_way_costs() {
    let Some(mut driver) = super::open(None) else { return };
    let socket = socket();
    port(&mut driver, &socket, true);
    let tcp = |to| fixture::build(&["ipv4", "192.0.2.1", ">", to, "tcp", "1000", ">", "22", "S"]).0;
    let (vip, host) = (tcp("198.51.100.80"), tcp("198.51.100.2"));
    for (what, rules, frame) in [
        ("to a VIP, without rules", &[][..], &vip),
        ("to the host, without rules", &[], &host),
        ("to a VIP, rules of level 2", &["level2 dport 23 proto tcp"], &vip),
        ("to the host, unmatched by rules of level 2", &["level2 dport 23 proto tcp"], &host),
        ("to the host, matched by a rule of level 2", &["level2 dport 22 proto tcp"], &host),
        ("to a VIP, a rule of level 1", &["level1 dport 22 proto tcp ingress"], &vip),
        ("to a VIP, unmatched by a rule of level 1", &["level1 dport 23 proto tcp ingress"], &vip),
        ("to the host, unmatched by a rule of level 1", &["level1 dport 23 proto tcp ingress"], &host),
    ] {
        set(&mut driver, rules);
        let mut rounds: Vec<u128> =
            (0..9).map(|_| driver.test_run(frame, 1_000_000).unwrap().2.as_nanos()).collect();
        rounds.sort_unstable();
        println!("{what}: {} ns ({rounds:?})", rounds[0]);
    }
}
