//! Byte credit: the window of unconsumed bytes that one direction of a flow may have on its way.
//!
//! ```text
//! sender    [told consumed | in flight ........ | available .......]
//!           |<------------------- window ------------------------->|
//! receiver  [told | consumed, untold | received, unconsumed | .....]
//! ```

/// The peer went beyond its window, or returned credit it had not taken.
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
    /// A window of `window` bytes, granted by the receiver with OPEN, ACCEPTED, CONNECT or CONNECTED.
    pub const fn new(window: u32) -> Self {
        SendCredit { window, in_flight: 0 }
    }

    /// Bytes that may be sent now.
    pub const fn available(&self) -> u32 {
        self.window.saturating_sub(self.in_flight)
    }

    /// Bytes sent that the receiver has not told consumed.
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The whole window in bytes.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Takes credit for `len` bytes to be sent; `false`, and nothing taken, when the window has less left.
    #[must_use]
    pub const fn take(&mut self, len: u32) -> bool {
        if len > self.available() {
            return false;
        }
        self.in_flight += len;
        true
    }

    /// The receiver told that it consumed `len` bytes more (CREDIT).
    pub const fn returned(&mut self, len: u32) -> Result<(), CreditViolation> {
        match self.in_flight.checked_sub(len) {
            Some(rest) => {
                self.in_flight = rest;
                Ok(())
            }
            None => Err(CreditViolation),
        }
    }
}

/// With an exhausted sender, credit is returned from so many consumed bytes on, though a quarter of the window were
/// more: it shall start again soon, yet not for a few bytes (RFC 9293 §3.8.6.2 on silly windows).
const EXHAUSTED_RETURN_MIN: u32 = 2048;

/// The receiver's side of a flow's window.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReceiveCredit {
    window: u32,
    unconsumed: u32,
    untold: u32,
}

impl ReceiveCredit {
    /// A window of `window` bytes, as granted to the sender.
    pub const fn new(window: u32) -> Self {
        ReceiveCredit { window, unconsumed: 0, untold: 0 }
    }

    /// The whole window in bytes.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Bytes received and not consumed.
    pub const fn unconsumed(&self) -> u32 {
        self.unconsumed
    }

    /// Bytes that the sender may still send before it hears of more.
    pub const fn remaining(&self) -> u32 {
        self.window.saturating_sub(self.unconsumed).saturating_sub(self.untold)
    }

    /// `len` bytes arrived.
    pub const fn received(&mut self, len: u32) -> Result<(), CreditViolation> {
        if len > self.remaining() {
            return Err(CreditViolation);
        }
        self.unconsumed += len;
        Ok(())
    }

    /// `len` bytes were consumed; more than were there count as those.
    pub const fn consumed(&mut self, len: u32) {
        let len = if len < self.unconsumed { len } else { self.unconsumed };
        self.unconsumed -= len;
        self.untold += len;
    }

    /// Whether CREDIT is due: a quarter of the window was consumed, or the sender has none left and enough was.
    pub const fn due(&self) -> bool {
        let quarter = if self.window < 4 { 1 } else { self.window / 4 };
        let exhausted = self.remaining() == 0 && self.untold >= EXHAUSTED_RETURN_MIN;
        self.untold >= quarter || exhausted
    }

    /// The bytes to tell with CREDIT if it is due; they count as told. Call it again when the message could not be
    /// sent with [`untake`](Self::untake).
    pub const fn take_due(&mut self) -> Option<u32> {
        if !self.due() {
            return None;
        }
        let told = self.untold;
        self.untold = 0;
        Some(told)
    }

    /// Undoes [`take_due`](Self::take_due) for a CREDIT that was not sent after all.
    pub const fn untake(&mut self, len: u32) {
        self.untold = self.untold.saturating_add(len);
    }
}
