//! What changes in a packet on its way to a server: Ethernet addresses and the time to live. The server has
//! the service's address, too, and answers the client itself.

use csp_types::MacAddr;
use csp_wire::checksum::{self, Checksum, checksum};
use csp_wire::offload::{Checksum as FrameChecksum, Gso, TxOffload};
use csp_wire::{ethernet, ipv4, ipv6, tcp};

use super::super::api::{NetworkOutput, PortId};
use super::Arrived;

/// Longest IP headers of a packet that is sent on.
pub(super) const IP_HEADERS_LEN_MAX: usize = 122;
/// Longest start of a frame that is copied: Ethernet header, IP headers, TCP header without options.
const HEAD_LEN_MAX: usize = ethernet::HEADER_LEN + IP_HEADERS_LEN_MAX + tcp::HEADER_LEN_MIN;
const TTL_V4: usize = 8;
const HOP_LIMIT_V6: usize = 7;
const NEXT_HEADER_V6: usize = 6;
const HOP_BY_HOP: u8 = 0;
const FRAGMENT: u8 = 44;
const FRAGMENT_HEADER_LEN: usize = 8;

/// Why a packet is not sent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// Its time to live is over.
    Expired,
    /// It is longer than the port's MTU, and must not be cut.
    TooLong,
    /// Its headers are longer than any real ones.
    Malformed,
}

/// Takes the frames that a packet becomes: its changed start, from the Ethernet header on, and the rest.
pub(super) trait Frames {
    fn frame(&mut self, head: &[u8], rest: &[u8], offload: Option<TxOffload>) -> Result<(), Refused>;
}

/// Frames that go on as they are.
pub(super) struct Direct<'a, O> {
    pub(super) port: PortId,
    pub(super) out: &'a mut O,
}

impl<O: NetworkOutput> Frames for Direct<'_, O> {
    #[inline]
    fn frame(&mut self, head: &[u8], rest: &[u8], offload: Option<TxOffload>) -> Result<(), Refused> {
        self.out.lan(self.port, &[head, rest], offload);
        Ok(())
    }
}

/// How a packet is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Longest IP packet.
    pub(super) mtu: u16,
    pub(super) source_mac: MacAddr,
    pub(super) destination_mac: MacAddr,
    /// For fragments.
    pub(super) identification: u32,
    /// The packet came in fragments.
    pub(super) whole: bool,
}

/// The changed start of a frame.
struct Head {
    bytes: [u8; HEAD_LEN_MAX],
    len: usize,
}

/// Sends the packet to a server. It and what it calls stand inline in both of its callers: the copy of a head
/// that is returned would cost 100 instructions.
#[inline(always)]
pub(super) fn send(arrived: &Arrived<'_>, way: &Way, out: &mut impl Frames) -> Result<(), Refused> {
    let frame = arrived.frame.bytes.get(..ethernet::HEADER_LEN + arrived.packet.len());
    let frame = frame.ok_or(Refused::Malformed)?;
    let mut head = head_of(arrived, frame, way)?;
    let offload = offload(arrived, &mut head)?;
    let (_, rest) = frame.split_at(head.len);
    let longest = longest_packet(arrived, offload);
    if longest <= usize::from(way.mtu) {
        return out.frame(&head.bytes[..head.len], rest, offload);
    }
    match (arrived.packet[0] >> 4, offload) {
        (4, None) => fragments_v4(arrived, &head, way, out),
        // Only their sender may cut packets of IPv6; what came in fragments was cut by it.
        (6, None) if way.whole => fragments_v6(arrived, &head, way, out),
        _ => Err(Refused::TooLong),
    }
}

/// Returns the length of the longest IP packet that the frame becomes.
fn longest_packet(arrived: &Arrived<'_>, offload: Option<TxOffload>) -> usize {
    let cut = offload.and_then(|offload| Some((offload, offload.gso?)));
    let piece = |(offload, gso): (TxOffload, Gso)| {
        usize::from(offload.header_len) - ethernet::HEADER_LEN + usize::from(gso.segment_size)
    };
    cut.map_or(arrived.packet.len(), |cut| piece(cut).min(arrived.packet.len()))
}

#[inline(always)]
fn head_of(arrived: &Arrived<'_>, frame: &[u8], way: &Way) -> Result<Head, Refused> {
    let len = frame.len().min(ethernet::HEADER_LEN + arrived.header_len + tcp::HEADER_LEN_MIN);
    let mut head = Head { bytes: [0; HEAD_LEN_MAX], len };
    head.bytes.get_mut(..len).ok_or(Refused::Malformed)?.copy_from_slice(&frame[..len]);
    head.bytes[..6].copy_from_slice(&way.destination_mac.0);
    head.bytes[6..12].copy_from_slice(&way.source_mac.0);
    let packet = &mut head.bytes[ethernet::HEADER_LEN..];
    let ttl_at = if packet[0] >> 4 == 4 { TTL_V4 } else { HOP_LIMIT_V6 };
    if packet[ttl_at] <= 1 {
        return Err(Refused::Expired);
    }
    packet[ttl_at] -= 1;
    if ttl_at == TTL_V4 {
        // The word of the time to live and the protocol (RFC 1624).
        let new = u16::from_be_bytes([packet[8], packet[9]]);
        let field = u16::from_be_bytes([packet[10], packet[11]]);
        let field = checksum::update(field, new.wrapping_add(0x100), new);
        packet[10..12].copy_from_slice(&field.to_be_bytes());
    }
    Ok(head)
}

