//! Changes of the path: ICMP errors about segments we sent (RFC 5927, RFC 1191, RFC 8201), and network nodes that come
//! and go.

use csp_types::{FourTuple, Instant};

use crate::api::{FailReason, PathError, State};
use crate::seq::Seq;
use crate::stack::Stack;
use crate::stack::settle::TIME_WAIT_SLOTS;
use crate::tcb::{Context, FinalTransmit, Tcb};

impl Stack {
    /// Takes in an ICMP error. `tuple` and `seq` are those of the segment that the error quotes, `tuple.local` being
    /// our end. `false`: no connection has such a segment in flight, so the error is forged or late (RFC 5927 §4.1), or
    /// it tells nothing new.
    pub fn on_path_error(&mut self, now: Instant, tuple: &FourTuple, seq: u32, error: PathError) -> bool {
        let slot = self.find_by_tuple(tuple).filter(|&slot| slot < TIME_WAIT_SLOTS);
        let taken = slot.is_some_and(|slot| {
            let Some((tcb, mut cx)) = self.split(slot, now) else { return false };
            let in_flight = !Seq(seq).before(tcb.snd_una) && Seq(seq).before(tcb.snd_nxt);
            let taken = in_flight && tcb.on_path_error(&mut cx, error);
            self.settle(slot, now);
            taken
        });
        self.counters.path_errors_ignored += u64::from(!taken);
        taken
    }

    /// Every connection through network node `from` goes through `to` from now on, and is announced to it
    /// ([`crate::Transmit::flow_new`]). With `to` equal to `from`, the node has forgotten its flows. Says how many
    /// connections that were. Walks the whole table: for rare events only.
    pub fn redirect(&mut self, from: u32, to: u32) -> usize {
        self.dirty.resume(from);
        let moved = self.tcbs.iter_mut().flatten().filter(|tcb| tcb.via == from);
        moved.map(|tcb| (tcb.via, tcb.announced) = (to, false)).count()
    }
}

impl Tcb {
    fn on_path_error(&mut self, cx: &mut Context<'_>, error: PathError) -> bool {
        match error {
            PathError::PacketTooBig { mtu } => self.on_packet_too_big(cx, mtu),
            // RFC 5927 §5.2: it ends no connection that was established.
            PathError::Unreachable if self.state == State::SynSent => {
                self.fail(cx, FinalTransmit::Record, FailReason::Refused);
                true
            }
            PathError::Unreachable => true,
        }
    }
}
