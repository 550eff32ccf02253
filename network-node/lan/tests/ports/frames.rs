//! Frames of the tests.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use csp_lan::{Gso, GsoKind, TxOffload};
use csp_types::MacAddr;

pub const US: [u8; 4] = [10, 9, 9, 1];
pub const PEER: [u8; 4] = [10, 9, 9, 2];
pub const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x0a]);
pub const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x0b]);

pub fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the headers (54 bytes) of a TCP segment as the network node passes them to a port, with the
/// checksum left to the kernel.
pub fn headers(ports: (u16, u16), seq: u32, ack: u32, flags: u8, data_len: usize) -> [u8; 54] {
    let mut h = [0; 54];
    h[..6].copy_from_slice(&PEER_MAC.0);
    h[6..12].copy_from_slice(&OUR_MAC.0);
    h[12] = 8;
    h[14] = 0x45;
    h[16..18].copy_from_slice(&((40 + data_len) as u16).to_be_bytes());
    h[20] = 0x40;
    (h[22], h[23]) = (64, 6);
    h[26..30].copy_from_slice(&US);
    h[30..34].copy_from_slice(&PEER);
    let check = !sum(&[&h[14..34]]);
    h[24..26].copy_from_slice(&check.to_be_bytes());
    h[34..36].copy_from_slice(&ports.0.to_be_bytes());
    h[36..38].copy_from_slice(&ports.1.to_be_bytes());
    h[38..42].copy_from_slice(&seq.to_be_bytes());
    h[42..46].copy_from_slice(&ack.to_be_bytes());
    (h[46], h[47]) = (0x50, flags);
    h[48..50].copy_from_slice(&60_000u16.to_be_bytes());
    let len = ((20 + data_len) as u16).to_be_bytes();
    let pseudo = sum(&[&US, &PEER, &[0, 6], &len]);
    h[50..52].copy_from_slice(&pseudo.to_be_bytes());
    h
}

pub fn offload(segment_size: Option<u16>) -> Option<TxOffload> {
    let gso = segment_size.map(|segment_size| Gso { kind: GsoKind::TcpV4, segment_size, cwr: false });
    Some(TxOffload { checksum_start: 34, checksum_offset: 16, gso, header_len: 54 })
}

/// Returns a frame to us.
pub fn frame(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = [&OUR_MAC.0[..], &PEER_MAC.0, &ethertype.to_be_bytes(), packet].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Returns an IPv4 packet with a header of this length in words, and 20 bytes after it that begin with
/// `payload`.
pub fn v4(header_words: u8, protocol: u8, fragment: u8, ends: ([u8; 4], [u8; 4]), payload: &[u8]) -> Vec<u8> {
    let at = usize::from(header_words) * 4;
    let mut packet = vec![0; at + payload.len().max(20)];
    (packet[0], packet[6], packet[9]) = (0x40 | header_words, fragment, protocol);
    packet[12..16].copy_from_slice(&ends.0);
    packet[16..20].copy_from_slice(&ends.1);
    packet[at..at + payload.len()].copy_from_slice(payload);
    packet
}

/// Returns an IPv6 packet; the addresses differ in their last byte.
pub fn v6(next: u8, ends: (u8, u8), payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40 + payload.len().max(20)];
    (packet[0], packet[6], packet[23], packet[39]) = (0x60, next, ends.0, ends.1);
    packet[40..40 + payload.len()].copy_from_slice(payload);
    packet
}

pub fn ports(source: u16, destination: u16) -> [u8; 4] {
    let [a, b] = [source, destination].map(u16::to_be_bytes);
    [a[0], a[1], b[0], b[1]]
}

pub const VIP: [u8; 4] = [10, 9, 8, 1];

/// Frames to us of every kind that the rule distinguishes, each with a number in its source address.
pub fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for number in 0..8_u8 {
        let (peer, peer_port) = ([10, 9, 9, number], 5_000 + u16::from(number) * 7);
        for (port, header_words, fragment, protocol) in [
            (80, 5, 0x40, 6),
            (49_151, 6, 0, 6),
            (49_152, 5, 0, 6),
            (80, 5, 0x20, 132),
            (80, 5, 0, 132),
            (80, 5, 0x40, 17),
            (60_001, 6, 0, 17),
            (80, 15, 0, 6),
        ] {
            let packet = v4(header_words, protocol, fragment, (peer, VIP), &ports(peer_port, port));
            frames.push(frame(0x0800, &packet));
            let quoted = v4(header_words, protocol, fragment, (VIP, peer), &ports(port, peer_port));
            for (kind, header_words) in [(3, 5), (11, 6), (8, 5), (12, 5)] {
                let error = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
                frames.push(frame(0x0800, &v4(header_words, 1, 0, ([10, 9, 7, 1], VIP), &error)));
            }
        }
        for (port, next) in [(80, 6), (60_000, 6), (80, 17), (80, 132), (80, 58)] {
            frames.push(frame(0x86dd, &v6(next, (number, 99), &ports(peer_port, port))));
            let quoted = v6(next, (99, number), &ports(port, peer_port));
            for kind in [1, 3, 128] {
                let error = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
                frames.push(frame(0x86dd, &v6(58, (7, 99), &error)));
            }
        }
    }
    frames.push(frame(0x0806, &[1; 28]));
    frames.push(frame(0x88b5, &[1; 40]));
    frames
}

/// Gives an IPv4 packet without options its length and header checksum.
pub fn with_checksum(mut packet: Vec<u8>) -> Vec<u8> {
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    let check = !sum(&[&packet[..20]]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet
}
