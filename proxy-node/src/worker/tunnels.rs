//! What network nodes send: records in messages of their tunnels, or left by the one in this thread.

use csp_tcp::{Buffer, Direction, REGION_BLOCKS};
use csp_transport::{LinkEvent, LinkId, MessageKind};
use csp_types::Instant;
use csp_wire::tunnel::{RecordKind, Records};

use super::{MESSAGES_PER_TURN, ProxyWorker};

impl ProxyWorker {
    /// Takes the records that the network node's worker of this thread has left since the last turn, and the
    /// memory lent for them. Before that nothing may happen for which the TCP engine needs its memory.
    pub(super) fn take_left(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some((buffer, len, via)) = self.links.adjacent.take_left() {
            if let Some(via) = via.filter(|_| len > 0) {
                any = true;
                self.malformed += u64::from(!self.take_records(now, via, len, Some(&buffer)));
            }
            self.core.return_buffer(buffer);
        }
        any
    }

    /// Lends memory for the records that the network node's worker of this thread receives next.
    pub(super) fn lend_inbox(&mut self) {
        // A sixteenth of the regions of both directions: small payload needs others to be copied to.
        let regions = self.core.tcp().config().blocks / REGION_BLOCKS;
        for _ in 0..self.links.adjacent.wanted((regions / 16).max(1)) {
            let Some(buffer) = self.core.lend_buffer(Direction::Receive) else { return };
            self.links.adjacent.lend(buffer);
        }
    }

    /// Takes memory back that the next turn does not need: it may be far away.
    pub(super) fn shrink_inbox(&mut self) {
        while let Some(buffer) = self.links.adjacent.take_unneeded() {
            self.core.return_buffer(buffer);
        }
    }

    pub(super) fn take_tunnel(&mut self, now: Instant, at: usize) -> bool {
        let mut any = false;
        for _ in 0..MESSAGES_PER_TURN {
            while let Some(event) = self.links.tunnel_endpoints[at].poll_event() {
                any = true;
                match event {
                    LinkEvent::Up { link, peer, .. } => match self.links.tunnel_up(at, link, &peer) {
                        Some(via) => self.core.tunnel_up(now, via, &mut self.links),
                        None => self.links.tunnel_endpoints[at].close(now, link),
                    },
                    LinkEvent::Down { link, reason } => {
                        if let Some(node) = self.links.tunnel_down(at, link) {
                            self.network_node_unlinked(now, node, &reason);
                        }
                    }
                }
                self.move_connections(now);
            }
            if !self.take_tunnel_message(now, at) {
                return any;
            }
            any = true;
        }
        self.links.adjacent.is_behind();
        any
    }

    /// Receives one message, into a buffer of the TCP engine if one is free; its payload then stays there.
    fn take_tunnel_message(&mut self, now: Instant, at: usize) -> bool {
        let mut buffer = self.core.lend_buffer(Direction::Receive);
        let into = buffer.as_mut().map_or(&mut self.scratch[..], Buffer::bytes_mut);
        let received = self.links.tunnel_endpoints[at].receive(now, into);
        if let Some(received) = received.filter(|received| received.kind == MessageKind::Tunnel) {
            self.take_message(now, (at, received.link), received.len, buffer.as_ref());
        }
        buffer.into_iter().for_each(|buffer| self.core.return_buffer(buffer));
        received.is_some()
    }

    fn take_message(
        &mut self,
        now: Instant,
        (at, link): (usize, LinkId),
        len: usize,
        buffer: Option<&Buffer>,
    ) {
        let Some(via) = self.links.via(at, link) else { return };
        if !self.take_records(now, via, len, buffer) {
            self.malformed += 1;
            self.links.tunnel_endpoints[at].fail(now, link);
        }
    }

    /// Takes the records of a message, or of a buffer in which they were left. `false` if one of them is
    /// malformed, at which it ends.
    fn take_records(&mut self, now: Instant, via: u32, len: usize, buffer: Option<&Buffer>) -> bool {
        let bytes = buffer.map_or(&self.scratch[..], Buffer::bytes);
        for record in Records::new(&bytes[..len.min(bytes.len())]) {
            match record {
                Ok(record) if record.kind == RecordKind::Election => {
                    self.election.arrived(via, record.payload);
                }
                Ok(record) => self.core.on_record(now, via, &record, buffer, &mut self.links),
                Err(_) => return false,
            }
        }
        true
    }
}
