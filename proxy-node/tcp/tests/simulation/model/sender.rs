//! The sending half of the model: the whole stream is stored, and sent by position.

use csp_types::{Duration, Instant};

use super::Manners;
use crate::random::Random;

/// Unanswered retransmissions after which the connection fails.
pub const TRIES: u32 = 15;

/// … in the handshake.
pub const SYN_TRIES: u32 = 5;

pub struct Sender {
    pub iss: u32,
    data: Vec<u8>,
    /// The application has finished.
    pub fin: bool,
    pub una: u64,
    pub nxt: u64,
    /// Position after everything ever sent.
    pub top: u64,
    /// Right edge of the window last advertised, and the segment it was taken from.
    pub edge: u64,
    taken_from: (u64, u64),
    pub mss: u64,
    pub cwnd: u64,
    ssthresh: u64,
    duplicates: u32,
    recovery_end: Option<u64>,
    fixed: bool,
    srtt: Option<(Duration, Duration)>,
    rto_min: Duration,
    backoff: u32,
    tries: u32,
    pub deadline: Option<Instant>,
    timed: Option<(u64, Instant)>,
    /// ECN: signals before this position have caused a reduction already; and whether CWR is due.
    reduced_until: u64,
    pub cwr_due: bool,
    /// The segment at `una` must be retransmitted.
    pub again: bool,
}

impl Sender {
    pub fn new(iss: u32, manners: &Manners) -> Sender {
        Sender {
            iss,
            data: Vec::new(),
            fin: false,
            una: 0,
            nxt: 0,
            top: 0,
            edge: 1,
            taken_from: (0, 0),
            mss: 536,
            cwnd: 0,
            ssthresh: u64::MAX,
            duplicates: 0,
            recovery_end: None,
            fixed: manners.fixed_window.is_some(),
            srtt: None,
            rto_min: manners.rto_min,
            backoff: 0,
            tries: 0,
            deadline: None,
            timed: None,
            reduced_until: 0,
            cwr_due: false,
            again: false,
        }
    }

    pub fn start(&mut self, manners: &Manners, mss: u64) {
        self.mss = mss;
        self.cwnd = manners.fixed_window.map_or(4 * mss, u64::from).max(mss);
    }

    pub fn write(&mut self, data: &[u8]) -> usize {
        if self.fin {
            return 0;
        }
        self.data.extend_from_slice(data);
        data.len()
    }

    /// Position after the last byte, which is the FIN's.
    pub fn data_end(&self) -> u64 {
        1 + self.data.len() as u64
    }

    /// Position after everything that can be sent now.
    pub fn end(&self) -> u64 {
        self.data_end() + u64::from(self.fin)
    }

    pub fn fin_is_acknowledged(&self) -> bool {
        self.fin && self.una == self.end()
    }

    pub fn seq(&self, position: u64) -> u32 {
        self.iss.wrapping_add(position as u32)
    }

    /// The position of a sequence number near `una`; negative if it lies before the SYN.
    pub fn position(&self, seq: u32) -> i64 {
        self.una as i64 + i64::from(seq.wrapping_sub(self.seq(self.una)) as i32)
    }

    /// The bytes of the positions `from .. to`, and whether the FIN is among them.
    pub fn bytes(&self, from: u64, to: u64) -> (Vec<u8>, bool) {
        let end = to.min(self.data_end());
        let bytes = self.data[from as usize - 1..(end.max(from)) as usize - 1].to_vec();
        (bytes, to > self.data_end())
    }

    /// Takes the window of a segment that is not older than the last one taken (RFC 9293 §3.10.7.4).
    pub fn take_window(&mut self, seq: u64, ack: u64, window: u64) -> bool {
        if (seq, ack) < self.taken_from {
            return false;
        }
        let changed = self.edge != ack + window;
        self.taken_from = (seq, ack);
        self.edge = ack + window;
        changed
    }

    fn rto(&self) -> Duration {
        let base = self.srtt.map_or(Duration::from_secs(1), |(srtt, var)| srtt + 4 * var);
        (base.max(self.rto_min) * (1 << self.backoff.min(8))).min(Duration::from_secs(30))
    }

    pub fn arm(&mut self, now: Instant) {
        self.deadline = Some(now + self.rto());
    }

