//! Processing of completions and events, and of deadlines.

use csp_types::Instant;
use csp_vi::{BufferId, Completion, Event, ViId};
use csp_wire::link::{HEADER_LEN, HELLO_LEN_MAX, Header, Kind};

use super::link::{Link, State};
use super::{Endpoint, Ready};
use crate::event::{DeathCause, DownReason, LinkEvent, LinkId, ProtocolError};
use crate::identity::{kind_of, wire_kind};

/// Largest number of connection events processed in one turn.
const EVENTS_MAX: usize = 64;

/// A message as the provider delivered it.
#[derive(Clone, Copy)]
struct Arrival {
    vi: ViId,
    buffer: BufferId,
    len: usize,
    immediate: u32,
}

impl Endpoint {
    /// Polls completions and events, answers PING, returns credits, sends heartbeats and enforces deadlines.
    /// Returns whether anything happened. `unix_now_s`, in seconds, is the time against which tokens are
    /// checked.
    pub fn progress(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let mut late = now - self.last_progress > self.config.heartbeat.interval * 2;
        // A thread that sleeps until its next deadline was absent only for as long as it overslept.
        if late && now - self.next_check > self.config.heartbeat.interval / 4 {
            self.back_at = now;
        }
        self.last_progress = now;
        let mut busy = self.poll_events(now);
        // One turn processes at most the messages that all descriptors hold; a peer cannot refill them before
        // credit is returned to it.
        let mut drained = false;
        for _ in 0..=self.table.capacity() * self.config.receive_depth as usize {
            let Some(completion) = self.provider.poll() else {
                drained = true;
                break;
            };
            busy = true;
            if let Completion::Received { vi, buffer, len, immediate } = completion {
                let arrival = Arrival { vi, buffer, len: len as usize, immediate };
                self.on_received(now, unix_now_s, arrival);
            }
        }
        if drained {
            self.settle_hang_ups(now);
            self.settle_resumptions(now);
        }
        late |= !drained;
        self.check_timers(now, late);
        self.serve_dirty(now);
        busy
    }

    fn poll_events(&mut self, now: Instant) -> bool {
        for taken in 0..EVENTS_MAX {
            match self.provider.poll_event() {
                None => return taken > 0,
                Some(Event::Request(request)) => self.on_request(now, request),
                Some(Event::Established { vi, .. }) => self.on_established(now, vi),
                Some(Event::Refused { vi, reason }) => {
                    if let Some(id) = self.table.find(vi) {
                        self.on_vi_refused(now, id, &reason);
                    }
                }
                Some(Event::Disconnected { vi, clean }) => {
                    // Messages received before can still be polled: the link ends after them.
                    let id = self.table.find(vi);
                    if let Some(link) = id.and_then(|id| self.table.get_mut(id))
                        && link.hung_up.is_none()
                    {
                        link.hung_up = Some(clean);
                        self.hang_ups.extend(id);
                    }
                }
            }
        }
        true
    }

    fn on_received(&mut self, now: Instant, unix_now_s: u64, arrival: Arrival) {
        let Some(id) = self.table.find(arrival.vi) else { return };
        if self.table.get(id).is_some_and(|link| link.state == State::AwaitHello) {
            // HELLO may arrive before the event that reports the VI as established.
            self.poll_events(now);
        }
        let Some(link) = self.table.get_mut(id) else { return };
        if matches!(link.state, State::Ending(_)) {
            return;
        }
        self.counters.messages_received += 1;
        link.last_received = now;
        link.ping_unanswered = false;
        link.grace_until = None;
        let mut raw = [0; HEADER_LEN];
        let copied = self.provider.read(arrival.vi, arrival.buffer, 0, &mut raw);
        let header = match copied {
            Ok(HEADER_LEN) => link.check(&raw, arrival.len),
            _ => Err(DeathCause::Protocol(ProtocolError::Length)),
        };
        let up = link.state == State::Up;
        let outcome = header.and_then(|header| match up {
            true => self.on_message(now, id, header, arrival),
            false => self.on_handshake(now, unix_now_s, id, header, arrival),
        });
        if let Err(cause) = outcome {
            self.end(id, DownReason::Died(cause));
        }
        self.mark_dirty(id);
    }

