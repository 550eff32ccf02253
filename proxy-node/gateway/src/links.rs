//! Connections of HTTP/2 to members: few of a worker and pool, each with many streams.
//!
//! ```text
//!  exchange ── pick ─▶ a connection with room ── begin ─▶ stream ── leave ─▶
//!             │  └──▶ ask the core for another one ── insert ──┘
//!             └─────▶ wait, until a connection has room, or could not be opened
//! ```
//! `csp-http2` owns frames and windows. This part moves bytes between it and the connection's end, and keeps
//! of each stream what its exchange has not processed. Exchanges call between two turns of a connection; what
//! they have to send leaves together in the connection's next turn.

mod link;

use std::collections::{BTreeMap, VecDeque};

use csp_http::head::Scheme;
use csp_http2::SendError;
use csp_proxy_core::ServerHost;
use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Ends, Excluded, Opened, ServerId};
use csp_types::{Duration, FlowLabel, Instant};

use self::link::Link;
pub(crate) use self::link::{Head, Reset, Stream, Who};
use crate::http2::TURNS_MAX;
use crate::pool::PoolId;
use crate::table::Table;
use crate::timers::Timers;

/// Most connections of HTTP/2 of a worker and pool.
const LINKS_MAX: usize = 16;

/// A stream of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamId {
    pub(crate) link: u32,
    number: u32,
}

/// What an exchange does that needs a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pick {
    /// It opens a stream of this connection.
    Link(u32),
    /// It asks for a connection.
    Open,
    /// It waits until it is woken.
    Wait,
}

/// The connections to the members of one pool.
#[derive(Debug, Default)]
struct Pool {
    links: Vec<u32>,
    /// Exchanges that have asked for a connection.
    opening: usize,
    waiting: VecDeque<Who>,
}

/// All connections of HTTP/2 to members of a worker.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// By number. A label may name another connection before exchanges have left their streams.
    all: BTreeMap<u32, Link>,
    by_label: Table<u32>,
    next: u32,
    /// The pools of the present policy.
    pools: Vec<Pool>,
    epoch: u32,
    /// Exchanges that have to continue.
    woken: VecDeque<Who>,
    /// Connections that have to be served.
    dirty: VecDeque<FlowLabel>,
}

impl Links {
    /// Chooses a connection for a request. `most`: connections among which streams are spread; `may_grow`:
    /// whether another connection is opened beside one that has room.
    pub(crate) fn pick(
        &mut self,
        pool: PoolId,
        excluded: &Excluded,
        avoid: Option<u32>,
        (most, may_grow): (usize, bool),
    ) -> Pick {
        let Links { all, pools, epoch, .. } = self;
        let Some(pool) = of_pool(pools, *epoch, pool) else { return Pick::Open };
        let mut best: Option<(usize, u32)> = None;
        let (mut count, mut pending) = (pool.opening, pool.opening);
        for id in &pool.links {
            let Some(link) = all.get_mut(id).filter(|link| !excluded.contains(link.server)) else { continue };
            if avoid == Some(*id) {
                continue;
            }
            count += 1;
            pending += usize::from(!link.is_heard);
            let streams = link.streams.len();
            if best.is_none_or(|(least, _)| streams < least) && link.can_open() {
                best = Some((streams, *id));
            }
        }
        let is_few = count < most;
        match best {
            Some((streams, id)) if streams == 0 || !is_few || !may_grow => Pick::Link(id),
            Some(_) => Pick::Open,
            None if count > 0 && !may_grow => Pick::Wait,
            None if is_few || (pending == 0 && count < LINKS_MAX) => Pick::Open,
            None => Pick::Wait,
        }
    }

    /// Has an exchange woken when a stream may be had.
    pub(crate) fn wait(&mut self, pool: PoolId, who: Who) {
        let Some(pool) = of_pool(&mut self.pools, self.epoch, pool) else { return self.woken.push_back(who) };
        if !pool.waiting.contains(&who) {
            pool.waiting.push_back(who);
        }
    }

    /// Ends an exchange's wait. `gives_up`: it uses no stream; if it was woken for one, another exchange is
    /// woken in its place.
    pub(crate) fn unwait(&mut self, pool: PoolId, who: Who, gives_up: bool) {
        let Some(pool) = of_pool(&mut self.pools, self.epoch, pool) else { return };
        match pool.waiting.iter().position(|known| *known == who) {
            Some(at) => drop(pool.waiting.remove(at)),
            None if gives_up => self.woken.extend(pool.waiting.pop_front()),
            None => {}
        }
    }