    /// What may be sent next as new data (or after a timeout): positions `from .. to`.
    pub fn next_stretch(&self, manners: &Manners, random: &mut Random) -> Option<(u64, u64)> {
        let allowed = self.edge.min(self.una + self.cwnd).min(self.end());
        if self.nxt >= allowed {
            return None;
        }
        let mut most = match manners.crumbs {
            Some(crumb) => self.mss.min(1 + random.below(u64::from(crumb))),
            None => self.mss,
        };
        if manners.lone_fin && self.nxt < self.data_end() {
            most = most.min(self.data_end() - self.nxt);
        }
        let len = (allowed - self.nxt).min(most);
        let whole = len >= self.mss || self.nxt + len >= self.end() || manners.crumbs.is_some();
        // RFC 9293 §3.8.6.2.1: no small segments while data is in flight.
        (whole || self.una == self.nxt).then_some((self.nxt, self.nxt + len))
    }

    pub fn on_sent(&mut self, now: Instant, to: u64) {
        if to > self.top {
            self.timed = self.timed.or(Some((to, now)));
        }
        self.nxt = self.nxt.max(to);
        self.top = self.top.max(to);
        if self.deadline.is_none() {
            self.arm(now);
        }
    }

    /// Processes an acknowledgement of position `ack`, between `una` and `top`. `bare`: the segment had no
    /// data and did not change the window.
    pub fn on_ack(&mut self, now: Instant, ack: u64, bare: bool) {
        if ack == self.una {
            if bare && self.top > self.una {
                self.on_duplicate();
            }
            return;
        }
        let acked = ack - self.una;
        self.una = ack;
        self.nxt = self.nxt.max(ack);
        self.duplicates = 0;
        (self.backoff, self.tries) = (0, 0);
        if let Some((end, sent)) = self.timed.filter(|(end, _)| *end <= ack) {
            self.sample(now - sent);
            self.timed = None;
            let _ = end;
        }
        match self.recovery_end {
            Some(end) if ack < end => self.again = true, // RFC 6582 §3.2: a partial acknowledgement
            Some(_) => {
                self.recovery_end = None;
                self.set_cwnd(self.ssthresh);
            }
            None if self.cwnd < self.ssthresh => self.set_cwnd(self.cwnd + acked.min(self.mss)),
            None => self.set_cwnd(self.cwnd + (self.mss * self.mss / self.cwnd).max(1)),
        }
        self.deadline = None;
        if self.top > self.una {
            self.arm(now);
        }
    }

    fn set_cwnd(&mut self, cwnd: u64) {
        if !self.fixed {
            self.cwnd = cwnd.clamp(self.mss, 1 << 20);
        }
    }

    fn sample(&mut self, rtt: Duration) {
        self.srtt = Some(match self.srtt {
            None => (rtt, rtt / 2),
            Some((srtt, var)) => (srtt * 7 / 8 + rtt / 8, var * 3 / 4 + srtt.abs_diff(rtt) / 4),
        });
    }

    fn on_duplicate(&mut self) {
        self.duplicates += 1;
        if self.duplicates == 3 && self.recovery_end.is_none() {
            self.ssthresh = ((self.top - self.una) / 2).max(2 * self.mss);
            self.set_cwnd(self.ssthresh);
            self.recovery_end = Some(self.top);
            self.again = true;
            self.timed = None;
        }
    }

    /// ECE arrived (RFC 3168 §6.1.2).
    pub fn on_congestion_echo(&mut self) {
        if self.una >= self.reduced_until {
            self.reduced_until = self.top;
            self.ssthresh = (self.cwnd / 2).max(2 * self.mss);
            self.set_cwnd(self.ssthresh);
            self.cwr_due = true;
        }
    }

    /// The timer fired. Returns `true` if it has fired more than `most` times without a response.
    pub fn on_timeout(&mut self, now: Instant, most: u32) -> bool {
        self.tries += 1;
        self.backoff += 1;
        self.timed = None;
        self.duplicates = 0;
        self.recovery_end = None;
        if self.top > self.una {
            self.ssthresh = ((self.top - self.una) / 2).max(2 * self.mss);
            self.set_cwnd(self.mss);
        }
        self.nxt = self.una;
        self.arm(now);
        self.tries > most
    }

    /// Whether data waits for a closed window.
    pub fn is_held_back(&self) -> bool {
        self.una < self.end() && self.edge <= self.una
    }

    /// The other side responds.
    pub fn on_sign_of_life(&mut self) {
        self.tries = 0;
    }
}
