//! Forwards messages in both directions.

use csp_transport::Keys;
use csp_vi::{BufferId, Piece, Provider, ViError, ViId};
use csp_wire::link::{Header, Hello, Kind};

use super::Relay;
use super::forwarding::{Ending, Waiting};

/// The result of forwarding a message to the SAN.
enum Forwarded {
    /// The SAN has accepted it.
    Yes,
    /// The SAN's send queue is full.
    Full,
    /// The forwarding has ended.
    Ended,
}

impl Relay {
    /// Processes a message of a process.
    pub(super) fn on_process_message(
        &mut self,
        app: ViId,
        buffer: BufferId,
        immediate: u32,
        unix_now_s: u64,
    ) {
        let Some(at) = self.of_app(app) else { return };
        let Ok((offset, len)) = self.shm.received_at(app, buffer) else { return };
        let waiting = Waiting { buffer: buffer.0, offset, len, immediate };
        let Some(forwarding) = self.table.get_mut(at) else { return };
        let first = forwarding.waiting.is_empty() && forwarding.san_open().is_some();
        if !first || matches!(self.forward(at, waiting, unix_now_s), Forwarded::Full) {
            self.keep(at, waiting);
        }
    }

    /// Queues a message until the SAN accepts it. The queue has room, because each message holds a buffer of
    /// the ring.
    fn keep(&mut self, at: u32, waiting: Waiting) {
        let Some(forwarding) = self.table.get_mut(at) else { return };
        forwarding.waiting.push_back(waiting);
        self.counters.waited += u64::from(forwarding.san_open().is_some());
        self.try_again(at);
    }

    /// Schedules a forwarding for the next turn, unless its VI is still connecting: then connecting schedules
    /// it.
    fn try_again(&mut self, at: u32) {
        let Some(forwarding) = self.table.get_mut(at) else { return };
        if forwarding.san_open().is_some() && !std::mem::replace(&mut forwarding.stuck, true) {
            self.stuck.push(at);
        }
    }

    /// Passes a message to the SAN directly from the ring.
    fn forward(&mut self, at: u32, message: Waiting, unix_now_s: u64) -> Forwarded {
        if self.post_claimed(at).is_err() {
            self.counters.refused.protocol += 1;
            self.drop_forwarding(at, Ending::Broken);
            return Forwarded::Ended;
        }
        let Some(forwarding) = self.table.get_mut(at) else { return Forwarded::Ended };
        let (Some(vi), Some(region)) = (forwarding.san_open(), forwarding.region) else {
            return Forwarded::Full;
        };
        if !forwarding.greeted {
            return self.forward_hello(at, message, unix_now_s);
        }
        let Some(side) = self.sides.get_mut(forwarding.via) else { return Forwarded::Ended };
        let Waiting { buffer, offset, len, immediate } = message;
        let piece = Piece { region, offset, len };
        let sent = side.provider.post_send_from(vi, u64::from(buffer), immediate, &[], &[piece]);
        self.after_post(at, len, sent)
    }

    fn after_post(&mut self, at: u32, len: usize, sent: Result<(), ViError>) -> Forwarded {
        match sent {
            Ok(()) => {
                self.counters.out_messages += 1;
                self.counters.out_bytes += len as u64;
                Forwarded::Yes
            }
            Err(ViError::Full) => Forwarded::Full,
            // The end of the VI follows as an event; the message stays in the process's ring.
            Err(ViError::NotConnected) => {
                if let Some(forwarding) = self.table.get_mut(at) {
                    forwarding.lost = true;
                }
                Forwarded::Yes
            }
            Err(_) => {
                self.counters.refused.protocol += 1;
                self.drop_forwarding(at, Ending::Broken);
                Forwarded::Ended
            }
        }
    }

