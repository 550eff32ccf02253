//! Changes of the path: ICMP errors about segments we sent (RFC 5927, RFC 1191, RFC 8201), and network nodes
//! that are replaced or restarted.

use core::net::IpAddr;

use csp_types::{FourTuple, Instant};

use crate::api::{FailReason, PathError, State};
use crate::seq::Seq;
use crate::stack::Stack;
use crate::stack::settle::TIME_WAIT_SLOTS;
use crate::tcb::{Context, FinalTransmit, Tcb};

impl Stack {
    /// Processes an ICMP error. `tuple` and `seq` are those of the quoted segment; `tuple.local` is our end.
    /// Returns `false` if no connection has such a segment in flight, so that the error is forged or late
    /// (RFC 5927 §4.1), or if the error has no effect.
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

    /// Moves every connection from network node `from` to `to` and announces it there
    /// ([`crate::Transmit::flow_new`]). If `to` equals `from`, the node has lost its flow table and receives
    /// the announcements again. Returns how many connections were moved. Walks the whole table: for rare
    /// events only.
    pub fn redirect(&mut self, from: u32, to: u32) -> usize {
        // What has no connection, such as replies, waits for the node, too.
        self.dirty.resume(from);
        self.redirect_where(|_, via| (via == from).then_some(to))
    }

    /// Moves connections as [`redirect`](Self::redirect) does: `choose` gets the local address and the
    /// network node of each, and returns the node to use, or `None` if the connection stays as it is. Returns
    /// how many were moved.
    pub fn redirect_where(&mut self, choose: impl Fn(IpAddr, u32) -> Option<u32>) -> usize {
        let (mut count, mut left) = (0, Vec::new());
        for tcb in self.tcbs.iter_mut().flatten() {
            let Some(to) = choose(tcb.tuple.local.ip(), tcb.via) else { continue };
            if !left.contains(&tcb.via) {
                left.push(tcb.via);
            }
            tcb.via = to;
            tcb.announced.invalidate();
            count += 1;
        }
        left.into_iter().for_each(|from| self.dirty.resume(from));
        count
    }
}

impl Tcb {
    fn on_path_error(&mut self, cx: &mut Context<'_>, error: PathError) -> bool {
        match error {
            PathError::PacketTooBig { mtu } => self.on_packet_too_big(cx, mtu),
            // RFC 5927 §5.2: the error ends only a connection that is not yet established.
            PathError::Unreachable if self.state == State::SynSent => {
                self.fail(cx, FinalTransmit::Record, FailReason::Refused);
                true
            }
            PathError::Unreachable => true,
        }
    }
}
