//! Byte credit: the window of bytes that one direction of a flow may have sent and not consumed.
//!
//! ```text
//! sender    [acknowledged | in flight ................................. | available ...]
//! receiver  [advertised   | consumed, not advertised | received, unconsumed | .........]
//!                         |<------------------------ window -------------------------->|
//! ```

/// Largest window that a receiver may widen to, in bytes.
const WINDOW_LIMIT: u32 = 1 << 30;

/// The peer sent beyond its window, or returned more credit than it had received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer broke the flow's byte window")]
pub struct CreditViolation;

/// The sender's side of a flow's window.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SendCredit {
    window: u32,
    in_flight: u32,
}

impl SendCredit {
    /// A window of `window` bytes, as the receiver granted it in OPEN, ACCEPTED, CONNECT or CONNECTED.
    pub const fn new(window: u32) -> Self {
        SendCredit { window, in_flight: 0 }
    }

    /// Bytes that may be sent now.
    pub const fn available(&self) -> u32 {
        self.window.saturating_sub(self.in_flight)
    }

    /// Bytes sent that the receiver has not yet acknowledged as consumed.
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The whole window in bytes.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Takes credit for `len` bytes to be sent. Returns `false`, and takes nothing, if less is available.
    #[must_use]
    pub const fn take(&mut self, len: u32) -> bool {
        if len > self.available() {
            return false;
        }
        self.in_flight += len;
        true
    }

    /// Records that the receiver acknowledged `len` more bytes as consumed (CREDIT).
    pub const fn returned(&mut self, len: u32) -> Result<(), CreditViolation> {
        match self.in_flight.checked_sub(len) {
            Some(rest) => {
                self.in_flight = rest;
                Ok(())
            }
            None => Err(CreditViolation),
        }
    }

    /// Widens the window by `len` bytes, as the receiver granted (CREDIT with
    /// [`csp_wire::channel::CREDIT_WIDER`]), up to 1 GiB in total.
    pub const fn widened(&mut self, len: u32) -> Result<(), CreditViolation> {
        match self.window.checked_add(len) {
            Some(window) if window <= WINDOW_LIMIT => {
                self.window = window;
                Ok(())
            }
            _ => Err(CreditViolation),
        }
    }
}

/// When the sender's credit is exhausted, credit is returned from this many consumed bytes on, even if a
/// quarter of the window is more: the sender resumes early, yet not for a few bytes (RFC 9293 §3.8.6.2, silly
/// window syndrome).
const EXHAUSTED_RETURN_MIN: u32 = 2048;

/// The receiver's side of a flow's window.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReceiveCredit {
    window: u32,
    unconsumed: u32,
    unadvertised: u32,
}

impl ReceiveCredit {
    /// A window of `window` bytes, as granted to the sender.
    pub const fn new(window: u32) -> Self {
        ReceiveCredit { window, unconsumed: 0, unadvertised: 0 }
    }

    /// The whole window in bytes.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Bytes received and not consumed.
    pub const fn unconsumed(&self) -> u32 {
        self.unconsumed
    }

    /// Bytes that the sender may still send before it receives more credit.
    pub const fn remaining(&self) -> u32 {
        self.window.saturating_sub(self.unconsumed).saturating_sub(self.unadvertised)
    }

    /// Records `len` bytes as received.
    pub const fn received(&mut self, len: u32) -> Result<(), CreditViolation> {
        if len > self.remaining() {
            return Err(CreditViolation);
        }
        self.unconsumed += len;
        Ok(())
    }

    /// Records `len` bytes as consumed, at most those that are unconsumed.
    pub const fn consumed(&mut self, len: u32) {
        let len = if len < self.unconsumed { len } else { self.unconsumed };
        self.unconsumed -= len;
        self.unadvertised += len;
    }

