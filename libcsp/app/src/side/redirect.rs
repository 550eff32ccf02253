//! Requests for connections.
//!
//! Only one proxy worker serves a message channel. Another worker refuses a connection to the channel's
//! address and names that worker.

use std::net::SocketAddr;

use csp_types::{Duration, Instant};
use csp_wire::channel::{CONNECT_BY_LAN, ConnectPayload, MessageHeader, MessageKind, Redirect};

use super::channel::Lane;
use super::records::Phase;
use super::slots::FlowId;
use super::{AppSide, errno};

/// Largest number of CONNECTs sent for one connection. Workers whose views of the proxies differ could
/// otherwise refer to each other forever.
pub(super) const CONNECTS_MAX: u8 = 4;
/// Longest time that a connection waits for a link to the named worker.
pub(super) const LINK_PATIENCE: Duration = Duration::from_secs(1);

/// A connection that waits for a link to the named worker, and the end of the wait.
pub(super) type Waiting = (Instant, FlowId, Redirect);

impl AppSide {
    /// Sends CONNECT for a flow on its lane.
    pub(super) fn send_connect(&mut self, id: FlowId, flags: u8) {
        let Some(flow) = self.flows.get_mut(id.0) else { return };
        flow.connects = flow.connects.saturating_add(1);
        let local = Some(flow.local).filter(|local| *local != unbound(flow.remote));
        let (lane, payload) = (flow.lane, ConnectPayload { remote: flow.remote, local });
        let mut bytes = [0; ConnectPayload::LEN_MAX];
        let len = payload.emit(&mut bytes).unwrap_or(0);
        let header = MessageHeader::new(MessageKind::Connect, id.to_wire(), self.config.receive_window, 0);
        self.send_control_with(lane, MessageHeader { flags, ..header }, bytes.get(..len).unwrap_or(&[]));
    }

    /// Requests a connection from the worker that another worker named in its refusal. Returns `false` if the
    /// connection fails.
    ///
    /// A worker that the agent has not announced is reached through a network node. If the worker was
    /// announced but no link to it is up, the connection waits: the worker may have died, and the other
    /// workers may not have noticed yet.
    pub(super) fn follow_redirect(&mut self, id: FlowId, there: Redirect) -> bool {
        let Some(flow) = self.flows.get(id.0) else { return false };
        let (connects, refused_by) = (flow.connects, flow.lane.channel);
        if flow.orphan || !(1..CONNECTS_MAX).contains(&connects) {
            return false;
        }
        self.counters.connects_elsewhere += 1;
        let named = self.named(there).filter(|channel| *channel != refused_by);
        match named {
            Some(channel) => {
                if !self.connect_over(id, channel) {
                    self.redirected.push((self.now + LINK_PATIENCE, id, there));
                }
            }
            None => self.send_connect(id, CONNECT_BY_LAN),
        }
        true
    }

    /// Requests the connections whose worker now has a link, and fails those that have waited too long.
    pub(super) fn settle_redirected(&mut self) {
        for (due, id, there) in std::mem::take(&mut self.redirected) {
            let Some(flow) = self.flows.get(id.0) else { continue };
            if flow.orphan {
                self.flows.remove(id.0); // no answer will come
            } else if flow.phase != Phase::Connecting || flow.broken {
                continue;
            } else if !self.named(there).is_some_and(|channel| self.connect_over(id, channel)) {
                match due > self.now {
                    true => self.redirected.push((due, id, there)),
                    false => self.fail_redirected(id),
                }
            }
        }
    }

    /// Returns the earliest time at which [`settle_redirected`](Self::settle_redirected) fails a connection.
    pub(super) fn redirect_deadline(&self) -> Option<Instant> {
        self.redirected.iter().map(|(due, ..)| *due).min()
    }

    fn fail_redirected(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(id.0) {
            (flow.ended_here, flow.ended_there) = (true, true);
        }
        self.break_flow(id, errno::EHOSTUNREACH);
    }

    /// Requests a connection over a channel, if one of its links is up.
    fn connect_over(&mut self, id: FlowId, channel: usize) -> bool {
        let up = self.channels.get(channel).and_then(|known| known.first_up());
        let (Some(index), Some(flow)) = (up, self.flows.get_mut(id.0)) else { return false };
        flow.lane = Lane { channel, index };
        self.send_connect(id, 0);
        true
    }

    /// Returns the channel to the worker, if the agent announces it.
    fn named(&self, there: Redirect) -> Option<usize> {
        self.channels.iter().position(|known| {
            let target = known.target();
            known.is_wanted() && there.names(&target.node, target.worker)
        })
    }
}

/// Returns the address of an unbound socket in the family of `remote`.
pub(super) fn unbound(remote: SocketAddr) -> SocketAddr {
    match remote.is_ipv4() {
        true => ([0, 0, 0, 0], 0).into(),
        false => ([0u16; 8], 0).into(),
    }
}
