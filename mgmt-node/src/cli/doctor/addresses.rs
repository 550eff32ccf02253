//! Checks of addresses: VIPs on interfaces of this host, ports in use, the firewall.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use csp_policy::Policy;
use csp_types::Role;

use super::finding::Findings;
use super::interfaces::Interface;
use super::{Seen, firewall, processes};

/// State of a listening socket in /proc/net/tcp.
const LISTEN: &str = "0A";

/// `addresses`: no interface claims an address that the cluster answers for.
pub fn addresses(seen: &Seen, findings: &mut Findings) {
    let Some(policy) = seen.policy() else {
        return findings.not_checked("VIPs on interfaces of this host", seen.no_policy());
    };
    let interfaces = match seen.host.interfaces() {
        Ok(interfaces) => interfaces,
        Err(why) => return findings.not_checked("VIPs on interfaces of this host", why),
    };
    let vips = virtual_addresses(policy);
    for daemon in &seen.daemons {
        if let Some(address) = daemon.config.san.address.filter(|address| vips.contains(address)) {
            let why = "peers look for the SAN there, and network nodes answer for it";
            let remedy = format!("${{EDITOR:-vi}} {}    # san.address", daemon.file);
            findings.error(format!("san.address {address} is a VIP or an egress address"), why, remedy);
        }
    }
    let mut on_lo = Vec::new();
    for (interface, vip, prefix) in owned(&interfaces, &vips) {
        if !interface.is_loopback() {
            findings.error(
                format!("{vip} of the policy is on {}", interface.name),
                "this host's kernel answers for it, and clients go past the network nodes",
                format!("ip address del {vip}/{prefix} dev {}", interface.name),
            );
        } else {
            on_lo.push((interface.name.as_str(), vip));
        }
    }
    on_loopback(seen, &interfaces, &on_lo, findings);
    if findings.is_well() {
        let count = vips.len();
        findings.ok(format!("{count} VIPs and egress addresses of the policy, none where it does harm"));
    }
}

fn owned<'a>(
    interfaces: &'a [Interface],
    vips: &'a BTreeSet<IpAddr>,
) -> impl Iterator<Item = (&'a Interface, IpAddr, u8)> {
    interfaces.iter().flat_map(move |interface| {
        vips.iter().filter_map(move |vip| Some((interface, *vip, interface.prefix_of(*vip)?)))
    })
}

/// VIPs on `lo` need settings of the kernel (docs/operations.md, "VIPs on application hosts").
fn on_loopback(seen: &Seen, interfaces: &[Interface], on_lo: &[(&str, IpAddr)], findings: &mut Findings) {
    let Some((_, vip)) = on_lo.iter().find(|(_, vip)| vip.is_ipv4()) else { return };
    let of = |interface: &str, name: &str| {
        seen.host.number(&format!("/proc/sys/net/ipv4/conf/{interface}/{name}")).unwrap_or(0)
    };
    for (name, least, what) in [
        ("arp_ignore", 1, "answers ARP for it"),
        ("arp_announce", 2, "names it as the source of ARP requests"),
    ] {
        // The kernel takes the larger of `all` and the interface's own.
        let others = interfaces.iter().filter(|interface| !interface.is_loopback());
        let wrong = others.map(|interface| interface.name.as_str());
        let wrong: Vec<&str> = wrong.filter(|at| of("all", name).max(of(at, name)) < least).collect();
        if !wrong.is_empty() {
            findings.error(
                format!("{vip} is on lo, and {name} is too low for {}", wrong.join(", ")),
                format!("the kernel {what}, and clients go past the network nodes"),
                format!("sysctl -w net.ipv4.conf.all.{name}={least}"),
            );
        }
    }
    if seen.has(Role::NetworkNode) {
        findings.info(
            format!("{vip} is on lo of a host with a network node"),
            "the kernel resets clients' connections unless it is kept from answering on the LAN",
            format!("nft add rule inet csp input iifname LAN ip daddr {vip} drop    # docs/operations.md"),
        );
    }
}

/// The addresses that network nodes answer for.
fn virtual_addresses(policy: &Policy) -> BTreeSet<IpAddr> {
    let services = policy.services.iter().filter(|service| service.has_end()).map(|service| service.vip);
    let channels = policy.channels.iter().map(|channel| channel.vip);
    let egress = policy.egress.iter().map(|egress| egress.address);
    services.chain(channels).chain(egress).collect()
}

