//! The transmitting half. The port copies frames into the shared memory, and segments them and completes
//! their checksums on the way. One system call makes the kernel send all of them.

use std::io;
use std::sync::Arc;

use csp_wire::offload::{Gso, TxOffload};

use super::socket::{Socket, TransmitRings};
use super::umem::{TRANSMIT_CHUNKS, Umem};
use crate::port::{FRAME_PARTS_MAX, LanTransmitter, TransmitCounters, TransmitError};
use crate::segment::{self, ETHERNET_LEN};

/// Longest frame before it is cut: Ethernet and the largest IP packet.
const FRAME_LEN_MAX: usize = ETHERNET_LEN + 65_535;
/// Longest headers of a frame to be segmented: Ethernet, IPv4 or IPv6 with options of up to 40 bytes, and the
/// longest TCP header.
const HEADER_LEN_MAX: usize = ETHERNET_LEN + 80 + 60;
/// Number of consecutive calls without progress after which a flush gives up until the next one.
const IDLE_KICKS_MAX: u32 = 4;

pub(super) struct Transmitter {
    socket: Arc<Socket>,
    rings: TransmitRings,
    /// Numbers of the free chunks.
    free: Vec<u16>,
    /// Longest frame that the device accepts.
    len_max: usize,
    /// Transmits frames to be segmented where the kernel copies anyway: the kernel segments them late, and
    /// for a veth not at all.
    raw: Option<Box<dyn LanTransmitter>>,
    counters: TransmitCounters,
}

/// Reads the bytes of a frame's parts in sequence.
struct Gather<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first part that were read.
    taken: usize,
}

impl Gather<'_> {
    /// Copies the next bytes. The parts hold at least as many.
    fn copy(&mut self, mut into: &mut [u8]) {
        while let Some((part, others)) = self.parts.split_first() {
            let rest = &part[self.taken..];
            let len = rest.len().min(into.len());
            let (now, behind) = into.split_at_mut(len);
            now.copy_from_slice(&rest[..len]);
            into = behind;
            if len < rest.len() {
                self.taken += len;
                return;
            }
            (self.parts, self.taken) = (others, 0);
        }
    }
}

impl Transmitter {
    pub(super) fn new(
        socket: Arc<Socket>,
        rings: TransmitRings,
        mtu: u16,
        raw: Option<Box<dyn LanTransmitter>>,
    ) -> Self {
        let free = (0..TRANSMIT_CHUNKS as u16).rev().collect();
        let len_max = ETHERNET_LEN + usize::from(mtu);
        Transmitter { socket, rings, free, len_max, raw, counters: TransmitCounters::default() }
    }

    /// Reclaims the chunks whose frames have been transmitted.
    fn reclaim(&mut self) {
        while let Some(place) = self.rings.done.pop() {
            if let Some(number) = Umem::number(place).filter(|_| self.free.len() < TRANSMIT_CHUNKS) {
                self.free.push(number as u16);
            }
        }
        self.rings.done.release();
    }

    fn take(&mut self) -> Result<usize, TransmitError> {
        if self.free.is_empty() {
            self.reclaim();
        }
        if self.free.is_empty() {
            self.flush();
            self.reclaim();
        }
        let number = self.free.pop().ok_or(TransmitError::Full).inspect_err(|_| self.counters.full += 1)?;
        Ok(number.into())
    }

