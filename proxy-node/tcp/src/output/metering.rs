//! Metered connections share an output link with others. They send new data only as far as they were granted
//! an allowance.
//!
//! ```text
//!   Idle ──more to send than allowed──▶ Wants ──asked how much──▶ Waits ──allowed──▶ Idle
//! ```
//! The allowance covers data that is sent for the first time. Retransmissions, probes of a closed window,
//! acknowledgements and FIN need none. Meters lie beside the connections: few engines have any.

use crate::tcb::{Context, Tcb};

/// The meter of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Meter {
    /// Bytes that may be sent for the first time; [`u32::MAX`] if the connection is not metered.
    pub allowance: u32,
    pub state: Metering,
}

/// State of a connection towards the caller that meters it ([`crate::Stack::set_metered`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Metering {
    /// The allowance suffices for what can be sent, or the connection is not metered.
    Idle,
    /// It could send more than its allowance, and the caller has not asked for the amount yet.
    Wants,
    /// The caller has asked for the amount, and the connection waits for the allowance.
    Waits,
}

impl Meter {
    /// The meter of a connection that is not metered.
    pub const NONE: Meter = Meter { allowance: u32::MAX, state: Metering::Idle };
}

impl Context<'_> {
    /// Returns the meter of a connection, if the engine has any.
    #[inline]
    fn meter(&mut self, tcb: &Tcb) -> Option<&mut Meter> {
        if self.meters.is_empty() {
            return None;
        }
        self.meters.get_mut(tcb.label.index().wrapping_sub(self.config.first_label_index as usize))
    }
}

impl Tcb {
    /// Begins or ends metering.
    pub fn set_metered(&mut self, cx: &mut Context<'_>, metered: bool) {
        let Some(meter) = cx.meter(self) else { return };
        if metered != (meter.allowance != u32::MAX) {
            *meter = Meter { allowance: if metered { 0 } else { u32::MAX }, ..Meter::NONE };
            self.maybe_transmit = true;
        }
    }

    /// Increases the allowance by `bytes`.
    pub fn allow(&mut self, cx: &mut Context<'_>, bytes: u32) {
        let Some(meter) = cx.meter(self).filter(|meter| meter.allowance != u32::MAX) else { return };
        let allowance = meter.allowance.saturating_add(bytes).min(u32::MAX - 1);
        *meter = Meter { allowance, state: Metering::Idle };
        self.maybe_transmit = true;
    }

    /// Returns how many bytes may be sent for the first time.
    #[inline]
    pub(super) fn allowance(&self, cx: &mut Context<'_>) -> u32 {
        cx.meter(self).map_or(u32::MAX, |meter| meter.allowance)
    }

    /// Deducts `len` bytes of new data from the allowance.
    #[inline]
    pub(super) fn use_allowance(&self, cx: &mut Context<'_>, len: u32) {
        if let Some(meter) = cx.meter(self).filter(|meter| meter.allowance != u32::MAX) {
            meter.allowance -= len.min(meter.allowance);
        }
    }

    /// Returns how many bytes beyond its allowance the connection could send at once. 0 if the allowance
    /// suffices for a segment, or if another limit prevents sending.
    pub fn wanted(&self, allowance: u32) -> u32 {
        if allowance == u32::MAX || !self.is_synchronised() {
            return 0;
        }
        let (unsent, size) = (self.data_end().since(self.snd_nxt), u32::from(self.mss()));
        let window = self.snd_una.plus(self.snd_wnd).since(self.snd_nxt);
        let room = self.send_window().saturating_sub(self.pipe());
        if allowance >= unsent.min(size) || room == 0 {
            return 0;
        }
        // At least a segment: the remainder of a congestion window is not sent by itself.
        unsent.min(window).min(room.max(size)).saturating_sub(allowance)
    }

    /// Records whether the connection could send more than its allowance.
    #[inline]
    pub(super) fn note_wanted(&self, cx: &mut Context<'_>) {
        if let Some(meter) = cx.meter(self)
            && meter.state == Metering::Idle
            && self.wanted(meter.allowance) > 0
        {
            meter.state = Metering::Wants;
        }
    }

    /// Returns whether the missing allowance alone prevents data from being sent.
    #[inline]
    pub(super) fn is_kept_waiting(&self, cx: &mut Context<'_>) -> bool {
        cx.meter(self).is_some_and(|meter| meter.state != Metering::Idle)
    }
}