    /// Records that an exchange has asked the core for a connection.
    pub(crate) fn opening(&mut self, pool: PoolId) {
        if let Some(pool) = of_pool(&mut self.pools, self.epoch, pool) {
            pool.opening += 1;
        }
    }

    /// Records that the core has answered, or the request was withdrawn.
    pub(crate) fn opening_over(&mut self, pool: PoolId) {
        if let Some(pool) = of_pool(&mut self.pools, self.epoch, pool) {
            pool.opening = pool.opening.saturating_sub(1);
            self.woken.extend(pool.waiting.drain(..));
        }
    }

    /// Inserts a connection; returns its number. `streams_max`: most streams at a time; `idle`: how long it
    /// is kept without streams.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        opened: &Opened,
        pool: PoolId,
        bounds: (u32, Duration),
    ) -> u32 {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let mut link = Link::new(now, opened, pool, bounds);
        match of_pool(&mut self.pools, self.epoch, pool) {
            Some(pool) => pool.links.push(id),
            // Of an older policy: it carries the request that it was opened for.
            None => link.is_heard = false,
        }
        self.by_label.insert(opened.label, id);
        self.all.insert(id, link);
        self.touch(id);
        id
    }

    /// Opens a stream with a request. `end`: it has no body; `requests_max`: most requests of the connection.
    pub(crate) fn begin(
        &mut self,
        id: u32,
        (head, end): (&[u8], bool),
        who: Who,
        requests_max: u32,
    ) -> Result<StreamId, SendError> {
        let link = self.all.get_mut(&id).ok_or(SendError::Closed)?;
        let number = link.machine.request_text(head, Scheme::Http, end)?;
        link.begun(number, who);
        let is_current = link.pool.is_of(self.epoch);
        if !is_current || (requests_max > 0 && link.requests >= requests_max) {
            self.retire(id);
        }
        self.touch(id);
        self.wake_one(id);
        Ok(StreamId { link: id, number })
    }

    /// Opens no further streams of a connection.
    pub(crate) fn retire(&mut self, id: u32) {
        let Some(link) = self.all.get_mut(&id) else { return };
        link.retire();
        self.remove_from_pool(id);
        self.touch(id);
    }

    /// Returns the label, member and address of a connection.
    pub(crate) fn server(&self, id: u32) -> Option<(FlowLabel, ServerId, (ServerHost, u16))> {
        self.all.get(&id).map(|link| (link.label, link.server, link.address))
    }

    /// Returns what was received on a stream; `None`: it is gone.
    pub(crate) fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.all.get_mut(&id.link)?.streams.get_mut(&id.number)
    }

    /// Returns payload of a response that lies together.
    pub(crate) fn data(&self, id: StreamId) -> &[u8] {
        self.all.get(&id.link).map_or(&[], |link| link.machine.data(id.number))
    }

    /// Reports that a client has taken payload: the member may send as much more.
    pub(crate) fn release(&mut self, id: StreamId, len: usize) {
        let Some(link) = self.all.get_mut(&id.link).filter(|_| len > 0) else { return };
        link.machine.release(id.number, len);
        if link.is_gone {
            link.events(&mut self.woken); // it is served no more
        }
        self.touch(id.link);
    }

    /// Sends payload of a request, as far as there is room. Returns the number of bytes taken.
    pub(crate) fn send(&mut self, id: StreamId, bytes: &[u8], end: bool) -> usize {
        let Some(link) = self.all.get_mut(&id.link) else { return 0 };
        let taken = link.machine.send(id.number, bytes, end);
        self.touch(id.link);
        taken
    }

    /// Ends a request with trailers.
    pub(crate) fn trailers(&mut self, id: StreamId, section: &[u8]) {
        let Some(link) = self.all.get_mut(&id.link) else { return };
        if link.machine.trailers(id.number, section).is_err() {
            link.machine.send(id.number, &[], true);
        }
        self.touch(id.link);
    }

    /// Leaves a stream. If its response is not complete, it is reset.
    pub(crate) fn leave(&mut self, now: Instant, id: StreamId) {
        let Some(link) = self.all.get_mut(&id.link) else { return };
        link.leave(now, id.number);
        if link.is_gone && link.streams.is_empty() {
            self.all.remove(&id.link);
            return;
        }
        self.touch(id.link);
        self.wake_one(id.link);
    }

    /// Begins another policy: connections end with their streams, and exchanges that wait ask again.
    pub(crate) fn renew(&mut self, epoch: u32) {
        self.epoch = epoch;
        for pool in std::mem::take(&mut self.pools) {
            self.woken.extend(pool.waiting);
            for id in pool.links {
                self.retire(id);
            }
        }
    }

    /// Closes the connection that has been without streams longest. Returns whether there was one.
    pub(crate) fn evict(&mut self) -> bool {
        let idle = self.all.iter().filter_map(|(id, link)| Some((link.idle_until()?, *id)));
        let Some((_, id)) = idle.min() else { return false };
        if let Some(link) = self.all.get_mut(&id) {
            link.is_evicted = true;
        }
        self.retire(id);
        true
    }

    /// Returns whether a connection is one of HTTP/2.
    pub(crate) fn has(&self, label: FlowLabel) -> bool {
        self.by_label.get(label).is_some()
    }

    /// Returns the number of connections, and of those without streams.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.by_label.len(), self.all.values().filter(|link| link.is_idle()).count())
    }

    /// Records that a connection's timer is due.
    pub(crate) fn timer_due(&mut self, label: FlowLabel) {
        if let Some(link) = self.by_label.get(label).and_then(|id| self.all.get_mut(id)) {
            link.armed.clear();
        }
    }

    /// Moves what can be moved of a connection.
    pub(crate) fn serve(
        &mut self,
        now: Instant,
        label: FlowLabel,
        ends: &mut impl Ends,
        timers: &mut Timers,
    ) -> Step {
        let Some(id) = self.by_label.get(label).copied() else { return Step::Reset };
        let mut moved = false;
        for _ in 0..TURNS_MAX {
            let Some(link) = self.all.get_mut(&id) else { return Step::Reset };
            link.is_dirty = false;
            if link.is_evicted {
                return Step::Reset;
            }
            let read = link.read(now, ends);
            link.machine.poll();
            let heard = link.events(&mut self.woken);
            let wrote = link.write(ends);
            if read || heard || wrote {
                moved = true;
                continue;
            }
            if link.is_finished() {
                self.remove_from_pool(id);
                return Step::Close;
            }
            match link.idle_until() {
                Some(until) if until <= now => {
                    self.retire(id);
                    continue;
                }
                until => timers.arm(label, &mut link.armed, until),
            }
            link.rest();
            if link.is_retired {
                self.remove_from_pool(id);
            } else {
                self.wake_one(id);
            }
            return if moved { Step::Moved } else { Step::Idle };
        }
        self.touch(id);
        Step::Moved
    }

    /// Processes the end of a connection: its streams are lost, but those whose response is complete.
    pub(crate) fn gone(&mut self, label: FlowLabel, timers: &mut Timers) {
        let Some(id) = self.by_label.remove(label) else { return };
        self.remove_from_pool(id);
        let Some(link) = self.all.get_mut(&id) else { return };
        timers.disarm(label, &mut link.armed);
        (link.is_gone, link.is_retired) = (true, true);
        link.end_input();
        link.machine.poll();
        link.events(&mut self.woken);
        if link.streams.is_empty() {
            self.all.remove(&id);
        }
    }

    /// Removes and returns an exchange that has to continue.
    pub(crate) fn next_woken(&mut self) -> Option<Who> {
        self.woken.pop_front()
    }

    /// Removes and returns a connection that has to be served.
    pub(crate) fn next_dirty(&mut self) -> Option<FlowLabel> {
        self.dirty.pop_front()
    }

    /// Has a connection served.
    fn touch(&mut self, id: u32) {
        if let Some(link) = self.all.get_mut(&id)
            && !link.is_gone
            && !std::mem::replace(&mut link.is_dirty, true)
        {
            self.dirty.push_back(link.label);
        }
    }

    /// Wakes an exchange that waits for a stream, if the connection has room. Each one wakes the next.
    fn wake_one(&mut self, id: u32) {
        let Some(link) = self.all.get_mut(&id) else { return };
        if let Some(pool) = of_pool(&mut self.pools, self.epoch, link.pool)
            && !pool.waiting.is_empty()
            && link.can_open()
        {
            self.woken.extend(pool.waiting.pop_front());
        }
    }

    /// Removes a connection from its pool, whose exchanges look for another one.
    fn remove_from_pool(&mut self, id: u32) {
        let Some(link) = self.all.get(&id) else { return };
        let Some(pool) = of_pool(&mut self.pools, self.epoch, link.pool) else { return };
        if let Some(at) = pool.links.iter().position(|known| *known == id) {
            pool.links.swap_remove(at);
            self.woken.extend(pool.waiting.drain(..));
        }
    }
}

/// Returns a pool of the present policy; `None`: it is one of an older policy.
fn of_pool(pools: &mut Vec<Pool>, epoch: u32, id: PoolId) -> Option<&mut Pool> {
    let at = id.index_of(epoch)?;
    if pools.len() <= at {
        pools.resize_with(at + 1, Pool::default);
    }
    pools.get_mut(at)
}
