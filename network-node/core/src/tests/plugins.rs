//! Packet plug-ins in front of the flow table and behind it.

use csp_plugins::text::parse_rule;
use csp_plugins::{Desired, DesiredInstance, DesiredRule, HashKey, Level, Manager, ManagerConfig, builtin};
use csp_wire::ethernet;
use csp_wire::offload::{Checksum as FrameChecksum, Gso, GsoKind};
use csp_wire::tcp::Flags as TcpFlags;

use super::fixture::*;
use crate::{CoreConfig, PluginCapacity, PluginChange, PluginCounts, PortConfig};

pub(super) struct Plugins {
    pub(super) fixture: Fixture,
    manager: Manager,
}

impl Plugins {
    /// Instances as `NAME MODULE [KEY=VALUE]...`, and rules.
    pub(super) fn new(instances: &[&str], rules: &[&str]) -> Self {
        let plugins = PluginCapacity { rules: 64, instances: 8, environments: 1, flows: 64 };
        let ports = vec![PortConfig::new(OUR_MAC, 1500), PortConfig::new(OUR_MAC, 1500)];
        let fixture = Fixture::with(CoreConfig { plugins, ..CoreConfig::new(ports, (1, 2)) });
        let config =
            ManagerConfig { rules_max: 64, instances_max: 8, ..ManagerConfig::new(1, HashKey(1, 2)) };
        let mut manager = Manager::new(config);
        builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
        manager.add_environment("workers", Level::Worker).unwrap();
        manager.start("workers").unwrap();
        let mut plugins = Plugins { fixture, manager };
        plugins.set(instances, rules);
        plugins
    }

    pub(super) fn set(&mut self, instances: &[&str], rules: &[&str]) {
        let instance = |text: &&str| {
            let mut words = text.split_whitespace();
            let (name, module) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
            let settings = words.map(|w| w.split_once('=').map(|(k, v)| (k.into(), v.into())).unwrap());
            DesiredInstance { name, module, settings: settings.collect(), ..DesiredInstance::default() }
        };
        let rule = |text: &&str| {
            let rule = parse_rule(&text.split_whitespace().collect::<Vec<_>>()).unwrap();
            let (name, priority, instance) = (rule.name, rule.priority, rule.instance);
            DesiredRule { name, priority, fields: rule.fields, instance, fallback: rule.fallback }
        };
        let desired = Desired {
            instances: instances.iter().map(instance).collect(),
            rules: rules.iter().map(rule).collect(),
        };
        self.manager.reconcile(&desired).unwrap();
        let commands: Vec<_> = core::iter::from_fn(|| self.manager.poll_command(0)).collect();
        let table = Some(self.manager.publish_rules());
        let any = !rules.is_empty();
        let mut change = PluginChange { commands, table, directions: (any, any), ..PluginChange::default() };
        self.fixture.core.change_plugins(&mut change);
        assert!(change.commands.is_empty() && change.table.is_some(), "{change:?}");
    }

    pub(super) fn counts(&self) -> PluginCounts {
        let rules = self.manager.rules().rules().iter().map(|(_, at)| (*at, Default::default())).collect();
        let instances = self.manager.instances().map(|(id, ..)| (id, Default::default())).collect();
        let mut counts = PluginCounts { rules, instances, ..PluginCounts::default() };
        self.fixture.core.count_plugins(&mut counts);
        counts
    }
}

#[test]
fn a_blocked_client_is_dropped_and_others_are_served() {
    for (client, other, vip) in [(CLIENT, "10.76.0.2:40000", VIP), (CLIENT6, "[2001:db8::2]:40000", VIP6)] {
        let address = client.parse::<std::net::SocketAddr>().unwrap().ip();
        let rule = format!("blocked src {address} proto tcp ingress plugin nothing");
        let mut plugins = Plugins::new(&["nothing drop"], &[&rule]);
        let syn = |from: &str| ip_frame(&tcp_packet(from, vip, TcpFlags::SYN, &[]));
        plugins.fixture.frame(&syn(client));
        assert!(plugins.fixture.out.tunnel.is_empty());
        plugins.fixture.frame(&syn(other));
        plugins.fixture.sent();
        let counts = plugins.counts();
        assert_eq!((counts.rules[0].1.packets, counts.instances[0].1.dropped), (1, 1), "{counts:?}");
        assert_eq!(counts.graph.dropped, 1);
        // Without the rule it is served; the flow table knows nothing of the packet that was dropped.
        plugins.set(&["nothing drop"], &[]);
        plugins.fixture.frame(&syn(client));
        plugins.fixture.sent();
    }
}

