//! `memory`: VIs between providers of one process, deterministic and in virtual time.
//!
//! It has no clock and no thread: time advances when [`MemoryFabric::advance`] is called, and everything else
//! happens within the callers' own calls. The same calls with the same seed give the same order of
//! completions.
//!
//! A VI does not lose, duplicate or reorder messages; a test can delay or break it, and kill or pause a node.
//! [`Provider::wake`] returns one eventfd per provider, which becomes readable when something is due after
//! arming.

mod eventfd;
mod fabric;
mod faults;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csp_types::Instant;

use crate::provider::check_private_data;
use crate::regions::Regions;
use crate::{
    Armed, BufferId, Completion, Event, Memory, Piece, Place, Provider, RegionId, RequestId, ViAddress,
    ViConfig, ViError, ViId, Wake,
};
use fabric::{EndState, Node, State};

pub use faults::{Delay, InFlight};

/// Connects the providers created from it. Clones refer to the same fabric.
#[derive(Clone)]
pub struct MemoryFabric {
    state: Arc<Mutex<State>>,
}

impl Default for MemoryFabric {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryFabric {
    /// Creates a fabric without delay, at time [`Instant::ZERO`].
    pub fn new() -> Self {
        Self::with_seed(0)
    }

    /// Creates a fabric with a seed for its random choices.
    pub fn with_seed(seed: u64) -> Self {
        MemoryFabric { state: Arc::new(Mutex::new(State::new(seed))) }
    }

    /// Creates a node on the fabric. The functions that inject faults use the name; the name of a dead node
    /// can be reused.
    pub fn provider(&self, name: &str) -> MemoryProvider {
        let mut state = self.lock();
        state.nodes.push(Node {
            name: name.to_owned(),
            alive: true,
            paused: false,
            hidden: false,
            listening: Vec::new(),
            notices: Default::default(),
            sent: Default::default(),
            armed: false,
            wake: eventfd::create(),
        });
        MemoryProvider { fabric: self.clone(), node: state.nodes.len() - 1, regions: Regions::new() }
    }

    /// Advances the time, never backwards. What is due by then can be polled.
    pub fn advance(&self, now: Instant) {
        let mut state = self.lock();
        state.now = state.now.max(now);
        state.wake_ready_nodes();
    }

    /// Returns the fabric's time.
    pub fn now(&self) -> Instant {
        self.lock().now
    }

    /// Returns when the next message or event in flight is due, for a simulation to advance to.
    pub fn next_due(&self) -> Option<Instant> {
        self.lock().next_due()
    }

    // A panic in one test thread must not hide another thread's failure behind a poisoned lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One node of a [`MemoryFabric`]. Dropping it is the death of its process: messages in flight still arrive.
pub struct MemoryProvider {
    fabric: MemoryFabric,
    node: usize,
    regions: Regions,
}

impl MemoryProvider {
    fn live(&self) -> Result<MutexGuard<'_, State>, ViError> {
        let state = self.fabric.lock();
        if state.nodes[self.node].alive { Ok(state) } else { Err(ViError::NotConnected) }
    }

    fn release(&mut self, vi: ViId, clean: bool) -> Result<(), ViError> {
        let mut state = self.live()?;
        match state.ends.get(vi.0) {
            Some(end) if end.node == self.node => {}
            _ => return Err(ViError::Unknown("VI")),
        }
        state.remove_end(vi.0, clean, InFlight::Delivered);
        Ok(())
    }
}

fn name_of(address: &ViAddress) -> Result<&str, ViError> {
    match address {
        ViAddress::Name(name) => Ok(name),
        other => Err(ViError::Unreachable {
            address: other.to_string(),
            reason: "the memory provider needs a name".to_owned(),
        }),
    }
}

impl Provider for MemoryProvider {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn listen(&mut self, address: &ViAddress) -> Result<(), ViError> {
        let name = name_of(address)?;
        let mut state = self.live()?;
        if state.listener(name).is_some() {
            let reason = format!("{name} is taken");
            return Err(ViError::System { call: "listen", reason });
        }
        state.nodes[self.node].listening.push(name.to_owned());
        Ok(())
    }

    fn connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError> {
        check_private_data(private_data)?;
        config.check()?;
        let name = name_of(address)?;
        let mut state = self.live()?;
        let end = state.new_end(self.node, config)?;
        let Some(listener) = state.listener(name) else {
            let reason = ViError::Unreachable {
                address: name.to_owned(),
                reason: "no listener has this name".to_owned(),
            };
            state.notify(self.node, Some(end), Some(end), Event::Refused { vi: ViId(end), reason });
            return Ok(ViId(end));
        };
        state.request(end, listener, config, private_data);
        Ok(ViId(end))
    }

    fn register(&mut self, memory: &Memory) -> Result<RegionId, ViError> {
        self.regions.register(memory)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        self.regions.deregister(region)
    }

