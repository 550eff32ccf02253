//! Checks of a host.

use std::time::Duration;

use csp_authority::{AUTHORITY_LIFETIME_DEFAULT, Authority, Request, Timestamp};
use csp_identity::IdentityRole;

use super::*;

#[test]
fn configuration_that_is_wrong_or_without_its_daemon() {
    let mut world = World::new();
    world
        .tree
        .file("/etc/csp/app-node.yaml", "node: [\n")
        .file("/etc/csp/mgmt-node.yaml", "node: {id: mn-1}\n");
    let refused = "csp-network-node: /etc/csp/network-node.yaml:4:1: workers: 0 is out of range";
    world.fake.run_is("csp-network-node", 78, refused);
    world.finds(
        "configuration",
        &[
            "error: /etc/csp/app-node.yaml:",
            &format!("error: {refused}"),
            "warning: /etc/csp/mgmt-node.yaml is there and its daemon is not: csp-mgmt-node is not installed",
        ],
    );
}

/// A host whose nodes an edge runs, from the edge's package.
fn edge() -> World {
    let mut world = World::new();
    world.fake.runs.retain(|command, _| !command.starts_with("csp-"));
    world.fake.run_is("csp-edge-node", 0, "").run_is("csp-edge-node --version", 0, "csp-edge-node 0.1.0\n");
    world.tree.file("/usr/lib/systemd/system/csp-edge-node.service", "");
    world.tree.remove("/proc/11").remove("/proc/12");
    world
}

#[test]
fn the_configuration_of_an_edge_is_checked_by_the_edge() {
    let mut world = edge();
    world.finds("configuration", &[]);
    let refused = "csp-edge-node: /etc/csp/proxy-node.yaml:4:1: cpus: they are not the network node's";
    let (network, proxy) =
        ("--network-node /etc/csp/network-node.yaml", "--proxy-node /etc/csp/proxy-node.yaml");
    world.fake.run_is(&format!("csp-edge-node {network} {proxy} --check-config"), 78, refused);
    world.finds("configuration", &[&format!("error: {refused}")]);
    world.fake.run_is(&format!("csp-edge-node {proxy} --check-config"), 78, refused);
    world.finds("configuration", &[&format!("error: {refused}")]);
    world.fake.runs.retain(|command, _| !command.starts_with("csp-"));
    let missing = |node: &str| {
        format!(
            "warning: /etc/csp/{node}.yaml is there and its daemon is not: csp-{node} or csp-edge-node is not"
        )
    };
    world.finds("configuration", &[&missing("network-node"), &missing("proxy-node")]);
}

#[test]
fn the_unit_and_the_release_of_an_edge_are_its_own() {
    let mut world = edge();
    assert!(world.seen().daemons.iter().all(|daemon| daemon.unit(&world.seen().host) == "csp-edge-node"));
    world.finds("versions", &[]);
    world.fake.run_is("csp-edge-node --version", 0, "csp-edge-node 9.9.9\n");
    world.finds(
        "versions",
        &[
            "warning: csp-edge-node is 9.9.9, cspctl 0.1.0",
            "warning: nn-1 runs 0.1.0, and csp-edge-node 9.9.9",
            "warning: pn-1 runs 0.1.0, and csp-edge-node 9.9.9",
        ],
    );
}

#[test]
fn kernels_that_are_old_or_lack_something() {
    let world = World::new();
    world.tree.file("/proc/sys/kernel/osrelease", "5.4.0");
    world.finds("kernel", &["error: Linux 5.4.0", "info: not checked: what the kernel was built with"]);
    world
        .tree
        .file("/proc/sys/kernel/osrelease", "5.10.0")
        .file("/boot/config-5.10.0", "CONFIG_PACKET=m\n# CONFIG_TUN is not set\n");
    world.tree.file("/proc/sys/net/core/bpf_jit_enable", "0");
    let lacks = |level: &str, name: &str| format!("{level}: the kernel has no CONFIG_{name}");
    let mut expected =
        vec!["warning: Linux 5.10.0".to_owned(), "warning: the BPF compiler is off".to_owned()];
    expected.push(lacks("warning", "BPF_SYSCALL"));
    expected.extend(["XDP_SOCKETS", "TUN", "NET_CLS_BPF", "NET_ACT_MIRRED"].map(|name| lacks("info", name)));
    world.finds("kernel", &expected.iter().map(String::as_str).collect::<Vec<_>>());
    let xdp = NETWORK_NODE.replace("{interface: lan0}", "{interface: lan0, port: af_xdp}");
    world.tree.file("/etc/csp/network-node.yaml", &xdp);
    expected[3..].iter_mut().for_each(|text| *text = text.replace("info", "error"));
    world.finds("kernel", &expected.iter().map(String::as_str).collect::<Vec<_>>());
    world.tree.remove("/etc/csp/network-node.yaml");
    world.finds("kernel", &[]);
}

