//! Passes bytes between two joined connections, each of which may have a session of TLS.

use csp_types::FlowLabel;

use crate::ProxyOutput;
use crate::context::Context;
use crate::events::NO_SERVICE;
use crate::pump::Pump;
use crate::service::{ClientEnd as _, TcpEnd, TlsEnd};

/// Largest number of bytes that are passed on in one go: one connection must not hold up the others.
const PASS_MAX: usize = 256 * 1024;

impl Pump {
    /// Passes bytes and ends of streams between two joined connections, in both directions. Returns whether
    /// anything was moved.
    pub(crate) fn pump_joined<O: ProxyOutput>(
        &mut self,
        cx: &mut Context<'_, O>,
        label: FlowLabel,
        peer: FlowLabel,
    ) -> bool {
        let there = self.pass(cx, label, peer);
        let back = self.pass(cx, peer, label);
        there || back
    }

    fn pass<O: ProxyOutput>(&mut self, cx: &mut Context<'_, O>, from: FlowLabel, to: FlowLabel) -> bool {
        let (is_from, is_to) = (cx.tls.has(from), cx.tls.has(to));
        let moved = match (is_from, is_to) {
            (false, false) => cx.tcp.pass(cx.now, from, to, PASS_MAX),
            (true, false) => pass_plaintext(cx, from, to, PASS_MAX),
            (false, true) => pass_to_session(cx, from, to, PASS_MAX),
            (true, true) => cx.tls.pass((cx.tcp, cx.now), from, to, PASS_MAX),
        };
        if moved > 0 {
            cx.recorder.counters.joined_bytes += moved as u64;
            if let Some(flow) = cx.flows.get_mut(to) {
                if flow.bytes_from_app == 0 {
                    cx.recorder.first_byte(cx.now, flow);
                }
                flow.bytes_from_app += moved as u64;
                cx.recorder.services.sent(flow.counted, moved as u64);
                let (now, label) = (cx.now, to);
                match is_to {
                    false => self.widen(&mut TcpEnd { now, label, finished: false, tcp: cx.tcp }, flow),
                    true => self.widen(&mut TlsEnd { now, label, tcp: cx.tcp, tls: cx.tls }, flow),
                }
            }
        }
        if is_from && cx.advance_session(from) {
            self.settle_later(from);
        }
        let more = match is_from {
            false => cx.tcp.readable(from) > 0,
            true => cx.tls.held(from).0 > 0,
        };
        let Some(flow) = cx.flows.get_mut(from) else { return false };
        flow.bytes_to_app += moved as u64;
        cx.recorder.services.received(flow.counted, moved as u64);
        let ends = flow.client_finished && !more && !flow.shutdown_sent;
        if ends {
            flow.shutdown_sent = true;
            let of_server = flow.service == NO_SERVICE;
            cx.shutdown_stream(to);
            if of_server {
                self.end_later_of_server(from);
            }
        }
        if more && moved >= PASS_MAX {
            self.enqueue(cx.flows, from);
        }
        moved > 0 || ends
    }
}

/// Passes up to `max` bytes of plaintext of a session on to a connection without one. Returns their number.
pub(crate) fn pass_plaintext<O>(
    cx: &mut Context<'_, O>,
    from: FlowLabel,
    to: FlowLabel,
    max: usize,
) -> usize {
    let mut moved = 0;
    while moved < max {
        let Some(secured) = cx.tls.get_mut(from) else { break };
        let plaintext = secured.session.plaintext();
        let plaintext = &plaintext[..plaintext.len().min(max - moved)];
        let (wanted, written) = (plaintext.len(), cx.tcp.write(cx.now, to, plaintext));
        secured.session.consume(written);
        secured.advance(cx.tcp, cx.now);
        moved += written;
        if written == 0 || written < wanted {
            break;
        }
    }
    moved
}

/// Passes up to `max` bytes of a connection without a session on to one with. Returns their number.
pub(crate) fn pass_to_session<O>(
    cx: &mut Context<'_, O>,
    from: FlowLabel,
    to: FlowLabel,
    max: usize,
) -> usize {
    let room = TlsEnd { now: cx.now, label: to, tcp: cx.tcp, tls: cx.tls }.room().min(max);
    let Some(secured) = cx.tls.get_mut(to) else { return 0 };
    cx.tcp.peek(from, room).for_each(|slice| secured.session.write(slice));
    cx.tls.flush_later(to);
    cx.tcp.consume(cx.now, from, room)
}
