//! Checks of the network: RDMA devices, the MTU along the SAN, offloads of the LAN's interfaces.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use csp_types::Role;

use super::Seen;
use super::finding::{Findings, Level};
use super::host::NotRun;

/// Folder of the kernel's RDMA devices.
const RDMA: &str = "/sys/class/infiniband";
/// Most peers that are pinged.
const PEERS_MAX: usize = 16;
/// MTU of Ethernet without jumbo frames.
const MTU_ETHERNET: u64 = 1500;

/// `rdma`: devices and the state of their ports.
pub fn rdma(seen: &Seen, findings: &mut Findings) {
    let devices = seen.host.names(RDMA);
    let forced = seen.daemons.iter().any(|daemon| daemon.provider() == "verbs");
    if devices.is_empty() {
        let found = "no RDMA device";
        return match forced {
            true => findings.error(
                found,
                "san.provider is verbs, so that links come about by RDMA only",
                "modprobe the adapter's driver (rdma link), or set san.provider to auto",
            ),
            false => findings.ok("no RDMA device: links within the host take shared memory, others TCP"),
        };
    }
    let level = if forced { Level::Error } else { Level::Warning };
    for device in &devices {
        for port in seen.host.names(format!("{RDMA}/{device}/ports")) {
            let of = |file: &str| seen.host.text(format!("{RDMA}/{device}/ports/{port}/{file}"));
            let state = of("state").unwrap_or_else(|| "unknown".to_owned());
            let physical = of("phys_state").unwrap_or_else(|| "unknown".to_owned());
            let found = format!("{device} port {port}: state {state}, physical {physical}");
            if state.ends_with("ACTIVE") {
                findings.ok(found);
            } else {
                let why = "links by RDMA do not come about through this port";
                let interfaces = seen.host.names(format!("{RDMA}/{device}/device/net"));
                let interface = interfaces.first().map_or("INTERFACE", String::as_str);
                findings.add(level, found, why, format!("ip link set {interface} up && rdma link show"));
            }
        }
    }
    let verbs = seen.host.names("/dev/infiniband");
    if !verbs.iter().any(|name| name.starts_with("uverbs")) {
        let why = "user space reaches the adapter by /dev/infiniband/uverbs*";
        findings.add(level, "there is an RDMA device and no uverbs device", why, "modprobe ib_uverbs");
    }
}

/// `mtu`: that of the SAN's interface, and whether packets of that size reach the peers.
pub fn mtu(seen: &Seen, findings: &mut Findings) {
    let addresses: BTreeSet<IpAddr> =
        seen.daemons.iter().filter_map(|daemon| daemon.config.san.address).collect();
    if addresses.is_empty() {
        return findings.ok("no san.address is configured here");
    }
    for address in addresses {
        match seen.host.interface_of(address) {
            Err(why) => findings.not_checked(&format!("the interface of {address}"), why),
            Ok(None) => findings.error(
                format!("san.address {address} is on no interface of this host"),
                "the daemon listens there, and peers connect to it",
                format!("ip address add {address}/{} dev INTERFACE", if address.is_ipv4() { 24 } else { 64 }),
            ),
            Ok(Some(interface)) => {
                if !interface.is_up() {
                    let why = "the SAN's links run over it";
                    let remedy = format!("ip link set {} up", interface.name);
                    findings.error(format!("{} ({address}) has no link", interface.name), why, remedy);
                } else if interface.mtu < MTU_ETHERNET {
                    findings.warning(
                        format!("{} ({address}) has an MTU of {}", interface.name, interface.mtu),
                        "tunnels carry clients' packets of 1,500 bytes with their headers",
                        format!("ip link set {} mtu 9000", interface.name),
                    );
                } else {
                    findings.ok(format!("{} ({address}) has an MTU of {}", interface.name, interface.mtu));
                }
                if !interface.is_loopback() {
                    peers(seen, (address, &interface.name, interface.mtu), findings);
                }
            }
        }
    }
}