#[test]
fn a_packed_configuration_of_the_kernel_is_read() {
    use std::io::Write as _;
    let world = World::new();
    world.tree.remove("/boot/config-6.1.0-30-amd64");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(b"CONFIG_PACKET=y\nCONFIG_BPF_SYSCALL=y\n").unwrap();
    std::fs::write(world.tree.path("/proc/config.gz"), packed.finish().unwrap()).unwrap();
    assert_eq!(world.of("kernel").len(), 4, "{:?}", world.of("kernel"));
}

#[test]
fn devices_and_file_systems_that_are_missing() {
    let world = World::new();
    world.tree.file("/usr/lib/systemd/system/csp-network-node.service", "");
    world.finds("bpf-fs", &["warning: /sys/fs/bpf/csp-network"]);
    // A folder that cannot be entered; the permissions of the kernel's do not keep root out.
    std::fs::create_dir_all(world.tree.path("/sys/fs")).unwrap();
    symlink("bpf", world.tree.path("/sys/fs/bpf")).unwrap();
    world.finds("bpf-fs", &["info: not checked: /sys/fs/bpf/csp-network (Too many levels"]);
    world.tree.file("/proc/mounts", "sysfs /sys sysfs rw 0 0\n");
    world.finds("bpf-fs", &["warning: /sys/fs/bpf is not mounted"]);
    world.tree.remove("/dev/net/tun");
    world.finds("tun", &[]);
    let xdp = NETWORK_NODE.replace("{interface: lan0}", "{interface: lan0, port: af_xdp}");
    world.tree.file("/etc/csp/network-node.yaml", &xdp);
    world.finds("tun", &["error: /dev/net/tun is missing"]);
}

#[test]
fn locked_memory_is_an_error_only_where_it_is_needed() {
    let world = World::new();
    world.tree.remove("/proc/11").remove("/proc/12").process(
        13,
        "csp-proxy-node",
        "/usr/sbin/csp-proxy-node",
        "8388608",
    );
    world.finds("memlock", &["info: csp-proxy-node (pid 13) may lock 8.0 MiB only"]);
    world.tree.file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
    world.finds("memlock", &["warning: csp-proxy-node (pid 13)"]);
    let verbs = PROXY_NODE.replace("{address: 10.77.0.1}", "{address: 10.77.0.1, provider: verbs}");
    world.tree.file("/etc/csp/proxy-node.yaml", &verbs);
    world.finds("memlock", &["error: csp-proxy-node (pid 13)"]);
    world.tree.remove("/proc/13");
    world.finds("memlock", &["info: no daemon runs; a process of this shell may lock 8.0 MiB only"]);
}

#[test]
fn huge_pages_that_nobody_uses() {
    let world = World::new();
    world.tree.file("/proc/meminfo", "HugePages_Total: 64\nHugePages_Free: 64\nHugepagesize: 2048 kB\n");
    world.finds("hugepages", &["info: 64 huge pages of 2048 KiB are reserved"]);
}

#[test]
fn workers_that_the_processors_cannot_carry() {
    let world = World::new();
    world.tree.file("/sys/devices/system/cpu/online", "0-1\n");
    world.tree.file("/etc/csp/network-node.yaml", &NETWORK_NODE.replace("workers: 2", "workers: 4"));
    world.finds(
        "processors",
        &[
            "warning: /etc/csp/network-node.yaml: 4 workers, and this host has 2 processors",
            "error: /etc/csp/proxy-node.yaml: cpus names [2]; this host has 0 to 1",
        ],
    );
    let world = World::new();
    world.tree.file("/etc/csp/proxy-node.yaml", &PROXY_NODE.replace("[2]", "[1]"));
    world.tree.file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    let shared =
        "warning: processor 1 is in cpus of /etc/csp/network-node.yaml and of /etc/csp/proxy-node.yaml";
    world.finds("processors", &[shared, "info: processors follow the governor powersave"]);
    // An edge runs a worker of both tiers on each thread.
    world.tree.remove("/proc/11").remove("/proc/12").process(
        14,
        "csp-edge-node",
        "/usr/sbin/csp-edge-node",
        "unlimited",
    );
    world.finds("processors", &["info: processors follow the governor powersave"]);
}

