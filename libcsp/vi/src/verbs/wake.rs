//! The epoll descriptor that the caller waits on, and the handling of its events.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::end::Stage;
use super::queue::{Request, Work};
use super::sys;
use super::sys::ibv;
use super::{PROBE_MS, VerbsProvider};
use crate::ViError;

/// Token of the connection manager's event channel.
pub(super) const CHANNEL: u64 = 0;

/// Tokens of the asynchronous events and of the completion channel of a device.
fn async_token(device: usize) -> u64 {
    1 + 2 * device as u64
}

fn completion_token(device: usize) -> u64 {
    2 + 2 * device as u64
}

/// Largest number of events fetched from the epoll descriptor by one call.
const READY_MAX: usize = 16;

/// Bound of the batches of completions processed by one [`VerbsProvider::drain`].
const DRAIN_MAX: usize = 4096;

/// Time limit of a connection set-up, and of a connector's request, in milliseconds.
const SET_UP_MS: u64 = 5000;

/// An epoll set.
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn new() -> Result<Self, ViError> {
        // SAFETY: epoll_create1 takes no pointer; its result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(sys::failed("epoll_create1"));
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(super) fn add(&self, fd: RawFd, token: u64) -> Result<(), ViError> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: `event` is a local that outlives the call.
        let result = unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if result < 0 { Err(sys::failed("epoll_ctl")) } else { Ok(()) }
    }

    fn remove(&self, fd: RawFd) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: `event` is a local that outlives the call; removing a descriptor that is not in the set
        // fails without effect.
        unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, &raw mut event) };
    }

    fn ready(&self) -> ([u64; READY_MAX], usize) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
        // SAFETY: `events` is a local array of READY_MAX writable entries that outlives the call; the timeout
        // is 0.
        let count = unsafe { libc::epoll_wait(self.fd(), events.as_mut_ptr(), READY_MAX as i32, 0) };
        (events.map(|event| event.u64), usize::try_from(count).unwrap_or(0).min(READY_MAX))
    }
}

impl VerbsProvider {
    /// Handles a poll after arming: the caller is awake and needs no wakes.
    pub(super) fn wake_up(&mut self) {
        self.armed = false;
        self.poll_descriptors();
    }

    /// Handles connection events, asynchronous events, wakes and completions; every [`PROBE_MS`] it also
    /// sweeps for silent peers.
    pub(super) fn poll_descriptors(&mut self) {
        let (tokens, count) = self.epoll.ready();
        for &token in &tokens[..count] {
            if token == CHANNEL {
                self.handle_connection_events();
                continue;
            }
            let number = (token as usize - 1) / 2;
            if token == async_token(number) {
                self.handle_device_events(number);
            } else if let Some(Some(device)) = self.devices.get_mut(number) {
                device.drain_channel();
            }
        }
        self.progress();
        let now = sys::monotonic_ms();
        if now.saturating_sub(self.swept_ms) >= PROBE_MS {
            self.swept_ms = now;
            self.sweep(now);
        }
    }

    /// Adds the descriptors of an opened device to the epoll set.
    pub(super) fn watch(&mut self, number: usize) -> Result<(), ViError> {
        let Some(Some(device)) = self.devices.get(number) else { return Ok(()) };
        self.epoll.add(device.async_fd(), async_token(number))?;
        self.epoll.add(device.channel_fd(), completion_token(number))
    }

    /// Processes a batch of completions and removes the ends that are finished.
    pub(super) fn progress(&mut self) {
        self.reap();
        while let Some(vi) = self.finished.pop_front() {
            self.finish(vi);
        }
    }

    /// Processes a batch of completions of each device. Returns whether there were any.
    pub(super) fn reap(&mut self) -> bool {
        let mut any = false;
        for number in 0..self.devices.len() {
            let Some(Some(device)) = self.devices.get_mut(number) else { continue };
            if device.dead {
                continue;
            }
            let count = device.poll(&mut self.batch);
            let lost = device.dead;
            any |= count > 0;
            for index in 0..count {
                let completion = self.batch[index];
                self.on_completion(number, &completion);
            }
            if lost {
                self.lose(number);
            }
        }
        any
    }

