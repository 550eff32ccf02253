//! Changes of the path: ICMP errors about segments we sent (RFC 5927, RFC 1191, RFC 8201), and network nodes that come
//! and go.

use csp_types::{FourTuple, Instant};

use crate::api::{FailReason, PathError, State};
use crate::seq::Seq;
use crate::stack::Stack;
use crate::stack::settle::TIME_WAIT_SLOTS;
use crate::tcb::{Context, Farewell, Tcb};

/// Smallest MSS an ICMP error brings a connection to, in bytes: forged ones must not make us send crumbs.
const PATH_MSS_MIN: u16 = 512;

impl Stack {
    /// Takes in an ICMP error. `tuple` and `seq` are those of the segment that the error quotes, `tuple.local` being
    /// our end. `false`: no connection has such a segment in flight, so the error is forged or late (RFC 5927 §4.1).
    pub fn on_path_error(&mut self, now: Instant, tuple: &FourTuple, seq: u32, error: PathError) -> bool {
        let Some(slot) = self.find_by_tuple(tuple).filter(|&slot| slot < TIME_WAIT_SLOTS) else {
            return false;
        };
        let Some((tcb, mut cx)) = self.split(slot, now) else { return false };
        let in_flight = !Seq(seq).before(tcb.snd_una) && Seq(seq).before(tcb.snd_nxt);
        if in_flight {
            tcb.on_path_error(&mut cx, error);
            self.settle(slot, now);
        }
        in_flight
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
    fn on_path_error(&mut self, cx: &mut Context<'_>, error: PathError) {
        match error {
            PathError::PacketTooBig { mtu } => self.shrink_mss(cx, mtu),
            // RFC 5927 §5.2: it ends no connection that was established.
            PathError::Unreachable if self.state == State::SynSent => {
                self.fail(cx, Farewell::Record, FailReason::Refused);
            }
            PathError::Unreachable => {}
        }
    }

    /// RFC 1191 §6.4: what is in flight is sent again in smaller segments; it was not lost to congestion.
    fn shrink_mss(&mut self, cx: &mut Context<'_>, mtu: u16) {
        let headers = if self.tuple.remote.is_ipv4() { 40 } else { 60 };
        let limit = mtu.saturating_sub(headers).max(PATH_MSS_MIN);
        if limit >= self.mss_limit {
            return;
        }
        self.mss_limit = limit;
        self.mss = limit - if self.timestamps { 12 } else { 0 };
        self.congestion.set_mss(u32::from(self.mss));
        if self.is_synchronised() {
            self.resend(cx);
        }
    }
}
