//! Fragments for addresses of the cluster: reassembled, and then processed as the datagram that they are
//! parts of.
//!
//! ```text
//!   fragment ─▶ reassembly ─ complete ─▶ owner of the flow? ─▶ rules and plug-ins ─▶ flow table, responder
//!                   │                        │ no
//!                   └ kept                   └ another worker, which has received the same fragments, processes it
//! ```
//! Rules see whole datagrams: only the first fragment has the ports that they match. The program in the
//! driver leaves fragments to the worker, so that a reassembled datagram meets all rules here.

use std::net::{IpAddr, SocketAddr};

use csp_types::{FourTuple, Instant, Transport, steering};
use csp_wire::ethernet::EtherType;
use csp_wire::offload::Frame;
use csp_wire::{ethernet, ipv4, ipv6};

use super::api::{NetworkOutput, PortId};
use super::forward::ports;
use super::node::NetworkCore;
use super::reassembly::{Key, Piece, Whole};

/// Bytes of an IPv6 base header: a fragment header directly behind it is found by the rule that gives
/// fragments to all workers.
const V6_LEN: usize = ipv6::HEADER_LEN;

/// Reads a frame as a fragment; `None` if it is none, or malformed.
fn piece(frame: &[u8], port: PortId) -> Option<Piece<'_>> {
    let (ethernet, packet) = frame.split_at_checked(ethernet::HEADER_LEN)?;
    match ethernet::Frame::parse(frame).ok()?.ether_type()? {
        EtherType::Ipv4 => piece_v4(ethernet, packet, port),
        EtherType::Ipv6 => piece_v6(ethernet, packet, port),
        EtherType::Arp => None,
    }
}

fn piece_v4<'a>(ethernet: &'a [u8], packet: &'a [u8], port: PortId) -> Option<Piece<'a>> {
    let view = ipv4::Packet::parse(packet).ok().filter(ipv4::Packet::is_fragment)?;
    let (source, destination) = (view.source().into(), view.destination().into());
    let (protocol, identification) = (view.protocol(), view.identification().into());
    Some(Piece {
        key: Key { source, destination, protocol, identification },
        offset: view.fragment_offset(),
        more: view.more_fragments(),
        ecn: view.ecn(),
        port,
        shared: Transport::of_number(protocol).is_some(),
        ethernet,
        headers: packet.get(..view.header_len())?,
        patch: None,
        payload: view.payload(),
    })
}

fn piece_v6<'a>(ethernet: &'a [u8], packet: &'a [u8], port: PortId) -> Option<Piece<'a>> {
    let view = ipv6::Fragment::parse(packet)?;
    let (source, destination) = (view.source().into(), view.destination().into());
    Some(Piece {
        key: Key { source, destination, protocol: 0, identification: view.identification() },
        offset: view.offset(),
        more: view.more(),
        ecn: view.ecn(),
        port,
        shared: Transport::of_number(view.protocol()).is_some() && view.headers().len() == V6_LEN,
        ethernet,
        headers: view.headers(),
        patch: Some((view.next_header_at(), view.protocol())),
        payload: view.payload(),
    })
}

/// Turns the first fragment's headers at the start of `packet` into those of the whole datagram.
fn make_whole(packet: &mut [u8], whole: &Whole) -> bool {
    match packet.first().map_or(0, |byte| byte >> 4) {
        4 => ipv4::make_whole(packet, whole.ecn),
        6 => ipv6::make_whole(packet, whole.ecn),
        _ => false,
    }
}

/// Returns the flow of a whole packet of TCP or UDP.
fn tuple_of(packet: &[u8]) -> Option<FourTuple> {
    let (source, destination, bytes): (IpAddr, IpAddr, &[u8]);
    if let Ok(view) = ipv4::Packet::parse(packet) {
        (source, destination, bytes) = (view.source().into(), view.destination().into(), view.payload());
    } else {
        let view = ipv6::Packet::parse(packet).ok()?;
        (source, destination, bytes) = (view.source().into(), view.destination().into(), view.payload());
    }
    let (peer, own) = ports(bytes)?;
    Some(FourTuple { local: SocketAddr::new(destination, own), remote: SocketAddr::new(source, peer) })
}

impl NetworkCore {
    /// Processes a frame that is a fragment for an address of the cluster; `false` if it is none. A fragment
    /// that all workers receive and that is for no address of the cluster is processed by worker 0 alone.
    pub(super) fn take_fragment(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &Frame<'_>,
        out: &mut impl NetworkOutput,
    ) -> bool {
        let Some(piece) = piece(frame.bytes, port) else { return false };
        if !self.classifier.owns(piece.key.destination) {
            return piece.shared && self.worker != 0;
        }
        self.counters.fragments_in += 1;
        let source = piece.key.source;
        if super::inbound::is_martian(source) || self.classifier.owns(source) {
            self.counters.drop_malformed += 1;
            return true;
        }
        if let Some(whole) = self.reassembly.add(now, &piece, &mut self.counters) {
            let mut memory = core::mem::take(&mut self.reassembly.memory);
            if let Some(bytes) = memory.get_mut(whole.frame.clone()) {
                self.receive_whole(now, &whole, bytes, out);
            }
            self.reassembly.memory = memory;
        }
        true
    }

    fn receive_whole(&mut self, now: Instant, whole: &Whole, bytes: &mut [u8], out: &mut impl NetworkOutput) {
        let Some((_, packet)) = bytes.split_at_mut_checked(ethernet::HEADER_LEN) else { return };
        if !make_whole(packet, whole) {
            self.counters.drop_malformed += 1;
            return;
        }
        let owner = tuple_of(packet).map(|tuple| steering::worker_of(&tuple, self.workers));
        if whole.shared && owner.unwrap_or(0) != self.worker {
            self.counters.datagrams_elsewhere += 1;
            return;
        }
        let frame = Frame::plain(bytes);
        if self.plugins.ingress() {
            self.receive_reassembled(now, whole.port, &frame, out);
        } else {
            self.receive_any(now, whole.port, &frame, out);
        }
    }

    /// Returns the number of datagrams that wait for fragments.
    pub fn datagram_count(&self) -> usize {
        self.reassembly.len()
    }

    /// Returns the largest number of datagrams that wait for fragments.
    pub const fn datagram_capacity(&self) -> usize {
        super::reassembly::DATAGRAMS_MAX
    }
}
