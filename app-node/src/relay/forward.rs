//! Messages, both ways.

use csp_transport::token;
use csp_vi::{BufferId, Piece, Provider, ViError, ViId};
use csp_wire::link::{Header, Hello, Kind};

use super::Relay;
use super::forwarding::{Ending, Waiting};

/// What became of a message on its way to the SAN.
enum Forwarded {
    /// The SAN has it.
    Yes,
    /// The SAN takes nothing now.
    Full,
    /// The forwarding is over.
    Ended,
}

impl Relay {
    /// A process sent something.
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

    /// Keeps a message until the SAN takes it. There is room: each one holds a buffer of the ring.
    fn keep(&mut self, at: u32, waiting: Waiting) {
        let Some(forwarding) = self.table.get_mut(at) else { return };
        forwarding.waiting.push_back(waiting);
        self.counters.waited += u64::from(forwarding.san_open().is_some());
        self.try_again(at);
    }

    /// Has a forwarding looked at in the next turn, unless its end of connecting will do so anyway.
    fn try_again(&mut self, at: u32) {
        let Some(forwarding) = self.table.get_mut(at) else { return };
        if forwarding.san_open().is_some() && !std::mem::replace(&mut forwarding.stuck, true) {
            self.stuck.push(at);
        }
    }

    /// Hands a message to the SAN from where it lies.
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
            // Its end comes as an event; the message stays the process's.
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

    /// HELLO tells who the process is; the proxy checks its token, but cannot know who runs here. So the token's user is
    /// compared with the kernel's word. What was looked at is what is sent: a copy.
    fn forward_hello(&mut self, at: u32, message: Waiting, unix_now_s: u64) -> Forwarded {
        let Some(forwarding) = self.table.get_mut(at) else { return Forwarded::Ended };
        let Some(copy) = self.scratch.get_mut(..message.len) else { return Forwarded::Ended };
        let (Some(vi), Some(side)) = (forwarding.san_open(), self.sides.get_mut(forwarding.via)) else {
            return Forwarded::Full;
        };
        let Some(memory) = &forwarding.memory else { return Forwarded::Ended };
        memory.read(message.offset, copy);
        let refused = &mut self.counters.refused;
        match user_of(copy, &self.config.key, unix_now_s) {
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

    /// Sends what waits, as far as the SAN takes it.
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

    /// Tries those again that the SAN did not take anything of.
    pub(super) fn retry_stuck(&mut self, unix_now_s: u64) {
        std::mem::swap(&mut self.stuck, &mut self.retried);
        while let Some(at) = self.retried.pop() {
            if let Some(forwarding) = self.table.get_mut(at) {
                forwarding.stuck = false;
                self.send_waiting(at, unix_now_s);
            }
        }
    }

    /// A message of the process has left its ring.
    pub(super) fn on_san_sent(&mut self, via: usize, vi: ViId, wr_id: u64) {
        let Some(at) = self.of_san(via, vi) else { return };
        if let Some(app) = self.table.get_mut(at).and_then(|forwarding| forwarding.app) {
            // It is held since the message came.
            let _ = self.shm.post_recv(app, BufferId(wr_id as u32));
        }
    }

    /// A message of the proxy lies in the process's ring.
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
            // Its end comes as an event.
            Err(ViError::NotConnected) => {}
            Err(_) => {
                self.counters.refused.protocol += 1;
                self.drop_forwarding(at, Ending::Broken);
            }
        }
    }
}

/// The user that a HELLO's token names, if it names one and is good; `None` where the message is no HELLO. A token that
/// is not good is the proxy's to refuse, in its words.
fn user_of(message: &[u8], key: &csp_transport::ClusterKey, unix_now_s: u64) -> Option<Option<u32>> {
    let (header, body) = Header::parse(message).ok()?;
    if header.kind != Kind::Hello {
        return None;
    }
    let hello = Hello::parse(body).ok()?;
    Some(token::verify(key, hello.token, unix_now_s).ok().and_then(|claims| claims.uid))
}