#[test]
fn what_passes_is_routed_once_and_not_classified_again() {
    let mut plugins = Plugins::new(&["count counter"], &["all plugin count"]);
    plugins.fixture.establish(label(1));
    // The client's SYN and the answer.
    assert_eq!(plugins.counts().rules[0].1.packets, 2);
    // A coalesced segment goes on as one, with what the port knows about it.
    let data = vec![7; 3000];
    let packet = tcp_packet(CLIENT, VIP, TcpFlags::ACK, &data);
    let gso = Some(Gso { kind: GsoKind::TcpV4, segment_size: 1460, cwr: false });
    let partial = FrameChecksum::Partial { start: 34, offset: 16 };
    plugins.fixture.offloaded(&ip_frame(&packet), partial, gso);
    let sent = plugins.fixture.sent();
    assert_eq!((sent.coalesced, sent.segment_size, sent.label), (3, 1460, label(1)));
    assert!(sent.payload.ends_with(&data));
    let counts = plugins.counts();
    assert_eq!((counts.graph.entered, counts.graph.passed, counts.lookups.0), (3, 3, 3));
    // What is not IP is not classified; it is answered as before.
    plugins.fixture.frame(&[0; 10]);
    assert_eq!(plugins.counts().lookups.0, 3);
}

#[test]
fn segments_to_clients_are_marked() {
    for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
        let mut plugins = Plugins::new(
            &["mark dscp dscp=46"],
            &["answers egress proto tcp sport 80 plugin mark", "others egress plugin mark"],
        );
        plugins.fixture.frame(&ip_frame(&tcp_packet(client, vip, TcpFlags::SYN, &[])));
        let packet = tcp_packet(vip, client, TcpFlags::SYN | TcpFlags::ACK, b"x");
        let flags = csp_wire::tunnel::Flags::FLOW_NEW;
        plugins.fixture.record(csp_wire::tunnel::Record { flags, ..whole(label(1), &packet) });
        let (frame, offload) = plugins.fixture.transmitted();
        let (_, flags, data) = check_tcp_frame(&frame, offload);
        assert_eq!((flags, data), (TcpFlags::SYN | TcpFlags::ACK, b"x".to_vec()));
        let ip = ethernet::Frame::parse(&frame).unwrap().payload().to_vec();
        let dscp = if ip[0] >> 4 == 4 { ip[1] >> 2 } else { (ip[0] << 4 | ip[1] >> 4) >> 2 };
        assert_eq!(dscp, 46, "{client}");
        // A reset for a port without a service is the node's own; it is marked as well.
        let closed = vip.replace("80", "81");
        plugins.fixture.frame(&ip_frame(&tcp_packet(client, &closed, TcpFlags::SYN, &[])));
        let (frame, offload) = plugins.fixture.transmitted();
        assert_eq!(check_tcp_frame(&frame, offload).1, TcpFlags::RST | TcpFlags::ACK);
        let counts = plugins.counts();
        assert_eq!([counts.rules[0].1.packets, counts.rules[1].1.packets], [1, 1], "{counts:?}");
    }
}

#[test]
fn the_answer_to_a_frame_that_a_plug_in_passed_meets_the_rules_too() {
    for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
        let mut plugins = Plugins::new(&["count counter"], &["all plugin count"]);
        let closed = vip.replace("80", "81");
        plugins.fixture.frame(&ip_frame(&tcp_packet(client, &closed, TcpFlags::SYN, &[])));
        let (frame, offload) = plugins.fixture.transmitted();
        assert_eq!(check_tcp_frame(&frame, offload).1, TcpFlags::RST | TcpFlags::ACK);
        assert_eq!(plugins.counts().rules[0].1.packets, 2, "the SYN and the reset");
    }
}

