//! Operations on a connection: read, shut down, close, connect.

use std::net::SocketAddr;

use csp_types::{FlowLabel, Instant, TraceKind};
use csp_wire::channel::{CLOSE_UNREAD, MessageHeader, MessageKind, close_argument};

use super::records::{Flow, Phase};
use super::redirect::unbound;
use super::slots::FlowId;
use super::{AppError, AppSide, Handle, Readiness};
use csp_transport::ReceiveCredit;

/// State of a flow, for inspection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowPhase {
    /// Offered, not accepted.
    Pending,
    /// Requested, not answered.
    Connecting,
    /// Open for the program.
    Open,
    /// Closed by the program; the proxy has not closed it yet.
    Closing,
}

/// A flow, for inspection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowInfo {
    /// Its socket.
    pub flow: FlowId,
    /// Its label; [`FlowLabel::NONE`] before it has one.
    pub label: FlowLabel,
    /// Its state.
    pub phase: FlowPhase,
    /// The local end.
    pub local: SocketAddr,
    /// The remote end.
    pub remote: SocketAddr,
    /// Bytes received and not read.
    pub unread: usize,
    /// Bytes sent that the proxy has not acknowledged as consumed.
    pub in_flight: u32,
}

/// The directions that `shutdown` ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Directions {
    /// No more reading.
    pub read: bool,
    /// No more writing.
    pub write: bool,
}

impl AppSide {
    /// Reads up to `into.len()` bytes; returns 0 at the end of the stream. With `peek` the bytes are not
    /// consumed.
    pub fn read(&mut self, now: Instant, id: FlowId, into: &mut [u8], peek: bool) -> Result<usize, AppError> {
        self.now = now;
        let flow = self.flows.get_mut(id.0).filter(|f| !f.orphan).ok_or(AppError::Unknown)?;
        if flow.queue.is_empty() || into.is_empty() {
            return nothing_to_read(flow, into.is_empty());
        }
        let (front, back) = flow.queue.as_slices();
        let first = front.len().min(into.len());
        let (to_front, rest) = into.split_at_mut(first);
        to_front.copy_from_slice(front.get(..first).unwrap_or(&[]));
        let second = back.len().min(rest.len());
        if let (Some(to), Some(from)) = (rest.get_mut(..second), back.get(..second)) {
            to.copy_from_slice(from);
        }
        let len = first + second;
        if peek {
            return Ok(len);
        }
        if len == flow.queue.len() {
            flow.queue.clear();
        } else {
            flow.queue.drain(..len);
        }
        flow.receive.consumed(len as u32);
        flow.bytes_read = flow.bytes_read.map(|before| before.wrapping_add(len as u32));
        self.counters.bytes_read += len as u64;
        self.record(TraceKind::AppDataIn, id, len);
        self.send_credit(id);
        Ok(len)
    }

    /// Bytes that can be read now.
    pub fn unread(&self, id: FlowId) -> usize {
        self.flows.get(id.0).map_or(0, |f| f.queue.len())
    }

    /// Bytes written that the proxy has not acknowledged as consumed.
    pub fn in_flight(&self, id: FlowId) -> u32 {
        self.flows.get(id.0).map_or(0, |f| f.send.in_flight())
    }

    /// Ends directions, as `shutdown` does. Bytes written before are delivered, then the end of the stream.
    pub fn shutdown(&mut self, now: Instant, id: FlowId, directions: Directions) -> Result<(), AppError> {
        self.now = now;
        let flow = self.flows.get_mut(id.0).filter(|f| !f.orphan).ok_or(AppError::Unknown)?;
        if flow.phase != Phase::Open || flow.broken {
            return Err(AppError::NotConnected);
        }
        flow.read_shutdown |= directions.read;
        let notify_peer = directions.write && !flow.write_shutdown && !flow.ended_here && !flow.peer_closed;
        flow.write_shutdown |= directions.write;
        let (lane, label, read) = (flow.lane, flow.label, close_argument(flow.bytes_read));
        if directions.write {
            self.release_held(id);
        }
        if let Some(label) = label.filter(|_| notify_peer) {
            self.send_control(lane, MessageHeader::of_flow(MessageKind::Shutdown, label, read, 0));
        }
        self.notify(Handle::Flow(id));
        Ok(())
    }

    /// Closes the socket. Bytes written before are delivered, then the end of the stream. With `reset`
    /// (SO_LINGER 0) or with unread data the peer sees a reset, as with kernel TCP (RFC 1122 §4.2.2.13).
    pub fn close(&mut self, now: Instant, id: FlowId, reset: bool) -> Result<(), AppError> {
        self.now = now;
        self.flows.get(id.0).filter(|f| !f.orphan).ok_or(AppError::Unknown)?;
        self.release_held(id);
        let flow = self.flows.get_mut(id.0).ok_or(AppError::Unknown)?;
        flow.orphan = true;
        let (unread, read) = (!flow.queue.is_empty(), close_argument(flow.bytes_read));
        flow.queue = Default::default();
        let (lane, label, connecting) = (flow.lane, flow.label, flow.phase == Phase::Connecting);
        let notify_peer = label.filter(|_| !flow.ended_here);
        flow.ended_here |= label.is_some();
        let over = (label.is_none() && !connecting) || flow.ended_there;
        self.counters.closed += 1;
        self.record(TraceKind::AppClose, id, 0);
        if let Some(label) = notify_peer {
            let header = if reset {
                MessageHeader::of_flow(MessageKind::Reset, label, read, 0)
            } else {
                let flags = if unread { CLOSE_UNREAD } else { 0 };
                MessageHeader { flags, ..MessageHeader::of_flow(MessageKind::Close, label, read, 0) }
            };
            self.send_control(lane, header);
        }
        if over {
            self.release_label(id);
            self.flows.remove(id.0);
        }
        Ok(())
    }

