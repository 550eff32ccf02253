//! At a port whose frames the host's kernel does not receive itself, frames for no address of the node are
//! passed to the kernel.
//!
//! ```text
//!   frame ─▶ no rule, or passed by its plug-ins ─┬─ for an address of the node ─▶ flow table, responder
//!                                                └─ else ─▶ kernel
//! ```
//! The program in the driver that delivered the frame to the worker (network-node/xdp, deliver.h) decides by
//! the same addresses.

use csp_classify::multifield::NoFields;
use csp_types::Instant;
use csp_wire::offload::Frame;
use csp_wire::{WireError, ethernet};

use super::api::{NetworkOutput, PortId};
use super::node::NetworkCore;
use super::ports::offload_of;

const ETHERNET_LEN: usize = 14;
const TYPE_AT: core::ops::Range<usize> = 12..14;
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_ARP: [u8; 2] = [0x08, 0x06];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ICMP_V6: u8 = 58;
const NEIGHBOUR_SOLICITATION: u8 = 135;

/// Returns `N` bytes of the packet in a frame.
fn bytes_at<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(ETHERNET_LEN + at..)?.first_chunk().copied()
}

impl NetworkCore {
    /// Returns whether a frame is for an address of the node: the destination, ARP's target, or the target of
    /// a solicitation that goes to a multicast group.
    pub(super) fn is_for_node(&self, frame: &[u8]) -> bool {
        let v4 = |at| bytes_at::<4>(frame, at).is_some_and(|address| self.classifier.owns(address.into()));
        let v6 = |at| bytes_at::<16>(frame, at).is_some_and(|address| self.classifier.owns(address.into()));
        let kind = frame.get(TYPE_AT).and_then(|kind| kind.first_chunk().copied());
        match kind {
            Some(TYPE_IPV4) => v4(16),
            Some(TYPE_ARP) => v4(24),
            Some(TYPE_IPV6) if bytes_at(frame, 24) == Some([0xff]) => {
                let solicits = (bytes_at(frame, 6), bytes_at(frame, 40));
                solicits == (Some([ICMP_V6]), Some([NEIGHBOUR_SOLICITATION])) && v6(48)
            }
            Some(TYPE_IPV6) => v6(24),
            _ => false,
        }
    }

    /// Routes a frame that matched no rule, or has left the plug-ins.
    pub(super) fn receive_any(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &Frame<'_>,
        out: &mut impl NetworkOutput,
    ) {
        match ethernet::Frame::parse(frame.bytes) {
            Ok(ethernet) => self.receive(now, port, frame, &ethernet, out),
            Err(error) => self.unreadable(port, frame, &error, out),
        }
    }

    /// Passes a frame that is not for the node to the kernel. On ports whose frames the kernel receives
    /// itself, the frame is dropped.
    pub(super) fn reinject(&mut self, port: PortId, frame: &Frame<'_>, out: &mut impl NetworkOutput) {
        match offload_of(frame, port.0) {
            Ok(offload) if self.has_reinjection(port) => out.kernel(port, frame.bytes, offload),
            _ => self.counters.drop_not_ours += 1,
        }
    }

    /// Handles a frame that the node's parser rejects: it is passed to the kernel unless it is for the node.
    pub(super) fn unreadable(
        &mut self,
        port: PortId,
        frame: &Frame<'_>,
        error: &WireError,
        out: &mut impl NetworkOutput,
    ) {
        if self.has_reinjection(port) && !self.is_for_node(frame.bytes) {
            return self.reinject(port, frame, out);
        }
        self.count_wire_error(error);
    }

    /// Returns whether a frame without parsed fields is dropped because rules exist. The kernel might
    /// interpret a malformed packet differently from the classifier, and thus receive a packet that a rule
    /// matches.
    pub(super) fn is_refused(&self, port: PortId, frame: &[u8], reason: &NoFields) -> bool {
        matches!(reason, NoFields::Malformed(_)) && self.has_reinjection(port) && !self.is_for_node(frame)
    }
}
