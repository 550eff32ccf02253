//! Two providers behind one interface: a near one (shared memory) and a far one (between hosts).

use std::collections::HashMap;
use std::os::fd::RawFd;

use crate::slots::{SLOTS_MAX, Slots};
use crate::{
    Armed, BufferId, Completion, ConnectRequest, Counters, Event, Memory, Place, Provider, RequestId,
    ViAddress, ViConfig, ViError, ViId, Wake,
};

/// One of the two providers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Near,
    Far,
}

/// Largest number of requests that wait for the caller's answer.
const REQUESTS_MAX: usize = 1024;

/// A provider made of two. Addresses that are paths belong to the near one, all others to the far one. Memory
/// cannot be registered with it.
pub struct Pair {
    near: Box<dyn Provider>,
    far: Box<dyn Provider>,
    /// The side and the id there of each VI: both providers issue ids independently.
    vis: Slots<(Side, ViId)>,
    /// The inverse of `vis`, for each side.
    known: [HashMap<ViId, u64>; 2],
    requests: Slots<(Side, RequestId)>,
    /// The side polled first next time; it alternates so that neither side starves the other.
    first: Side,
}

fn side_of(address: &ViAddress) -> Side {
    if matches!(address, ViAddress::Path(_)) { Side::Near } else { Side::Far }
}

impl Side {
    const fn other(self) -> Side {
        match self {
            Side::Near => Side::Far,
            Side::Far => Side::Near,
        }
    }
}

impl Pair {
    /// Combines `near`, for paths, and `far`, for all other addresses.
    pub fn new(near: Box<dyn Provider>, far: Box<dyn Provider>) -> Self {
        Pair {
            near,
            far,
            vis: Slots::new(SLOTS_MAX),
            known: [HashMap::new(), HashMap::new()],
            requests: Slots::new(REQUESTS_MAX),
            first: Side::Near,
        }
    }

    fn of(&self, side: Side) -> &dyn Provider {
        match side {
            Side::Near => self.near.as_ref(),
            Side::Far => self.far.as_ref(),
        }
    }

    fn of_mut(&mut self, side: Side) -> &mut dyn Provider {
        match side {
            Side::Near => self.near.as_mut(),
            Side::Far => self.far.as_mut(),
        }
    }

    /// Returns the side of a VI and its id there.
    fn inner(&self, vi: ViId) -> Result<(Side, ViId), ViError> {
        self.vis.get(vi.0).copied().ok_or(ViError::Unknown("VI"))
    }

    /// Issues an id for a VI that the side has just created. There is room: the caller has checked it.
    fn name_vi(&mut self, side: Side, inner: ViId) -> Result<ViId, ViError> {
        let id = self.vis.insert((side, inner)).ok_or(ViError::Exhausted("VI"))?;
        self.known[side as usize].insert(inner, id);
        Ok(ViId(id))
    }

    /// Removes a VI that the caller releases.
    fn remove_vi(&mut self, vi: ViId) -> Result<(Side, ViId), ViError> {
        let (side, inner) = self.vis.remove(vi.0).ok_or(ViError::Unknown("VI"))?;
        self.known[side as usize].remove(&inner);
        Ok((side, inner))
    }

    fn outer(&self, side: Side, inner: ViId) -> Option<ViId> {
        self.known[side as usize].get(&inner).copied().map(ViId)
    }

    fn check_room(&self) -> Result<(), ViError> {
        if self.vis.is_full() { Err(ViError::Exhausted("VI")) } else { Ok(()) }
    }

    fn completion(&self, side: Side, completion: Completion) -> Option<Completion> {
        Some(match completion {
            Completion::Received { vi, buffer, len, immediate } => {
                Completion::Received { vi: self.outer(side, vi)?, buffer, len, immediate }
            }
            Completion::Sent { vi, wr_id } => Completion::Sent { vi: self.outer(side, vi)?, wr_id },
        })
    }

    /// Translates an event of a side. `None` if no VI or caller is concerned.
    fn event(&mut self, side: Side, event: Event) -> Option<Event> {
        Some(match event {
            Event::Request(request) => {
                let Some(id) = self.requests.insert((side, request.id)) else {
                    // A request withdrawn meanwhile need not be rejected.
                    let _ = self.of_mut(side).reject(request.id);
                    return None;
                };
                Event::Request(ConnectRequest { id: RequestId(id), ..request })
            }
            Event::Established { vi, private_data } => {
                Event::Established { vi: self.outer(side, vi)?, private_data }
            }
            Event::Refused { vi, reason } => Event::Refused { vi: self.outer(side, vi)?, reason },
            Event::Disconnected { vi, clean } => Event::Disconnected { vi: self.outer(side, vi)?, clean },
        })
    }

    fn take_request(&mut self, request: RequestId) -> Result<(Side, RequestId), ViError> {
        self.requests.remove(request.0).ok_or(ViError::Unknown("connection request"))
    }
}

