//! F-RTO: detects whether a retransmission timeout was spurious, by what the next two acknowledgements cover
//! (RFC 5682).
//!
//! ```text
//!   timeout ─▶ Retransmitted ──acknowledges part──▶ Probing: two new segments ──acknowledges originals──▶ spurious
//!                    │ duplicate, or everything          │ duplicate
//!                    ▼                                   ▼
//!                   Off: conventional recovery          Off
//! ```

/// State of the detection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Frto {
    #[default]
    Off,
    /// The head was retransmitted; its acknowledgement is awaited (step 2).
    Retransmitted,
    /// This many new segments may still be sent; then the next acknowledgement decides (step 3).
    Probing(u8),
}

/// The properties of an acknowledgement that F-RTO depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrtoInput {
    /// SND.UNA advanced.
    pub advanced: bool,
    /// It covers everything sent before the timeout.
    pub complete: bool,
    /// Data was delivered that was sent only once, and before the timeout.
    pub original: bool,
    /// There is unsent data, and room for it in the peer's window.
    pub new_data: bool,
    pub sack: bool,
}

impl Frto {
    /// Processes an acknowledgement; returns whether the timeout was spurious.
    pub fn on_ack(&mut self, input: &FrtoInput) -> bool {
        match *self {
            Frto::Off => false,
            // RFC 5682 §2.1, §3.1 step 2
            Frto::Retransmitted => {
                let on = input.advanced && !input.complete && input.new_data;
                *self = if on { Frto::Probing(2) } else { Frto::Off };
                false
            }
            // RFC 5682 §2.1, §3.1 step 3
            Frto::Probing(_) => {
                *self = Frto::Off;
                if input.sack { input.original } else { input.advanced }
            }
        }
    }

    /// Whether new data is sent before any retransmission.
    pub fn wants_new_data(&self) -> bool {
        matches!(self, Frto::Probing(1..))
    }

    /// Whether retransmissions wait for the next acknowledgement.
    pub fn holds_back(&self) -> bool {
        matches!(self, Frto::Probing(0))
    }

    /// A new segment was sent, or (`false`) could not be sent. Without any new segment the detection ends.
    pub fn on_new_data(&mut self, sent: bool) {
        *self = match *self {
            Frto::Probing(left @ 1..) if sent => Frto::Probing(left - 1),
            Frto::Probing(1) => Frto::Probing(0),
            _ => Frto::Off,
        };
    }
}
