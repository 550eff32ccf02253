//! The way back from a plug-in host: processes the host's answers to packets.

use csp_classify::multifield::{Direction, InstanceId};
use csp_plugins::{Binding, EnvironmentId, InstanceCount, Metadata, Verdict};
use csp_types::Instant;
use csp_wire::offload::Frame;
use csp_wire::packets::{Count, Head, Kind};

use super::api::{NetworkOutput, PortId};
use super::hosts::{Offload, Out};
use super::node::NetworkCore;
use super::ports::Ports;

impl NetworkCore {
    /// Reserves the memory for packets at a host. `host`: the environment of the host's instances.
    pub fn prepare_host(&mut self, host: EnvironmentId) {
        self.plugins.hosts.prepare(host);
    }

    /// Records that a host runs its instances.
    pub fn host_up(&mut self, host: EnvironmentId) {
        self.plugins.graph.apply(csp_plugins::Command::Run(host, true));
    }

    /// Records that a host has failed, or refuses its instances. Packets at the host are lost; from now on
    /// the rules' fallback applies.
    pub fn host_down(&mut self, now: Instant, host: EnvironmentId, out: &mut impl NetworkOutput) {
        self.plugins.graph.apply(csp_plugins::Command::Run(host, false));
        self.plugins.graph.keep_counts(host);
        self.plugins.hosts.gone(host);
        self.resume_held(now, out);
    }

    /// Processes a record of a host about a packet, or its counters. Plug-ins that the packet still goes
    /// through change the payload in place.
    pub fn on_host_record(
        &mut self,
        now: Instant,
        host: EnvironmentId,
        head: &Head,
        payload: &mut [u8],
        out: &mut impl NetworkOutput,
    ) {
        match head.kind {
            Kind::Pass | Kind::Drop | Kind::Transmit | Kind::Enter | Kind::Absent => {
                if let Some(packet) = self.plugins.hosts.answered(host, head, payload.len()) {
                    self.follow_answer(now, host, head, payload, &packet, out);
                }
                if self.plugins.hosts.holds() {
                    self.resume_held(now, out);
                }
            }
            Kind::Copy => {
                if let Some(packet) = self.plugins.hosts.copied(host, head, payload.len()) {
                    let mut ports = Ports::new(out, self.port_count(), packet.offload);
                    self.plugins.transmit(head.interface, payload, &mut ports);
                }
            }
            Kind::Counts => {
                for Count { instance, packets, bytes, dropped } in Count::parse_all(payload) {
                    let count = InstanceCount { packets, bytes, dropped };
                    self.plugins.graph.report(host, InstanceId(instance), count);
                }
            }
            _ => self.plugins.hosts.counters.wrong_kind += 1,
        }
    }

    fn follow_answer(
        &mut self,
        now: Instant,
        host: EnvironmentId,
        head: &Head,
        payload: &mut [u8],
        packet: &Out,
        out: &mut impl NetworkOutput,
    ) {
        let Out { metadata, offload, fallback, .. } = *packet;
        let verdict = match head.kind {
            Kind::Pass => Verdict::Pass,
            Kind::Absent => self.plugins.graph.absent(fallback),
            Kind::Transmit => {
                let mut ports = Ports::new(out, self.port_count(), offload);
                self.plugins.transmit(head.interface, payload, &mut ports);
                Verdict::Transmit(head.interface)
            }
            Kind::Enter => {
                let instance = InstanceId(head.instance);
                if self.plugins.graph.is_entrance(host, instance) {
                    return self.resume_locally(now, Binding { instance, fallback }, payload, packet, out);
                }
                if !self.plugins.hosts.is_outdated(packet) {
                    return self.plugins.hosts.counters.wrong_instance += 1;
                }
                self.plugins.graph.absent(fallback)
            }
            _ => Verdict::Drop,
        };
        if !matches!(head.kind, Kind::Absent | Kind::Enter) {
            self.plugins.graph.conclude(verdict);
        }
        if verdict == Verdict::Pass {
            self.route(now, payload, metadata, offload, out);
        }
    }

    /// Continues with a packet in the graph of this worker.
    fn resume_locally(
        &mut self,
        now: Instant,
        binding: Binding,
        frame: &mut [u8],
        packet: &Out,
        out: &mut impl NetworkOutput,
    ) {
        let mut ports = Ports::new(out, self.port_count(), packet.offload);
        // The frame occupies the space of the record: it can get shorter, not longer.
        let len = frame.len();
        let (verdict, len) =
            self.plugins.go_on(now, binding, (&mut *frame, len), packet.metadata, &mut ports);
        if verdict == Verdict::Pass {
            let bytes = frame.get(..len).unwrap_or_default();
            self.route(now, bytes, packet.metadata, packet.offload, out);
        }
    }

    /// Routes a packet that has left the plug-ins.
    fn route(
        &mut self,
        now: Instant,
        bytes: &[u8],
        metadata: Metadata,
        offload: Offload,
        out: &mut impl NetworkOutput,
    ) {
        let port = PortId(metadata.interface);
        match (offload, metadata.direction) {
            (Offload::Received(checksum, gso), Direction::Ingress) => {
                self.receive_any(now, port, &Frame { bytes, checksum, gso }, out);
            }
            (Offload::Transmitted(offload), _) => out.lan(port, &[bytes], offload),
            // A received packet is processed in this direction only.
            (Offload::Received(..), Direction::Egress) => {}
        }
    }

    /// Processes packets held back by a change of plug-ins, once the packets that were at hosts before have
    /// returned.
    pub(super) fn resume_held(&mut self, now: Instant, out: &mut impl NetworkOutput) {
        if !self.plugins.hosts.holds() || !self.plugins.hosts.may_resume(now) {
            return;
        }
        let mut held = self.plugins.hosts.take_held();
        let mut at = 0;
        for frame in held.frames.drain(..) {
            let end = at + frame.len;
            if let Some(bytes) = held.bytes.get_mut(at..end) {
                let mut ports = Ports::new(out, self.port_count(), frame.offload);
                let whole = (&mut *bytes, frame.len);
                let (verdict, len) = self.plugins.enter(now, frame.hit, whole, frame.metadata, &mut ports);
                if verdict == Verdict::Pass {
                    let bytes = bytes.get(..len).unwrap_or_default();
                    self.route(now, bytes, frame.metadata, frame.offload, out);
                }
            }
            at = end;
        }
        self.plugins.hosts.reuse(held);
    }

    /// Returns the number of packets at plug-in hosts.
    pub fn packets_at_hosts(&self) -> usize {
        self.plugins.hosts.out()
    }
}
