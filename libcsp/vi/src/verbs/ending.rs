//! How ends go: the last message and the wait for its answer, and the giving back of all that an end has.

use super::VerbsProvider;
use super::end::Stage;
use super::frame::Control;
use super::poll::give_back;
use super::sys;

/// Milliseconds that a peer has to confirm the end of a VI. What it was sent before is in its memory by then, or cannot be
/// brought there.
const LINGER_MS: u64 = 2000;

impl VerbsProvider {
    /// Refuses a connector; the end goes when it hung up.
    pub(super) fn turn_away(&mut self, vi: u64, reason: u32) {
        self.linger(vi, &Control::Reject(reason));
    }

    /// The caller is done with an end, which goes when the peer has answered its last message, or has not for long.
    pub(super) fn linger(&mut self, vi: u64, last: &Control) {
        if let Some(end) = self.ends.get_mut(vi) {
            end.stage = Stage::Lingering;
        }
        self.tell(vi, last);
        self.lingering.push_back((vi, sys::monotonic_ms()));
    }

    /// Takes down the ends that linger for too long.
    pub(super) fn end_lingering(&mut self, now: u64) {
        while let Some(&(vi, since)) = self.lingering.front()
            && now.saturating_sub(since) >= LINGER_MS
        {
            self.finish(vi);
        }
    }

    /// Where the table of ends is full, the one that lingers longest gives way.
    pub(super) fn make_way(&mut self) {
        if self.ends.is_full()
            && let Some(&(oldest, _)) = self.lingering.front()
        {
            self.finish(oldest);
        }
    }

    /// Takes a connection out of use; the peer learns of it.
    pub(super) fn cut(&mut self, vi: u64) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        if let Some(queue) = &mut end.queue {
            queue.stop();
            // SAFETY: the id is open. One that is not connected says so.
            unsafe { (self.api.disconnect)(end.id) };
        }
    }

    /// Takes down an end that nobody needs any more.
    pub(super) fn finish(&mut self, vi: u64) {
        self.lingering.retain(|&(of, _)| of != vi);
        self.cut(vi);
        // Receives of this queue pair that completed have to be accounted for while it is known.
        self.drain();
        let Some(mut end) = self.ends.remove(vi) else { return };
        if let Some(mut queue) = end.queue.take() {
            while let Some(work) = queue.abandon() {
                give_back(&mut end, &mut self.regions, &work);
            }
            let (number, (completions, room)) = (end.device, queue.completions);
            self.numbers.remove(&(number, queue.number()));
            self.found.0 = usize::MAX;
            drop(queue);
            // Its flushed work still takes room until it is polled.
            self.drain();
            if let Some(Some(device)) = self.devices.get_mut(number) {
                device.release(completions, room);
                device.vis -= 1;
            }
        }
        self.channel.destroy(self.api, end.id);
        let number = end.device;
        drop(end);
        self.close_device(number);
    }
}
