//! From a peer's stream to the plane: messages are published from the memory where they arrived.

use std::ops::Range;

use csp_messages::{AttachError, ChannelId, FRAMES_MAX, FormatId, MessagePlane, PublishError, Role};
use csp_operators::FormatSet;
use csp_proxy_core::service::ClientEnd;
use csp_quality::SharedLink;
use csp_types::Instant;
use csp_zmtp::{Connection, Counters, Cursor, Frame, Item, Message, SocketType};

use super::direct::{Direct, wire_form};
use super::flows::Classifier;
use super::formats::identify;
use super::framing::Speech;
use super::given::Given;
use super::keys::{ChannelKeys, Refusal, Refusals};
use super::peer::Peer;
use super::requested::Requested;
use super::requests::{self, Requests};

/// Largest number of messages of a connection that are processed before others are served.
const MESSAGES_PER_VISIT: usize = 128;
/// Largest number of slices of received bytes that are examined without allocating; a longer message is
/// examined in a vector.
const SLICES: usize = 64;

/// An incomplete message of at least this many bytes is copied out of the connection's window, which then
/// opens again. Half of the smallest initial window.
const KEEP_FROM: usize = 8 * 1024;

/// Capacity that a connection keeps for incomplete messages while it has none.
const KEPT_LEN: usize = 64 * 1024;

/// The message is not delivered directly.
const NO_WIRE_FORM: Option<(usize, std::iter::Empty<&[u8]>)> = None;

/// Messages that match none of a channel's formats.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnknownCounters {
    pub(super) arrived: u64,
    /// Those of them that were dropped.
    pub(super) dropped: u64,
}

/// What the broker needs to admit a channel's peers and to publish their messages.
pub(super) struct Door<'a> {
    pub(super) channel: ChannelId,
    pub(super) keys: Option<&'a ChannelKeys>,
    pub(super) formats: Option<&'a FormatSet>,
    /// Formats that publishers have brought.
    pub(super) brought: Option<&'a FormatSet>,
    /// The queries, formats and handlers that programs have requested.
    pub(super) requested: &'a Requested,
    /// Nobody publishes.
    pub(super) derived: bool,
    /// Messages that match no format are dropped.
    pub(super) drops_unknown: bool,
    pub(super) unknown: &'a mut UnknownCounters,
    /// Messages of the channel that were refused while their peers stay connected.
    pub(super) refused: &'a mut u64,
    pub(super) refusals: &'a mut Refusals,
    /// The channel's path is filling: contexts should have their turns before more is published.
    pub(super) yields: bool,
    /// Finds the information flow of a message, and the link that flows share, if they do.
    pub(super) flows: Option<(Classifier, &'a mut SharedLink)>,
    /// Takes messages for receivers that wait for nothing.
    pub(super) direct: Option<&'a mut Direct>,
}

impl Door<'_> {
    /// Returns whether the visit ends although more could be processed.
    #[inline]
    fn ends_visit(&self) -> bool {
        self.yields || self.direct.as_ref().is_some_and(|direct| direct.is_full())
    }

    /// Publishes a message with frames of these lengths. `record` returns the slices of a frame, in which the
    /// format is found. `wire`: length and slices of what is written to a receiver, if that has arrived.
    fn publish<'a, R: Iterator<Item = &'a [u8]>>(
        &mut self,
        now: Instant,
        plane: &mut MessagePlane,
        id: csp_messages::PeerId,
        (lens, bodies): (&[u32], impl Iterator<Item = &'a [u8]> + Clone),
        record: impl Fn(usize) -> R,
        wire: Option<(usize, impl Iterator<Item = &'a [u8]>)>,
    ) -> Result<(), PublishError> {
        let format = identify([self.formats, self.brought], lens.len(), &record);
        let is_unknown = (self.formats.is_some() || self.brought.is_some()) && format == FormatId::UNKNOWN;
        if is_unknown && self.drops_unknown {
            self.unknown.arrived += 1;
            self.unknown.dropped += 1;
            return Ok(());
        }
        if let Some(direct) = &mut self.direct {
            let wire = wire.filter(|_| direct.is_open());
            let taken = wire.and_then(|(len, bytes)| {
                let take = |found: &[u32]| direct.take(found, len, bytes);
                plane.publish_directly(id, (lens, bodies.clone()), take)
            });
            if taken.is_some() {
                self.unknown.arrived += u64::from(is_unknown);
                return Ok(());
            }
            direct.close(); // later messages must not overtake this one
        }
        let done = match &mut self.flows {
            None => plane.publish_as(now, id, format, lens, bodies),
            Some((classifier, link)) => {
                let flow = classifier.flow_of((&*plane, &**link), now, format, lens, record);
                plane.publish_in(now, id, (format, flow), (lens, bodies), Some(link))
            }
        };
        *self.refused += u64::from(done.is_err_and(|error| error != PublishError::Held));
        let published = done?;
        self.yields |= published.yields;
        self.unknown.arrived += u64::from(is_unknown);
        Ok(())
    }
}

/// Outcome of one visit of a connection.
#[derive(Clone, Copy, Default)]
pub(super) struct Received {
    /// Bytes were consumed.
    pub(super) moved: bool,
    /// More could be processed at once.
    pub(super) more: bool,
}

/// Bytes of the stream in slices, and the position of the first of them.
#[derive(Clone, Copy)]
struct View<'a, 'b> {
    slices: &'b [&'a [u8]],
    at: u64,
}