#[test]
fn clocks_that_nobody_keeps_or_that_differ() {
    let mut world = World::new();
    world.tree.remove("/run/systemd/timesync/synchronized");
    world.finds(
        "clock",
        &["info: not checked: whether the clock is synchronised (timedatectl is not installed)"],
    );
    world.fake.run_is("timedatectl", 0, "no\n");
    world.clock_ahead_ms = (-5_000, 500);
    world.finds("clock", &["warning: the clock is not synchronised", "warning: the clock is 5000 ms behind"]);
    world.fake.run_is("chronyc", 0, "Reference ID    : 0A4D0004\nLeap status     : Normal\n");
    world.clock_ahead_ms = (90_000, 500);
    world.finds("clock", &["error: the clock is 90000 ms ahead of"]);
}

#[test]
fn rdma_ports_that_are_down() {
    let world = World::new();
    world.tree.file("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    world.tree.file("/sys/class/infiniband/mlx5_0/ports/1/phys_state", "3: Disabled\n");
    let no_uverbs = "there is an RDMA device and no uverbs device";
    let down = "mlx5_0 port 1: state 1: DOWN, physical 3: Disabled";
    world.finds("rdma", &[&format!("warning: {down}"), &format!("warning: {no_uverbs}")]);
    let verbs = PROXY_NODE.replace("{address: 10.77.0.1}", "{address: 10.77.0.1, provider: verbs}");
    world.tree.file("/etc/csp/proxy-node.yaml", &verbs).file("/dev/infiniband/uverbs0", "");
    world.finds("rdma", &[&format!("error: {down}")]);
    world.tree.remove("/sys/class/infiniband");
    world.finds("rdma", &["error: no RDMA device"]);
}

#[test]
fn interfaces_that_lack_the_san_s_address_or_mtu() {
    let mut world = World::new();
    world.fake.run_is("ip", 0, &INTERFACES.replace("10.77.0.1", "10.77.0.9"));
    world.finds("mtu", &["error: san.address 10.77.0.1 is on no interface"]);
    for (address, remedy) in [("10.77.0.1", "10.77.0.1/24"), ("\"2001:db8::1\"", "2001:db8::1/64")] {
        let proxy = PROXY_NODE.replace("{address: 10.77.0.1}", &format!("{{address: {address}}}"));
        world.tree.file("/etc/csp/proxy-node.yaml", &proxy);
        let report = Report::of(&world.seen(), &["mtu".to_owned()]);
        let found = report.findings.iter().find(|finding| finding.remedy.contains(remedy));
        assert!(found.is_some(), "{remedy}: {report:#?}");
    }
    world.tree.file("/etc/csp/proxy-node.yaml", PROXY_NODE);
    world.fake.run_is("ip", 0, &INTERFACES.replace("9000", "1400"));
    world.finds("mtu", &["warning: san0 (10.77.0.1) has an MTU of 1400"]);
    world.fake.run_is("ip", 0, "no JSON");
    world.finds(
        "mtu",
        &["info: not checked: the interface of 10.77.0.1 (the output of `ip` is not understood"],
    );
}

#[test]
fn a_way_that_carries_small_packets_only() {
    let mut world = World::new();
    let ping = |size: u64| format!("ping -n -c 1 -W 1 -M do -s {size} 10.77.0.3");
    world.fake.run_is(&ping(8972), 1, "");
    world.finds("mtu", &["error: 10.77.0.3 answers small packets, and none of 9000 bytes"]);
    world.fake.run_is(&ping(56), 1, "");
    world.finds("mtu", &["info: not checked: the MTU to 10.77.0.3 (they answer no echo requests)"]);
    world.fake.runs.retain(|command, _| !command.starts_with("ping"));
    world.finds(
        "mtu",
        &["info: not checked: whether the way to peers carries that MTU (ping is not installed)"],
    );
}

#[test]
fn offloads_that_are_off_and_interfaces_that_are_missing() {
    let mut world = World::new();
    let off = FEATURES
        .replace("receive-offload: on", "receive-offload: off")
        .replace("large-receive-offload: off", "large-receive-offload: on");
    world.fake.run_is(
        "ethtool",
        0,
        &off.replace("tcp-segmentation-offload: on", "tcp-segmentation-offload: off [fixed]"),
    );
    world.finds(
        "offloads",
        &[
            "warning: lan0: generic-receive-offload is off",
            "info: lan0: tcp-segmentation-offload is off for good",
            "warning: lan0: large-receive-offload is on",
        ],
    );
    world.fake.runs.remove("ethtool");
    world.fake.run_is("ip", 0, &INTERFACES.replacen("\"BROADCAST\", \"UP\", \"LOWER_UP\"", "\"UP\"", 1));
    world.finds(
        "offloads",
        &["error: lan0 has no link", "info: not checked: offloads of lan0 (ethtool is not installed)"],
    );
    world.fake.run_is("ip", 0, &INTERFACES.replace("lan0", "eth0"));
    world.finds("offloads", &["error: there is no interface lan0"]);
    world.fake.runs.remove("ip");
    world.finds("offloads", &["info: not checked: the LAN's interfaces (ip is not installed)"]);
}

#[test]
fn vips_on_interfaces() {
    let mut world = World::new();
    let on = |interface: &str, address: &str, length: u8| {
        let own = format!("\"ifname\": \"{interface}\"");
        let (before, after) = INTERFACES.split_once(&own).unwrap();
        let address = format!("\"addr_info\": [{{\"local\": \"{address}\", \"prefixlen\": {length}}}, ");
        format!("{before}{own}{}", after.replacen("\"addr_info\": [", &address, 1).replacen(", ]", "]", 1))
    };
    world.fake.run_is("ip", 0, &on("lan0", "10.76.0.100", 24));
    world.finds("addresses", &["error: 10.76.0.100 of the policy is on lan0"]);
    world.fake.run_is("ip", 0, &on("lo", "10.76.0.100", 32));
    world
        .tree
        .file("/proc/sys/net/ipv4/conf/lan0/arp_ignore", "2")
        .file("/proc/sys/net/ipv4/conf/all/arp_announce", "2");
    let beside = "info: 10.76.0.100 is on lo of a host with a network node";
    world.finds("addresses", &["error: 10.76.0.100 is on lo, and arp_ignore is too low for san0", beside]);
    world.tree.file("/proc/sys/net/ipv4/conf/all/arp_ignore", "1");
    world.finds("addresses", &[beside]);
    world.fake.run_is("ip", 0, INTERFACES);
    world.tree.file(
        "/etc/csp/proxy-node.yaml",
        &PROXY_NODE.replace("{address: 10.77.0.1}", "{address: 10.76.0.100}"),
    );
    world.finds("addresses", &["error: san.address 10.76.0.100 is a VIP"]);
    world.cluster = None;
    world.finds(
        "addresses",
        &["info: not checked: VIPs on interfaces of this host (no management node answers"],
    );
}

#[test]
fn ports_that_others_have_or_nobody_listens_on() {
    let world = World::new();
    world.tree.file("/proc/net/tcp", &listening(&["01004D0A:238D", "00000000:238E"]));
    let silent = |port: u16, what: &str| {
        format!("warning: 10.77.0.1:{port} (SAN, {what} of csp-proxy-node): nobody listens")
    };
    world.finds("ports", &[&silent(7100, "tunnels"), &silent(7356, "channels")]);
    world.tree.remove("/proc/12");
    world.finds(
        "ports",
        &["error: 10.77.0.1:9102 (admin endpoint of csp-proxy-node) is in use, and the daemon does not run"],
    );
    world.tree.file("/etc/csp/proxy-node.yaml", &PROXY_NODE.replace("9102", "9101"));
    let both = "error: 10.77.0.1:9101 is the admin endpoint of csp-network-node and the admin endpoint of csp-proxy-node";
    world.finds("ports", &[both, "error: 10.77.0.1:9101 (admin endpoint of csp-proxy-node) is in use"]);
}

#[test]
fn a_firewall_that_drops_and_one_that_cannot_be_read() {
    let mut world = World::new();
    let drops = r#"{"nftables": [{"chain": {"family": "inet", "table": "f", "name": "in", "hook": "input", "policy": "drop"}}]}"#;
    world.fake.run_is("nft", 0, drops);
    world.finds("firewall", &["warning: chain inet f in drops what no rule names, and none names TCP port 7100, 7356, 9101, 9102"]);
    world.fake.run_is("nft", 1, "Operation not permitted (you must be root)");
    world.tree.file("/proc/net/ip_tables_names", "");
    world.finds("firewall", &["info: not checked: the rules of nftables (Operation not permitted"]);
}

#[test]
fn keys_that_are_missing_or_can_be_read() {
    let world = World::new();
    world.tree.remove("/etc/csp/network-node.key").mode("/etc/csp/curve/ticks.key_secret", 0o640);
    world.finds(
        "keys",
        &[
            "error: csp-network-node has no file of keys",
            "error: /etc/csp/curve/ticks.key_secret can be read by others (mode 640)",
        ],
    );
}

#[test]
fn state_that_is_damaged_and_disks_that_are_full() {
    let mut world = World::new();
    world
        .tree
        .file("/var/lib/csp/proxy-node/policy.json", "{\"generation\"")
        .mode("/var/lib/csp/network-node", 0o777);
    world.finds(
        "state",
        &[
            "error: /var/lib/csp/network-node can be written by others (mode 777)",
            "error: /var/lib/csp/proxy-node/policy.json is damaged",
        ],
    );
    world.fake.space.free = 512 << 20;
    world.finds("disk", &["warning: /var/lib/csp/network-node: 512.0 MiB of 100.0 GiB are free"]);
    world.fake.space = Space { inodes_free: 3, free: 50 << 30, ..world.fake.space };
    world.tree.remove("/var/lib/csp");
    world.finds("disk", &["error: /"]);
    world.finds(
        "state",
        &["info: /var/lib/csp/network-node is not there", "info: /var/lib/csp/proxy-node is not there"],
    );
}

#[test]
fn daemons_that_were_not_restarted() {
    let mut world = World::new();
    world.fake.run_is("csp-proxy-node --version", 0, "csp-proxy-node 9.9.9\n");
    world.tree.remove("/proc/12").process(
        15,
        "csp-proxy-node",
        "/usr/sbin/csp-proxy-node (deleted)",
        "unlimited",
    );
    world.finds(
        "versions",
        &[
            "warning: csp-proxy-node is 9.9.9, cspctl 0.1.0",
            "warning: pn-1 runs 0.1.0, and csp-proxy-node 9.9.9 is installed",
            "warning: csp-proxy-node (pid 15) runs from a file that was replaced",
        ],
    );
}

/// Has a new authority issue a certificate that began `age` days ago, and copies it to `to`.
fn issue(world: &World, to: &str, (role, id): (IdentityRole, &str), (age, days): (u64, u64)) {
    let day = |days: u64| Duration::from_secs(days * 86_400);
    let now = Timestamp::now().minus(day(age));
    let pki = Tree::new();
    let folder = pki.path("pki");
    Authority::create(&folder, "demo".parse().unwrap(), AUTHORITY_LIFETIME_DEFAULT, now).unwrap();
    let mut authority = Authority::open(&folder, now).unwrap();
    let request = Request::new(role, id.parse().unwrap()).address([10, 77, 0, 1].into()).lifetime(day(days));
    let issued = authority.issue(&request, now).unwrap().folder;
    for file in std::fs::read_dir(issued).unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap();
        world.tree.file(&format!("{to}/{}", file.file_name().to_str().unwrap()), &text);
    }
}