    /// Processes all pending completions.
    pub(super) fn drain(&mut self) {
        for _ in 0..DRAIN_MAX {
            if !self.reap() {
                break;
            }
        }
    }

    fn handle_device_events(&mut self, number: usize) {
        while let Some(Some(device)) = self.devices.get_mut(number) {
            let Some((kind, qp)) = device.event() else { break };
            match kind {
                ibv::EVENT_DEVICE_FATAL | ibv::EVENT_CQ_ERR | ibv::EVENT_SRQ_ERR => {
                    self.drain();
                    self.lose(number);
                }
                ibv::EVENT_QP_FATAL | ibv::EVENT_QP_REQ_ERR | ibv::EVENT_QP_ACCESS_ERR => {
                    let of = |queue: &super::queue::Queue| queue.is(qp);
                    let found = self.ends.iter().find(|(_, end)| end.queue.as_ref().is_some_and(of));
                    if let Some((vi, _)) = found {
                        // REQ_ERR and ACCESS_ERR report an invalid or forbidden request of the peer.
                        self.counters.violations += u64::from(kind != ibv::EVENT_QP_FATAL);
                        self.fail(vi, "the queue pair failed");
                    }
                }
                // Ports change state and paths migrate; failures caused by that are reported by the queue
                // pairs.
                _ => {}
            }
        }
    }

    /// Handles the loss of a device: all its VIs end.
    pub(super) fn lose(&mut self, number: usize) {
        let Some(Some(device)) = self.devices.get_mut(number) else { return };
        device.dead = true;
        let (events, completions) = (device.async_fd(), device.channel_fd());
        self.epoll.remove(events);
        self.epoll.remove(completions);
        for index in 0..self.ends.len() {
            let Some((vi, end)) = self.ends.at_mut(index) else { continue };
            if end.device == number && end.queue.is_some() {
                self.fail(vi, "the device is lost");
            }
        }
        self.close_device(number);
    }

    /// Closes a lost device once no VI uses it.
    pub(super) fn close_device(&mut self, number: usize) {
        let Some(place) = self.devices.get_mut(number) else { return };
        if place.as_ref().is_some_and(|device| device.dead && device.vis == 0) {
            self.regions.leave(number);
            *place = None;
        }
    }

    /// Probes silent peers, ends set-ups that exceed their time limit, and restores lost listeners.
    fn sweep(&mut self, now: u64) {
        for index in 0..self.ends.len() {
            let Some((vi, end)) = self.ends.at_mut(index) else { continue };
            let overdue = now.saturating_sub(end.since_ms) >= SET_UP_MS;
            match end.stage {
                Stage::Resolving if overdue && end.ended.is_none() => self.fail(vi, "no answer"),
                Stage::AwaitingRequest if overdue => {
                    self.counters.handshakes_dropped += 1;
                    self.finished.push_back(vi);
                }
                Stage::Resolving | Stage::AwaitingRequest | Stage::Closed => {}
                _ => self.probe(vi),
            }
        }
        self.expire_lingering(now);
        self.regions.evict();
        self.listen_again();
    }

    /// Probes a silent peer with a write of zero bytes, if no completion is expected otherwise. The write
    /// fails if the peer's host is gone.
    fn probe(&mut self, vi: u64) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        let (true, None) = (!std::mem::replace(&mut end.peer_active, false), end.ended) else { return };
        let remote = end.peer.as_ref().map_or((0, 0), |peer| (peer.grants, peer.grants_key));
        let Some(queue) = end.queue.as_mut().filter(|queue| queue.is_idle()) else { return };
        let request = Request {
            opcode: ibv::WR_RDMA_WRITE,
            immediate: 0,
            remote,
            segments: &mut [],
            inline: false,
            signalled: true,
        };
        if queue.post(request, Work::Own).is_err() {
            self.fail(vi, "the queue pair failed");
        }
    }
}