/// Returns what the port has to do. Of a frame that a device has put together, with the checksums verified,
/// the checksum field is set to the sum of the pseudo header, so that it can be cut again.
#[inline(always)]
fn offload(arrived: &Arrived<'_>, head: &mut Head) -> Result<Option<TxOffload>, Refused> {
    let transport = ethernet::HEADER_LEN + arrived.header_len;
    let start = transport as u16;
    let gso = arrived.frame.gso;
    let (start, offset) = match (arrived.frame.checksum, gso) {
        (FrameChecksum::Partial { start, offset }, _) => (start, offset),
        (_, None) => return Ok(None),
        (_, Some(_)) => {
            let (source, destination) = arrived.ends;
            let len = arrived.packet.len() - arrived.header_len;
            let sum = Checksum::pseudo(source, destination, ipv4::PROTOCOL_TCP, len as u32);
            let sum = sum.ok_or(Refused::Malformed)?.partial();
            let field = transport + tcp::CHECKSUM_AT;
            let field = head.bytes.get_mut(field..field + 2).ok_or(Refused::Malformed)?;
            field.copy_from_slice(&sum.to_be_bytes());
            (start, tcp::CHECKSUM_AT as u16)
        }
    };
    let data_offset = || arrived.packet.get(arrived.header_len + 12).map_or(0, |byte| byte >> 4) * 4;
    let header_len = if gso.is_some() { transport as u16 + u16::from(data_offset()) } else { start };
    Ok(Some(TxOffload { checksum_start: start, checksum_offset: offset, gso, header_len }))
}

/// Sends a datagram that came in fragments in fragments again (RFC 791 §2.3).
#[cold]
fn fragments_v4(arrived: &Arrived<'_>, head: &Head, way: &Way, out: &mut impl Frames) -> Result<(), Refused> {
    let at = ethernet::HEADER_LEN + arrived.header_len;
    let (mut headers, data) = (head.bytes, &arrived.packet[arrived.header_len..]);
    let headers = headers.get_mut(..at).ok_or(Refused::Malformed)?;
    // Routers may leave the flag in fragments.
    let must_not_be_cut = headers[ethernet::HEADER_LEN + 6] & 0x40 != 0 && !way.whole;
    let room = usize::from(way.mtu).saturating_sub(arrived.header_len) & !7;
    if must_not_be_cut || room == 0 {
        return Err(Refused::TooLong);
    }
    for (part, bytes) in data.chunks(room).enumerate() {
        let ip = &mut headers[ethernet::HEADER_LEN..];
        let more = u16::from((part + 1) * room < data.len());
        let place = more << 13 | (part * room / 8) as u16;
        ip[2..4].copy_from_slice(&((arrived.header_len + bytes.len()) as u16).to_be_bytes());
        ip[6..8].copy_from_slice(&place.to_be_bytes());
        ip[10..12].fill(0);
        let field = checksum(ip);
        ip[10..12].copy_from_slice(&field.to_be_bytes());
        out.frame(headers, bytes, None)?;
    }
    Ok(())
}

/// As [`fragments_v4`], with a fragment header behind the base header (RFC 8200 §4.5). Options for each hop
/// would have to stay in front of it: such a packet is refused.
#[cold]
fn fragments_v6(arrived: &Arrived<'_>, head: &Head, way: &Way, out: &mut impl Frames) -> Result<(), Refused> {
    const HEADERS_LEN: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + FRAGMENT_HEADER_LEN;
    let base = head.bytes.get(..ethernet::HEADER_LEN + ipv6::HEADER_LEN).ok_or(Refused::Malformed)?;
    let next = base[ethernet::HEADER_LEN + NEXT_HEADER_V6];
    let room = usize::from(way.mtu).saturating_sub(ipv6::HEADER_LEN + FRAGMENT_HEADER_LEN) & !7;
    if next == HOP_BY_HOP || room == 0 {
        return Err(Refused::TooLong);
    }
    let mut headers = [0; HEADERS_LEN];
    headers[..base.len()].copy_from_slice(base);
    headers[ethernet::HEADER_LEN + NEXT_HEADER_V6] = FRAGMENT;
    headers[base.len()] = next;
    headers[base.len() + 4..].copy_from_slice(&way.identification.to_be_bytes());
    let data = &arrived.packet[ipv6::HEADER_LEN..];
    for (part, bytes) in data.chunks(room).enumerate() {
        let more = u16::from((part + 1) * room < data.len());
        let len = (FRAGMENT_HEADER_LEN + bytes.len()) as u16;
        headers[ethernet::HEADER_LEN + 4..ethernet::HEADER_LEN + 6].copy_from_slice(&len.to_be_bytes());
        let place = (part * room) as u16 | more;
        headers[base.len() + 2..base.len() + 4].copy_from_slice(&place.to_be_bytes());
        out.frame(&headers, bytes, None)?;
    }
    Ok(())
}
