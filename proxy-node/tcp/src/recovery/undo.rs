//! Whether what was sent again need not have been: by timestamps (Eifel, RFC 3522) and by reported duplicates
//! (RFC 2883, RFC 3708).

use crate::seq::Seq;

/// What the last loss response could be taken back by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// There is a loss response to take back; snd_una as it began.
    pending: bool,
    marker: Seq,
    /// It was a fast recovery: where it was spurious, segments were overtaken by others.
    fast: bool,
    /// Something was sent again, first with this timestamp of ours, if with any.
    any: bool,
    stamped: bool,
    stamp: u32,
    /// Bytes sent again and not reported as duplicates.
    resent: u32,
}

impl Undo {
    /// There is nothing to take back.
    pub const NONE: Undo =
        Undo { pending: false, marker: Seq(0), fast: false, any: false, stamped: false, stamp: 0, resent: 0 };

    /// A loss response begins at `una`; `fast`: a fast recovery, not a timeout.
    pub fn begin(una: Seq, fast: bool) -> Self {
        Undo { pending: true, marker: una, fast, ..Undo::NONE }
    }

    /// `len` bytes were sent again, with this timestamp of ours.
    pub fn on_resend(&mut self, len: u32, stamp: Option<u32>) {
        if !self.pending {
            return;
        }
        if !self.any {
            (self.any, self.stamped, self.stamp) = (true, stamp.is_some(), stamp.unwrap_or(0));
        }
        self.resent = self.resent.saturating_add(len);
    }

    /// The peer had `range` twice; says whether that shows that segments overtake each other.
    pub fn on_duplicate_report(&mut self, range: (Seq, Seq)) -> bool {
        let relevant = self.pending && self.any && !range.0.before(self.marker);
        if relevant {
            self.resent = self.resent.saturating_sub(range.1.since(range.0));
        }
        relevant && self.fast
    }

    /// RFC 3522 §3.2: the echo is older than the first retransmission, so the original was delivered.
    pub fn is_spurious_by_echo(&self, echo: Option<u32>) -> bool {
        self.pending && self.stamped && echo.is_some_and(|echo| (echo.wrapping_sub(self.stamp) as i32) < 0)
    }

    /// Everything sent again was a duplicate.
    pub fn is_spurious_by_dsack(&self) -> bool {
        self.pending && self.any && self.resent == 0
    }
}