    /// Forwards HELLO, which identifies the process. The proxy verifies the token, but cannot know which user
    /// the process has; so the relay compares the token's user with the one reported by the kernel. It sends
    /// the copy that it examined.
    fn forward_hello(&mut self, at: u32, message: Waiting, unix_now_s: u64) -> Forwarded {
        let Some(forwarding) = self.table.get_mut(at) else { return Forwarded::Ended };
        let Some(copy) = self.scratch.get_mut(..message.len) else { return Forwarded::Ended };
        let (Some(vi), Some(side)) = (forwarding.san_open(), self.sides.get_mut(forwarding.via)) else {
            return Forwarded::Full;
        };
        let Some(memory) = &forwarding.memory else { return Forwarded::Ended };
        memory.read(message.offset, copy);
        let refused = &mut self.counters.refused;
        match user_of(copy, &self.config.keys, unix_now_s) {
            None => {
                refused.protocol += 1;
                self.drop_forwarding(at, Ending::Broken);
                return Forwarded::Ended;
            }
            Some(Some(user)) if forwarding.uid.is_some_and(|uid| uid != user) => {
                refused.user += 1;
                self.drop_forwarding(at, Ending::Broken);
                return Forwarded::Ended;
            }
            Some(_) => {}
        }
        let sent = side.provider.post_send(vi, u64::from(message.buffer), message.immediate, &[copy], true);
        forwarding.greeted = sent.is_ok();
        self.after_post(at, message.len, sent)
    }

    /// Sends queued messages until the SAN's send queue is full.
    pub(super) fn send_waiting(&mut self, at: u32, unix_now_s: u64) {
        while let Some(message) = self.table.get_mut(at).and_then(|f| f.waiting.front().copied()) {
            match self.forward(at, message, unix_now_s) {
                Forwarded::Yes => {
                    self.table.get_mut(at).and_then(|forwarding| forwarding.waiting.pop_front());
                }
                Forwarded::Full => return self.try_again(at),
                Forwarded::Ended => return,
            }
        }
        self.end_if_done(at);
    }

    /// Sends again from forwardings whose messages the SAN did not accept.
    pub(super) fn retry_stuck(&mut self, unix_now_s: u64) {
        std::mem::swap(&mut self.stuck, &mut self.retried);
        while let Some(at) = self.retried.pop() {
            if let Some(forwarding) = self.table.get_mut(at) {
                forwarding.stuck = false;
                self.send_waiting(at, unix_now_s);
            }
        }
    }

    /// Processes the completion of a message: it has left the process's ring.
    pub(super) fn on_san_sent(&mut self, via: usize, vi: ViId, wr_id: u64) {
        let Some(at) = self.of_san(via, vi) else { return };
        if let Some(app) = self.table.get_mut(at).and_then(|forwarding| forwarding.app) {
            // The buffer was held since the message arrived.
            let _ = self.shm.post_recv(app, BufferId(wr_id as u32));
        }
    }

    /// Processes a message of the proxy that has arrived in the process's ring.
    pub(super) fn on_san_message(
        &mut self,
        (via, vi): (usize, ViId),
        buffer: BufferId,
        len: u32,
        immediate: u32,
    ) {
        let Some(at) = self.of_san(via, vi) else { return };
        let Some(app) = self.table.get_mut(at).and_then(|forwarding| forwarding.app) else { return };
        match self.shm.publish(app, buffer.0, len, immediate) {
            Ok(()) => {
                self.counters.in_messages += 1;
                self.counters.in_bytes += u64::from(len);
            }
            // The end of the VI follows as an event.
            Err(ViError::NotConnected) => {}
            Err(_) => {
                self.counters.refused.protocol += 1;
                self.drop_forwarding(at, Ending::Broken);
            }
        }
    }
}

/// Returns the user of a HELLO's token, if the token has one and is valid; `None` if the message is no HELLO.
/// Refusing an invalid token is left to the proxy.
fn user_of(message: &[u8], keys: &Keys, unix_now_s: u64) -> Option<Option<u32>> {
    let (header, body) = Header::parse(message).ok()?;
    if header.kind != Kind::Hello {
        return None;
    }
    let hello = Hello::parse(body).ok()?;
    let verified = keys.current().verify(hello.token, unix_now_s, None).ok();
    Some(verified.and_then(|verified| verified.claims.uid))
}
