//! Processing of completions.

use super::VerbsProvider;
use super::device::{Device, RECEIVE};
use super::end::{Arrived, End, Stage};
use super::frame::{CONTROL_LEN_MAX, Control, REJECT_MISMATCH, Setup};
use super::queue::{NO_REGION, Work};
use super::regions::Regions;
use super::sys::ibv::{self, Wc};
use crate::{BufferId, Completion, ConnectRequest, Event, RequestId, ViError, ViId};

/// Largest number of requests that wait for the caller's answer.
const REQUESTS_MAX: usize = 256;

fn received(vi: u64, arrived: Arrived) -> Completion {
    Completion::Received {
        vi: ViId(vi),
        buffer: BufferId(arrived.slot),
        len: arrived.len,
        immediate: arrived.immediate,
    }
}

/// Releases the send buffer and the regions of a work request.
pub(super) fn release_work(end: &mut End, regions: &mut Regions, work: &Work) {
    let Work::Data { buffer, regions: used, .. } = work else { return };
    if let (Some(buffer), Some(body)) = (buffer, &mut end.body) {
        body.free_buffer(*buffer);
    }
    for &region in used.iter().take_while(|&&region| region != NO_REGION) {
        regions.release(region);
    }
}

/// A queue pair and the end that owns it.
pub(super) struct Found {
    device: usize,
    /// The queue pair's number at that device.
    number: u32,
    vi: u64,
}

impl VerbsProvider {
    pub(super) fn on_completion(&mut self, number: usize, completion: &Wc) {
        if completion.wr_id & RECEIVE == 0 {
            return self.on_posted(completion);
        }
        let buffer = (completion.wr_id & (RECEIVE - 1)) as u32;
        if let Some(vi) = self.end_of_queue_pair(number, completion.qp_num) {
            self.on_received(vi, number, buffer, completion);
        }
        if let Some(Some(device)) = self.devices.get_mut(number)
            && device.post_receive(buffer).is_err()
        {
            self.lose(number);
        }
    }

    fn end_of_queue_pair(&mut self, device: usize, number: u32) -> Option<u64> {
        if let Some(found) = &self.found
            && (found.device, found.number) == (device, number)
        {
            return Some(found.vi);
        }
        let vi = *self.numbers.get(&(device, number))?;
        self.found = Some(Found { device, number, vi });
        Some(vi)
    }

    /// Processes the completion of posted work, successful or failed.
    fn on_posted(&mut self, completion: &Wc) {
        let until = completion.wr_id as u32;
        let Some(vi) = self.ends.whole((completion.wr_id >> 32) as u32) else { return };
        let Some(end) = self.ends.get_mut(vi) else { return };
        if completion.status != ibv::WC_SUCCESS {
            return self.fail(vi, "a work request failed");
        }
        end.peer_active = true;
        let mut own = false;
        while let Some(work) = end.queue.as_mut().and_then(|queue| queue.retire(until)) {
            release_work(end, &mut self.regions, &work);
            match work {
                Work::Data { wr_id: Some(wr_id), .. } if end.stage == Stage::Open => {
                    self.completions.push_back(Completion::Sent { vi: ViId(vi), wr_id });
                }
                Work::Data { .. } => {}
                Work::Own => own = true,
            }
        }
        if own {
            self.advertise_grants(vi);
        }
    }