    /// Handles a message of the handshake, whose body is read at once.
    fn on_handshake(
        &mut self,
        now: Instant,
        unix_now_s: u64,
        id: LinkId,
        header: Header,
        arrival: Arrival,
    ) -> Result<(), DeathCause> {
        let mut body = [0; HELLO_LEN_MAX];
        let body_len = header.body_len as usize;
        let body = body.get_mut(..body_len).ok_or(DeathCause::Protocol(ProtocolError::Malformed))?;
        let copied = self.provider.read(arrival.vi, arrival.buffer, HEADER_LEN, body);
        if copied != Ok(body_len) {
            return Err(DeathCause::Protocol(ProtocolError::Length));
        }
        self.repost(id, arrival.buffer);
        let state = |of: State| self.table.get(id).is_some_and(|link| link.state == of);
        let (awaits_hello, awaits_answer) = (state(State::AwaitHello), state(State::AwaitAck));
        let awaits_confirm = state(State::AwaitConfirm);
        match header.kind {
            Kind::Hello if awaits_hello && header.credits == 0 => self.on_hello(now, unix_now_s, id, body),
            Kind::HelloAck if awaits_answer => self.on_ack(now, id, header.credits, body),
            Kind::Confirm if awaits_confirm => self.on_confirm(now, id, header.credits, body),
            Kind::HelloRefused if awaits_answer => self.on_refused(id, body),
            _ => Err(DeathCause::Protocol(ProtocolError::Unexpected)),
        }
    }

    /// Handles a message of a link that is up.
    fn on_message(
        &mut self,
        now: Instant,
        id: LinkId,
        header: Header,
        arrival: Arrival,
    ) -> Result<(), DeathCause> {
        let Some(link) = self.table.get_mut(id) else { return Ok(()) };
        let unexpected = DeathCause::Protocol(ProtocolError::Unexpected);
        match header.kind {
            Kind::Tunnel | Kind::Channel | Kind::Message | Kind::Packets => {
                let kind = kind_of(link.purpose);
                if header.kind != wire_kind(kind) {
                    return Err(unexpected);
                }
                link.waiting += 1;
                link.used(now, &self.config.heartbeat);
                self.counters.bytes_received += u64::from(header.body_len);
                self.ready.push_back(Ready {
                    link: id,
                    buffer: arrival.buffer,
                    kind,
                    immediate: arrival.immediate,
                    body_len: header.body_len as usize,
                    kept: None,
                });
                return Ok(());
            }
            Kind::Hello | Kind::HelloAck | Kind::HelloRefused | Kind::Confirm => return Err(unexpected),
            Kind::Ping | Kind::Pong | Kind::Credit | Kind::Close => {}
        }
        if header.body_len != 0 {
            return Err(DeathCause::Protocol(ProtocolError::Malformed));
        }
        link.pong_due |= header.kind == Kind::Ping;
        self.repost(id, arrival.buffer);
        if header.kind == Kind::Close {
            self.end(id, DownReason::Closed);
        }
        Ok(())
    }

    /// Posts a buffer again and records the descriptor as owed to the peer.
    pub(super) fn repost(&mut self, id: LinkId, buffer: BufferId) {
        if let Some(link) = self.table.get_mut(id) {
            // Fails only if the VI has ended; the link then ends as well.
            if self.provider.post_recv(link.vi, buffer).is_ok() {
                link.descriptors.reposted();
            }
        }
    }

    /// Ends the links whose VI is disconnected, after all their messages are polled.
    fn settle_hang_ups(&mut self, now: Instant) {
        while let Some(id) = self.hang_ups.pop() {
            let Some(link) = self.table.get(id).filter(|link| link.hung_up.is_some()) else { continue };
            let (clean, resuming) = (link.hung_up == Some(true), link.interruption.is_some());
            let (up, ending) = (link.state == State::Up, matches!(link.state, State::Ending(_)));
            if ending || (up && !clean && self.interrupt(now, id)) {
                continue;
            }
            if resuming {
                self.interrupt_again(now, id);
                continue;
            }
            let reason = match (up, clean) {
                (true, true) => DownReason::Closed,
                (true, false) => DownReason::Died(DeathCause::HangUp),
                _ => DownReason::Unreachable { why: "the peer hung up during the handshake".to_owned() },
            };
            self.end(id, reason);
        }
    }

    /// Marks a link to be served at the end of this turn.
    pub(super) fn mark_dirty(&mut self, id: LinkId) {
        if let Some(link) = self.table.get_mut(id)
            && !link.dirty
        {
            link.dirty = true;
            self.dirty.push(id);
        }
    }

    fn serve_dirty(&mut self, now: Instant) {
        while let Some(id) = self.dirty.pop() {
            if let Some(link) = self.table.get_mut(id) {
                link.dirty = false;
            }
            self.serve(now, id);
        }
    }

