//! Explicit congestion notification (RFC 3168): routers mark packets instead of dropping them.
//!
//! ```text
//!   sender ──data, ECT(0)──▶ router ──data, CE──▶ receiver
//!   sender ◀───────────────ACK, ECE─────────────── receiver     until it sees CWR
//!   sender ──data, CWR (the window is reduced)──▶ receiver
//! ```
//!
//! Only new data is sent as ECN-capable; retransmissions, probes and acknowledgements without data are not
//! (§6.1.4 to §6.1.6). The window is reduced at most once per round trip for ECN and losses together
//! ([`crate::congestion`]).

use csp_wire::tcp::Flags;

use crate::input::Incoming;
use crate::recovery::Phase;
use crate::tcb::{Context, Tcb};

pub use csp_types::options::EcnMode;

/// Codepoints of the IP header (RFC 3168 §5).
pub(crate) const NOT_ECT: u8 = 0b00;
pub(crate) const ECT_0: u8 = 0b10;
const CE: u8 = 0b11;

/// Flags of a SYN that proposes ECN (RFC 3168 §6.1.1).
pub(crate) const SETUP: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);

/// ECN of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ecn {
    /// ECN was negotiated.
    pub capable: bool,
    /// CE was received, and CWR not since: acknowledgements carry ECE.
    pub echo: bool,
    /// Our SYN was retransmitted without the proposal; ECN is not negotiated any more, whatever arrives
    /// later.
    pub fallen_back: bool,
}

impl Tcb {
    /// Processes the ECN flags of the peer's SYN or SYN/ACK (RFC 3168 §6.1.1).
    pub fn negotiate_ecn(&mut self, segment: &Incoming<'_>) {
        let proposal = Flags(segment.flags.0 & SETUP.0);
        let proposed = self.options.ecn == EcnMode::Active && !self.ecn.fallen_back;
        self.ecn.capable = match (self.passive, segment.flags.ack()) {
            // RFC 3168 §6.1.1: SYNs are sent as not ECN-capable. If one arrives otherwise, something on the
            // path modifies these bits.
            (true, _) => self.options.ecn != EcnMode::Off && proposal == SETUP && segment.ecn == NOT_ECT,
            (false, true) => proposed && proposal == Flags::ECE,
            // Simultaneous open.
            (false, false) => proposed && proposal == SETUP,
        };
    }

    /// Processes a retransmitted SYN: if it lacks the proposal, the peer no longer uses ECN.
    pub fn renegotiate_ecn(&mut self, segment: &Incoming<'_>) {
        self.ecn.capable &= segment.flags.contains(SETUP);
    }

    /// The flags with which our SYN or SYN/ACK proposes or accepts ECN; `again`: it is a retransmission.
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

    /// Processes the ECN information of a segment, before its acknowledgement is processed.
    pub fn process_ecn(&mut self, cx: &mut Context<'_>, segment: &Incoming<'_>) {
        if !self.ecn.capable || segment.unscaled {
            return; // on a SYN the flags negotiate ECN
        }
        let acceptable = !segment.ack.before(self.snd_una) && !segment.ack.after(self.sent_end());
        if segment.flags.contains(Flags::ECE) && acceptable {
            cx.counters.ecn_echoes_received += 1;
            let open = self.recovery.phase() == Phase::Open;
            let reduced = self.congestion.on_ecn(self.snd_una, self.snd_nxt, open);
            cx.counters.ecn_reductions += u64::from(reduced);
        }
        if segment.payload.is_empty() {
            return;
        }
        // RFC 3168 §6.1.3: if the packet with CWR is itself marked, that mark is a new one.
        self.ecn.echo &= !segment.flags.contains(Flags::CWR);
        if segment.ecn == CE {
            cx.counters.ecn_marks_received += 1;
            self.ack_now |= !self.ecn.echo;
            self.maybe_transmit |= !self.ecn.echo;
            self.ecn.echo = true;
        }
    }
}
