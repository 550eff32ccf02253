//! Detection of spurious retransmissions: by timestamps (Eifel, RFC 3522) and by duplicate reports (RFC 2883,
//! RFC 3708).

use crate::seq::{Seq, SeqRange};

/// The state that detects whether the last loss response was spurious.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// A loss response can be undone; `marker` is SND.UNA when it began.
    pending: bool,
    marker: Seq,
    /// The response was a fast recovery, not a timeout: if it was spurious, segments were reordered.
    fast: bool,
    /// Data was retransmitted; `stamp` is the TSval of the first retransmission, if `stamped`.
    any: bool,
    stamped: bool,
    stamp: u32,
    /// Bytes retransmitted and not reported as duplicates.
    resent: u32,
}

impl Undo {
    /// No loss response can be undone.
    pub const NONE: Undo =
        Undo { pending: false, marker: Seq(0), fast: false, any: false, stamped: false, stamp: 0, resent: 0 };

    /// Begins a loss response at `una`; `fast`: it is a fast recovery, not a timeout.
    pub fn begin(una: Seq, fast: bool) -> Self {
        Undo { pending: true, marker: una, fast, ..Undo::NONE }
    }

    /// Records the retransmission of `len` bytes with TSval `stamp`.
    pub fn on_resend(&mut self, len: u32, stamp: Option<u32>) {
        if !self.pending {
            return;
        }
        if !self.any {
            (self.any, self.stamped, self.stamp) = (true, stamp.is_some(), stamp.unwrap_or(0));
        }
        self.resent = self.resent.saturating_add(len);
    }

    /// Processes the report that the peer received `range` twice. Returns whether that shows reordering.
    pub fn on_duplicate_report(&mut self, range: SeqRange) -> bool {
        let relevant = self.pending && self.any && !range.start.before(self.marker);
        if relevant {
            self.resent = self.resent.saturating_sub(range.len());
        }
        relevant && self.fast
    }

    /// RFC 3522 §3.2: the echo is older than the first retransmission, so the original was delivered.
    pub fn is_spurious_by_echo(&self, echo: Option<u32>) -> bool {
        self.pending && self.stamped && echo.is_some_and(|echo| (echo.wrapping_sub(self.stamp) as i32) < 0)
    }

    /// RFC 3708: everything retransmitted was a duplicate.
    pub fn is_spurious_by_dsack(&self) -> bool {
        self.pending && self.any && self.resent == 0
    }
}