    /// Answers PING, returns credit and sends a heartbeat, as far as each is due and has a descriptor. A
    /// message without a descriptor stays due: the message that brings credit causes the link to be served
    /// again.
    pub(super) fn serve(&mut self, now: Instant, id: LinkId) {
        let heartbeat = self.config.heartbeat;
        let Some(link) = self.table.get_mut(id).filter(|link| link.can_send()) else { return };
        let provider = self.provider.as_mut();
        let counters = &mut self.counters;
        link.post_replay(now, provider, counters);
        if link.pong_due {
            // A PONG without credit stays due.
            let _ = link.post(now, provider, counters, Kind::Pong, 0, &[]);
        }
        if link.credit_due(now, &heartbeat)
            && link.post(now, provider, counters, Kind::Credit, 0, &[]).is_ok()
        {
            counters.credits_sent += 1;
        }
        if link.ping_due(now, &heartbeat) && link.post(now, provider, counters, Kind::Ping, 0, &[]).is_ok() {
            counters.pings_sent += 1;
            link.ping_unanswered = true;
            link.ping_sent_at = now;
        }
        self.next_check = self.next_check.min(retry_at(link, now, &heartbeat));
    }

    /// Checks all links once the earliest of their deadlines has passed. `late`: this thread did not run in
    /// time, or has not received all messages that have arrived.
    fn check_timers(&mut self, now: Instant, late: bool) {
        if now < self.next_check {
            return;
        }
        self.next_check = Instant::FAR_FUTURE;
        let mut next = self.table.first_from(0);
        while let Some(id) = next {
            self.check_link(now, late, id);
            next = self.table.first_from(id.index + 1);
        }
    }

    fn check_link(&mut self, now: Instant, late: bool, id: LinkId) {
        let heartbeat = self.config.heartbeat;
        let Some(link) = self.table.get_mut(id) else { return };
        match link.state {
            State::Ending(_) => {}
            State::Up => {
                link.note_incomplete(now, self.provider.incomplete(link.vi));
                if link.is_dead(now, late, &heartbeat) {
                    self.end(id, DownReason::Died(DeathCause::Silent));
                } else {
                    self.serve(now, id);
                }
            }
            _ => {
                link.extend_wait(self.back_at, &heartbeat);
                if link.handshake_failed(now, late, &heartbeat) {
                    let why = match link.state {
                        State::Connecting => "no connection in time",
                        State::AwaitConfirm => "no confirmation in time",
                        _ => "no answer to HELLO in time",
                    };
                    return self.give_up(id, why.to_owned());
                }
                if link.state == State::Interrupted {
                    self.retry(now, id);
                }
                if let Some(link) = self.table.get(id) {
                    self.next_check = self.next_check.min(link.next_deadline(now, &heartbeat));
                }
            }
        }
    }

    /// Ends a link: at once if the owner has received all its messages, else after the last one.
    pub(super) fn end(&mut self, id: LinkId, reason: DownReason) {
        let Some(link) = self.table.get_mut(id) else { return };
        if matches!(link.state, State::Ending(_)) {
            return;
        }
        link.state = State::Ending(reason);
        if link.waiting == 0 {
            self.remove_link(id);
        }
    }

    /// Removes a link, releases its VI and reports its end to the owner.
    pub(super) fn remove_link(&mut self, id: LinkId) {
        let Some(link) = self.table.remove(id) else { return };
        // Fails if the VI has ended already; there is nothing to release then.
        let _ = self.provider.disconnect(link.vi);
        let counted = match &link.state {
            _ if !link.known_to_owner() => &mut self.counters.hello_failed,
            State::Ending(DownReason::Died(cause)) => match cause {
                DeathCause::HangUp => &mut self.counters.died_hang_up,
                DeathCause::Silent => &mut self.counters.died_silent,
                DeathCause::Protocol(_) => &mut self.counters.died_protocol,
                DeathCause::CreditViolation => &mut self.counters.died_credit,
                DeathCause::Owner => &mut self.counters.died_owner,
            },
            State::Ending(DownReason::Refused { .. }) => &mut self.counters.refused_by_peer,
            State::Ending(DownReason::Unreachable { .. }) => &mut self.counters.unreachable,
            _ => &mut self.counters.links_closed,
        };
        *counted += 1;
        if link.known_to_owner() {
            let reason = match link.state {
                State::Ending(reason) => reason,
                _ => DownReason::Closed,
            };
            self.events.push_back(LinkEvent::Down { link: id, reason });
        }
    }
}

/// The time at which the link must be served next. A message that is due but found the send queue full is
/// retried a little later.
fn retry_at(link: &Link, now: Instant, heartbeat: &crate::config::Heartbeat) -> Instant {
    let deadline = link.next_deadline(now, heartbeat);
    if deadline <= now || !link.replay.is_empty() { now + heartbeat.interval / 8 } else { deadline }
}
