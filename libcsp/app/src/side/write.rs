//! Writing to a connection, and collecting small writes (TCP_CORK).

use csp_types::{FlowLabel, Instant, TraceKind};
use csp_wire::channel::{ALIGNMENT, MESSAGE_HEADER_LEN, MessageHeader, MessageKind, padded_len};

use super::channel::{AppLane, Lane};
use super::records::Phase;
use super::slots::FlowId;
use super::{AppError, AppSide, errno};
use csp_transport::GATHER_MAX;
use csp_transport::MessageKind as LinkMessageKind;
use csp_vi::Place;

/// Parts of one DATA message besides its header, what was collected, and its padding.
const PARTS_MAX: usize = GATHER_MAX - 3;

/// Bytes of one write from which on they are sent though the flow is corked: they fill segments whatever
/// follows, and collecting them would copy them once more.
const UNCOLLECTED_MIN: usize = 4 * 1024;

impl AppSide {
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
    /// bytes. They have been passed to the provider when this returns, except fewer than 4 KiB of a
    /// [corked](Self::set_corked) flow.
    pub fn write(&mut self, now: Instant, id: FlowId, parts: &[&[u8]]) -> Result<usize, AppError> {
        self.now = now;
        let total: usize = parts.iter().map(|p| p.len()).sum();
        let (lane, label) = self.writable_flow(id)?;
        self.flush(lane);
        let corked = self.flows.get(id.0).is_some_and(|f| f.corked);
        if !corked {
            self.release_held(id);
        }
        let (mut done, mut sent) = (0, 0);
        while done < total {
            if corked && total - done < UNCOLLECTED_MIN {
                match self.hold(id, parts, done) {
                    0 => break,
                    len => done += len,
                }
                continue;
            }
            let Some(len) = self.write_message(id, lane, label, parts, done) else { break };
            (done, sent) = (done + len, sent + len);
        }
        self.counters.bytes_written += done as u64;
        if sent > 0 {
            self.record(TraceKind::AppDataOut, id, sent);
        }
        if done < total {
            self.write_is_short(id, lane);
        } else if let Some(flow) = self.flows.get_mut(id.0) {
            // The program may wait for room although no write was refused.
            flow.wants_write = !flow.has_room();
        }
        if done == 0 && total > 0 { Err(AppError::WouldBlock) } else { Ok(done) }
    }

    /// Whether [`write_filled`](Self::write_filled) works.
    pub fn can_fill(&self) -> bool {
        self.endpoint.can_fill()
    }

    /// Writes at most `len` bytes that `fill` puts where they leave from, after bytes that are corked. `fill`
    /// is called once, unless the call fails before, with a place of at most `len` bytes, and returns how
    /// many it has written from the start of it; 0: nothing is sent. Returns that number. Otherwise as
    /// [`write`](Self::write).
    pub fn write_filled(
        &mut self,
        now: Instant,
        id: FlowId,
        len: usize,
        fill: &mut dyn FnMut(&Place<'_>) -> usize,
    ) -> Result<usize, AppError> {
        self.now = now;
        let longest = self.data_len_max();
        if self.flows.get(id.0).is_some_and(|flow| flow.held.len() >= longest) {
            self.release_held(id);
        }
        let room = self.write_room(id)?;
        let (lane, label) = self.writable_flow(id)?;
        let link = self.lane(lane).and_then(AppLane::link).ok_or(AppError::WouldBlock)?;
        let flow = self.flows.get_mut(id.0).ok_or(AppError::Unknown)?;
        let held = flow.held.len();
        let room = longest.saturating_sub(held).min(room).min(len);
        let start = MESSAGE_HEADER_LEN + held;
        let mut filled = 0;
        let mut make = |place: &Place<'_>| {
            filled = fill(&place.part(start, room)).min(room);
            let total = held + filled;
            let header = MessageHeader::of_flow(MessageKind::Data, label, 0, total as u32).emit();
            let padding = [0; ALIGNMENT];
            let padding = padding.get(..padded_len(total) - total).unwrap_or(&[]);
            let made = place.write(0, &header)
                && place.write(MESSAGE_HEADER_LEN, &flow.held)
                && place.write(start + filled, padding);
            if filled > 0 && made { start + filled + padding.len() } else { 0 }
        };
        let what = (LinkMessageKind::Channel, label.to_wire());
        let sent = self.endpoint.send_filled(now, link, what, start + room + ALIGNMENT, &mut make);
        match sent {
            Ok(0) => return Ok(0),
            Ok(_) => {}
            Err(_) => {
                self.write_is_short(id, lane);
                return Err(AppError::WouldBlock);
            }
        }
        let paid = flow.send.take(filled as u32);
        debug_assert!(paid, "no more than is available");
        flow.held.clear();
        // The program may wait for room although no write was refused.
        flow.wants_write = !flow.has_room();
        if held > 0 {
            self.held.retain(|other| *other != id);
        }
        self.counters.bytes_written += filled as u64;
        self.record(TraceKind::AppDataOut, id, held + filled);
        Ok(filled)
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

    /// Whether small writes are collected.
    pub fn is_corked(&self, id: FlowId) -> bool {
        self.flows.get(id.0).is_some_and(|flow| flow.corked)
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

    /// Sends the corked bytes of a flow, or queues them if no descriptor is free.
    pub(super) fn release_held(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id.0).filter(|f| !f.held.is_empty()) else { return };
        let (lane, label) = (flow.lane, flow.label.filter(|_| !flow.ended_here));
        if let Some(label) = label
            && self.write_message(id, lane, label, &[], 0).is_some()
        {
            return;
        }
        let Some(flow) = self.flows.get_mut(id.0) else { return };
        let bytes = std::mem::take(&mut flow.held);
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

    /// Sends one DATA message: the flow's corked bytes, then bytes of `parts` from `skip` on. Returns how
    /// many of `parts`, or `None` if nothing can be sent.
    fn write_message(
        &mut self,
        id: FlowId,
        lane: Lane,
        label: FlowLabel,
        parts: &[&[u8]],
        skip: usize,
    ) -> Option<usize> {
        if !self.has_descriptor(lane) {
            return None;
        }
        let link = self.lane(lane).and_then(AppLane::link)?;
        let longest = self.data_len_max();
        let flow = self.flows.get_mut(id.0)?;
        let held = flow.held.len();
        let limit = longest.saturating_sub(held).min(flow.send.available() as usize);
        let mut gather: [&[u8]; GATHER_MAX] = [&[]; GATHER_MAX];
        let (used, len) = cut(parts, skip, limit, gather.get_mut(2..2 + PARTS_MAX)?);
        let total = held + len;
        if total == 0 {
            return None;
        }
        let header = MessageHeader::of_flow(MessageKind::Data, label, 0, total as u32).emit();
        let padding = [0; ALIGNMENT];
        (gather[0], gather[1]) = (&header, &flow.held);
        *gather.get_mut(used + 2)? = padding.get(..padded_len(total) - total)?;
        let body = gather.get(..used + 3)?;
        self.endpoint.send(self.now, link, LinkMessageKind::Channel, label.to_wire(), body).ok()?;
        let paid = flow.send.take(len as u32);
        debug_assert!(paid, "no more than is available");
        if held > 0 {
            flow.held.clear();
            self.held.retain(|other| *other != id);
            self.record(TraceKind::AppDataOut, id, held);
        }
        Some(len)
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