    /// Fills a chunk with a frame of `len` bytes by calling `fill`, and queues it.
    fn queue(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), segment::BadOffload>,
    ) -> Result<(), TransmitError> {
        let number = self.take()?;
        // SAFETY: the chunk was in `free`, so that no ring has it, and this is the only reference to it.
        let filled = fill(unsafe { &mut self.socket.umem.chunk(number)[..len] });
        if filled.is_err() {
            self.free.push(number as u16);
            self.counters.errors += 1;
            return Err(TransmitError::Device(libc::EINVAL));
        }
        let entry = libc::xdp_desc { addr: Umem::place(number), len: len as u32, options: 0 };
        let pushed = self.rings.waiting.push(entry);
        debug_assert!(pushed, "the ring has an entry for each chunk");
        Ok(())
    }

    /// Cuts a frame into segments and queues them.
    fn cut(
        &mut self,
        parts: &[&[u8]],
        len: usize,
        offload: TxOffload,
        gso: Gso,
    ) -> Result<(), TransmitError> {
        let header_len = usize::from(offload.header_len);
        let (tcp_at, size) = (usize::from(offload.checksum_start), usize::from(gso.segment_size));
        let is_right = segment::is_cuttable(offload, gso, len) && header_len <= HEADER_LEN_MAX;
        if !is_right || header_len + size > self.len_max {
            self.counters.too_long += 1;
            return Err(TransmitError::TooLong);
        }
        let mut gather = Gather { parts, taken: 0 };
        let mut header = [0; HEADER_LEN_MAX];
        let header = &mut header[..header_len];
        gather.copy(header);
        let payload = len - header_len;
        let count = payload.div_ceil(size).max(1);
        for at in 0..count {
            let piece = (payload - at * size).min(size);
            self.queue(header_len + piece, |segment| {
                let (to, data) = segment.split_at_mut(header_len);
                to.copy_from_slice(header);
                gather.copy(data);
                segment::finish_segment(segment, gso, tcp_at, at, at + 1 == count)
            })?;
        }
        Ok(())
    }
}

impl LanTransmitter for Transmitter {
    fn transmit(&mut self, parts: &[&[u8]], offload: Option<TxOffload>) -> Result<(), TransmitError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let gso = offload.and_then(|offload| Some((offload, offload.gso?)));
        let len_max = if gso.is_some() { FRAME_LEN_MAX } else { self.len_max };
        if len > len_max || parts.len() > FRAME_PARTS_MAX {
            self.counters.too_long += 1;
            return Err(TransmitError::TooLong);
        }
        if gso.is_some() && self.raw.is_some() {
            // Frames queued earlier must leave first.
            self.flush();
        }
        match (gso, &mut self.raw) {
            (Some(_), Some(raw)) => {
                let sent = raw.transmit(parts, offload);
                raw.flush();
                return sent;
            }
            (Some((offload, gso)), None) => self.cut(parts, len, offload, gso)?,
            (None, _) => self.queue(len, |frame| {
                Gather { parts, taken: 0 }.copy(frame);
                match offload {
                    Some(TxOffload { checksum_start, checksum_offset, .. }) => {
                        segment::finish_checksum(frame, checksum_start.into(), checksum_offset.into())
                    }
                    None => Ok(()),
                }
            })?,
        }
        self.counters.frames += 1;
        self.counters.bytes += len as u64;
        Ok(())
    }

    fn flush(&mut self) {
        self.rings.waiting.publish();
        let (mut before, mut idle) = (self.rings.waiting.waiting(), 0);
        while before > 0 && self.rings.waiting.needs_wakeup() {
            if let Err(error) = self.socket.kick_transmit()
                && !is_busy(&error)
            {
                self.counters.errors += 1;
                break;
            }
            let now = self.rings.waiting.waiting();
            idle = if now < before { 0 } else { idle + 1 };
            if idle == IDLE_KICKS_MAX {
                break;
            }
            before = now;
        }
        self.reclaim();
    }

    fn counters(&self) -> TransmitCounters {
        let (own, raw) = (self.counters, self.raw.as_ref().map(|raw| raw.counters()).unwrap_or_default());
        TransmitCounters {
            frames: own.frames + raw.frames,
            bytes: own.bytes + raw.bytes,
            full: own.full + raw.full,
            too_long: own.too_long + raw.too_long,
            errors: own.errors + raw.errors,
        }
    }
}

/// Returns whether the kernel has no room now, or has processed its maximum of frames for one call.
fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_gathered_in_sequence() {
        let parts: [&[u8]; 5] = [b"ab", b"", b"cdefg", b"h", b""];
        let mut gather = Gather { parts: &parts, taken: 0 };
        let mut all = Vec::new();
        for len in [1, 3, 0, 4] {
            let mut bytes = vec![0; len];
            gather.copy(&mut bytes);
            all.push(bytes);
        }
        assert_eq!(all, [&b"a"[..], b"bcd", b"", b"efgh"]);
    }
}
