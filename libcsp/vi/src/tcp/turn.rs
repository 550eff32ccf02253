//! One turn: what is to be sent goes to the kernel, what the kernel has comes from it.

use super::end::Stage;
use super::frame::{Kind, REJECT_MISMATCH};
use super::incoming::{Body, Frame, Violation};
use super::outgoing::PARTS_MAX;
use super::sys::{Edge, Moved};
use super::{LISTEN_EVERY, TcpProvider};
use crate::clock::monotonic_ms;
use crate::{Completion, ViError, ViId};

/// Bytes received from one VI in a turn, so that it does not delay the others.
const RECEIVE_LEN: usize = 256 * 1024;

/// Length of a message, in bytes, after which the next is expected to be as long: then little is received
/// beyond a message, since that is copied once more.
const LARGE_LEN: usize = 4 * 1024;

/// Bytes received beyond the rest of a message, after a large one.
const AHEAD_LEN: usize = 2 * 1024;

/// What a socket belongs to, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token {
    Listener(u64),
    Silent(u64),
    Waiting(u64),
    End(u64),
}

impl Token {
    pub(super) fn to_bits(self) -> u64 {
        match self {
            Token::Listener(id) => id << 2,
            Token::Silent(id) => id << 2 | 1,
            Token::Waiting(id) => id << 2 | 2,
            Token::End(id) => id << 2 | 3,
        }
    }

    fn from_bits(bits: u64) -> Self {
        let id = bits >> 2;
        match bits & 3 {
            0 => Token::Listener(id),
            1 => Token::Silent(id),
            2 => Token::Waiting(id),
            _ => Token::End(id),
        }
    }
}

impl TcpProvider {
    /// Sends what is to be sent, and receives what has arrived.
    pub(super) fn progress(&mut self) {
        // Many workers have a provider that nobody has connected to: a look at its sockets is a system call.
        self.idle_turns += 1;
        let has_none = self.ends.is_empty() && self.silent.is_empty() && self.waiting.is_empty();
        if has_none && self.idle_turns < LISTEN_EVERY {
            return;
        }
        self.idle_turns = 0;
        self.send_dirty();
        for edge in self.watched.edges() {
            self.on_edge(edge);
        }
        self.accept_all();
        for _ in 0..self.readable.len() {
            let Some(vi) = self.readable.pop_front() else { break };
            self.receive(vi);
        }
        self.send_dirty();
        while let Some(vi) = self.lingering.expired(monotonic_ms()) {
            self.finish(vi);
        }
    }

    fn on_edge(&mut self, edge: Edge) {
        match Token::from_bits(edge.token) {
            Token::Listener(index) => {
                if let Some(listener) = self.listeners.get_mut(index as usize) {
                    listener.is_readable = true;
                }
            }
            Token::Silent(id) => self.read_request(id),
            Token::Waiting(id) => self.check_waiting(id),
            Token::End(vi) => self.on_edge_of_end(vi, edge),
        }
    }

