//! The sessions of a worker: what each holds, and in which order they have something to do.

use std::collections::VecDeque;

use csp_tcp::{Stack, State};
use csp_tls::Session;
use csp_types::{FlowLabel, FourTuple, Instant};

use super::HANDSHAKE_TIMEOUT;
use super::elsewhere::Elsewhere;
use super::sources::Sources;

/// Largest number of ciphertext bytes that are made at once.
const STEP: usize = 64 * 1024;

/// A connection whose handshake is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begins {
    /// A client's. It is no flow yet.
    Client(Arrival),
    /// One to a plain server. Its flow has the rest: window, deadline, and whose it is.
    Server,
}

/// A client's connection whose handshake is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) service: u32,
    pub(crate) tuple: FourTuple,
    pub(super) deadline: Instant,
}

/// What follows what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// close_notify and FIN.
    Finish,
    /// The same; the client's bytes are discarded.
    Close,
    /// RST.
    Reset,
}

/// A connection's session.
#[derive(Debug)]
pub(crate) struct Secured {
    label: FlowLabel,
    pub(crate) session: Session,
    pub(crate) begins: Option<Begins>,
    /// How many unacknowledged plaintext bytes it accepts.
    pub(crate) window: u32,
    /// Whether it is in the list of those to flush.
    pub(super) flushing: bool,
    /// Whether it is in the list of handshakes to continue.
    queued: bool,
    /// Whether it is in the list of those whose next step another thread makes.
    pub(super) leaves: bool,
    /// The client's FIN was received.
    pub(super) peer_finished: bool,
    pub(super) ending: Option<Ending>,
    /// The server has closed: until when the client's close_notify is awaited, which a closed connection
    /// would answer with RST.
    pub(super) lingers: Option<Instant>,
    /// Length of the record whose plaintext waits. It stays with the engine until that was read: so the
    /// window counts it, and the engine holds back the end of the connection.
    held: usize,
    /// Ciphertext that the engine had no memory for.
    rest: Vec<u8>,
}

impl Secured {
    /// Has the session process what has arrived, up to the first plaintext.
    pub(crate) fn advance(&mut self, tcp: &mut Stack, now: Instant) {
        let label = self.label;
        loop {
            if self.session.readable() > 0 {
                return;
            }
            tcp.consume(now, label, std::mem::take(&mut self.held));
            let available = tcp.readable(label);
            let Some(len) = self.session.next_record(available, tcp.peek(label, available.min(8))) else {
                break;
            };
            self.session.take_record(tcp.peek(label, len));
            self.held = len;
        }
        if self.is_over() || tcp.failure(label).is_some() {
            tcp.consume(now, label, usize::MAX); // what follows has no meaning, and part of a record no end
        }
        if self.peer_finished {
            self.session.stream_ended();
        }
    }

    /// Returns whether nothing follows what was decrypted.
    pub(crate) fn is_over(&self) -> bool {
        self.session.is_closed_by_peer() || self.session.failure().is_some()
    }

    /// Returns whether its handshake has half of its time behind it.
    pub(super) fn has_waited(&self, now: Instant) -> bool {
        self.arrival().is_some_and(|arrival| arrival.deadline < now + HANDSHAKE_TIMEOUT / 2)
    }

    /// Returns the client's connection whose handshake is not complete, if this is one.
    pub(super) fn arrival(&self) -> Option<&Arrival> {
        match &self.begins {
            Some(Begins::Client(arrival)) => Some(arrival),
            _ => None,
        }
    }

    /// Returns the number of ciphertext bytes that the client has not acknowledged.
    pub(crate) fn queued(&self, tcp: &Stack) -> u64 {
        (tcp.info(self.label).map_or(0, |info| info.send_queue) + self.rest.len()) as u64
    }

    /// Writes what the session has for the client into as much room as there is. Returns how the connection
    /// ends if all was written, and it does.
    pub(super) fn flush(&mut self, tcp: &mut Stack, now: Instant, scratch: &mut Vec<u8>) -> Option<Ending> {
        let label = self.label;
        if tcp.failure(label).is_some() && self.ending.is_some() {
            // Nothing can be sent any more, and nobody reads.
            self.session.consume(usize::MAX);
            tcp.consume(now, label, usize::MAX);
            return self.ending.take();
        }
        self.session.acknowledged(self.queued(tcp));
        if !self.rest.is_empty() {
            let written = tcp.write(now, label, &self.rest);
            self.rest.drain(..written);
        }
        while self.rest.is_empty() && self.session.has_output() {
            scratch.clear();
            self.session.encrypt(tcp.writable(label).min(STEP), scratch);
            if scratch.is_empty() {
                tcp.report_writable(label);
                return None;
            }
            let written = tcp.write(now, label, scratch);
            self.rest.extend_from_slice(&scratch[written..]);
        }
        let ending = self.ending.filter(|_| self.rest.is_empty());
        ending.inspect(|_| self.ending = None)
    }
}