    /// Processes a message in a buffer of the shared queue, or already in its slot.
    fn on_received(&mut self, vi: u64, number: usize, buffer: u32, completion: &Wc) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        if completion.status != ibv::WC_SUCCESS {
            // Without the queue pair having been stopped, only a message too long for the buffer fails.
            self.counters.violations += u64::from(end.ended.is_none());
            return self.fail(vi, "a receive failed");
        }
        end.peer_active = true;
        let Some(Some(device)) = self.devices.get(number) else { return };
        if completion.wc_flags & ibv::WC_WITH_IMM == 0 {
            let mut bytes = [0; CONTROL_LEN_MAX];
            // A message longer than any control message is invalid; its contents are not needed.
            let len = completion.byte_len as usize;
            device.received(buffer, &mut bytes);
            let message = bytes.get(..len).map_or(Err(ViError::Protocol("it is too long")), Control::parse);
            return self.on_control(vi, message);
        }
        match end.stage {
            // Also when the end was detected without a Close: messages that arrived before it are polled
            // first.
            Stage::Opening | Stage::Open if !end.receive_closed => {}
            Stage::Opening | Stage::Open | Stage::Lingering | Stage::Closed => return,
            _ => return self.violate(vi),
        }
        let eager = match completion.opcode {
            ibv::WC_RECV => Some((device, buffer)),
            ibv::WC_RECV_RDMA_WITH_IMM => None,
            _ => return self.violate(vi),
        };
        match accept_message(end, completion, eager) {
            None => self.violate(vi),
            Some(arrived) if end.stage == Stage::Open => {
                self.completions.push_back(received(vi, arrived));
                self.advertise_grants(vi);
            }
            Some(arrived) => end.early.push_back(arrived),
        }
    }

    fn on_control(&mut self, vi: u64, message: Result<Control, ViError>) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        match (message, end.stage) {
            (Ok(Control::Request(setup)), Stage::AwaitingRequest) => self.on_request(vi, setup),
            (Ok(Control::Accept(setup)), Stage::Requested) => self.on_accept(vi, setup),
            (Ok(Control::Reject(reason)), Stage::Requested) => self.refuse(
                vi,
                match reason {
                    REJECT_MISMATCH => ViError::Protocol("the message lengths differ"),
                    _ => ViError::Rejected,
                },
            ),
            (Ok(Control::Close), Stage::Opening | Stage::Open) if !end.receive_closed => {
                let connected = end.ended.is_none();
                self.note_end(vi, true);
                if connected {
                    self.send_control(vi, &Control::CloseAck);
                }
            }
            (Ok(Control::Close), Stage::Lingering) => self.send_control(vi, &Control::CloseAck),
            (Ok(Control::CloseAck), Stage::Lingering) => self.finished.push_back(vi),
            (_, Stage::Closed | Stage::Lingering) => {}
            (Err(_), Stage::AwaitingRequest) => {
                self.counters.handshakes_malformed += 1;
                self.finished.push_back(vi);
            }
            _ => self.violate(vi),
        }
    }

    fn on_request(&mut self, vi: u64, setup: Setup) {
        let waiting = self.ends.iter().filter(|(_, end)| end.stage == Stage::AwaitingAnswer).count();
        let Some(end) = self.ends.get_mut(vi) else { return };
        if setup.config != end.config {
            self.counters.handshakes_malformed += 1;
            return self.finished.push_back(vi);
        }
        if waiting >= REQUESTS_MAX {
            self.counters.handshakes_dropped += 1;
            return self.finished.push_back(vi);
        }
        end.stage = Stage::AwaitingAnswer;
        let private_data = end.set_peer(setup);
        let request =
            ConnectRequest { id: RequestId(vi), private_data, peer_uid: None, listener: end.listener };
        self.events.push_back(Event::Request(request));
    }

    fn on_accept(&mut self, vi: u64, setup: Setup) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        if setup.config.message_len != end.config.message_len {
            return self.refuse(vi, ViError::Protocol("the message lengths differ"));
        }
        end.stage = Stage::Opening;
        let private_data = end.set_peer(setup);
        self.events.push_back(Event::Established { vi: ViId(vi), private_data });
    }

    /// Breaks a VI whose peer violated the protocol.
    pub(super) fn violate(&mut self, vi: u64) {
        if let Some(end) = self.ends.get_mut(vi) {
            self.counters.violations += u64::from(!std::mem::replace(&mut end.receive_closed, true));
        }
        self.fail(vi, "the peer violated the protocol");
    }

    /// Fails a connecting VI.
    pub(super) fn refuse(&mut self, vi: u64, reason: ViError) {
        if let Some(end) = self.ends.get_mut(vi) {
            end.stage = Stage::Closed;
        }
        self.cut(vi);
        self.events.push_back(Event::Refused { vi: ViId(vi), reason });
    }

    /// Handles the failure of a VI's connection, or a disconnect by the peer.
    pub(super) fn fail(&mut self, vi: u64, why: &str) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        match end.stage {
            Stage::Resolving | Stage::Requested => {
                let address = end.address.map_or_else(String::new, |address| address.to_string());
                self.refuse(vi, ViError::Unreachable { address, reason: why.to_owned() });
            }
            Stage::Opening | Stage::Open => {
                self.note_end(vi, false);
                self.cut(vi);
            }
            // Reported when the caller answers the request.
            Stage::AwaitingAnswer => end.ended = Some(false),
            Stage::AwaitingRequest | Stage::Lingering => self.finished.push_back(vi),
            Stage::Closed => {}
        }
    }

    /// Records the end of a VI. A Close found after the disconnect makes the end clean.
    fn note_end(&mut self, vi: u64, clean: bool) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        self.ending += usize::from(end.ended.is_none());
        end.ended = Some(clean || end.ended == Some(true));
        end.receive_closed |= clean;
    }

    /// Queues the end of VIs whose last message was polled.
    pub(super) fn report_ends(&mut self) {
        // Messages that arrived before the end are in the completion queues by now.
        self.drain();
        for index in 0..self.ends.len() {
            let Some((id, end)) = self.ends.at_mut(index) else { continue };
            let Some(clean) = end.ended else { continue };
            if end.stage == Stage::Open && end.unpolled == 0 && !end.end_reported {
                (end.end_reported, end.receive_closed) = (true, true);
                self.ending -= 1;
                self.events.push_back(Event::Disconnected { vi: ViId(id), clean });
            }
        }
    }

    /// Opens a VI whose `Established` was polled: messages that arrived earlier can be polled now.
    pub(super) fn open(&mut self, vi: u64) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        end.stage = Stage::Open;
        self.completions.extend(end.early.drain(..).map(|arrived| received(vi, arrived)));
        self.advertise_grants(vi);
    }

    /// Discards all completions and events of a VI that the caller releases.
    pub(super) fn discard_reports(&mut self, vi: u64) {
        if let Some(end) = self.ends.get_mut(vi) {
            end.receive_closed = true;
            let is_noted = end.ended.is_some() && !std::mem::replace(&mut end.end_reported, true);
            if is_noted && matches!(end.stage, Stage::Opening | Stage::Open) {
                self.ending -= 1;
            }
        }
        self.completions.retain(|completion| match completion {
            Completion::Received { vi: of, .. } | Completion::Sent { vi: of, .. } => of.0 != vi,
        });
        self.events.retain(|event| match event {
            Event::Established { vi: of, .. }
            | Event::Refused { vi: of, .. }
            | Event::Disconnected { vi: of, .. } => of.0 != vi,
            Event::Request(_) => true,
        });
    }
}

/// Accepts a message. `None` if the peer had no grant for it or it is too long.
fn accept_message(end: &mut End, completion: &Wc, eager: Option<(&Device, u32)>) -> Option<Arrived> {
    let len = completion.byte_len;
    let slot = end.body.as_mut()?.arrive(len, eager)?;
    end.unpolled += 1;
    Some(Arrived { slot, len, immediate: u32::from_be(completion.imm_data) })
}
