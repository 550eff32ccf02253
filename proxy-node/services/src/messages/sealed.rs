//! From the plane to the stream of a CURVE peer: each frame is encrypted for this connection alone, in the
//! worker's buffer.
//!
//! ```text
//!  plane ─ blocks of a frame ─▶ [sealing buffer: copied once, encrypted in place] ─▶ client's end
//!                                                   └─ what has no room ─▶ peer.own ─▶ later
//! ```
//! A frame is sealed only once, because its nonce must not be used again. The part for which the connection
//! has no room is kept with the peer. It is at most one frame, and nothing else is sealed while it waits.

use csp_messages::{Delivery, MessagePlane};
use csp_proxy_core::service::ClientEnd;
use csp_types::Instant;
use csp_zmtp::{Counters, EncodeError, sealed_len};

use super::framing::Speech;
use super::numbering;
use super::outbound::{Bounds, MESSAGES_PER_VISIT, delivered, own};
use super::peer::Peer;

/// Largest capacity that a peer keeps after its waiting frame was sent.
const KEPT_LEN: usize = 64 * 1024;

/// Writes messages that wait for a peer, as far as its connection has room. Returns whether bytes were
/// written.
pub(super) fn send(
    now: Instant,
    peer: &mut Peer,
    client: &mut impl ClientEnd,
    plane: &mut MessagePlane,
    bounds: Bounds<'_>,
    buffer: &mut [u8],
    counters: &mut Counters,
) -> bool {
    let mut moved = flush(peer, client);
    // A command between the frames of a message would be legal, and is one more thing that clients might not
    // expect.
    if peer.writing.is_none() {
        moved |= own(now, peer, client, counters);
    }
    let mut allowed = bounds.allowed(client);
    if let Some(id) = peer.id {
        for _ in 0..MESSAGES_PER_VISIT {
            if !peer.own.is_empty() || client.room() == 0 || (allowed == 0 && peer.writing.is_none()) {
                break;
            }
            let taken = peer.writing.take().or_else(|| {
                let delivery = plane.next_delivery(now, id)?;
                allowed = allowed.saturating_sub(delivery.len as usize);
                if let Some(turn) = bounds.turn {
                    turn.charge(delivery.len);
                }
                Some((delivery, 0))
            });
            let Some((delivery, frame)) = taken else { break };
            if message(peer, client, plane, &delivery, frame, buffer).is_err() {
                peer.ended = true; // all nonces are used, or the frame is longer than the channel allows: neither happens
                break;
            }
            moved = true;
        }
        plane.trace_flushed(id);
        if allowed == 0 {
            client.call_again();
        }
        let full = !peer.own.is_empty() || client.room() == 0 || allowed == 0;
        plane.set_parked(id, full);
        plane.refill(now, id);
    }
    moved
}

/// Writes the rest of a frame for which there was no room before.
fn flush(peer: &mut Peer, client: &mut impl ClientEnd) -> bool {
    let written = client.write(&peer.own, None);
    peer.own.drain(..written);
    if peer.own.is_empty() && peer.own.capacity() > KEPT_LEN {
        peer.own = Vec::new();
    }
    written > 0
}

/// Seals and writes a message from frame number `from` on, until a frame has no room.
fn message(
    peer: &mut Peer,
    client: &mut impl ClientEnd,
    plane: &mut MessagePlane,
    delivery: &Delivery,
    from: usize,
    buffer: &mut [u8],
) -> Result<(), EncodeError> {
    let frames = usize::from(delivery.frames);
    let mut at = 0;
    for (number, len) in plane.frame_lens(delivery.handle).enumerate() {
        let body = plane.range(delivery.handle, at, len);
        at += len;
        if number < from {
            continue;
        }
        if !peer.own.is_empty() {
            peer.writing = Some((*delivery, number));
            return Ok(());
        }
        frame(peer, client, len as usize, body, number + 1 < frames || delivery.numbered, buffer)?;
    }
    let mut next = frames;
    if delivery.numbered && from <= frames && peer.own.is_empty() {
        let numbers = numbering::numbers(delivery);
        frame(peer, client, numbers.len(), std::iter::once(&numbers[..]), false, buffer)?;
        next += 1;
    }
    if !peer.own.is_empty() {
        // What is left of the last frame belongs to the message: it is given when that is written.
        peer.writing = Some((*delivery, next));
        return Ok(());
    }
    delivered(peer, plane, delivery);
    Ok(())
}

/// Seals and writes a frame; a rest for which there is no room is kept.
fn frame<'p>(
    peer: &mut Peer,
    client: &mut impl ClientEnd,
    len: usize,
    body: impl Iterator<Item = &'p [u8]>,
    more: bool,
    buffer: &mut [u8],
) -> Result<(), EncodeError> {
    let Speech::Zmtp(connection) = &mut peer.connection else { return Err(EncodeError::Mechanism) };
    let sealed = connection.encrypt_parts(len, body, more, buffer)?;
    debug_assert_eq!(sealed, sealed_len(len));
    let written = client.write(&buffer[..sealed], None);
    peer.own.extend_from_slice(&buffer[written..sealed]);
    Ok(())
}
