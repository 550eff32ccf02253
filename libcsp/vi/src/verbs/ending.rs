//! The end of VIs: the last control message, the wait for its acknowledgement, and the release of all
//! resources.

use super::VerbsProvider;
use super::end::Stage;
use super::frame::Control;
use super::poll::release_work;
use super::sys;

impl VerbsProvider {
    /// Rejects a connector's request. The end is released when the peer disconnects, or after a while.
    pub(super) fn refuse_request(&mut self, vi: u64, reason: u32) {
        self.linger(vi, &Control::Reject(reason));
    }

    /// Sends the last control message of an end that the caller has released. The end is removed when the
    /// peer has answered, or after a while.
    pub(super) fn linger(&mut self, vi: u64, last: &Control) {
        if let Some(end) = self.ends.get_mut(vi) {
            end.stage = Stage::Lingering;
        }
        self.send_control(vi, last);
        self.lingering.push(vi, sys::monotonic_ms());
    }

    /// Removes the ends that have lingered long enough.
    pub(super) fn expire_lingering(&mut self, now: u64) {
        while let Some(vi) = self.lingering.expired(now) {
            self.finish(vi);
        }
    }

    /// If the table of ends is full, removes the end that has lingered longest.
    pub(super) fn evict_lingering(&mut self) {
        if self.ends.is_full()
            && let Some(oldest) = self.lingering.oldest()
        {
            self.finish(oldest);
        }
    }

    /// Stops the queue pair of an end and disconnects; the connection manager notifies the peer.
    pub(super) fn cut(&mut self, vi: u64) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        if let Some(queue) = &mut end.queue {
            queue.stop();
            // SAFETY: the id belongs to a live end and is not destroyed. The call fails without effect on an
            // id that is not connected.
            unsafe { (self.api.disconnect)(end.id) };
        }
    }

    /// Releases all resources of an end and removes it.
    pub(super) fn finish(&mut self, vi: u64) {
        self.lingering.remove(vi);
        self.cut(vi);
        // Receives of this queue pair that have completed must be processed while its number is still known.
        self.drain();
        let Some(mut end) = self.ends.remove(vi) else { return };
        if let Some(mut queue) = end.queue.take() {
            while let Some(work) = queue.abandon() {
                release_work(&mut end, &mut self.regions, &work);
            }
            let (number, (completions, room)) = (end.device, queue.completions);
            self.numbers.remove(&(number, queue.number()));
            self.found = None;
            drop(queue);
            // Flushed work requests occupy the completion queue until they are polled.
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
