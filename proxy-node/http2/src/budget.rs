//! What a peer may do that costs it less than the proxy: credits that are spent, and earned by work and time.

use csp_types::Instant;

use crate::limits::Limits;

/// What exhausted a budget, or another bound that ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Flood {
    /// Streams that the peer opens and resets (CVE-2023-44487).
    Resets,
    /// Frames without payload for the application.
    ControlFrames,
}

impl Flood {
    /// Returns the reason code: lower-case words joined by hyphens.
    pub const fn code(self) -> &'static str {
        match self {
            Flood::Resets => "http2-resets",
            Flood::ControlFrames => "http2-control-frames",
        }
    }
}

const NANOS_A_SECOND: u64 = 1_000_000_000;

/// Credits up to a maximum.
#[derive(Clone, Copy, Debug)]
struct Credits {
    left: u32,
    max: u32,
    per_second: u32,
}

impl Credits {
    fn new(max: u32, per_second: u32) -> Self {
        Credits { left: max, max, per_second }
    }

    fn earn(&mut self, credits: u32) {
        self.left = self.left.saturating_add(credits).min(self.max);
    }

    fn spend(&mut self, flood: Flood) -> Result<(), Flood> {
        self.left = self.left.checked_sub(1).ok_or(flood)?;
        Ok(())
    }
}

/// The budgets of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    resets: Credits,
    control: Credits,
    /// Whole seconds up to this time were earned.
    earned_until: Option<Instant>,
    /// Bytes of payload that have not earned a credit yet.
    bytes: u32,
}

/// Bytes of payload, in either direction, that earn a control frame.
const BYTES_A_CREDIT: u32 = 1_024;
/// Control frames that a piece of a response, or a request, earns.
const CREDITS_A_PIECE: u32 = 4;

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Budget {
            resets: Credits::new(limits.resets_max, limits.resets_per_second),
            control: Credits::new(limits.control_frames_max, limits.control_frames_per_second),
            earned_until: None,
            bytes: 0,
        }
    }

    /// Earns what the seconds up to `now` are worth.
    pub(crate) fn earn_time(&mut self, now: Instant) {
        let before = *self.earned_until.get_or_insert(now);
        let seconds = now.as_nanos().saturating_sub(before.as_nanos()) / NANOS_A_SECOND;
        if seconds == 0 {
            return;
        }
        self.earned_until = Some(Instant::from_nanos(before.as_nanos() + seconds * NANOS_A_SECOND));
        let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
        self.resets.earn(seconds.saturating_mul(self.resets.per_second));
        self.control.earn(seconds.saturating_mul(self.control.per_second));
    }

    /// Earns what `len` bytes of payload are worth.
    pub(crate) fn earn_bytes(&mut self, len: usize) {
        let bytes = self.bytes.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        self.control.earn(bytes / BYTES_A_CREDIT);
        self.bytes = bytes % BYTES_A_CREDIT;
    }

    /// Earns what a request, or a piece of a response, is worth: peers answer them by WINDOW_UPDATE and PING.
    pub(crate) fn earn_piece(&mut self) {
        self.control.earn(CREDITS_A_PIECE);
    }

    /// Earns what a piece of `len` bytes is worth that was sent.
    pub(crate) fn earn_sent(&mut self, len: usize) {
        self.earn_piece();
        self.earn_bytes(len);
    }

    /// Earns what a stream is worth that was completed.
    pub(crate) fn earn_stream(&mut self) {
        self.resets.earn(1);
    }

    pub(crate) fn spend_control_frame(&mut self) -> Result<(), Flood> {
        self.control.spend(Flood::ControlFrames)
    }

    pub(crate) fn spend_reset(&mut self) -> Result<(), Flood> {
        self.resets.spend(Flood::Resets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_spent_and_earned() {
        let limits = Limits { resets_max: 2, resets_per_second: 1, ..Limits::default() };
        let mut budget = Budget::new(&limits);
        budget.earn_time(Instant::from_nanos(5 * NANOS_A_SECOND));
        assert_eq!(budget.spend_reset(), Ok(()));
        assert_eq!(budget.spend_reset(), Ok(()));
        assert_eq!(budget.spend_reset(), Err(Flood::Resets));
        budget.earn_stream();
        assert_eq!(budget.spend_reset(), Ok(()));
        // A second counts once, however often the caller comes.
        for tenth in 1..=19 {
            budget.earn_time(Instant::from_nanos(5 * NANOS_A_SECOND + tenth * NANOS_A_SECOND / 10));
        }
        assert_eq!(budget.spend_reset(), Ok(()));
        assert_eq!(budget.spend_reset(), Err(Flood::Resets));
        budget.earn_time(Instant::from_nanos(u64::MAX));
        assert_eq!((budget.spend_reset(), budget.spend_reset()), (Ok(()), Ok(())));
        assert_eq!(budget.spend_reset(), Err(Flood::Resets), "no more than the maximum is saved up");
    }

    #[test]
    fn payload_earns_control_frames() {
        let limits = Limits { control_frames_max: 3, control_frames_per_second: 0, ..Limits::default() };
        let mut budget = Budget::new(&limits);
        while budget.spend_control_frame().is_ok() {}
        (0..3).for_each(|_| budget.earn_bytes(400));
        assert_eq!(budget.spend_control_frame(), Ok(()));
        assert_eq!(budget.spend_control_frame(), Err(Flood::ControlFrames));
        budget.earn_piece();
        assert_eq!((0..9).filter(|_| budget.spend_control_frame().is_ok()).count(), 3);
    }
}