/// The sessions of a worker.
#[derive(Debug)]
pub(crate) struct Sessions {
    first_index: usize,
    connections: usize,
    /// By the index of the label; allocated with the first one.
    slots: Vec<Option<Box<Secured>>>,
    live: usize,
    pub(super) handshakes: usize,
    pub(super) to_flush: VecDeque<FlowLabel>,
    /// Of handshakes and of connections that linger, in their order. Some may have ended.
    pub(super) deadlines: VecDeque<(Instant, FlowLabel)>,
    /// Handshakes with something to process, a few of which are in each pass: each may take a signature.
    to_advance: VecDeque<FlowLabel>,
    pub(super) scratch: Vec<u8>,
    pub(super) sources: Sources,
    pub(super) elsewhere: Elsewhere,
}

impl Sessions {
    /// Creates the part for this number of connections, whose labels begin with `first_index`. `key`: a
    /// secret.
    pub(crate) fn new(first_index: usize, connections: usize, key: &[u8; 16]) -> Self {
        Sessions {
            first_index,
            connections,
            slots: Vec::new(),
            live: 0,
            handshakes: 0,
            to_flush: VecDeque::new(),
            deadlines: VecDeque::new(),
            to_advance: VecDeque::new(),
            scratch: Vec::new(),
            sources: Sources::new(key),
            elsewhere: Elsewhere::default(),
        }
    }

