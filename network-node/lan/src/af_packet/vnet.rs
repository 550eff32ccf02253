//! The virtio-net header before every frame (virtio 1.2 §5.1.6): the legacy 10-byte format in host byte
//! order, as packet(7) defines it.

use csp_wire::offload::{Checksum, Gso, GsoKind, TxOffload};

/// Length of the header in bytes.
pub(crate) const VNET_LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Set together with the type if the TCP header has CWR, which only the first segment keeps.
const GSO_ECN: u8 = 0x80;

/// Returns the header of a frame to be transmitted.
pub(crate) fn emit(offload: Option<TxOffload>) -> [u8; VNET_LEN] {
    let mut header = [0; VNET_LEN];
    let Some(offload) = offload else { return header };
    header[0] = NEEDS_CSUM;
    header[2..4].copy_from_slice(&offload.header_len.to_ne_bytes());
    header[6..8].copy_from_slice(&offload.checksum_start.to_ne_bytes());
    header[8..10].copy_from_slice(&offload.checksum_offset.to_ne_bytes());
    if let Some(gso) = offload.gso {
        header[1] = if gso.kind == GsoKind::TcpV4 { GSO_TCPV4 } else { GSO_TCPV6 };
        header[1] |= if gso.cwr { GSO_ECN } else { 0 };
        header[4..6].copy_from_slice(&gso.segment_size.to_ne_bytes());
    }
    header
}

/// Parses the header of a received frame. `None` if it is invalid or of an unsupported type.
pub(super) fn parse(header: &[u8; VNET_LEN]) -> Option<(Checksum, Option<Gso>)> {
    let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let checksum = match header[0] {
        flags if flags & NEEDS_CSUM != 0 => Checksum::Partial { start: field(6), offset: field(8) },
        flags if flags & DATA_VALID != 0 => Checksum::Verified,
        _ => Checksum::Unchecked,
    };
    let kind = match header[1] & !GSO_ECN {
        GSO_NONE => return Some((checksum, None)),
        GSO_TCPV4 => GsoKind::TcpV4,
        GSO_TCPV6 => GsoKind::TcpV6,
        // UDP segmentation and later types: the network node cuts TCP only.
        _ => return None,
    };
    let segment_size = field(4);
    let cwr = header[1] & GSO_ECN != 0;
    (segment_size != 0).then_some((checksum, Some(Gso { kind, segment_size, cwr })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_emitted_parses_as_a_received_header() {
        for cwr in [false, true] {
            let gso = Some(Gso { kind: GsoKind::TcpV6, segment_size: 1440, cwr });
            let offload = TxOffload { checksum_start: 54, checksum_offset: 16, gso, header_len: 74 };
            let header = emit(Some(offload));
            assert_eq!(parse(&header), Some((Checksum::Partial { start: 54, offset: 16 }, gso)));
            assert_eq!(header[1], if cwr { 0x84 } else { 4 });
        }
        assert_eq!(parse(&emit(None)), Some((Checksum::Unchecked, None)));
    }

    #[test]
    fn invalid_headers_are_refused() {
        for (gso_type, size) in [(GSO_TCPV4, 0u16), (3, 1000), (5, 1000)] {
            let mut header = [0; VNET_LEN];
            header[1] = gso_type;
            header[4..6].copy_from_slice(&size.to_ne_bytes());
            assert_eq!(parse(&header), None);
        }
    }
}
