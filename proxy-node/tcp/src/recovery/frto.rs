//! F-RTO: whether a retransmission timeout was spurious (RFC 5682), told by what the next two acknowledgements cover.
//!
//! ```text
//!   timeout ─▶ Retransmitted ──acknowledges part──▶ Probing: two new segments ──acknowledges originals──▶ spurious
//!                    │ duplicate, or everything          │ duplicate
//!                    ▼                                   ▼
//!                   Off: conventional recovery          Off
//! ```

/// Where detection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Frto {
    #[default]
    Off,
    /// The head was sent again; its acknowledgement is waited for (step 2).
    Retransmitted,
    /// So many new segments may be sent, then the next acknowledgement decides (step 3).
    Probing(u8),
}

/// What an acknowledgement tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrtoInput {
    /// snd_una moved.
    pub advanced: bool,
    /// It covers everything that was sent before the timeout.
    pub complete: bool,
    /// Something was delivered that was sent only once, and before the timeout.
    pub original: bool,
    /// There is new data, and room for it in the peer's window.
    pub new_data: bool,
    pub sack: bool,
}

impl Frto {
    /// Takes an acknowledgement in; `true`: the timeout was spurious.
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

    /// Whether new data goes first now, whatever is lost.
    pub fn wants_new_data(&self) -> bool {
        matches!(self, Frto::Probing(1..))
    }

    /// Whether nothing is retransmitted until the next acknowledgement.
    pub fn holds_back(&self) -> bool {
        matches!(self, Frto::Probing(0))
    }

    /// A new segment was sent, or (`false`) could not be: without one there is nothing to learn.
    pub fn on_new_data(&mut self, sent: bool) {
        *self = match *self {
            Frto::Probing(left @ 1..) if sent => Frto::Probing(left - 1),
            Frto::Probing(1) => Frto::Probing(0),
            _ => Frto::Off,
        };
    }
}