#[test]
fn certificates_of_all_ages() {
    let world = World::new();
    let (proxy, network) = ((IdentityRole::ProxyNode, "pn-1"), (IdentityRole::NetworkNode, "nn-1"));
    issue(&world, "/etc/csp/identity-proxy", proxy, (1, 90));
    world.finds("certificates", &["error: /etc/csp/identity/certificate.pem: No such file"]);
    issue(&world, "/etc/csp/identity", network, (1, 90));
    world.finds("certificates", &[]);
    issue(&world, "/etc/csp/identity", network, (5, 10));
    world.finds("certificates", &["warning: csp://demo/network-node/nn-1 ("]);
    issue(&world, "/etc/csp/identity", network, (20, 10));
    issue(&world, "/etc/csp/identity-proxy", (IdentityRole::ProxyNode, "pn-2"), (1, 90));
    world.tree.mode("/etc/csp/identity-proxy/key.pem", 0o644);
    let found = world.of("certificates");
    assert!(found.len() == 3 && found[0].ends_with("has expired"), "{found:#?}");
    assert!(found[1].contains("key.pem can be read by others (mode 644)"), "{found:#?}");
    assert!(
        found[2].contains("is proxy-node/pn-1, and its certificate is that of csp://demo/proxy-node/pn-2"),
        "{found:#?}"
    );
}

#[test]
fn a_certificate_that_does_not_name_where_its_node_listens() {
    let world = World::new();
    issue(&world, "/etc/csp/identity-proxy", (IdentityRole::ProxyNode, "pn-1"), (1, 90));
    issue(&world, "/etc/csp/identity", (IdentityRole::NetworkNode, "nn-1"), (1, 90));
    world.tree.file("/etc/csp/network-node.yaml", &NETWORK_NODE.replace("10.77.0.1:9101", "10.77.0.8:9101"));
    world.finds("certificates", &["info: the certificate of network-node/nn-1 does not name 10.77.0.8"]);
}