impl<'a> View<'a, '_> {
    /// Removes the slices that end at or before `position`.
    fn advance(&mut self, position: u64) {
        while let Some((first, rest)) = self.slices.split_first()
            && self.at + first.len() as u64 <= position
        {
            self.at += first.len() as u64;
            self.slices = rest;
        }
    }
}

/// The bodies of frames, slice by slice.
#[derive(Clone)]
struct Bodies<'a, 'b, I> {
    view: View<'a, 'b>,
    frames: I,
    /// The rest of the frame: its position and length.
    left: (u64, usize),
}

impl<'a, 'b, I: Iterator<Item = (u64, usize)>> Bodies<'a, 'b, I> {
    fn new(view: View<'a, 'b>, frames: I) -> Self {
        Bodies { view, frames, left: (0, 0) }
    }
}

impl<'a, I: Iterator<Item = (u64, usize)>> Iterator for Bodies<'a, '_, I> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left.1 == 0 {
            self.left = self.frames.next()?;
        }
        let (at, len) = self.left;
        self.view.advance(at);
        let slice = *self.view.slices.first()?;
        let from = usize::try_from(at - self.view.at).ok()?;
        let part = slice.get(from..)?;
        let part = &part[..part.len().min(len)];
        self.left = (at + part.len() as u64, len - part.len());
        Some(part)
    }
}

/// Processes received bytes, up to the bound of a visit.
pub(super) fn receive(
    now: Instant,
    peer: &mut Peer,
    client: &mut impl ClientEnd,
    plane: &mut MessagePlane,
    door: &mut Door<'_>,
    counters: &mut Counters,
) -> Received {
    let readable = client.readable();
    let received = peer.consumed + readable as u64;
    if std::mem::replace(&mut peer.received, received) < received
        && let Speech::Zmtp(connection) = &mut peer.connection
    {
        connection.heard();
    }
    let lacks = peer.connection.needed().saturating_sub(peer.consumed);
    let enough = !peer.held.is_empty() || readable as u64 >= lacks || readable >= KEEP_FROM;
    if peer.connection.has_failed() || !enough {
        return Received::default();
    }
    let mut kept = std::mem::take(&mut peer.kept);
    let from = peer.consumed - kept.len() as u64;
    let mut few: [&[u8]; SLICES] = [&[]; SLICES];
    let all: Vec<&[u8]>;
    let (mut count, mut seen) = (0, 0);
    for slice in std::iter::once(&kept[..]).chain(client.peek(readable)).take(SLICES) {
        few[count] = slice;
        (count, seen) = (count + 1, seen + slice.len());
    }
    seen -= kept.len();
    // A message may be cut into more slices than that.
    let slices = if seen >= readable || seen as u64 > lacks {
        &few[..count]
    } else {
        all = std::iter::once(&kept[..]).chain(client.peek(readable)).collect();
        seen = readable;
        &all
    };
    let refused = counters.messages_refused();
    let mut more = process(now, peer, View { slices, at: from }, plane, door, counters);
    *door.refused += counters.messages_refused() - refused;
    let released =
        if peer.held.is_empty() { peer.connection.released() } else { peer.unpublished.unwrap_or(from) };
    let end = peer.consumed + seen as u64;
    let mut done = released.clamp(peer.consumed, end) - peer.consumed;
    if released > from {
        kept.drain(..usize::try_from(released - from).unwrap_or(usize::MAX).min(kept.len()));
    }
    // A message that is longer than the window would never be complete in the memory of the window.
    let waits = (end - released.min(end)) as usize;
    if !more
        && peer.held.is_empty()
        && waits - kept.len() >= KEEP_FROM
        && end == peer.consumed + readable as u64
    {
        keep_rest(&mut kept, client, readable, done as usize);
        done = readable as u64;
    }
    if kept.is_empty() && kept.capacity() > KEPT_LEN {
        kept = Vec::new(); // memory of a long message
    }
    peer.kept = kept;
    client.consume(done as usize);
    peer.consumed += done;
    // What was looked at was consumed, or was too little for one message.
    more |= (done > 0 || peer.connection.needed() > end) && seen < readable && peer.held.is_empty();
    Received { moved: done > 0, more }
}

