//! Explicit congestion notification (RFC 3168): routers mark packets instead of dropping them.
//!
//! ```text
//!   sender ──data, ECT(0)──▶ router ──data, CE──▶ receiver
//!   sender ◀───────────────ACK, ECE─────────────── receiver     until it sees CWR
//!   sender ──data, CWR (the window is reduced)──▶ receiver
//! ```
//!
//! Only new data is sent as ECN-capable: retransmissions, probes and acknowledgements without data are not (§6.1.4 to
//! §6.1.6). The window is reduced once a round trip, and not again for losses of the same one ([`crate::congestion`]).

use csp_wire::tcp::Flags;

use crate::input::Incoming;
use crate::recovery::Phase;
use crate::tcb::{Context, Tcb};

/// Codepoints of the IP header (RFC 3168 §5).
pub(crate) const NOT_ECT: u8 = 0b00;
pub(crate) const ECT_0: u8 = 0b10;
const CE: u8 = 0b11;

/// What a SYN that proposes ECN has set (RFC 3168 §6.1.1).
pub(crate) const SETUP: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);

/// Whether connections use ECN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum EcnMode {
    /// Never.
    Off,
    /// Where the other side proposes it.
    #[default]
    Passive,
    /// Proposed by us as well. A SYN that is not answered is sent again without.
    Active,
}

/// ECN of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ecn {
    /// Both sides agreed.
    pub capable: bool,
    /// CE arrived and CWR did not yet: acknowledgements carry ECE.
    pub echo: bool,
    /// Our SYN went out without the proposal: nothing that arrives later makes up for it.
    pub fallen_back: bool,
}

impl Tcb {
    /// A SYN, or SYN/ACK, says what the peer wants (RFC 3168 §6.1.1).
    pub fn negotiate_ecn(&mut self, segment: &Incoming<'_>) {
        let proposal = Flags(segment.flags.0 & SETUP.0);
        let proposed = self.options.ecn == EcnMode::Active && !self.ecn.fallen_back;
        self.ecn.capable = match (self.passive, segment.flags.ack()) {
            // RFC 3168 §6.1.1: SYNs are not ECN-capable; one that says so met something that plays with these bits.
            (true, _) => self.options.ecn != EcnMode::Off && proposal == SETUP && segment.ecn == NOT_ECT,
            (false, true) => proposed && proposal == Flags::ECE,
            // Simultaneous open.
            (false, false) => proposed && proposal == SETUP,
        };
    }

    /// The SYN came again: without the proposal, the peer has given up on ECN.
    pub fn renegotiate_ecn(&mut self, segment: &Incoming<'_>) {
        self.ecn.capable &= segment.flags.contains(SETUP);
    }

    /// The flags with which a SYN or SYN/ACK proposes or accepts ECN; `again`: it was sent before.
    pub fn ecn_of_syn(&mut self, passive: bool, again: bool) -> Flags {
        match passive {
            true if self.ecn.capable => Flags::ECE,
            true => Flags(0),
            false => {
                self.ecn.fallen_back |= again;
                let proposes = self.options.ecn == EcnMode::Active && !self.ecn.fallen_back;
                if proposes { SETUP } else { Flags(0) }
            }
        }
    }

    /// What a segment of the peer tells, before its acknowledgement is taken in.
    pub fn process_ecn(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) {
        if !self.ecn.capable || segment.unscaled {
            return; // in a SYN the bits mean something else
        }
        let acceptable = !segment.ack.before(self.snd_una) && !segment.ack.after(self.snd_nxt);
        if segment.flags.contains(Flags::ECE) && acceptable {
            cx.counters.ecn_echoes_received += 1;
            let open = self.recovery.phase() == Phase::Open;
            let reduced = self.congestion.on_ecn(self.snd_una, self.snd_nxt, open);
            cx.counters.ecn_reductions += u64::from(reduced);
        }
        if segment.payload.is_empty() {
            return;
        }
        // RFC 3168 §6.1.3: the mark of the packet that carries CWR is a new one.
        self.ecn.echo &= !segment.flags.contains(Flags::CWR);
        if segment.ecn == CE {
            cx.counters.ecn_marks_received += 1;
            self.ack_now |= !self.ecn.echo;
            self.maybe_transmit |= !self.ecn.echo;
            self.ecn.echo = true;
        }
    }
}