    /// Returns the number of sessions, and of those whose handshake is not complete.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.live, self.handshakes)
    }

    fn slot(&self, label: FlowLabel) -> Option<usize> {
        label.index().checked_sub(self.first_index).filter(|at| *at < self.slots.len())
    }

    /// Returns a connection's session.
    pub(crate) fn get(&self, label: FlowLabel) -> Option<&Secured> {
        self.slots[self.slot(label)?].as_deref().filter(|secured| secured.label == label)
    }

    /// Returns a connection's session.
    #[inline]
    pub(crate) fn get_mut(&mut self, label: FlowLabel) -> Option<&mut Secured> {
        let at = self.slot(label)?;
        self.slots[at].as_deref_mut().filter(|secured| secured.label == label)
    }

    /// Returns whether a connection has a session.
    #[inline]
    pub(crate) fn has(&self, label: FlowLabel) -> bool {
        self.live > 0 && self.get(label).is_some()
    }

    /// Returns whether a client's stream was cut off: it has ended without close_notify, and its server has
    /// not closed.
    pub(crate) fn is_cut_off(&self, label: FlowLabel) -> bool {
        let cut = |secured: &Secured| !secured.session.is_closed_by_peer() && secured.lingers.is_none();
        self.live > 0 && self.get(label).is_some_and(cut)
    }

    /// Returns whether a connection's session has failed.
    pub(crate) fn has_failed(&self, label: FlowLabel) -> bool {
        self.live > 0 && self.get(label).is_some_and(|secured| secured.session.failure().is_some())
    }

    /// Returns the number of decrypted bytes of a connection, and of those that are not encrypted.
    pub(crate) fn held(&self, label: FlowLabel) -> (usize, usize) {
        if self.live == 0 {
            return (0, 0);
        }
        self.get(label).map_or((0, 0), |secured| (secured.session.readable(), secured.session.pending()))
    }

    /// Returns how many bytes of plaintext a connection has room for.
    pub(crate) fn room(&self, tcp: &Stack, label: FlowLabel) -> usize {
        let window = self.get(label).map_or(0, |secured| secured.window);
        window.saturating_sub(self.unacknowledged(tcp, label)) as usize
    }

    /// Returns the number of written bytes of plaintext that the peer has not acknowledged; all, if the
    /// connection has ended.
    pub(crate) fn unacknowledged(&self, tcp: &Stack, label: FlowLabel) -> u32 {
        if tcp.info(label).is_none_or(|info| info.state == State::Done) {
            return u32::MAX;
        }
        let of_session = |secured: &Secured| secured.session.unacknowledged(secured.queued(tcp));
        u32::try_from(self.get(label).map_or(0, of_session)).unwrap_or(u32::MAX)
    }

    /// Passes up to `max` bytes of plaintext of one session on to another one. Returns their number.
    pub(crate) fn pass(
        &mut self,
        (tcp, now): (&mut Stack, Instant),
        from: FlowLabel,
        to: FlowLabel,
        max: usize,
    ) -> usize {
        let (mut scratch, mut moved) = (std::mem::take(&mut self.scratch), 0);
        loop {
            let room = self.room(tcp, to).min(max - moved);
            let Some(secured) = self.get_mut(from).filter(|_| room > 0) else { break };
            let part = secured.session.plaintext();
            scratch.clear();
            scratch.extend_from_slice(&part[..part.len().min(room)]);
            if scratch.is_empty() {
                break;
            }
            secured.session.consume(scratch.len());
            secured.advance(tcp, now);
            if let Some(secured) = self.get_mut(to) {
                secured.session.write(&scratch);
            }
            moved += scratch.len();
        }
        self.scratch = scratch;
        if moved > 0 {
            self.flush_later(to);
        }
        moved
    }

    /// Has a session whose peer has ended it, or that has failed, noticed in this turn.
    pub(crate) fn settle_later(&mut self, label: FlowLabel) {
        if self.get(label).is_some_and(Secured::is_over) {
            self.advance_later(label);
        }
    }

    /// Notes that a client's FIN was received; `false` if the connection has no session.
    pub(crate) fn peer_finished(&mut self, label: FlowLabel) -> bool {
        self.live > 0 && self.get_mut(label).map(|secured| secured.peer_finished = true).is_some()
    }

    pub(crate) fn begin(&mut self, label: FlowLabel, session: Session, begins: Begins, window: u32) {
        if self.slots.is_empty() {
            self.slots.resize_with(self.connections, || None);
        }
        let Some(at) = self.slot(label) else { return };
        if let Some(older) = self.slots[at].as_ref().map(|secured| secured.label) {
            self.release(older);
        }
        self.slots[at] = Some(Box::new(Secured {
            label,
            session,
            begins: Some(begins),
            window,
            queued: false,
            leaves: false,
            flushing: false,
            peer_finished: false,
            ending: None,
            lingers: None,
            held: 0,
            rest: Vec::new(),
        }));
        self.live += 1;
        if let Begins::Client(arrival) = begins {
            self.handshakes += 1;
            self.deadlines.push_back((arrival.deadline, label));
        }
    }

    /// Forgets a connection that has ended; returns its window if the handshake was not complete.
    pub(crate) fn release(&mut self, label: FlowLabel) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        let at = self.slot(label)?;
        let secured = self.slots[at].take_if(|secured| secured.label == label)?;
        self.live -= 1;
        let window = secured.arrival().map(|_| secured.window);
        self.handshakes -= usize::from(window.is_some());
        self.prune();
        window
    }

    /// Drops deadlines that mean nothing any more.
    pub(super) fn prune(&mut self) {
        while let Some((at, label)) = self.deadlines.front().copied() {
            let waits = |secured: &Secured| {
                secured.lingers.or(secured.arrival().map(|arrival| arrival.deadline)) == Some(at)
            };
            if self.get(label).is_some_and(waits) {
                return;
            }
            self.deadlines.pop_front();
        }
    }

    /// Returns when the next connection is given up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, _)| *at)
    }

    pub(super) fn next_overdue(&self, now: Instant) -> Option<FlowLabel> {
        self.deadlines.front().filter(|(at, _)| *at <= now).map(|(_, label)| *label)
    }

    /// Adds a connection to the list of those whose output is encrypted at the end of the turn.
    pub(crate) fn flush_later(&mut self, label: FlowLabel) {
        if let Some(secured) = self.get_mut(label)
            && !std::mem::replace(&mut secured.flushing, true)
        {
            self.to_flush.push_back(label);
        }
    }

    /// Adds a connection to the list of handshakes to continue, and of sessions to look at.
    pub(crate) fn advance_later(&mut self, label: FlowLabel) {
        if let Some(secured) = self.get_mut(label)
            && !std::mem::replace(&mut secured.queued, true)
        {
            self.to_advance.push_back(label);
        }
    }

    /// Removes and returns the next handshake to continue. Those that have ended are passed over.
    pub(super) fn next_to_advance(&mut self) -> Option<FlowLabel> {
        while let Some(label) = self.to_advance.pop_front() {
            if let Some(secured) = self.get_mut(label) {
                secured.queued = false;
                return Some(label);
            }
        }
        None
    }

    /// Returns whether there are handshakes to continue.
    pub(super) fn has_to_advance(&self) -> bool {
        !self.to_advance.is_empty()
    }

    /// Ends a connection after what was written; `false` if it has no session.
    pub(super) fn end(&mut self, label: FlowLabel, ending: Ending) -> bool {
        let Some(secured) = self.get_mut(label).filter(|secured| secured.begins.is_none()) else {
            return false;
        };
        secured.ending = Some(ending);
        if ending != Ending::Reset {
            secured.session.close();
        }
        self.flush_later(label);
        true
    }
}