/// Copies the readable bytes behind the first `skip` to those that are kept.
fn keep_rest(kept: &mut Vec<u8>, client: &mut impl ClientEnd, readable: usize, skip: usize) {
    let mut skip = skip;
    for slice in client.peek(readable) {
        let skipped = skip.min(slice.len());
        kept.extend_from_slice(&slice[skipped..]);
        skip -= skipped;
    }
}

/// Processes items until the bytes, the bound or the room for messages are used up. Returns whether it
/// stopped at the bound.
fn process(
    now: Instant,
    peer: &mut Peer,
    mut view: View<'_, '_>,
    plane: &mut MessagePlane,
    door: &mut Door<'_>,
    counters: &mut Counters,
) -> bool {
    let mut cursor = Cursor::new(view.at, view.slices.iter().copied());
    if !peer.held.is_empty() && !publish_held(now, peer, view, plane, door) {
        return false;
    }
    if let Speech::Prefixed(_) = peer.connection {
        return process_prefixed(now, peer, view, plane, door, counters);
    }
    for _ in 0..MESSAGES_PER_VISIT {
        if door.ends_visit() {
            return true;
        }
        let Speech::Zmtp(connection) = &mut peer.connection else { return false };
        let item = match connection.next(now, &mut cursor, counters) {
            Ok(Some(item)) => item,
            Ok(None) | Err(_) => return connection.is_paused(),
        };
        match item {
            Item::Authorise(known) => {
                let checked = door.keys.map_or(Ok(()), |keys| keys.check(known));
                authorise(connection, checked, door, counters);
            }
            Item::Ready(known) if requests::makes_requests(known.socket_type) => {
                peer.requests = Some(Requests::default());
            }
            Item::Ready(known) => {
                if !admit(known.socket_type, peer, plane, door) {
                    peer.ended = true;
                    return false;
                }
            }
            Item::Subscribe(topic) => {
                if let Some(id) = peer.id {
                    let _ = plane.subscribe(now, id, topic); // the plane counts refusals
                }
            }
            Item::Cancel(topic) => {
                if let Some(id) = peer.id {
                    plane.cancel(id, topic);
                }
            }
            Item::Message(message) => {
                if let Some(requests) = &mut peer.requests {
                    let bounds = door.requested.bounds(peer.number);
                    match requests.keep(&message, bounds, |at| body(view, &message, at)) {
                        true => return true,
                        false => continue,
                    }
                }
                let Some(id) = peer.id else { continue };
                let start = message.span().start;
                view.advance(start);
                if publish_message(now, plane, id, view, &message, door) == Err(PublishError::Held) {
                    peer.held.extend(message.frames().iter().map(|frame| (frame.at, frame.len)));
                    // A decrypted message stays with the connection.
                    peer.unpublished = Some(if is_sealed(&message) { connection.released() } else { start });
                    return false;
                }
            }
        }
    }
    true
}

/// Completes the handshake of a peer whose key was checked.
fn authorise(
    connection: &mut Connection,
    checked: Result<(), Refusal>,
    door: &mut Door<'_>,
    counters: &mut Counters,
) {
    match checked {
        Ok(()) => connection.allow(),
        Err(refusal) => {
            door.refusals.count(refusal);
            connection.deny(counters);
        }
    }
}

/// Attaches a peer to the channel in the role of its socket type. Returns `false` if it may not publish or
/// the channel has no room for peers.
fn admit(socket_type: SocketType, peer: &mut Peer, plane: &mut MessagePlane, door: &mut Door<'_>) -> bool {
    let (role, asks_for_all) = match socket_type {
        SocketType::Pub | SocketType::Xpub => (Role::Publisher, true),
        SocketType::Push => (Role::Pusher, false),
        SocketType::Pull => (Role::Puller, false),
        _ => (Role::Subscriber, false),
    };
    if door.derived && role.sends() {
        door.refusals.may_not_publish += 1;
        return false;
    }
    let attached = plane.attach(door.channel, role);
    if attached == Err(AttachError::TooMany) {
        door.refusals.peers_full += 1;
        return false;
    }
    peer.id = attached.ok();
    peer.asks_for_all = asks_for_all;
    peer.given = (role == Role::Puller).then(Given::new);
    true
}

/// Copies the body of a frame.
fn body(view: View<'_, '_>, message: &Message<'_>, at: usize) -> Vec<u8> {
    let Some(frame) = message.frames().get(at) else { return Vec::new() };
    match message.decrypted(frame) {
        Some(bytes) => bytes.to_vec(),
        None => Bodies::new(view, std::iter::once((frame.at, frame.len))).collect::<Vec<_>>().concat(),
    }
}