/// Pings the SAN addresses of other hosts with packets of the MTU that may not be fragmented.
fn peers(seen: &Seen, (own, interface, mtu): (IpAddr, &str, u64), findings: &mut Findings) {
    let Some(cluster) = &seen.cluster else {
        return findings
            .not_checked("whether the way to peers carries that MTU", "no management node answers");
    };
    let san = cluster.nodes.nodes.iter().flat_map(|node| &node.san).filter_map(|text| san_address(text));
    let peers: BTreeSet<IpAddr> = san.filter(|ip| *ip != own && ip.is_ipv4() == own.is_ipv4()).collect();
    let (mut reached, mut silent) = (0, Vec::new());
    for peer in peers.iter().take(PEERS_MAX) {
        let ip = peer.to_string();
        // IP and ICMP headers.
        let payload = mtu.saturating_sub(if peer.is_ipv4() { 28 } else { 48 }).min(65_000);
        let ping = |size: u64| {
            let size = size.to_string();
            let ran = seen.host.run("ping", &["-n", "-c", "1", "-W", "1", "-M", "do", "-s", &size, &ip]);
            ran.map(|ran| ran.code == 0)
        };
        match (ping(payload), ping(56)) {
            (Err(why @ (NotRun::Missing(_) | NotRun::Elsewhere)), _) => {
                return findings.not_checked("whether the way to peers carries that MTU", why);
            }
            (Ok(true), _) => reached += 1,
            (_, Ok(true)) => findings.error(
                format!("{ip} answers small packets, and none of {mtu} bytes"),
                "SAN links stall where a packet of the interface's MTU does not get through",
                format!(
                    "ip link set {interface} mtu {MTU_ETHERNET}    # or raise it along the way and at {ip}"
                ),
            ),
            _ => silent.push(ip),
        }
    }
    if reached > 0 {
        findings.ok(format!("{reached} peers answer packets of {mtu} bytes"));
    }
    if !silent.is_empty() {
        findings.not_checked(&format!("the MTU to {}", silent.join(", ")), "they answer no echo requests");
    }
}

/// The address in `tcp:10.77.0.2:7100` or the like; `None` for shared memory.
fn san_address(text: &str) -> Option<IpAddr> {
    let (kind, at) = text.split_once(':')?;
    let at: SocketAddr = at.parse().ok()?;
    (!kind.contains("shm") && !at.ip().is_loopback()).then_some(at.ip())
}

/// Features of `ethtool -k` with what they should be, and why.
const FEATURES: [(&str, bool, &str); 6] = [
    ("generic-receive-offload", true, "segments of a flow arrive as one, which saves a pass for each"),
    (
        "generic-segmentation-offload",
        true,
        "the kernel cuts segments of up to 64 KB that the network node sends",
    ),
    ("tcp-segmentation-offload", true, "the adapter cuts them instead of the processor"),
    ("rx-checksumming", true, "the network node verifies in software what the adapter has not"),
    ("tx-checksumming", true, "the kernel computes in software what the adapter could"),
    ("large-receive-offload", false, "LRO merges segments beyond recovery; GRO does not"),
];

/// `offloads`: the LAN's interfaces.
pub fn offloads(seen: &Seen, findings: &mut Findings) {
    let ports = seen.daemons.iter().filter(|daemon| daemon.role == Role::NetworkNode);
    let ports: Vec<_> = ports.flat_map(|daemon| &daemon.config.lan).collect();
    if ports.is_empty() {
        return findings.ok("no LAN port is configured here");
    }
    let interfaces = match seen.host.interfaces() {
        Ok(interfaces) => interfaces,
        Err(why) => return findings.not_checked("the LAN's interfaces", why),
    };
    for port in ports {
        let name = &port.interface;
        let Some(interface) = interfaces.iter().find(|interface| interface.name == *name) else {
            let why = "the network node does not start";
            findings.error(format!("there is no interface {name}"), why, "ip link show");
            continue;
        };
        if !interface.is_up() {
            let remedy = format!("ip link set {name} up");
            findings.error(format!("{name} has no link"), "no client's packet arrives", remedy);
        }
        match seen.host.run("ethtool", &["-k", name]) {
            Ok(ran) if ran.code == 0 => features(name, &ran.out, findings),
            Ok(ran) => findings.not_checked(&format!("offloads of {name}"), ran.err.trim()),
            Err(why) => findings.not_checked(&format!("offloads of {name}"), why),
        }
    }
}

fn features(interface: &str, text: &str, findings: &mut Findings) {
    let of = |name: &str| {
        text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let mut wrong = 0;
    for (name, wanted, why) in FEATURES {
        let Some(value) = of(name) else { continue };
        if value.starts_with("on") == wanted {
            continue;
        }
        wrong += 1;
        let (is, to) = if wanted { ("off", "on") } else { ("on", "off") };
        let found = format!("{interface}: {name} is {is}");
        match value.contains("[fixed]") {
            true => findings.info(format!("{found} for good"), why, ""),
            false => findings.warning(found, why, format!("ethtool -K {interface} {name} {to}")),
        }
    }
    if wrong == 0 {
        findings.ok(format!("{interface}: offloads are as they should be"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn san_addresses_are_those_that_other_hosts_reach() {
        assert_eq!(san_address("tcp:10.77.0.2:7100"), Some("10.77.0.2".parse().unwrap()));
        assert_eq!(san_address("channel-ucx:[2001:db8::1]:7100"), Some("2001:db8::1".parse().unwrap()));
        for text in ["shm:/run/csp/pn-1", "tcp:127.0.0.1:7100", "tcp:", ""] {
            assert_eq!(san_address(text), None, "{text}");
        }
    }
}
