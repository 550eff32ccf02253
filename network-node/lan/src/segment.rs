//! Transmit offloads in software: completes checksums and cuts a TCP frame into segments, as a device would.
//!
//! Used by the memory port, as a whole, and by the AF_XDP port, segment by segment; the raw-socket port
//! leaves this to the kernel. [`for_each_segment`] allocates, so it is not for the data path.

use csp_wire::offload::{Gso, GsoKind, TxOffload};
use csp_wire::segmentation::{Part, segment_headers};

/// Length of an Ethernet header without tags, in bytes.
pub(crate) const ETHERNET_LEN: usize = 14;

/// The offload does not match its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadOffload;

/// Position of the checksum in a UDP header.
const UDP_CHECKSUM_AT: usize = 6;

/// Calls `each` for the frames that a device would transmit for `frame`.
pub(crate) fn for_each_segment(
    frame: &mut [u8],
    offload: Option<TxOffload>,
    each: &mut dyn FnMut(&[u8]),
) -> Result<(), BadOffload> {
    let Some(offload) = offload else {
        each(frame);
        return Ok(());
    };
    let Some(gso) = offload.gso else {
        finish_checksum(frame, offload.checksum_start.into(), offload.checksum_offset.into())?;
        each(frame);
        return Ok(());
    };
    if !is_cuttable(offload, gso, frame.len()) {
        return Err(BadOffload);
    }
    let tcp_at = usize::from(offload.checksum_start);
    let (header, payload) = frame.split_at(offload.header_len.into());
    let size = usize::from(gso.segment_size);
    let count = payload.len().div_ceil(size).max(1);
    for at in 0..count {
        let chunk = payload.chunks(size).nth(at).unwrap_or(&[]);
        let mut segment = [header, chunk].concat();
        finish_segment(&mut segment, gso, tcp_at, at, at + 1 == count)?;
        each(&segment);
    }
    Ok(())
}

/// Returns whether a frame of `len` bytes can be segmented as its offload describes.
pub(crate) fn is_cuttable(offload: TxOffload, gso: Gso, len: usize) -> bool {
    let (header_len, tcp_at) = (usize::from(offload.header_len), usize::from(offload.checksum_start));
    let ip_len_min = if gso.kind == GsoKind::TcpV4 { 20 } else { 40 };
    gso.segment_size != 0
        && tcp_at >= ETHERNET_LEN + ip_len_min
        && header_len >= tcp_at + 20
        && header_len <= len
}

/// Completes segment number `at` in `segment`, which holds the frame's headers and the segment's data.
pub(crate) fn finish_segment(
    segment: &mut [u8],
    gso: Gso,
    tcp_at: usize,
    at: usize,
    last: bool,
) -> Result<(), BadOffload> {
    let part = Part { index: at, tcp_len: segment.len() - tcp_at, last };
    let packet = segment.get_mut(ETHERNET_LEN..).ok_or(BadOffload)?;
    segment_headers(packet, gso, tcp_at - ETHERNET_LEN, part).ok_or(BadOffload)?;
    finish_checksum(segment, tcp_at, csp_wire::tcp::CHECKSUM_AT)
}

/// Completes the checksum whose field, `offset` bytes after `start`, holds the sum of the pseudo header.
pub(crate) fn finish_checksum(frame: &mut [u8], start: usize, offset: usize) -> Result<(), BadOffload> {
    if start + offset + 2 > frame.len() {
        return Err(BadOffload);
    }
    let value = csp_wire::checksum::checksum(&frame[start..]);
    // In UDP 0 means that there is no checksum (RFC 768).
    let value = if value == 0 && offset == UDP_CHECKSUM_AT { u16::MAX } else { value };
    store(frame, start + offset, value);
    Ok(())
}

fn store(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use csp_wire::checksum::{Checksum, checksum};

    use super::*;

    /// Returns Ethernet, IPv4 and TCP headers (54 bytes) and `payload` bytes, as the network node passes them
    /// to a port.
    fn tcp_frame(payload: usize) -> (Vec<u8>, TxOffload) {
        let mut frame = vec![0; 54 + payload];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[23] = 6;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[38..42].copy_from_slice(&0xffff_fff0u32.to_be_bytes());
        frame[46] = 0x50;
        frame[47] = 0x99; // CWR ACK PSH FIN
        for (at, byte) in frame[54..].iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        let gso = Some(Gso { kind: GsoKind::TcpV4, segment_size: 1000, cwr: true });
        (frame, TxOffload { checksum_start: 34, checksum_offset: 16, gso, header_len: 54 })
    }

    /// Cuts a frame and verifies the checksums of every segment.
    fn cut(mut frame: Vec<u8>, offload: TxOffload) -> Vec<Vec<u8>> {
        let mut segments = Vec::new();
        for_each_segment(&mut frame, Some(offload), &mut |s| segments.push(s.to_vec())).unwrap();
        for segment in &segments {
            assert_eq!(checksum(&segment[14..34]), 0, "IPv4 header checksum");
            let len = segment.len() as u16 - 34;
            let mut sum = Checksum::pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, len);
            sum.add(&segment[34..]);
            assert!(sum.is_valid(), "TCP checksum");
        }
        segments
    }

    #[test]
    fn a_large_frame_becomes_segments_with_their_own_headers() {
        let (frame, offload) = tcp_frame(2500);
        let segments = cut(frame.clone(), offload);
        assert_eq!(segments.iter().map(Vec::len).collect::<Vec<_>>(), [1054, 1054, 554]);
        assert_eq!(segments.iter().map(|s| s[47]).collect::<Vec<_>>(), [0x90, 0x10, 0x19]);
        let sequence = |s: &Vec<u8>| u32::from_be_bytes(s[38..42].try_into().unwrap());
        assert_eq!(segments.iter().map(sequence).collect::<Vec<_>>(), [0xffff_fff0, 984, 1984]);
        let bytes: Vec<u8> = segments.iter().flat_map(|s| s[54..].to_vec()).collect();
        assert_eq!(bytes, frame[54..]);
    }

    #[test]
    fn an_offload_that_points_outside_is_refused() {
        let (mut frame, mut offload) = tcp_frame(10);
        offload.header_len = 200;
        assert_eq!(for_each_segment(&mut frame, Some(offload), &mut |_| {}), Err(BadOffload));
        offload.gso = None;
        offload.checksum_start = 63;
        assert_eq!(for_each_segment(&mut frame, Some(offload), &mut |_| {}), Err(BadOffload));
    }
}
