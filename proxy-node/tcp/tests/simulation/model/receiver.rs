//! The receiving half of the model.

use std::collections::{BTreeMap, VecDeque};

use csp_types::Instant;
use csp_wire::tcp::{SackBlock, SackBlocks};

use super::{Manners, OutOfOrder};
use crate::random::Random;

#[derive(Default)]
pub struct Receiver {
    pub irs: u32,
    /// The next position that is expected.
    pub next: u64,
    /// Ranges after it, by position; they may overlap.
    early: BTreeMap<u64, Vec<u8>>,
    /// The range that arrived last.
    latest: u64,
    pub fin_at: Option<u64>,
    pub finished: bool,
    unread: VecDeque<u8>,
    /// Right edge of the window as last advertised.
    edge: u64,
    pub shift: u8,
    pub ack_now: bool,
    segments: u32,
    pub ack_at: Option<Instant>,
    pub last_ack_sent: u64,
}

impl Receiver {
    pub fn start(&mut self, irs: u32, manners: &Manners) {
        self.irs = irs;
        (self.next, self.edge, self.last_ack_sent) = (1, 1 + u64::from(manners.buffer), 1);
    }

    /// The position of a sequence number near `next`.
    pub fn position(&self, seq: u32) -> i64 {
        let next = self.irs.wrapping_add(self.next as u32);
        self.next as i64 + i64::from(seq.wrapping_sub(next) as i32)
    }

    pub fn ack(&self) -> u32 {
        self.irs.wrapping_add(self.next as u32)
    }

    /// RFC 9293 §3.10.7.4, first check.
    pub fn is_acceptable(&self, at: i64, len: i64) -> bool {
        let (next, window) = (self.next as i64, self.edge.saturating_sub(self.next) as i64);
        match (len, window) {
            (0, 0) => at == next,
            (0, _) => next <= at && at < next + window,
            (_, 0) => false,
            _ => at < next + window && at + len > next,
        }
    }

    /// Whether the window distinguishes a RST at `at` from a blind one.
    pub fn is_within(&self, at: i64) -> bool {
        self.next as i64 <= at && at < self.edge.max(self.next + 1) as i64
    }

    /// Stores the bytes of an acceptable segment and returns how many more the application can read.
    pub fn take(&mut self, manners: &Manners, random: &mut Random, at: i64, data: &[u8], fin: bool) -> usize {
        if fin {
            self.fin_at = self.fin_at.or(Some((at + data.len() as i64) as u64));
        }
        let skip = (self.next as i64 - at).max(0) as usize;
        let room = (self.edge as i64 - at).max(0) as usize;
        let data = &data[skip.min(data.len())..room.clamp(skip.min(data.len()), data.len())];
        let at = (at + skip as i64) as u64;
        let before = self.unread.len();
        if let OutOfOrder::Renege(chance) = manners.out_of_order
            && random.chance(chance)
        {
            self.early.clear();
        }
        if at > self.next {
            self.ack_now = true;
            if manners.out_of_order != OutOfOrder::Discard && !data.is_empty() {
                let kept = self.early.entry(at).or_default();
                if kept.len() < data.len() {
                    *kept = data.to_vec();
                }
                self.latest = at;
            }
            return 0;
        }
        self.ack_now |= skip > 0 || !self.early.is_empty();
        self.append(data);
        while let Some((&at, _)) = self.early.first_key_value()
            && at <= self.next
        {
            let data = self.early.remove(&at).expect("it is the first");
            let skip = ((self.next - at) as usize).min(data.len());
            self.append(&data[skip..]);
        }
        if self.fin_at == Some(self.next) {
            self.next += 1;
            self.finished = true;
            self.ack_now = true;
        }
        self.unread.len() - before
    }

    fn append(&mut self, data: &[u8]) {
        self.unread.extend(data);
        self.next += data.len() as u64;
    }

    /// Decides when a data segment in order is acknowledged (RFC 9293 §3.8.6.3).
    pub fn count_segment(&mut self, manners: &Manners, now: Instant) {
        self.segments += 1;
        if self.segments >= manners.ack_every {
            self.ack_now = true;
        }
        self.ack_at = self.ack_at.or(Some(now + manners.ack_delay));
    }

    pub fn unread(&self) -> usize {
        self.unread.len()
    }

    pub fn read(&mut self, max: usize, f: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let slice = self.unread.make_contiguous();
        let most = max.min(slice.len());
        let taken = f(&slice[..most]).min(most);
        self.unread.drain(..taken);
        taken
    }

    fn wanted_edge(&self, manners: &Manners) -> u64 {
        self.next + u64::from(manners.buffer).saturating_sub(self.unread.len() as u64)
    }

    /// Whether the reader has made enough room for a window update (RFC 9293 §3.8.6.2.2).
    pub fn has_window_update(&self, manners: &Manners) -> bool {
        let step = u64::from(manners.mss).min(u64::from(manners.buffer) / 2).max(1);
        !self.finished && self.wanted_edge(manners) >= self.edge + step
    }

    /// The window field of the next segment.
    pub fn window(&mut self, manners: &Manners, random: &mut Random, syn: bool) -> u16 {
        let step = u64::from(manners.mss).min(u64::from(manners.buffer) / 2).max(1);
        let wanted = self.wanted_edge(manners);
        if manners.shrinks > 0.0 && random.chance(manners.shrinks) {
            self.edge = self.next + random.below(wanted - self.next + 1);
        } else if wanted >= self.edge + step {
            self.edge = wanted;
        }
        let shift = if syn { 0 } else { self.shift };
        let field = self.edge.saturating_sub(self.next).div_ceil(1 << shift).min(0xffff);
        self.edge = self.edge.max(self.next + (field << shift));
        field as u16
    }

    /// Records that an acknowledgement was sent.
    pub fn on_acknowledged(&mut self) {
        self.ack_now = false;
        self.segments = 0;
        self.ack_at = None;
        self.last_ack_sent = self.next;
    }

    /// RFC 2018 §4: the latest range first.
    pub fn sack_blocks(&self) -> SackBlocks {
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (&at, data) in &self.early {
            let end = at + data.len() as u64;
            match joined.last_mut() {
                Some(last) if at <= last.1 => last.1 = last.1.max(end),
                _ => joined.push((at, end)),
            }
        }
        joined.sort_by_key(|(at, end)| !(*at..*end).contains(&self.latest));
        let mut blocks = SackBlocks::EMPTY;
        for (at, end) in joined {
            let seq = |position: u64| self.irs.wrapping_add(position as u32);
            blocks.push(SackBlock { start: seq(at), end: seq(end) });
        }
        blocks
    }
}