impl Provider for Pair {
    /// The far provider's name; the near one is `shm` everywhere.
    fn name(&self) -> &'static str {
        self.far.name()
    }

    fn listen(&mut self, address: &ViAddress) -> Result<(), ViError> {
        self.of_mut(side_of(address)).listen(address)
    }

    fn connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError> {
        self.check_room()?;
        let side = side_of(address);
        let inner = self.of_mut(side).connect(address, config, private_data)?;
        self.name_vi(side, inner)
    }

    fn accept(&mut self, request: RequestId, config: ViConfig, private_data: &[u8]) -> Result<ViId, ViError> {
        let (side, request) = self.take_request(request)?;
        if let Err(full) = self.check_room() {
            self.of_mut(side).reject(request)?;
            return Err(full);
        }
        let inner = self.of_mut(side).accept(request, config, private_data)?;
        self.name_vi(side, inner)
    }

    fn reject(&mut self, request: RequestId) -> Result<(), ViError> {
        let (side, request) = self.take_request(request)?;
        self.of_mut(side).reject(request)
    }

    fn post_send(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        gather: &[&[u8]],
        signalled: bool,
    ) -> Result<(), ViError> {
        let (side, vi) = self.inner(vi)?;
        self.of_mut(side).post_send(vi, wr_id, immediate, gather, signalled)
    }

    fn can_fill(&self) -> bool {
        self.near.can_fill() && self.far.can_fill()
    }

    fn post_send_filled(
        &mut self,
        vi: ViId,
        immediate: u32,
        room: usize,
        fill: &mut dyn FnMut(&Place<'_>) -> usize,
    ) -> Result<usize, ViError> {
        let (side, vi) = self.inner(vi)?;
        self.of_mut(side).post_send_filled(vi, immediate, room, fill)
    }

    fn post_recv(&mut self, vi: ViId, buffer: BufferId) -> Result<(), ViError> {
        let (side, vi) = self.inner(vi)?;
        self.of_mut(side).post_recv(vi, buffer)
    }

    fn read(&self, vi: ViId, buffer: BufferId, offset: usize, into: &mut [u8]) -> Result<usize, ViError> {
        let (side, vi) = self.inner(vi)?;
        self.of(side).read(vi, buffer, offset, into)
    }

    fn memory(&self, vi: ViId) -> Result<Memory, ViError> {
        let (side, vi) = self.inner(vi)?;
        self.of(side).memory(vi)
    }

    fn received_at(&self, vi: ViId, buffer: BufferId) -> Result<(usize, usize), ViError> {
        let (side, vi) = self.inner(vi)?;
        self.of(side).received_at(vi, buffer)
    }

    fn poll(&mut self) -> Option<Completion> {
        for side in [self.first, self.first.other()] {
            while let Some(completion) = self.of_mut(side).poll() {
                if let Some(completion) = self.completion(side, completion) {
                    self.first = side.other();
                    return Some(completion);
                }
            }
        }
        None
    }

    fn poll_event(&mut self) -> Option<Event> {
        for side in [Side::Near, Side::Far] {
            while let Some(event) = self.of_mut(side).poll_event() {
                if let Some(event) = self.event(side, event) {
                    return Some(event);
                }
            }
        }
        None
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        match self.near.arm()? {
            Armed::Busy => Ok(Armed::Busy),
            Armed::Armed => self.far.arm(),
        }
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        self.near.wake(into);
        self.far.wake(into);
    }

    fn wake_generation(&self) -> u64 {
        self.near.wake_generation().wrapping_add(self.far.wake_generation())
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        let (side, inner) = self.remove_vi(vi)?;
        self.of_mut(side).disconnect(inner)
    }

    fn abort(&mut self, vi: ViId) -> Result<(), ViError> {
        let (side, inner) = self.remove_vi(vi)?;
        self.of_mut(side).abort(inner)
    }

    fn incomplete(&self, vi: ViId) -> usize {
        self.inner(vi).map_or(0, |(side, vi)| self.of(side).incomplete(vi))
    }

    fn can_break(&self) -> bool {
        self.near.can_break() || self.far.can_break()
    }

    fn unconfirmed(&self, vi: ViId, visit: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        let (side, vi) = self.inner(vi)?;
        self.of(side).unconfirmed(vi, visit)
    }

    fn counters(&self) -> Counters {
        let (near, far) = (self.near.counters(), self.far.counters());
        Counters {
            handshakes_malformed: near.handshakes_malformed + far.handshakes_malformed,
            handshakes_dropped: near.handshakes_dropped + far.handshakes_dropped,
            violations: near.violations + far.violations,
        }
    }

    fn abandon_after_fork(self: Box<Self>) {
        self.near.abandon_after_fork();
        self.far.abandon_after_fork();
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        self.near.descriptors(into);
        self.far.descriptors(into);
    }
}