    /// Copies at once. A sender that changes its memory before [`Completion::Sent`] is therefore not
    /// detected.
    fn post_send_from(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        head: &[u8],
        pieces: &[Piece],
    ) -> Result<(), ViError> {
        let config = self.live()?.ends.get(vi.0).map(|end| end.config).ok_or(ViError::Unknown("VI"))?;
        let len = self.regions.message_len(head, pieces, &config)?;
        let mut bytes = vec![0; len];
        let (start, mut rest) = bytes.split_at_mut(head.len());
        start.copy_from_slice(head);
        for piece in pieces {
            let (part, after) = rest.split_at_mut(piece.len);
            self.regions.find(piece)?.read(piece.offset, part);
            rest = after;
        }
        self.post_send(vi, wr_id, immediate, &[&bytes], true)
    }

    fn connect_into(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
        buffers: &[Piece],
    ) -> Result<ViId, ViError> {
        config.check()?;
        let places = self.regions.places(buffers, &config)?;
        let vi = self.connect(address, config, private_data)?;
        if let Some(end) = self.live()?.ends.get_mut(vi.0) {
            end.places = Some(places);
        }
        Ok(vi)
    }

    fn accept(&mut self, id: RequestId, config: ViConfig, private_data: &[u8]) -> Result<ViId, ViError> {
        check_private_data(private_data)?;
        config.check()?;
        let mut state = self.live()?;
        match state.requests.get(id.0) {
            Some(request) if request.to == self.node => {}
            _ => return Err(ViError::Unknown("connection request")),
        }
        let end = state.new_end(self.node, config)?;
        let Some(request) = state.requests.remove(id.0) else { return Err(ViError::Unknown("request")) };
        let (from, vi) = (request.from, ViId(request.from));
        let from_node = state.ends.get(from).map_or(usize::MAX, |end| end.node);
        if request.config.message_len != config.message_len {
            let reason = ViError::Protocol("the message lengths differ");
            state.notify(from_node, Some(end), Some(from), Event::Refused { vi, reason: reason.clone() });
            state.remove_end(end, true, InFlight::Delivered);
            return Err(reason);
        }
        if let Some(passive) = state.ends.get_mut(end) {
            (passive.peer, passive.far) = (Some(from), Some(from_node));
            passive.window = request.config.receive_depth;
        }
        if let Some(active) = state.ends.get_mut(from) {
            (active.peer, active.far) = (Some(end), Some(self.node));
            active.window = config.receive_depth;
        }
        let own = Event::Established { vi: ViId(end), private_data: Vec::new() };
        state.notify(self.node, None, Some(end), own);
        let theirs = Event::Established { vi, private_data: private_data.to_vec() };
        state.notify(from_node, Some(end), Some(from), theirs);
        Ok(ViId(end))
    }

    fn reject(&mut self, id: RequestId) -> Result<(), ViError> {
        let mut state = self.live()?;
        match state.requests.get(id.0) {
            Some(request) if request.to == self.node => {}
            _ => return Err(ViError::Unknown("connection request")),
        }
        let Some(request) = state.requests.remove(id.0) else { return Ok(()) };
        let node = state.ends.get(request.from).map_or(usize::MAX, |end| end.node);
        let event = Event::Refused { vi: ViId(request.from), reason: ViError::Rejected };
        state.notify(node, None, Some(request.from), event);
        Ok(())
    }

    fn can_fill(&self) -> bool {
        true
    }

