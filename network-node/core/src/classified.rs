//! Classifies received frames: a frame that matches a rule is passed to the plug-ins, all others are routed.

use csp_classify::multifield::{Direction, Fragment, Hit, Parsed, parse_ethernet};
use csp_plugins::{Metadata, Verdict};
use csp_types::Instant;
use csp_wire::offload::{Checksum, Frame};

use super::api::{NetworkOutput, PortId};
use super::hosts::Offload;
use super::node::NetworkCore;
use super::ports::{Ports, coalesced};

impl NetworkCore {
    /// Passes a frame that matches a rule to the plug-ins. Frames that the plug-ins pass, and frames without
    /// a rule, are routed.
    #[inline(never)]
    pub(super) fn receive_classified(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &Frame<'_>,
        out: &mut impl NetworkOutput,
    ) {
        // Frames that are malformed or not IP match no rule.
        let parsed = match parse_ethernet(frame.bytes, port.0, Direction::Ingress) {
            Ok(parsed) => parsed,
            Err(reason) if self.is_refused(port, frame.bytes, &reason) => {
                self.counters.drop_malformed += 1;
                return;
            }
            Err(_) => return self.receive_any(now, port, frame, out),
        };
        if parsed.fragment != Fragment::Whole && self.take_fragment(now, port, frame, out) {
            return;
        }
        let hit = self.plugins.classify_received(port, &parsed, frame.bytes.len());
        self.receive_hit(now, port, frame, (hit, &parsed), out);
    }

    /// As [`receive_classified`](Self::receive_classified) for a reassembled datagram, which the program in
    /// the driver has not seen.
    pub(super) fn receive_reassembled(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &Frame<'_>,
        out: &mut impl NetworkOutput,
    ) {
        let Ok(parsed) = parse_ethernet(frame.bytes, port.0, Direction::Ingress) else {
            return self.receive_any(now, port, frame, out);
        };
        let hit = self.plugins.classify(&parsed.fields, frame.bytes.len());
        self.receive_hit(now, port, frame, (hit, &parsed), out);
    }

    /// Passes a frame to the plug-ins of the rule that it matched.
    fn receive_hit(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &Frame<'_>,
        (hit, parsed): (Option<Hit>, &Parsed),
        out: &mut impl NetworkOutput,
    ) {
        let Some(hit) = hit else { return self.receive_any(now, port, frame, out) };
        let offload = Offload::Received(frame.checksum, frame.gso);
        let checksum_partial = matches!(frame.checksum, Checksum::Partial { .. });
        let metadata = Metadata {
            coalesced: coalesced(frame, parsed),
            checksum_partial,
            resizable: frame.gso.is_none() && !checksum_partial,
            ..Metadata::new(port.0, Direction::Ingress)
        };
        if self.plugins.hosts.holds() {
            return self.plugins.hosts.hold(now, hit, (metadata, offload), frame.bytes);
        }
        let mut ports = Ports::new(out, self.port_count(), offload);
        if self.plugins.leave(now, hit, frame.bytes, metadata, &mut ports) {
            return;
        }
        let mut buffer = core::mem::take(&mut self.plugins.received);
        if let Some(bytes) = buffer.get_mut(..frame.bytes.len()) {
            bytes.copy_from_slice(frame.bytes);
            let mut ports = Ports::new(out, self.port_count(), offload);
            let len = frame.bytes.len();
            let (verdict, len) = self.plugins.enter(now, hit, (&mut buffer, len), metadata, &mut ports);
            let bytes = buffer.get(..len).unwrap_or_default();
            if verdict == Verdict::Pass {
                self.receive_any(now, port, &Frame { bytes, ..*frame }, out);
            }
        } else {
            self.counters.drop_malformed += 1;
        }
        self.plugins.received = buffer;
    }
}
