//! What is for no address of the node, at ports whose frames the host's kernel does not have.

use csp_wire::ethernet::EtherType;
use csp_wire::offload::{Checksum as FrameChecksum, Gso, GsoKind, TxOffload};
use csp_wire::tcp::Flags as TcpFlags;

use super::fixture::*;
use super::plugins::Plugins;
use crate::PortId;

/// The host's own addresses.
const HOST: &str = "10.76.0.2:22";
const HOST6: &str = "[2001:db8::2]:22";

impl Plugins {
    /// With a way to the kernel.
    fn with_kernel(instances: &[&str], rules: &[&str]) -> Self {
        let mut plugins = Plugins::new(instances, rules);
        plugins.fixture.core.set_reinjection(PORT);
        plugins
    }

    /// Delivers a frame and returns what the kernel gets of it.
    fn given(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.fixture.frame(frame);
        self.fixture
            .out
            .kernel
            .drain(..)
            .map(|(port, frame, _)| (port == PORT).then_some(frame).unwrap())
            .collect()
    }
}

fn syn(from: &str, to: &str) -> Vec<u8> {
    ip_frame(&tcp_packet(from, to, TcpFlags::SYN, &[]))
}

/// An IPv4 packet with one option (NOP, NOP, NOP, end of list).
fn with_option(mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(34..34, [1, 1, 1, 0]);
    frame[14] = 0x46;
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[24..26].fill(0);
    let sum = csp_wire::checksum::checksum(&frame[14..38]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// An IPv6 packet with a header of destination options in front of what it had.
fn with_extension(mut frame: Vec<u8>) -> Vec<u8> {
    let protocol = frame[20];
    frame.splice(54..54, [protocol, 0, 1, 4, 0, 0, 0, 0]);
    frame[20] = 60;
    let len = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame
}

#[test]
fn the_kernel_gets_what_plug_ins_let_pass_and_nothing_that_they_drop() {
    for (client, other, vip, host) in
        [(CLIENT, "10.76.0.9:40000", VIP, HOST), (CLIENT6, "[2001:db8::9]:40000", VIP6, HOST6)]
    {
        let address = other.parse::<std::net::SocketAddr>().unwrap().ip();
        let blocked = format!("blocked prio 1 src {address} ingress plugin nothing");
        let mut plugins = Plugins::with_kernel(
            &["nothing drop", "mark dscp dscp=46"],
            &[&blocked, "all ingress plugin mark"],
        );
        assert!(plugins.given(&syn(other, host)).is_empty());
        let given = plugins.given(&syn(client, host));
        let marked = &given[0][14..];
        let dscp = if marked[0] >> 4 == 4 { marked[1] >> 2 } else { (marked[0] << 4 | marked[1] >> 4) >> 2 };
        assert_eq!((given.len(), dscp), (1, 46));
        // The same for what the program in the driver cannot classify.
        let unplain = |from| match host {
            HOST => with_option(syn(from, host)),
            _ => with_extension(syn(from, host)),
        };
        assert!(plugins.given(&unplain(other)).is_empty());
        assert_eq!(plugins.given(&unplain(client)).len(), 1);
        // An address of the node has its own way.
        assert!(plugins.given(&syn(client, vip)).is_empty());
        plugins.fixture.sent();
        assert_eq!(plugins.counts().instances[0].1.dropped, 2);
    }
}

#[test]
fn without_a_rule_the_frame_reaches_the_kernel_as_it_came() {
    let mut plugins = Plugins::with_kernel(&["nothing drop"], &["one dport 23 ingress plugin nothing"]);
    for frame in [
        syn(CLIENT, HOST),
        syn(CLIENT6, HOST6),
        with_option(syn(CLIENT, HOST)),
        with_extension(syn(CLIENT6, HOST6)),
    ] {
        assert_eq!(plugins.given(&frame), [frame]);
    }
    // A priority tag (VLAN 0) is classified like none.
    let tag = |mut frame: Vec<u8>| {
        frame.splice(12..12, [0x81, 0x00, 0xe0, 0x00]);
        frame
    };
    assert_eq!(plugins.given(&tag(syn(CLIENT, HOST))), [tag(syn(CLIENT, HOST))]);
    assert!(plugins.given(&tag(syn(CLIENT, &HOST.replace("22", "23")))).is_empty());
    // When the last rule has gone, what comes still is the kernel's.
    plugins.set(&[], &[]);
    assert_eq!(plugins.given(&syn(CLIENT, HOST)).len(), 1);
    assert_eq!(plugins.fixture.core.counters().drop_not_ours, 0);
}

#[test]
fn what_contradicts_itself_is_not_the_kernels_while_there_are_rules() {
    let mut plugins = Plugins::with_kernel(&["nothing drop"], &["one dport 23 ingress plugin nothing"]);
    let mut frame = syn(CLIENT, HOST);
    // The reserved bit: the kernel ignores it.
    frame[20] |= 0x80;
    frame[24..26].fill(0);
    let sum = csp_wire::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert!(plugins.given(&frame).is_empty());
    let mut chain = syn(CLIENT6, HOST6);
    (0..9).for_each(|_| chain = with_extension(core::mem::take(&mut chain)));
    assert!(plugins.given(&chain).is_empty(), "more extension headers than the classifier reads");
    assert_eq!(plugins.fixture.core.counters().drop_malformed, 2);
}

#[test]
fn solicitations_are_the_nodes_or_the_kernels_by_their_target() {
    let mut plugins = Plugins::with_kernel(&["count counter"], &["all ingress plugin count"]);
    let solicitation = |target: &str| {
        let target: std::net::Ipv6Addr = target.parse().unwrap();
        let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
        message.extend(target.octets());
        message.extend([1, 1, 2, 0, 0, 0, 0, 1]);
        let group: std::net::Ipv6Addr = "ff02::1:ff00:100".parse().unwrap();
        let source: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
        let sum = csp_wire::checksum::Checksum::pseudo(source.into(), group.into(), 58, message.len() as u32);
        let mut sum = sum.unwrap();
        sum.add(&message);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        ip_frame(&ip_packet(source.into(), group.into(), 58, &message))
    };
    let others = solicitation("2001:db8::5:100");
    assert_eq!(plugins.given(&others), [others]);
    assert!(plugins.fixture.out.lan.is_empty());
    assert!(plugins.given(&solicitation("2001:db8::100")).is_empty());
    plugins.fixture.transmitted();
    assert_eq!(plugins.counts().rules[0].1.packets, 2);
}

#[test]
fn what_the_device_was_left_is_left_to_the_kernel() {
    let mut plugins = Plugins::with_kernel(&["count counter"], &["all ingress plugin count"]);
    let partial = FrameChecksum::Partial { start: 34, offset: 16 };
    plugins.fixture.offloaded(&syn(CLIENT, HOST), partial, None);
    let (_, frame, offload) = plugins.fixture.out.kernel.remove(0);
    let expected = TxOffload { checksum_start: 34, checksum_offset: 16, gso: None, header_len: 34 };
    assert_eq!((frame, offload), (syn(CLIENT, HOST), Some(expected)));
    // What a device has coalesced and verified cannot be described to the kernel again.
    let gso = Some(Gso { kind: GsoKind::TcpV4, segment_size: 1460, cwr: false });
    plugins.fixture.offloaded(&syn(CLIENT, HOST), FrameChecksum::Verified, gso);
    assert!(plugins.fixture.out.kernel.is_empty());
    assert_eq!(plugins.fixture.core.counters().drop_not_ours, 1);
}

#[test]
fn a_port_whose_frames_the_kernel_has_gives_it_nothing() {
    let mut plugins = Plugins::with_kernel(&["count counter"], &["all ingress plugin count"]);
    let Plugins { fixture, .. } = &mut plugins;
    let bytes = frame(CLIENT_MAC, OUR_MAC, EtherType::Ipv4, &tcp_packet(CLIENT, HOST, TcpFlags::SYN, &[]));
    let other = csp_wire::offload::Frame { bytes: &bytes, checksum: FrameChecksum::Unchecked, gso: None };
    fixture.core.on_frame(fixture.now, PortId(1), &other, &mut fixture.out);
    assert!(fixture.out.kernel.is_empty());
    assert_eq!(fixture.core.counters().drop_not_ours, 1);
    assert_eq!(plugins.counts().rules[0].1.packets, 1);
}