    /// Whether CREDIT is due: a quarter of the window is consumed and not advertised, or the sender has no
    /// credit left and at least 2048 bytes (`EXHAUSTED_RETURN_MIN`) are.
    pub const fn due(&self) -> bool {
        let quarter = if self.window < 4 { 1 } else { self.window / 4 };
        let exhausted = self.remaining() == 0 && self.unadvertised >= EXHAUSTED_RETURN_MIN;
        self.unadvertised >= quarter || exhausted
    }

    /// Returns the bytes to advertise in a CREDIT message if one is due, and records them as advertised.
    pub const fn take_due(&mut self) -> Option<u32> {
        if !self.due() {
            return None;
        }
        let advertised = self.unadvertised;
        self.unadvertised = 0;
        Some(advertised)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_window_widens_up_to_the_limit() {
        let mut send = SendCredit::new(100);
        assert!(send.take(100) && !send.take(1));
        assert_eq!(send.widened(50), Ok(()));
        assert_eq!((send.window(), send.available(), send.in_flight()), (150, 50, 100));
        assert_eq!(send.widened(WINDOW_LIMIT), Err(CreditViolation));
        assert_eq!(send.widened(u32::MAX), Err(CreditViolation));
        assert_eq!(send.window(), 150, "a refused message widens nothing");
        assert_eq!(send.widened(WINDOW_LIMIT - 150), Ok(()));
    }

    #[test]
    fn a_sender_beyond_its_window_and_a_receiver_that_returns_too_much_are_found_out() {
        let mut receive = ReceiveCredit::new(100);
        assert_eq!(receive.received(60), Ok(()));
        assert_eq!(receive.received(41), Err(CreditViolation));
        assert_eq!(receive.received(u32::MAX), Err(CreditViolation));
        assert_eq!(receive.received(40), Ok(()), "a refused message takes nothing");
        receive.consumed(10);
        assert_eq!(receive.received(1), Err(CreditViolation), "consumed, but not advertised");

        let mut send = SendCredit::new(100);
        assert!(send.take(100) && !send.take(1));
        assert_eq!(send.returned(101), Err(CreditViolation));
        assert_eq!(send.returned(30), Ok(()));
        assert_eq!((send.available(), send.in_flight()), (30, 70));
    }

    #[test]
    fn credit_is_due_from_a_quarter_or_sooner_when_the_sender_has_none() {
        let mut receive = ReceiveCredit::new(64 * 1024);
        receive.received(32 * 1024).unwrap();
        receive.consumed(16 * 1024 - 1);
        assert_eq!(receive.take_due(), None);
        receive.consumed(1);
        assert_eq!(receive.take_due(), Some(16 * 1024));
        receive.received(48 * 1024).unwrap();
        assert_eq!(receive.remaining(), 0);
        receive.consumed(2047);
        assert_eq!(receive.take_due(), None, "not for a few bytes");
        receive.consumed(1);
        assert_eq!(receive.take_due(), Some(2048));
    }

    proptest! {
        #[test]
        fn honest_sides_never_break_the_window_and_never_stall(
            window in 1..100_000u32,
            steps in prop::collection::vec((any::<u32>(), any::<u32>()), 1..100),
        ) {
            let (mut send, mut receive) = (SendCredit::new(window), ReceiveCredit::new(window));
            for (send_random, consume_random) in steps {
                let len = send_random % (send.available() + 1);
                prop_assert!(send.take(len));
                prop_assert_eq!(receive.received(len), Ok(()));
                receive.consumed(consume_random % (receive.unconsumed() + 1));
                if let Some(advertised) = receive.take_due() {
                    prop_assert_eq!(send.returned(advertised), Ok(()));
                }
                prop_assert_eq!(send.available(), receive.remaining());
            }
            receive.consumed(u32::MAX);
            if let Some(advertised) = receive.take_due() {
                prop_assert_eq!(send.returned(advertised), Ok(()));
            }
            prop_assert!(send.available() > 0, "all is consumed, yet the sender has no credit");
        }
    }
}