#[test]
fn copies_and_redirected_frames_leave_by_their_port() {
    let mut plugins = Plugins::new(
        &["tap mirror interface=1", "away redirect interface=1", "nowhere redirect interface=9"],
        &[
            "copied dport 80 ingress plugin tap",
            "sent-on dport 81 ingress plugin away",
            "lost dport 82 ingress plugin nowhere",
        ],
    );
    let syn = |port: &str| ip_frame(&tcp_packet(CLIENT, &VIP.replace("80", port), TcpFlags::SYN, &[]));
    plugins.fixture.frame(&ip_frame(&tcp_packet(CLIENT, VIP, TcpFlags::SYN, &[])));
    let (copy, offload) = plugins.fixture.transmitted();
    assert_eq!((copy, offload), (ip_frame(&tcp_packet(CLIENT, VIP, TcpFlags::SYN, &[])), None));
    plugins.fixture.sent();
    let closed = syn("81");
    plugins.fixture.frame(&closed);
    assert_eq!(plugins.fixture.transmitted().0, closed, "and no reset is sent");
    plugins.fixture.frame(&syn("82"));
    assert!(plugins.fixture.out.lan.is_empty());
    assert_eq!(plugins.counts().untransmitted, 1);
}

/// A supplied plug-in that appends four bytes and transmits, where the length may change; other packets it
/// drops.
#[derive(Debug)]
struct Tag;

impl csp_plugins::Supply for Tag {
    fn outputs(&self, _: &str) -> Option<u8> {
        Some(1)
    }

    fn make(
        &self,
        _: &str,
        _: &str,
        _: &csp_plugins::Settings,
    ) -> Result<Box<dyn csp_plugins::Plugin>, csp_plugins::PluginError> {
        Ok(Box::new(Tag))
    }
}

impl csp_plugins::Plugin for Tag {
    fn process(
        &mut self,
        _: csp_types::Instant,
        packet: &mut csp_plugins::Packet<'_>,
        _: &mut dyn csp_plugins::Effects,
    ) -> csp_plugins::Action {
        let longer = [packet.bytes(), b"tag!"].concat();
        match packet.room() >= longer.len() && packet.rewrite(&longer, longer.len()) {
            true => csp_plugins::Action::Transmit(1),
            false => csp_plugins::Action::Drop,
        }
    }

    fn configure(&mut self, _: &csp_plugins::Settings) -> Result<(), csp_plugins::PluginError> {
        Ok(())
    }

    fn call(
        &mut self,
        _: csp_types::Instant,
        _: &str,
        _: &csp_plugins::Settings,
    ) -> Result<csp_plugins::Answer, csp_plugins::CallError> {
        Ok(csp_plugins::Answer::Done)
    }
}

#[test]
fn a_plug_in_changes_the_length_of_frames_that_are_whole() {
    let mut plugins = Plugins::new(&[], &[]);
    plugins.manager.set_supply(std::sync::Arc::new(Tag));
    let instance = format!("tag {}", "0".repeat(64));
    plugins.set(&[&instance], &["all ingress plugin tag"]);
    let syn = ip_frame(&tcp_packet(CLIENT, VIP, TcpFlags::SYN, &[]));
    plugins.fixture.frame(&syn);
    assert_eq!(plugins.fixture.transmitted(), ([&syn[..], b"tag!"].concat(), None));
    // Not of coalesced frames, and not of those that the device completes.
    let data = ip_frame(&tcp_packet(CLIENT, VIP, TcpFlags::ACK, &[7; 3000]));
    let gso = Some(Gso { kind: GsoKind::TcpV4, segment_size: 1460, cwr: false });
    let partial = FrameChecksum::Partial { start: 34, offset: 16 };
    for (checksum, gso) in [(partial, gso), (partial, None), (FrameChecksum::Verified, gso)] {
        plugins.fixture.offloaded(&data, checksum, gso);
    }
    assert!(plugins.fixture.out.lan.is_empty());
    assert_eq!(plugins.counts().instances[0].1.dropped, 3);
}