    fn on_edge_of_end(&mut self, vi: u64, edge: Edge) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        let Some(connection) = &end.connection else { return };
        if end.is_pending {
            match connection.outcome() {
                Ok(established) => end.is_pending = !established,
                Err(error) => {
                    let address = "the listener".to_owned();
                    return self.refuse(vi, ViError::Unreachable { address, reason: error.to_string() });
                }
            }
        }
        end.has_hung_up |= edge.hung_up;
        if edge.writable {
            end.is_blocked = false;
        }
        let (has_unsent, is_readable) = (end.outgoing.unsent_len() > 0, edge.readable);
        if edge.writable && has_unsent {
            self.mark_dirty(vi);
        }
        if is_readable {
            self.mark_readable(vi);
        }
    }

    fn mark_readable(&mut self, vi: u64) {
        if let Some(end) = self.ends.get_mut(vi)
            && !std::mem::replace(&mut end.is_readable, true)
        {
            self.readable.push_back(vi);
        }
    }

    fn send_dirty(&mut self) {
        while let Some(vi) = self.dirty.pop_front() {
            if let Some(end) = self.ends.get_mut(vi) {
                end.is_dirty = false;
            }
            self.send(vi);
        }
    }

    /// Gives the kernel what a VI has to send, until it takes no more.
    pub(super) fn send(&mut self, vi: u64) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        if end.is_pending || end.is_blocked {
            return;
        }
        if end.are_counts_due() {
            // Without room, the provider's frames that fill it carry the counts of a moment ago.
            let _ = end.push_own(Kind::Counts, 0, &[]);
        }
        let Some(connection) = &end.connection else { return };
        while end.outgoing.unsent_len() > 0 {
            let mut parts = [(std::ptr::null(), 0); PARTS_MAX];
            let count = end.outgoing.parts(&mut parts);
            let parts = parts.get(..count).unwrap_or(&[]);
            let wanted: usize = parts.iter().map(|(_, len)| len).sum();
            // SAFETY: the parts lie in the memory of `outgoing` and in memory that it keeps mapped; it is not
            // changed during the call.
            match unsafe { connection.send(parts) } {
                Moved::Bytes(len) => {
                    end.outgoing.taken(len);
                    end.is_blocked = len < wanted;
                }
                Moved::None => end.is_blocked = true,
                Moved::Over => {
                    // What the peer sent before is received first.
                    end.has_hung_up = true;
                    return self.mark_readable(vi);
                }
            }
            if end.is_blocked {
                return;
            }
        }
        if end.stage == Stage::Lingering {
            connection.shut();
        }
    }

    /// Receives what the kernel has for a VI, up to a bound.
    fn receive(&mut self, vi: u64) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut received = 0;
        let has_more = loop {
            if received >= RECEIVE_LEN {
                break true;
            }
            match self.receive_once(vi, &mut scratch) {
                Some(len) => received += len,
                None => break false,
            }
        };
        self.scratch = scratch;
        let Some(end) = self.ends.get_mut(vi) else { return };
        end.is_readable = has_more;
        if end.are_counts_due() {
            self.mark_dirty(vi);
        }
        if has_more {
            self.readable.push_back(vi);
        }
    }

    /// Receives once; returns how much, or `None` if the kernel has no more.
    fn receive_once(&mut self, vi: u64, scratch: &mut [u8]) -> Option<usize> {
        let end = self.ends.get_mut(vi)?;
        let connection = end.connection.as_ref()?;
        let is_over = matches!(end.stage, Stage::Lingering | Stage::Closed) || end.reported.has_ended();
        let place = if is_over { None } else { end.incoming.place(&mut end.receives) };
        let is_large = end.incoming.last_len() >= LARGE_LEN && !is_over;
        let ahead = if is_large { AHEAD_LEN } else { scratch.len() };
        let ahead = scratch.get_mut(..ahead)?;
        let asked = ahead.len() + place.map_or(0, |(_, len)| len);
        // SAFETY: the place lies in the receive buffers, which nothing else uses during the call.
        let len = match unsafe { connection.receive(place, ahead) } {
            Moved::Bytes(len @ 1..) => len,
            Moved::None => return None,
            Moved::Bytes(0) | Moved::Over => {
                self.on_over(vi);
                return None;
            }
        };
        let has_more = len == asked || end.has_hung_up;
        let placed = place.map_or(0, |(_, room)| room.min(len));
        let rest = ahead.get(..len - placed).unwrap_or(&[]);
        if !is_over && self.take(vi, placed, rest).is_err() {
            self.violate(vi);
            return None;
        }
        has_more.then_some(len)
    }

    /// Handles received bytes: `placed` are in their receive buffer, those after them in `rest`.
    fn take(&mut self, vi: u64, placed: usize, mut rest: &[u8]) -> Result<(), Violation> {
        let Some(end) = self.ends.get_mut(vi) else { return Ok(()) };
        if placed > 0
            && let Some(frame) = end.incoming.placed(&mut end.receives, placed)?
        {
            self.on_frame(vi, frame)?;
        }
        while !rest.is_empty()
            && let Some(end) = self.ends.get_mut(vi)
            && end.connection.is_some()
            && let Some(frame) = end.incoming.feed(&mut end.receives, &mut rest)?
        {
            self.on_frame(vi, frame)?;
        }
        Ok(())
    }

    fn on_frame(&mut self, vi: u64, frame: Frame) -> Result<(), Violation> {
        let Some(end) = self.ends.get_mut(vi) else { return Ok(()) };
        let Frame { header, body } = frame;
        match (header.kind, end.stage, body) {
            (Kind::Accept, Stage::Connecting, Body::Setup(setup)) => self.on_accept(vi, &setup),
            (Kind::Reject, Stage::Connecting, _) => self.refuse(
                vi,
                match header.immediate {
                    REJECT_MISMATCH => ViError::Protocol("the message lengths differ"),
                    _ => ViError::Rejected,
                },
            ),
            (Kind::Data | Kind::Counts | Kind::Close, Stage::Opening | Stage::Open, body) => {
                let completions = &mut self.reports.completions;
                let mut sent = |wr_id| completions.push_back(Completion::Sent { vi: ViId(vi), wr_id });
                if !end.window.update(header.posted) || !end.outgoing.confirm(header.received, &mut sent) {
                    return Err(Violation);
                }
                if let Body::Message(arrived) = body {
                    end.count_received(header.len, header.confirm);
                    self.reports.arrived(vi, &mut end.reported, arrived);
                }
                if header.kind == Kind::Close {
                    self.reports.end(&mut end.reported, true);
                    end.connection = None;
                }
            }
            _ => return Err(Violation),
        }
        Ok(())
    }

    /// Handles the end of a connection.
    fn on_over(&mut self, vi: u64) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        match end.stage {
            Stage::Connecting => {
                let address = "the listener".to_owned();
                let reason = "it closed the connection".to_owned();
                self.refuse(vi, ViError::Unreachable { address, reason });
            }
            Stage::Lingering => self.finish(vi),
            Stage::Opening | Stage::Open => {
                self.reports.end(&mut end.reported, false);
                end.connection = None;
            }
            Stage::Closed => end.connection = None,
        }
    }

    /// Ends a VI whose peer violates the format or the flow control.
    fn violate(&mut self, vi: u64) {
        self.counters.violations += 1;
        let Some(end) = self.ends.get_mut(vi) else { return };
        if end.stage == Stage::Connecting {
            return self.refuse(vi, ViError::Protocol("a frame is malformed"));
        }
        self.reports.end(&mut end.reported, false);
        end.connection = None;
    }

    /// Reports the end of VIs whose last message was polled.
    pub(super) fn report_ends(&mut self) {
        for index in 0..if self.reports.has_endings() { self.ends.len() } else { 0 } {
            if let Some((vi, end)) = self.ends.at_mut(index) {
                self.reports.report_end(vi, &mut end.reported);
            }
        }
    }
}
