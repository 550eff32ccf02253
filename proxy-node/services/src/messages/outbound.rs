//! From the plane to a peer's stream: the connection's own commands, then messages with their headers.

use csp_messages::{Delivery, MessagePlane, Turn};
use csp_proxy_core::service::ClientEnd;
use csp_types::Instant;
use csp_zmtp::{CONTROL_LEN_MAX, Connection, Counters};

use super::batch::{Batch, Mark, Place};
use super::framing::Speech;
use super::peer::Peer;

/// Largest number of messages written to a connection before others are served: more than are received in a
/// visit, so that a queue that has formed is emptied again, and direct delivery goes on.
pub(super) const MESSAGES_PER_VISIT: usize = 192;

/// What bounds the messages that are written in one visit.
pub(super) struct Bounds<'a> {
    /// The turn of the channel, if it has one.
    pub(super) turn: &'a mut Option<Turn>,
    /// Bytes that may be unsent on the connection; `None` while no information flows share the output link.
    pub(super) quantum: Option<u32>,
}

impl Bounds<'_> {
    /// Returns how many bytes of messages may be written, so that less than the link's quantum stays unsent:
    /// messages wait in the queues of flows, and not in the connection. The last message may exceed it.
    #[inline]
    pub(super) fn allowed(&self, client: &impl ClientEnd) -> usize {
        self.quantum.map_or(usize::MAX, |quantum| (quantum as usize).saturating_sub(client.unsent()))
    }
}

/// Writes messages that wait for a peer, as far as its connection has room. Returns whether bytes were
/// written.
pub(super) fn send(
    now: Instant,
    peer: &mut Peer,
    client: &mut impl ClientEnd,
    plane: &mut MessagePlane,
    bounds: Bounds<'_>,
    batch: &mut Batch,
    counters: &mut Counters,
) -> bool {
    let mut moved = finish(peer, client, plane);
    if peer.writing.is_none() {
        moved |= own(now, peer, client, counters);
    }
    let mut allowed = bounds.allowed(client);
    if peer.writing.is_none() && peer.own.is_empty() && allowed > 0 {
        moved |= messages(now, peer, client, plane, (bounds.turn, &mut allowed), batch, counters);
    }
    if let Some(id) = peer.id {
        plane.trace_flushed(id);
        let full = peer.writing.is_some() || !peer.own.is_empty() || allowed == 0;
        if allowed == 0 {
            client.call_again();
        }
        plane.set_parked(id, full);
        plane.refill(now, id);
    }
    moved
}

/// Writes the connection's own commands, between messages.
pub(super) fn own(
    now: Instant,
    peer: &mut Peer,
    client: &mut impl ClientEnd,
    counters: &mut Counters,
) -> bool {
    let Peer { connection: Speech::Zmtp(connection), own, asks_for_all, .. } = peer else { return false };
    let mut buffer = [0; CONTROL_LEN_MAX + 1];
    while connection.has_output() && own.len() < CONTROL_LEN_MAX {
        let Ok(len) = connection.transmit(now, &mut buffer, counters) else { break };
        own.extend_from_slice(&buffer[..len]);
    }
    if *asks_for_all && let Some(len) = subscribe_to_all(connection, &mut buffer) {
        own.extend_from_slice(&buffer[..len]);
        *asks_for_all = false;
    }
    if own.is_empty() {
        return false;
    }
    let written = client.write(own, None);
    own.drain(..written);
    written > 0
}

/// Subscribes to all messages of a publisher. The plane matches them with the subscribers.
fn subscribe_to_all(connection: &mut Connection, buffer: &mut [u8]) -> Option<usize> {
    connection.subscribe(b"", true, buffer).ok()
}

/// Writes the rest of a message for which there was no room.
fn finish(peer: &mut Peer, client: &mut impl ClientEnd, plane: &mut MessagePlane) -> bool {
    let Some((delivery, done)) = peer.writing else { return false };
    let encoding = peer.connection.encoding();
    let mut skip = done;
    let mut written = 0;
    encoding.pieces(plane, &delivery, |piece| {
        let passed = skip.min(piece.len());
        skip -= passed;
        let piece = &piece[passed..];
        let taken = client.write(piece, None);
        written += taken;
        taken == piece.len()
    });
    match Some(done + written) == encoding.wire_len(plane, &delivery) {
        true => {
            peer.writing = None;
            delivered(peer, plane, &delivery);
        }
        false => peer.writing = Some((delivery, done + written)),
    }
    written > 0
}

/// Writes messages, up to the bound of a visit or as far as there is room.
fn messages(
    now: Instant,
    peer: &mut Peer,
    client: &mut impl ClientEnd,
    plane: &mut MessagePlane,
    (turn, allowed): (&mut Option<Turn>, &mut usize),
    batch: &mut Batch,
    counters: &mut Counters,
) -> bool {
    let Some(id) = peer.id else { return false };
    let encoding = peer.connection.encoding();
    let (mut moved, mut room, mut mark) = (false, client.room(), Mark::default());
    let mut run = Place::default();
    for _ in 0..MESSAGES_PER_VISIT {
        if *allowed == 0 {
            break;
        }
        let Some(delivery) = plane.next_delivery(now, id) else { break };
        *allowed = allowed.saturating_sub(delivery.len as usize);
        if let Some(turn) = turn {
            turn.charge(delivery.len);
        }
        let Some(len) = encoding.wire_len(plane, &delivery) else {
            counters.prefixed_unwritable += 1;
            delivered(peer, plane, &delivery);
            continue;
        };
        let message = (&delivery, &encoding, len);
        let mut place = batch.place(plane, message, &mut mark, client);
        if place.is_none() && run.range.is_empty() && batch.renew(client) {
            mark = Mark::default();
            place = batch.place(plane, message, &mut mark, client);
        }
        let is_full = place.is_none();
        if let Some(place) = place.filter(|place| run.range.len() + place.range.len() <= room) {
            match (place.buffer, place.range.start) == (run.buffer, run.range.end) {
                true => run.range.end = place.range.end,
                false => {
                    moved |= flush(client, batch, &mut run);
                    (room, run) = (client.room(), place);
                }
            }
            delivered(peer, plane, &delivery);
            continue;
        }
        moved |= flush(client, batch, &mut run);
        peer.writing = Some((delivery, 0));
        moved |= finish(peer, client, plane);
        if peer.writing.is_some() || is_full {
            break;
        }
        room = client.room();
    }
    moved | flush(client, batch, &mut run)
}

/// Writes a run of messages. The caller has checked that there is room.
fn flush(client: &mut impl ClientEnd, batch: &Batch, run: &mut Place) -> bool {
    let run = std::mem::take(run);
    if run.range.is_empty() {
        return false;
    }
    let written = batch.write(client, &run);
    debug_assert_eq!(written, run.range.len(), "the room was looked at");
    true
}

pub(super) fn delivered(peer: &mut Peer, plane: &mut MessagePlane, delivery: &Delivery) {
    let Some(id) = peer.id else { return };
    plane.trace_written(id, delivery, |plane| peer.connection.encoding().wire_len(plane, delivery));
    // It is the oldest one in flight: each is finished before the next is taken.
    peer.delivered += u64::from(plane.delivered(id, delivery.handle).is_ok());
}