    fn post_send_filled(
        &mut self,
        vi: ViId,
        immediate: u32,
        room: usize,
        fill: &mut dyn FnMut(&Place<'_>) -> usize,
    ) -> Result<usize, ViError> {
        let end = self.live()?.ends.get(vi.0).map(|end| end.config.message_len as usize);
        let max = end.ok_or(ViError::Unknown("VI"))?;
        if room > max {
            return Err(ViError::TooLong { len: room, max });
        }
        let mut bytes = vec![0; room];
        // SAFETY: the place is used during the call only, and the vector is not touched meanwhile.
        let len = fill(&unsafe { Place::new(bytes.as_mut_ptr(), room) }).min(room);
        match bytes.get(..len).filter(|bytes| !bytes.is_empty()) {
            Some(bytes) => self.post_send(vi, 0, immediate, &[bytes], false).map(|()| len),
            None => Ok(0),
        }
    }

    fn post_send(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        gather: &[&[u8]],
        signalled: bool,
    ) -> Result<(), ViError> {
        let mut state = self.live()?;
        let node = self.node;
        let saw_end = state.provider_saw_end(vi.0);
        let end = state.ends.get_mut(vi.0).filter(|e| e.node == node).ok_or(ViError::Unknown("VI"))?;
        if end.state != EndState::Open || saw_end {
            return Err(ViError::NotConnected);
        }
        let (len, max) =
            (gather.iter().map(|part| part.len()).sum::<usize>(), end.config.message_len as usize);
        if len > max {
            return Err(ViError::TooLong { len, max });
        }
        if end.window == 0 {
            return Err(ViError::Full);
        }
        end.window -= 1;
        state.send(vi.0, immediate, gather.concat());
        if signalled {
            state.nodes[node].sent.push_back((vi.0, wr_id));
        }
        Ok(())
    }

    fn post_recv(&mut self, vi: ViId, buffer: BufferId) -> Result<(), ViError> {
        let mut state = self.live()?;
        let node = self.node;
        let end = state.ends.get_mut(vi.0).filter(|e| e.node == node).ok_or(ViError::Unknown("VI"))?;
        end.held.remove(&buffer.0).ok_or(ViError::Unknown("buffer"))?;
        end.free.push_back(buffer.0);
        let peer = end.peer;
        if let Some(peer) = peer.and_then(|peer| state.ends.get_mut(peer)) {
            peer.window += 1;
        }
        Ok(())
    }

    fn read(&self, vi: ViId, buffer: BufferId, offset: usize, into: &mut [u8]) -> Result<usize, ViError> {
        let state = self.live()?;
        let end = state.ends.get(vi.0).filter(|e| e.node == self.node).ok_or(ViError::Unknown("VI"))?;
        let bytes = end.held.get(&buffer.0).ok_or(ViError::Unknown("buffer"))?;
        if let Some(place) = end.places.as_ref().and_then(|places| places.get(buffer.0 as usize)) {
            let len = bytes.len().saturating_sub(offset).min(into.len());
            return Ok(place.memory.read(place.offset + offset, &mut into[..len]));
        }
        let from = bytes.get(offset..).unwrap_or(&[]);
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut state = self.live().ok()?;
        if state.nodes[self.node].paused {
            return None;
        }
        if let Some((vi, wr_id)) = state.nodes[self.node].sent.pop_front() {
            return Some(Completion::Sent { vi: ViId(vi), wr_id });
        }
        let id = state.next_message(self.node)?;
        let end = state.ends.get_mut(id)?;
        let buffer = end.free.pop_front()?;
        let message = end.arriving.pop_front()?;
        let peer = end.peer;
        if let Some(place) = end.places.as_ref().and_then(|places| places.get(buffer as usize)) {
            place.memory.write(place.offset, &message.bytes);
        }
        let len = message.bytes.len() as u32;
        end.held.insert(buffer, message.bytes);
        let (order, immediate) = (message.order, message.immediate);
        state.maybe_confirm(peer, order);
        Some(Completion::Received { vi: ViId(id), buffer: BufferId(buffer), len, immediate })
    }

    fn poll_event(&mut self) -> Option<Event> {
        let mut state = self.live().ok()?;
        let node = &state.nodes[self.node];
        if node.paused {
            return None;
        }
        let position = node.notices.iter().position(|notice| state.is_deliverable(notice))?;
        let event = state.nodes[self.node].notices.remove(position)?.event;
        let (vi, new_state) = match &event {
            Event::Established { vi, .. } => (vi.0, EndState::Open),
            Event::Disconnected { vi, .. } | Event::Refused { vi, .. } => (vi.0, EndState::Closed),
            Event::Request(_) => return Some(event),
        };
        if let Some(end) = state.ends.get_mut(vi) {
            end.state = new_state;
        }
        Some(event)
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        let mut state = self.live()?;
        if state.is_ready(self.node) {
            return Ok(Armed::Busy);
        }
        let node = &mut state.nodes[self.node];
        if let Some(wake) = &node.wake {
            eventfd::clear(wake);
        }
        node.armed = true;
        Ok(Armed::Armed)
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        use std::os::fd::AsRawFd;
        let state = self.fabric.lock();
        into.extend(state.nodes[self.node].wake.as_ref().map(|wake| wake.as_raw_fd()));
    }

    fn wake_generation(&self) -> u64 {
        0
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        self.release(vi, true)
    }

    /// Messages in flight still arrive.
    fn abort(&mut self, vi: ViId) -> Result<(), ViError> {
        self.release(vi, false)
    }

    fn can_break(&self) -> bool {
        self.fabric.lock().breakable
    }

    fn unconfirmed(&self, vi: ViId, visit: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        let state = self.live()?;
        if !state.breakable {
            return Err(ViError::Unsupported("list unconfirmed messages"));
        }
        let end = state.ends.get(vi.0).filter(|e| e.node == self.node).ok_or(ViError::Unknown("VI"))?;
        end.unconfirmed.iter().for_each(|sent| visit(sent.immediate, &sent.bytes));
        Ok(())
    }
}

impl Drop for MemoryProvider {
    fn drop(&mut self) {
        let mut state = self.fabric.lock();
        state.kill_node(self.node, InFlight::Delivered);
        state.nodes[self.node].wake = None;
    }
}
