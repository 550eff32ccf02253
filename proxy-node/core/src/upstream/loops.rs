//! Bytes between a program of the cluster and a plain server, whose connection may have a session of TLS.

use csp_types::FlowLabel;

use crate::context::Context;
use crate::hairpin::LoopEnd;
use crate::service::ClientEnd as _;

/// Passes up to `max` bytes of a program of the cluster on to a server.
pub(super) fn pass_from_loop<O>(
    cx: &mut Context<'_, O>,
    from: FlowLabel,
    to: FlowLabel,
    max: usize,
) -> usize {
    let mut client = LoopEnd { label: from, hairpin: cx.hairpin };
    let mut moved = 0;
    if cx.tls.has(to) {
        let room = cx.tls.room(cx.tcp, to).min(max);
        let Some(secured) = cx.tls.get_mut(to) else { return 0 };
        for slice in client.peek(room) {
            secured.session.write(slice);
            moved += slice.len();
        }
        cx.tls.flush_later(to);
        client.consume(moved);
        return moved;
    }
    for slice in client.peek(max) {
        let written = cx.tcp.write(cx.now, to, slice);
        moved += written;
        if written < slice.len() {
            break;
        }
    }
    client.consume(moved);
    moved
}

/// Passes up to `max` bytes of a server on to a program of the cluster.
pub(super) fn pass_to_loop<O>(cx: &mut Context<'_, O>, from: FlowLabel, to: FlowLabel, max: usize) -> usize {
    let mut client = LoopEnd { label: to, hairpin: cx.hairpin };
    let mut moved = 0;
    if cx.tls.has(from) {
        while let Some(secured) = cx.tls.get_mut(from) {
            let plaintext = secured.session.plaintext();
            let part = &plaintext[..plaintext.len().min(client.room()).min(max - moved)];
            if part.is_empty() {
                break;
            }
            let written = client.write(part, None);
            secured.session.consume(written);
            secured.advance(cx.tcp, cx.now);
            moved += written;
        }
        return moved;
    }
    for slice in cx.tcp.peek(from, max.min(client.room())) {
        moved += client.write(slice, None);
    }
    cx.tcp.consume(cx.now, from, moved)
}
