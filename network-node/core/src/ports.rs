//! The LAN ports as plug-ins see them: transmits frames with the offload that each frame needs.

use csp_classify::multifield::{Direction, Parsed, parse_ethernet};
use csp_plugins::Output;
use csp_wire::offload::{Checksum, Frame, TxOffload};

use super::api::{NetworkOutput, PortId};
use super::hosts::Offload;

/// The LAN ports, for frames that plug-ins transmit.
pub(super) struct Ports<'a, O> {
    pub(super) out: &'a mut O,
    pub(super) count: usize,
    /// Offload properties of the frame.
    pub(super) offload: Offload,
    /// Frames that were not transmitted.
    pub(super) refused: u64,
}

impl<'a, O: NetworkOutput> Ports<'a, O> {
    pub(super) const fn new(out: &'a mut O, count: usize, offload: Offload) -> Self {
        Ports { out, count, offload, refused: 0 }
    }
}

impl<O: NetworkOutput> Output for Ports<'_, O> {
    fn copy(&mut self, interface: u16, frame: &[u8]) {
        let offload = match self.offload {
            Offload::Transmitted(offload) => Ok(offload),
            Offload::Received(checksum, gso) => offload_of(&Frame { bytes: frame, checksum, gso }, interface),
        };
        match offload {
            Ok(offload) if usize::from(interface) < self.count => {
                self.out.lan(PortId(interface), &[frame], offload);
            }
            _ => self.refused += 1,
        }
    }
}

/// Returns the offload for transmitting a received frame unchanged. A frame that a device has coalesced,
/// verifying the checksums, cannot be segmented again: its checksum field does not hold the sum of the pseudo
/// header.
pub(super) fn offload_of(frame: &Frame<'_>, interface: u16) -> Result<Option<TxOffload>, ()> {
    match (frame.checksum, frame.gso) {
        (Checksum::Partial { start, offset }, gso) => {
            let parsed = parse_ethernet(frame.bytes, interface, Direction::Ingress).map_err(drop)?;
            let data_offset =
                frame.bytes.get(parsed.transport + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
            let header_len = if gso.is_some() { parsed.transport + data_offset } else { start.into() };
            let header_len = u16::try_from(header_len).map_err(|_| ())?;
            Ok(Some(TxOffload { checksum_start: start, checksum_offset: offset, gso, header_len }))
        }
        (_, None) => Ok(None),
        (_, Some(_)) => Err(()),
    }
}

/// Returns how many packets a received frame represents.
pub(super) fn coalesced(frame: &Frame<'_>, parsed: &Parsed) -> u16 {
    frame.gso.map_or(1, |gso| {
        let data = (parsed.end - parsed.transport).div_ceil(usize::from(gso.segment_size).max(1));
        data.clamp(1, usize::from(u16::MAX)) as u16
    })
}

/// Copies the parts of a frame, as far as they fit. The output refuses longer frames. Returns the length.
pub(super) fn gather(frame: &mut [u8], parts: &[&[u8]]) -> usize {
    let mut len = 0;
    for part in parts {
        let Some(room) = frame.get_mut(len..len + part.len()) else { return len };
        room.copy_from_slice(part);
        len += part.len();
    }
    len
}