/// `ports`: what the daemons listen on is theirs.
pub fn ports(seen: &Seen, findings: &mut Findings) {
    if seen.daemons.is_empty() {
        return findings.ok("no node is configured on this host");
    }
    if !seen.host.exists("/proc/net/tcp") {
        return findings.not_checked("ports in use", "/proc/net/tcp is not there");
    }
    let listening = listening(seen);
    let running: BTreeSet<&str> = processes::all(&seen.host).iter().map(|process| process.program).collect();
    let mut wanted: BTreeMap<SocketAddr, String> = BTreeMap::new();
    for daemon in &seen.daemons {
        let runs = daemon.programs().iter().any(|program| running.contains(program.as_str()));
        for (at, what) in daemon.listens() {
            let whose = format!("{} of {}", what, daemon.program());
            if let Some(other) = wanted.insert(at, whose.clone()) {
                let why = "the one that starts later cannot listen";
                let remedy = format!("${{EDITOR:-vi}} {}", daemon.file);
                findings.error(format!("{at} is the {other} and the {whose}"), why, remedy);
            }
            let used = listening.iter().any(|listener| collides(listener, &at));
            let remedy = format!("ss --listening --tcp --processes 'sport = :{}'", at.port());
            match (used, runs) {
                (true, false) => findings.error(
                    format!("{at} ({whose}) is in use, and the daemon does not run"),
                    "it cannot start while another program listens there",
                    remedy,
                ),
                (false, true) => findings.warning(
                    format!("{at} ({whose}): nobody listens, and the daemon runs"),
                    "peers and the management node do not reach it",
                    format!("journalctl --unit {} --lines 50", daemon.unit(&seen.host)),
                ),
                _ => {}
            }
        }
    }
    if findings.is_well() {
        findings.ok(format!("{} ports of this host's daemons, none used by others", wanted.len()));
    }
}

/// Whether a listener keeps another from listening at an address.
fn collides(listener: &SocketAddr, at: &SocketAddr) -> bool {
    listener.port() == at.port() && (listener.ip() == at.ip() || listener.ip().is_unspecified())
}

/// The TCP addresses at which something listens.
fn listening(seen: &Seen) -> BTreeSet<SocketAddr> {
    let files = ["/proc/net/tcp", "/proc/net/tcp6"];
    let texts: Vec<String> = files.iter().filter_map(|file| seen.host.text(file)).collect();
    let lines = texts.iter().flat_map(|text| text.lines().skip(1));
    lines
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next()?, fields.nth(1)?);
            (state == LISTEN).then(|| socket(local)).flatten()
        })
        .collect()
}

/// Reads `0100007F:238C`: words of the address in the host's byte order, the port in hex.
fn socket(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':').filter(|(address, _)| matches!(address.len(), 8 | 32))?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words = address
        .as_bytes()
        .chunks(8)
        .map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok().map(u32::to_ne_bytes));
    let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.concat();
    let ip: IpAddr = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// `firewall`: rules of nftables that keep peers from the daemons' ports.
pub fn firewall(seen: &Seen, findings: &mut Findings) {
    let reached = |at: &SocketAddr| !at.ip().is_loopback();
    let all = seen.daemons.iter().flat_map(super::configuration::Daemon::listens);
    let ports: BTreeSet<u16> = all.filter(|(at, _)| reached(at)).map(|(at, _)| at.port()).collect();
    if ports.is_empty() {
        return findings.ok("no daemon of this host is reached by others");
    }
    let ran = match seen.host.run("nft", &["--json", "list", "ruleset"]) {
        Ok(ran) if ran.code == 0 => ran,
        Ok(ran) => {
            let why = ran.err.lines().next().unwrap_or("nft refuses").to_owned();
            return findings.not_checked("the rules of nftables", format!("{why} (root may read them)"));
        }
        Err(why) => return findings.not_checked("the rules of nftables", why),
    };
    match firewall::blocked(&ran.out, &ports) {
        Err(why) => findings.not_checked("the rules of nftables", why),
        Ok(blocked) if blocked.is_empty() => {
            findings.ok(format!("nftables drops none of {} ports by number or by default", ports.len()));
        }
        Ok(blocked) => {
            for (chain, by_default, ports) in blocked {
                let list: Vec<String> = ports.iter().map(u16::to_string).collect();
                let how = if by_default { "drops what no rule names, and none names" } else { "drops" };
                let why = "peers, the management node and Prometheus reach the daemons by these ports";
                let accept = format!("nft insert rule {chain} tcp dport '{{ {} }}' accept", list.join(", "));
                findings.warning(format!("chain {chain} {how} TCP port {}", list.join(", ")), why, accept);
            }
        }
    }
    if seen.host.text("/proc/net/ip_tables_names").is_some_and(|names| !names.is_empty()) {
        findings.not_checked("rules of the older iptables", "iptables --list shows them");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_kernel_s_tables_are_read() {
        assert_eq!(socket("0100007F:238C"), Some("127.0.0.1:9100".parse().unwrap()));
        assert_eq!(socket("00000000000000000000000001000000:0050"), Some("[::1]:80".parse().unwrap()));
        assert_eq!(socket("0000000000000000FFFF00000100007F:0050"), Some("127.0.0.1:80".parse().unwrap()));
        for wrong in ["", "0100007F", "0100:1", "zz00007F:1", "0100007F:12345", "é100007F:1"] {
            assert_eq!(socket(wrong), None, "{wrong}");
        }
    }
}
