//! Packets: split when sent, checked and coalesced when received, and printed.

use std::fmt;

use csp_types::FourTuple;
use csp_wire::checksum::Checksum;
use csp_wire::tcp::{Flags, HEADER_LEN_MAX, HEADER_LEN_MIN, Repr};

/// ECN field: not capable.
pub const NOT_ECT: u8 = 0;
/// ECN field: congestion experienced.
pub const CE: u8 = 3;

/// An IP packet with a segment in it.
#[derive(Clone, Debug)]
pub struct Packet {
    /// `local` is the sender.
    pub tuple: FourTuple,
    pub header: Repr,
    pub payload: Vec<u8>,
    pub ecn: u8,
    /// How many packets it was coalesced from, and the payload length of the first of several.
    pub coalesced: u16,
    pub segment_size: u16,
}

impl Packet {
    /// Length of the IP packet in bytes.
    pub fn ip_len(&self) -> usize {
        self.ip_header_len() + self.header.header_len() + self.payload.len()
    }

    fn ip_header_len(&self) -> usize {
        if self.tuple.local.is_ipv4() { 20 } else { 40 }
    }

    /// Number of sequence numbers it occupies.
    pub fn len(&self) -> u32 {
        let flags = self.header.flags;
        self.payload.len() as u32 + u32::from(flags.syn()) + u32::from(flags.fin())
    }

    /// The addresses from the receiver's view.
    pub fn at_receiver(&self) -> FourTuple {
        FourTuple { local: self.tuple.remote, remote: self.tuple.local }
    }

    /// Splits the payload into packets of `size` bytes, as segmentation offload does.
    pub fn split(self, size: usize) -> Vec<Packet> {
        if self.payload.len() <= size {
            return vec![self];
        }
        let count = self.payload.len().div_ceil(size);
        let mut pieces = Vec::with_capacity(count);
        for (n, chunk) in self.payload.chunks(size).enumerate() {
            let mut header = self.header;
            header.seq = header.seq.wrapping_add((n * size) as u32);
            if n + 1 < count {
                header.flags = without(header.flags, Flags::FIN | Flags::PSH);
            }
            if n > 0 {
                header.flags = without(header.flags, Flags::CWR); // RFC 3168 §6.1.2: once
            }
            pieces.push(Packet { header, payload: chunk.to_vec(), ..self.without_payload() });
        }
        pieces
    }

    fn without_payload(&self) -> Packet {
        Packet { payload: Vec::new(), ..*self }
    }

    /// Appends `next`, as receive offload does: only if it follows directly and differs in nothing else.
    pub fn join(&mut self, next: &Packet) -> bool {
        let (a, b) = (&self.header, &next.header);
        let plain = |flags: Flags| without(flags, Flags::PSH) == Flags::ACK;
        let fits = self.tuple == next.tuple
            && self.ecn == next.ecn
            && plain(a.flags)
            && plain(b.flags)
            && !a.flags.contains(Flags::PSH)
            && !self.payload.is_empty()
            && !next.payload.is_empty()
            && a.seq.wrapping_add(self.payload.len() as u32) == b.seq
            && (a.ack, a.window, a.options) == (b.ack, b.window, b.options)
            && self.payload.len() + next.payload.len() <= 65_000;
        if fits {
            if self.coalesced == 1 {
                self.segment_size = self.payload.len() as u16;
            }
            self.payload.extend_from_slice(&next.payload);
            self.header.flags |= b.flags;
            self.coalesced += next.coalesced;
        }
        fits
    }

    /// Whether the checksum detects a single wrong bit.
    pub fn is_caught_with_wrong_bit(&self, bit: u64) -> bool {
        let mut bytes = vec![0; HEADER_LEN_MAX];
        let len = self.header.emit(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes.extend_from_slice(&self.payload);
        let right = sum(&bytes);
        let bit = bit as usize % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        sum(&bytes) != right
    }
}

fn sum(bytes: &[u8]) -> u16 {
    let mut checksum = Checksum::new();
    checksum.add(bytes);
    checksum.finish()
}

/// `flags` without `off`.
pub fn without(flags: Flags, off: Flags) -> Flags {
    Flags(flags.0 & !off.0)
}

/// The length of the IP and TCP headers without options.
pub fn headers_len(tuple: &FourTuple) -> usize {
    HEADER_LEN_MIN + if tuple.local.is_ipv4() { 20 } else { 40 }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { source_port, destination_port, seq, ack, flags, window, options } = &self.header;
        write!(f, "{source_port}>{destination_port} {flags:?} seq {seq}")?;
        if !self.payload.is_empty() {
            write!(f, "+{}", self.payload.len())?;
        }
        if flags.ack() {
            write!(f, " ack {ack}")?;
        }
        write!(f, " win {window}")?;
        if let Some(mss) = options.mss {
            write!(f, " mss {mss}")?;
        }
        if let Some(shift) = options.window_scale {
            write!(f, " ws {shift}")?;
        }
        if options.sack_permitted {
            write!(f, " sackOK")?;
        }
        if let Some(ts) = options.timestamps {
            write!(f, " ts {}/{}", ts.value, ts.echo)?;
        }
        for block in options.sack.as_slice() {
            write!(f, " [{}..{}]", block.start, block.end)?;
        }
        if self.ecn != NOT_ECT {
            write!(f, " ecn {}", self.ecn)?;
        }
        if self.coalesced > 1 {
            write!(f, " of {}", self.coalesced)?;
        }
        Ok(())
    }
}
