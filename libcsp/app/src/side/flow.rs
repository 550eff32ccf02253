//! Operations on a connection: read, write, shut down, close, connect.

use std::net::SocketAddr;

use csp_types::{FlowLabel, Instant, TraceKind};
use csp_wire::channel::{
    ALIGNMENT, CLOSE_UNREAD, MESSAGE_HEADER_LEN, MessageHeader, MessageKind, padded_len,
};

use super::channel::{AppLane, Lane};
use super::records::{Flow, Phase};
use super::redirect::unbound;
use super::slots::FlowId;
use super::{AppError, AppSide, Handle, Readiness, errno};
use csp_transport::GATHER_MAX;
use csp_transport::MessageKind as LinkMessageKind;
use csp_transport::ReceiveCredit;

/// Parts of one DATA message besides its header and padding.
const PARTS_MAX: usize = GATHER_MAX - 2;

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

    /// Bytes that [`write`](Self::write) would accept now. If there is no room, the call fails with
    /// [`AppError::WouldBlock`] and readiness reports when there is room, as after a write that was refused.
    /// Other errors are those of `write`.
    pub fn write_room(&mut self, id: FlowId) -> Result<usize, AppError> {
        let (lane, _) = self.writable_flow(id)?;
        self.flush(lane);
        let available = self.flows.get(id.0).map_or(0, |f| f.send.available() as usize);
        if available > 0 && self.has_descriptor(lane) {
            return Ok(available);
        }
        self.write_is_short(id, lane);
        Err(AppError::WouldBlock)
    }

    /// Writes the parts one after another, as far as byte credit and descriptors allow; returns how many
    /// bytes. They have been passed to the provider when this returns, unless the flow is
    /// [corked](Self::set_corked).
    pub fn write(&mut self, now: Instant, id: FlowId, parts: &[&[u8]]) -> Result<usize, AppError> {
        self.now = now;
        let total: usize = parts.iter().map(|p| p.len()).sum();
        let (lane, label) = self.writable_flow(id)?;
        self.flush(lane);
        let corked = self.flows.get(id.0).is_some_and(|f| f.corked);
        if !corked {
            self.release_held(id);
        }
        let mut done = 0;
        while done < total {
            let wrote = if corked {
                self.hold(id, parts, done)
            } else {
                self.write_message(id, lane, label, parts, done)
            };
            match wrote {
                0 => break,
                n => done += n,
            }
        }
        self.counters.bytes_written += done as u64;
        if done > 0 && !corked {
            self.record(TraceKind::AppDataOut, id, done);
        }
        if done < total {
            self.write_is_short(id, lane);
        } else if let Some(flow) = self.flows.get_mut(id.0) {
            // The program may wait for room although no write was refused.
            flow.wants_write = !flow.has_room();
        }
        if done == 0 && total > 0 { Err(AppError::WouldBlock) } else { Ok(done) }
    }

    /// Collects small writes into full messages (TCP_CORK, MSG_MORE), or sends the collected bytes. They are
    /// also sent when the owner [arms](Self::arm) to sleep, and before SHUTDOWN and CLOSE.
    pub fn set_corked(&mut self, now: Instant, id: FlowId, corked: bool) {
        self.now = now;
        if let Some(flow) = self.flows.get_mut(id.0) {
            flow.corked = corked;
        }
        if !corked {
            self.release_held(id);
        }
    }

    /// Adds bytes of `parts` from `skip` on to the corked bytes, and sends a full message; returns how many
    /// bytes were added.
    fn hold(&mut self, id: FlowId, parts: &[&[u8]], skip: usize) -> usize {
        let longest = self.data_len_max();
        let Some(flow) = self.flows.get_mut(id.0) else { return 0 };
        if flow.held.len() >= longest {
            let lane = flow.lane;
            if !self.has_descriptor(lane) {
                return 0;
            }
            self.release_held(id);
        }
        let Some(flow) = self.flows.get_mut(id.0) else { return 0 };
        let room = (longest - flow.held.len().min(longest)).min(flow.send.available() as usize);
        let mut slices: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let (used, len) = cut(parts, skip, room, &mut slices);
        if !flow.send.take(len as u32) {
            return 0;
        }
        if flow.held.is_empty() && len > 0 {
            self.held.push(id);
        }
        slices.iter().take(used).for_each(|slice| flow.held.extend_from_slice(slice));
        len
    }

    /// Sends the corked bytes of a flow.
    pub(super) fn release_held(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id.0).filter(|f| !f.held.is_empty()) else { return };
        let bytes = std::mem::take(&mut flow.held);
        let (lane, label) = (flow.lane, flow.label.filter(|_| !flow.ended_here));
        self.held.retain(|other| *other != id);
        self.record(TraceKind::AppDataOut, id, bytes.len());
        if let Some(label) = label {
            self.send_held(lane, label, bytes);
        }
    }

    /// Sends all corked bytes: the peer must not wait for them while the program sleeps.
    pub(super) fn release_all_held(&mut self) {
        while let Some(id) = self.held.last().copied() {
            self.release_held(id);
            if self.held.last() == Some(&id) {
                // The flow no longer exists.
                self.held.pop();
            }
        }
    }

    fn data_len_max(&self) -> usize {
        self.endpoint.message_len().saturating_sub(MESSAGE_HEADER_LEN + ALIGNMENT)
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
        let (lane, label) = (flow.lane, flow.label);
        if directions.write {
            self.release_held(id);
        }
        if let Some(label) = label.filter(|_| notify_peer) {
            self.send_control(lane, MessageHeader::of_flow(MessageKind::Shutdown, label, 0, 0));
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
        let unread = !flow.queue.is_empty();
        flow.queue = Default::default();
        let (lane, label, connecting) = (flow.lane, flow.label, flow.phase == Phase::Connecting);
        let notify_peer = label.filter(|_| !flow.ended_here);
        flow.ended_here |= label.is_some();
        let over = (label.is_none() && !connecting) || flow.ended_there;
        self.counters.closed += 1;
        self.record(TraceKind::AppClose, id, 0);
        if let Some(label) = notify_peer {
            let header = if reset {
                MessageHeader::of_flow(MessageKind::Reset, label, errno::ECONNRESET as u32, 0)
            } else {
                let flags = if unread { CLOSE_UNREAD } else { 0 };
                MessageHeader { flags, ..MessageHeader::of_flow(MessageKind::Close, label, 0, 0) }
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

    fn writable_flow(&mut self, id: FlowId) -> Result<(Lane, FlowLabel), AppError> {
        let flow = self.flows.get_mut(id.0).filter(|f| !f.orphan).ok_or(AppError::Unknown)?;
        match flow.error.take() {
            None | Some(errno::EPIPE) => {}
            Some(error) => return Err(AppError::Broken(error)),
        }
        if flow.write_shutdown || flow.broken || flow.peer_closed {
            return Err(AppError::Pipe);
        }
        match (flow.phase, flow.label) {
            (Phase::Open, Some(label)) => Ok((flow.lane, label)),
            (Phase::Connecting, _) => Err(AppError::WouldBlock),
            _ => Err(AppError::NotConnected),
        }
    }

    /// Sends one DATA message with bytes of `parts` from `skip` on; returns how many, 0 if nothing can be
    /// sent.
    fn write_message(
        &mut self,
        id: FlowId,
        lane: Lane,
        label: FlowLabel,
        parts: &[&[u8]],
        skip: usize,
    ) -> usize {
        if !self.has_descriptor(lane) {
            return 0;
        }
        let Some(link) = self.lane(lane).and_then(AppLane::link) else { return 0 };
        let longest = self.data_len_max();
        let Some(flow) = self.flows.get_mut(id.0) else { return 0 };
        let limit = longest.min(flow.send.available() as usize);
        let mut gather: [&[u8]; GATHER_MAX] = [&[]; GATHER_MAX];
        let (used, len) = cut(parts, skip, limit, gather.get_mut(1..=PARTS_MAX).unwrap_or(&mut []));
        if len == 0 {
            return 0;
        }
        let header = MessageHeader::of_flow(MessageKind::Data, label, 0, len as u32).emit();
        let padding = [0; ALIGNMENT];
        gather[0] = &header;
        if let Some(last) = gather.get_mut(used + 1) {
            *last = padding.get(..padded_len(len) - len).unwrap_or(&[]);
        }
        let body = gather.get(..used + 2).unwrap_or(&[]);
        let sent = self.endpoint.send(self.now, link, LinkMessageKind::Channel, label.to_wire(), body);
        if sent.is_err() || !flow.send.take(len as u32) {
            return 0;
        }
        len
    }

    fn write_is_short(&mut self, id: FlowId, lane: Lane) {
        let Some(flow) = self.flows.get_mut(id.0) else { return };
        flow.wants_write = true;
        if flow.send.available() == 0 {
            self.counters.write_blocked_window += 1;
        } else {
            self.counters.write_blocked_descriptors += 1;
            self.block_on_descriptors(lane, id);
        }
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

/// Stores slices of `parts`, from byte `skip` on and at most `limit` bytes, in `into`; returns the number of
/// slices and bytes.
fn cut<'a>(parts: &[&'a [u8]], mut skip: usize, limit: usize, into: &mut [&'a [u8]]) -> (usize, usize) {
    let (mut used, mut len) = (0, 0);
    for part in parts {
        let from = skip.min(part.len());
        skip -= from;
        let take = (part.len() - from).min(limit - len);
        if take == 0 {
            continue;
        }
        let (Some(slot), Some(slice)) = (into.get_mut(used), part.get(from..from + take)) else { break };
        *slot = slice;
        used += 1;
        len += take;
    }
    (used, len)
}
