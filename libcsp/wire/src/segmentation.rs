//! Segmentation in software: the headers of the segments that a TCP frame is cut into (as Linux' tcp_segment
//! and virtio 1.2 §5.1.6.2 have it).

use crate::checksum::{Checksum, checksum};
use crate::offload::{Gso, GsoKind};
use crate::tcp::CHECKSUM_AT;
use crate::{ipv4, ipv6};

/// Protocol number of TCP in the sum of the pseudo header.
const TCP: u16 = 6;
const SEQUENCE_AT: usize = 4;
const FLAGS_AT: usize = 13;
/// TCP flags of the last segment only, and of the first only (RFC 9293 §3.1; CWR: RFC 3168 §6.1.2).
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Which of the segments of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its number, from 0.
    pub index: usize,
    /// Length of its TCP header and data, in bytes.
    pub tcp_len: usize,
    /// It is the last one.
    pub last: bool,
}

/// Turns a frame's headers into those of one segment. `headers` begins with the IP header, has the TCP header
/// at `tcp_at` and may continue with data. The checksum field of TCP is set to the sum of the pseudo header,
/// not inverted, for the port to complete. Returns `None` if the headers end too early or a length does not
/// fit an IP packet; they are not to be used then.
pub fn segment_headers(headers: &mut [u8], gso: Gso, tcp_at: usize, part: Part) -> Option<()> {
    let (ip, tcp) = headers.split_at_mut_checked(tcp_at)?;
    let pseudo = ip_header(ip, gso.kind, part)?;
    let ahead = part.index.wrapping_mul(gso.segment_size.into()) as u32;
    let sequence = tcp.get_mut(SEQUENCE_AT..)?.first_chunk_mut::<4>()?;
    *sequence = u32::from_be_bytes(*sequence).wrapping_add(ahead).to_be_bytes();
    let flags = tcp.get_mut(FLAGS_AT)?;
    if part.index > 0 {
        *flags &= !CWR;
    }
    if !part.last {
        *flags &= !FIN_PSH;
    }
    *tcp.get_mut(CHECKSUM_AT..)?.first_chunk_mut()? = pseudo.to_be_bytes();
    Some(())
}

/// Sets the length, and in IPv4 the identification and checksum; returns the sum of the pseudo header.
fn ip_header(ip: &mut [u8], kind: GsoKind, part: Part) -> Option<u16> {
    let tcp_len = u16::try_from(part.tcp_len).ok()?;
    let total = u16::try_from(ip.len() + part.tcp_len).ok()?;
    let mut pseudo = Checksum::new();
    match kind {
        GsoKind::TcpV4 => {
            let fixed = ip.first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
            pseudo.add(&fixed[12..]);
            let identification = u16::from_be_bytes([fixed[4], fixed[5]]).wrapping_add(part.index as u16);
            fixed[2..4].copy_from_slice(&total.to_be_bytes());
            fixed[4..6].copy_from_slice(&identification.to_be_bytes());
            fixed[10..12].fill(0);
            let sum = checksum(ip);
            ip.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
        }
        GsoKind::TcpV6 => {
            let base = ip.first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
            pseudo.add(&base[8..]);
            base[4..6].copy_from_slice(&(total - ipv6::HEADER_LEN as u16).to_be_bytes());
        }
    }
    pseudo.add_u16(TCP);
    pseudo.add_u16(tcp_len);
    Some(pseudo.partial())
}