/// Like [`process`], for a length-prefixed peer, which is not held back.
fn process_prefixed(
    now: Instant,
    peer: &mut Peer,
    mut view: View<'_, '_>,
    plane: &mut MessagePlane,
    door: &mut Door<'_>,
    counters: &mut Counters,
) -> bool {
    let mut cursor = Cursor::new(view.at, view.slices.iter().copied());
    for _ in 0..MESSAGES_PER_VISIT {
        let Speech::Prefixed(speech) = &mut peer.connection else { return false };
        let Some((start, (at, len))) = speech.next(&mut cursor, counters) else { return false };
        let Some(id) = peer.id else { continue };
        view.advance(at);
        let frame = Frame { at, len, header_len: 0 };
        if publish(now, plane, id, view, (&[frame], None), door) == Err(PublishError::Held) {
            peer.held.push((at, len));
            peer.unpublished = Some(start);
            return false;
        }
        if door.yields {
            return true;
        }
    }
    true
}

fn publish(
    now: Instant,
    plane: &mut MessagePlane,
    id: csp_messages::PeerId,
    view: View<'_, '_>,
    (frames, wire): (&[Frame], Option<Range<u64>>),
    door: &mut Door<'_>,
) -> Result<(), PublishError> {
    let mut lens = [0; FRAMES_MAX];
    let lens = lens_of(frames, &mut lens)?;
    let wire = wire.map(|wire| {
        let len = (wire.end - wire.start) as usize;
        (len, Bodies::new(view, std::iter::once((wire.start, len))))
    });
    let frames = frames.iter().map(|frame| (frame.at, frame.len));
    let record = |at: usize| Bodies::new(view, frames.clone().skip(at).take(1));
    door.publish(now, plane, id, (lens, Bodies::new(view, frames.clone())), record, wire)
}

fn lens_of<'l>(frames: &[Frame], lens: &'l mut [u32; FRAMES_MAX]) -> Result<&'l [u32], PublishError> {
    let lens = lens.get_mut(..frames.len()).ok_or(PublishError::Frames(frames.len()))?;
    for (len, frame) in lens.iter_mut().zip(frames) {
        *len = frame.len as u32;
    }
    Ok(lens)
}

/// Like [`publish`], for a message of a ZeroMQ peer, which may lie decrypted in the connection's memory.
fn publish_message(
    now: Instant,
    plane: &mut MessagePlane,
    id: csp_messages::PeerId,
    view: View<'_, '_>,
    message: &Message<'_>,
    door: &mut Door<'_>,
) -> Result<(), PublishError> {
    if !is_sealed(message) {
        let wire = if door.direct.is_some() { wire_form(message) } else { None };
        return publish(now, plane, id, view, (message.frames(), wire), door);
    }
    let mut lens = [0; FRAMES_MAX];
    let lens = lens_of(message.frames(), &mut lens)?;
    let bodies = message.frames().iter().filter_map(|frame| message.decrypted(frame));
    door.publish(now, plane, id, (lens, bodies.clone()), |at| bodies.clone().skip(at).take(1), NO_WIRE_FORM)
}

/// Whether the bodies lie decrypted in the connection's memory, and not in the stream.
fn is_sealed(message: &Message<'_>) -> bool {
    message.frames().first().is_some_and(|frame| message.decrypted(frame).is_some())
}

/// Publishes the message for which the peer was held back; `false` if it still has no room.
fn publish_held(
    now: Instant,
    peer: &mut Peer,
    view: View<'_, '_>,
    plane: &mut MessagePlane,
    door: &mut Door<'_>,
) -> bool {
    let Some(id) = peer.id else { return true };
    if let Some(message) = peer.connection.zmtp().and_then(Connection::delivered).filter(is_sealed) {
        let held = publish_message(now, plane, id, view, &message, door) == Err(PublishError::Held);
        if !held {
            peer.held.clear();
        }
        return !held;
    }
    let mut lens = [0; FRAMES_MAX];
    for (len, frame) in lens.iter_mut().zip(&peer.held) {
        *len = frame.1 as u32;
    }
    let count = peer.held.len().min(FRAMES_MAX);
    let frames = peer.held.iter().copied();
    let record = |at: usize| Bodies::new(view, frames.clone().skip(at).take(1));
    let bodies = Bodies::new(view, frames.clone());
    if door.publish(now, plane, id, (&lens[..count], bodies), record, NO_WIRE_FORM) == Err(PublishError::Held)
    {
        return false;
    }
    peer.held.clear();
    true
}
