//! Frames that have given fields. Used by tests and benches.
#![allow(dead_code, clippy::unwrap_used, reason = "each user has its part")]

use std::net::IpAddr;

use csp_classify::multifield::Fields;
use csp_wire::checksum::checksum;

/// Makes a plain frame with these fields, of `len` bytes at least. Only the IPv4 header has a checksum.
pub fn frame_of(fields: &Fields, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 0x0a, 2, 0, 0, 0, 0, 0x0b];
    let header_len = if fields.source.is_ipv4() { 34 } else { 54 };
    let upper = len.saturating_sub(header_len).max(20);
    match (fields.source, fields.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, fields.dscp << 2];
            header.extend((20 + upper as u16).to_be_bytes());
            header.extend([0, 7, 0, 0, 64, fields.protocol, 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend([0x08, 0x00]);
            frame.extend(header);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            frame.extend([0x86, 0xdd, 0x60 | fields.dscp >> 2, fields.dscp << 6, 0, 0]);
            frame.extend((upper as u16).to_be_bytes());
            frame.extend([fields.protocol, 64]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        _ => panic!("addresses of two families"),
    }
    let at = frame.len();
    frame.resize(at + upper, 0);
    if let Some((source, destination)) = fields.ports {
        frame[at..at + 2].copy_from_slice(&source.to_be_bytes());
        frame[at + 2..at + 4].copy_from_slice(&destination.to_be_bytes());
    }
    if let Some(flags) = fields.tcp_flags {
        (frame[at + 12], frame[at + 13]) = (5 << 4, flags);
    }
    frame
}