    /// Starts a connection through a proxy whose link is up; it becomes writable when it is established.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<FlowId, AppError> {
        self.now = now;
        let lane = self.pick_lane().ok_or(AppError::NoProxy)?;
        let mut flow = Flow::new(Phase::Connecting, lane, local.unwrap_or(unbound(remote)), remote);
        flow.receive = ReceiveCredit::new(self.config.receive_window);
        let id = self.flows.insert(flow).map(FlowId).ok_or(AppError::Full("flow"))?;
        self.counters.connects += 1;
        self.send_connect(id, 0);
        Ok(id)
    }

    /// The pending error, as errno; it stays pending.
    pub fn error(&self, id: FlowId) -> Option<i32> {
        self.flows.get(id.0)?.error
    }

    /// Returns and clears the pending error (`SO_ERROR`).
    pub fn take_error(&mut self, id: FlowId) -> Option<i32> {
        self.flows.get_mut(id.0)?.error.take()
    }

    /// The two ends, and whether the connection is established.
    pub fn addresses(&self, id: FlowId) -> Option<(SocketAddr, SocketAddr, bool)> {
        let flow = self.flows.get(id.0)?;
        Some((flow.local, flow.remote, flow.phase == Phase::Open && !flow.broken))
    }

    /// The flow's label; [`FlowLabel::NONE`] before it has one.
    pub fn label(&self, id: FlowId) -> FlowLabel {
        self.flows.get(id.0).map_or(FlowLabel::NONE, |f| f.traced_label)
    }

    /// All flows.
    pub fn flows(&self) -> impl Iterator<Item = FlowInfo> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (slot, id) = self.flows.at_or_after(at)?;
            at = slot + 1;
            let f = self.flows.get(id)?;
            let phase = match f.phase {
                _ if f.orphan => FlowPhase::Closing,
                Phase::Pending => FlowPhase::Pending,
                Phase::Connecting => FlowPhase::Connecting,
                Phase::Open => FlowPhase::Open,
            };
            let (local, remote, unread) = (f.local, f.remote, f.queue.len());
            let in_flight = f.send.in_flight();
            Some(FlowInfo {
                flow: FlowId(id),
                label: f.traced_label,
                phase,
                local,
                remote,
                unread,
                in_flight,
            })
        })
    }

    pub(super) fn flow_readiness(&self, id: FlowId) -> Readiness {
        let Some(flow) = self.flows.get(id.0) else { return Readiness::default() };
        if flow.phase == Phase::Connecting {
            return Readiness::default();
        }
        let mut ready = Readiness::default();
        let reading_over = flow.peer_shutdown || flow.read_shutdown || flow.broken;
        if !flow.queue.is_empty() || reading_over {
            ready = ready.with(Readiness::READABLE);
        }
        if reading_over {
            ready = ready.with(Readiness::PEER_SHUTDOWN);
        }
        let writing_over = flow.write_shutdown || flow.broken || flow.peer_closed;
        // Free descriptors are not considered: others may use them before the program writes, and their
        // return would not be noticed. A flow whose write found none is blocked until it is notified.
        if writing_over || (flow.phase == Phase::Open && flow.has_room() && !flow.blocked) {
            ready = ready.with(Readiness::WRITABLE);
        }
        if flow.broken || (reading_over && (flow.write_shutdown || flow.peer_closed && flow.ended_here)) {
            ready = ready.with(Readiness::HANG_UP);
        }
        if flow.error.is_some() { ready.with(Readiness::ERROR) } else { ready }
    }

    /// Both sides have ended the flow: removes its label from the channel.
    pub(super) fn release_label(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id.0) else { return };
        let Some(label) = flow.label.take() else { return };
        if let Some(channel) = self.channels.get_mut(flow.lane.channel) {
            channel.labels.remove(&label.to_wire());
        }
    }

    /// Marks the connection as broken, with `error` to be reported once.
    pub(super) fn break_flow(&mut self, id: FlowId, error: i32) {
        let Some(flow) = self.flows.get_mut(id.0) else { return };
        let connecting = flow.phase == Phase::Connecting;
        flow.phase = Phase::Open;
        flow.broken = true;
        flow.error = Some(error);
        if connecting {
            self.counters.connect_failures += 1;
        } else {
            self.counters.resets += 1;
        }
        self.record(TraceKind::AppReset, id, 0);
        self.notify(Handle::Flow(id));
    }
}

/// The result of a read when the queue is empty or no bytes were requested.
fn nothing_to_read(flow: &mut Flow, asked_nothing: bool) -> Result<usize, AppError> {
    if asked_nothing && !flow.queue.is_empty() {
        return Ok(0);
    }
    // The end of the stream is the end, whatever has happened since: the error stays for writing and
    // SO_ERROR.
    if flow.peer_shutdown {
        return Ok(0);
    }
    if let Some(error) = flow.error.take() {
        return Err(AppError::Broken(error));
    }
    if flow.read_shutdown || flow.broken {
        return Ok(0);
    }
    match flow.phase {
        Phase::Open | Phase::Connecting => Err(AppError::WouldBlock),
        Phase::Pending => Err(AppError::NotConnected),
    }
}
