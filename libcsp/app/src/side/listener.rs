//! Listeners: accept credit, accept queues, and the return of connections to the proxies.

use std::collections::VecDeque;
use std::net::SocketAddr;

use csp_types::{Duration, Instant, TraceKind};
use csp_wire::channel::{ListenPayload, MessageHeader, MessageKind};

use super::channel::Lane;
use super::config::CHANNELS_MAX;
use super::records::{Interest, Listener, Offer, Phase};
use super::slots::{FlowId, ListenerId};
use super::{AppError, AppSide, Handle, Readiness, errno};
use csp_transport::ReceiveCredit;

/// Closed listeners that are remembered for each proxy: as many as a proxy accepts from one process.
const CLOSED_MAX: usize = 256;

/// Time for which waiting connections remain at a listener after the program stopped polling it. It exceeds
/// the time for which Apache leaves its listener out while its threads are busy (decision 0021). An idle
/// process can get them sooner: the proxy withdraws them.
pub const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A connection that the program accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// Its socket.
    pub flow: FlowId,
    /// The service's address.
    pub local: SocketAddr,
    /// The client's address.
    pub remote: SocketAddr,
}

impl AppSide {
    /// Listens at `address` (as passed to `bind`) on every proxy, including those announced later. No
    /// connection is offered before [`set_interest`](Self::set_interest).
    pub fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<ListenerId, AppError> {
        let listener = Listener {
            address,
            backlog: backlog.max(1),
            interest: Interest::None,
            queue: VecDeque::new(),
            offers: [Offer::default(); CHANNELS_MAX],
            queued_ready: false,
        };
        let id = self.listeners.insert(listener).map(ListenerId).ok_or(AppError::Full("listener"))?;
        for channel in 0..self.channels.len() {
            self.send_listen(channel, id);
        }
        Ok(id)
    }

    /// Stops listening. Connections that were not accepted return to the proxies.
    pub fn close_listener(&mut self, id: ListenerId) -> Result<(), AppError> {
        self.listeners.get(id.0).ok_or(AppError::Unknown)?;
        for channel in 0..self.channels.len() {
            self.send_unlisten(channel, id.to_wire());
            if let Some(channel) = self.channels.get_mut(channel).filter(|channel| channel.announced) {
                if channel.closed.len() == CLOSED_MAX {
                    channel.closed.pop_front();
                }
                channel.closed.push_back(id.to_wire());
            }
        }
        // After UNLISTEN, so that they are not offered here again.
        self.refuse_waiting(id);
        self.listeners.remove(id.0);
        Ok(())
    }

    /// Sets whether the program waits for connections on this listener (it polls it or is in `accept`). When
    /// it no longer does, waiting connections and those still offered remain for [`PAUSE_MAX`]; then the
    /// credit is withdrawn, and the proxies offer the waiting connections to other processes. Credit is
    /// granted only while the program waits.
    pub fn set_interest(&mut self, id: ListenerId, interested: bool) -> Result<(), AppError> {
        let listener = self.listeners.get_mut(id.0).ok_or(AppError::Unknown)?;
        match (listener.interest, interested) {
            (Interest::None, true) => {
                listener.interest = Interest::Waiting;
                self.grant_all(id);
            }
            (Interest::Paused(_), true) => {
                listener.interest = Interest::Waiting;
                let waits = !listener.queue.is_empty();
                self.paused.retain(|paused| *paused != id);
                self.grant_all(id); // clients may have closed connections meanwhile
                if waits {
                    self.notify(Handle::Listener(id)); // the owner may have left them when it had no room
                }
            }
            (Interest::Waiting, false) => {
                listener.interest = Interest::Paused(None);
                self.paused.push(id);
            }
            (Interest::Waiting, true) | (Interest::None | Interest::Paused(_), false) => {}
        }
        Ok(())
    }

    /// Ends the pauses that have lasted for [`PAUSE_MAX`], and sets the end of new ones.
    pub(super) fn check_pauses(&mut self) {
        for at in (0..self.paused.len()).rev() {
            let Some(&id) = self.paused.get(at) else { continue };
            let now = self.now;
            match self.listeners.get_mut(id.0).map(|l| &mut l.interest) {
                Some(Interest::Paused(until @ None)) => *until = Some(now + PAUSE_MAX),
                Some(Interest::Paused(Some(until))) if *until > now => {}
                Some(Interest::Paused(_)) => {
                    self.paused.swap_remove(at);
                    self.end_interest(id);
                }
                _ => drop(self.paused.swap_remove(at)), // closed meanwhile
            }
        }
    }

    /// The first time at which [`check_pauses`](Self::check_pauses) ends a pause.
    pub(super) fn pause_deadline(&self) -> Option<Instant> {
        let until = |id: &ListenerId| match self.listeners.get(id.0)?.interest {
            Interest::Paused(until) => Some(until.unwrap_or(self.now + PAUSE_MAX)),
            _ => None,
        };
        self.paused.iter().filter_map(until).min()
    }

    /// Ends the program's interest in a listener: withdraws the credit and refuses the waiting connections.
    fn end_interest(&mut self, id: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(id.0) {
            listener.interest = Interest::None;
        }
        self.counters.pauses_ended += 1;
        for channel in 0..self.channels.len() {
            self.withdraw(channel, id);
        }
        self.refuse_waiting(id);
    }

    /// Asks a proxy to return its unused credit.
    fn withdraw(&mut self, channel: usize, id: ListenerId) {
        let offer = self.listeners.get_mut(id.0).and_then(|l| l.offers.get_mut(channel));
        let Some(offer) = offer.filter(|offer| offer.granted > 0 && !offer.withdrawing) else { return };
        if self.channels.get(channel).is_some_and(|c| c.is_up()) {
            offer.withdrawing = true;
            let header = MessageHeader::new(MessageKind::AcceptCredit, id.to_wire(), 0, 0);
            self.send_to_channel(channel, header, &[]);
        }
    }

    /// Handles a proxy's answer to a withdrawal: the credit that it returns. Returns `false` if the answer
    /// violates the protocol.
    pub(super) fn on_credit_returned(&mut self, channel: usize, id: ListenerId, count: u32) -> bool {
        let Some(listener) = self.listeners.get_mut(id.0) else {
            self.counters.messages_unknown += 1; // closed meanwhile
            return true;
        };
        let valid = listener.offers.get_mut(channel).is_some_and(|offer| offer.returned(count));
        if listener.interest == Interest::None {
            self.withdraw(channel, id); // the credit granted since, while the program waited in between
        }
        self.grant(channel, id); // the program may wait again by now
        valid
    }

    /// Accepts the oldest waiting connection.
    pub fn accept(&mut self, id: ListenerId) -> Result<Accepted, AppError> {
        self.set_interest(id, true)?;
        let listener = self.listeners.get_mut(id.0).ok_or(AppError::Unknown)?;
        let Some(flow_id) = listener.queue.pop_front() else {
            self.grant_all(id); // restores credit used by connections for which there was no room
            return Err(AppError::WouldBlock);
        };
        let window = self.config.receive_window;
        let flow = self.flows.get_mut(flow_id.0).ok_or(AppError::WouldBlock)?;
        flow.phase = Phase::Open;
        flow.receive = ReceiveCredit::new(window);
        let (lane, label) = (flow.lane, flow.label);
        let accepted = Accepted { flow: flow_id, local: flow.local, remote: flow.remote };
        if let Some(label) = label {
            self.send_control(lane, MessageHeader::of_flow(MessageKind::Accepted, label, window, 0));
        }
        self.counters.accepted += 1;
        self.record(TraceKind::AppOpen, flow_id, 0);
        self.left_queue(id, lane.channel);
        Ok(accepted)
    }

    /// Number of connections that wait to be accepted.
    pub fn accept_queue_len(&self, id: ListenerId) -> usize {
        self.listeners.get(id.0).map_or(0, |l| l.queue.len())
    }

    /// All listeners: address, whether the program is interested, and how many connections wait.
    pub fn listeners(&self) -> impl Iterator<Item = (ListenerId, SocketAddr, bool, usize)> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (slot, id) = self.listeners.at_or_after(at)?;
            at = slot + 1;
            let l = self.listeners.get(id)?;
            Some((ListenerId(id), l.address, l.interest != Interest::None, l.queue.len()))
        })
    }

    pub(super) fn listener_readiness(&self, id: ListenerId) -> Readiness {
        match self.listeners.get(id.0) {
            Some(listener) if !listener.queue.is_empty() => Readiness::READABLE,
            _ => Readiness::default(),
        }
    }

    pub(super) fn send_listen(&mut self, channel: usize, id: ListenerId) {
        let Some(listener) = self.listeners.get(id.0) else { return };
        let payload = ListenPayload { address: listener.address }.emit();
        let header = MessageHeader::new(MessageKind::Listen, id.to_wire(), listener.backlog, 0);
        self.send_to_channel(channel, header, &payload);
    }

    /// Announces all listeners to a proxy, and the credit of those in use. A proxy that may know them already
    /// is first sent UNLISTEN, so that their state is reset; connections that it still offers by earlier
    /// credit are accepted as well.
    pub(super) fn announce(&mut self, channel: usize) {
        self.clear_refused(channel);
        let Some(target) = self.channels.get_mut(channel) else { return };
        let again = std::mem::replace(&mut target.announced, true);
        let closed: Vec<u32> = target.closed.iter().copied().collect();
        for id in closed {
            self.send_unlisten(channel, id);
        }
        let mut at = 0;
        while let Some((slot, id)) = self.listeners.at_or_after(at) {
            at = slot + 1;
            let id = ListenerId(id);
            if again {
                self.send_unlisten(channel, id.to_wire());
            }
            self.send_listen(channel, id);
            if let Some(offer) = self.listeners.get_mut(id.0).and_then(|l| l.offers.get_mut(channel)) {
                offer.restart();
            }
            self.grant(channel, id);
        }
    }

    fn send_unlisten(&mut self, channel: usize, id: u32) {
        self.send_to_channel(channel, MessageHeader::new(MessageKind::Unlisten, id, 0, 0), &[]);
    }

    /// Grants credit that [`grant`](Self::grant) held back, once flows have ended.
    pub(super) fn grant_held_back(&mut self) {
        if !self.flows_were_full || self.flows.room() == 0 {
            return;
        }
        self.flows_were_full = false;
        let mut at = 0;
        while let Some((slot, id)) = self.listeners.at_or_after(at) {
            at = slot + 1;
            self.grant_all(ListenerId(id));
        }
    }

    fn grant_all(&mut self, id: ListenerId) {
        for channel in 0..self.channels.len() {
            self.grant(channel, id);
        }
    }

    /// Replenishes a channel's accept credit once half of it is used. Grants no more than the table of flows
    /// has room for: an offer beyond that would be refused.
    pub(super) fn grant(&mut self, channel: usize, id: ListenerId) {
        let waiting = |l: &&mut Listener| l.interest == Interest::Waiting;
        let Some(listener) = self.listeners.get_mut(id.0).filter(waiting) else { return };
        let window = self.config.accept_window.min(listener.backlog).max(1);
        let up = self.channels.get(channel).is_some_and(|c| c.is_up());
        let Some(offer) = listener.offers.get_mut(channel).filter(|_| up) else { return };
        let missing = window.saturating_sub(offer.granted + offer.waiting);
        if missing == 0 || missing < window.div_ceil(2) {
            return;
        }
        let room = u32::try_from(self.flows.room()).unwrap_or(u32::MAX);
        let granted = missing.min(room.saturating_sub(offer.granted));
        self.flows_were_full |= granted < missing;
        if granted == 0 {
            return;
        }
        offer.granted += granted;
        self.send_to_channel(
            channel,
            MessageHeader::new(MessageKind::AcceptCredit, id.to_wire(), granted, 0),
            &[],
        );
    }

    pub(super) fn left_queue(&mut self, id: ListenerId, channel: usize) {
        if let Some(offer) = self.listeners.get_mut(id.0).and_then(|l| l.offers.get_mut(channel)) {
            offer.waiting = offer.waiting.saturating_sub(1);
        }
        self.grant(channel, id);
    }

    /// Refuses all waiting connections, so that other processes receive them.
    fn refuse_waiting(&mut self, id: ListenerId) {
        while let Some(flow_id) = self.listeners.get_mut(id.0).and_then(|l| l.queue.pop_front()) {
            let Some(flow) = self.flows.remove(flow_id.0) else { continue };
            if let Some(offer) =
                self.listeners.get_mut(id.0).and_then(|l| l.offers.get_mut(flow.lane.channel))
            {
                offer.waiting = offer.waiting.saturating_sub(1);
            }
            let Some(label) = flow.label else { continue };
            if let Some(channel) = self.channels.get_mut(flow.lane.channel) {
                channel.labels.remove(&label.to_wire());
            }
            self.refuse(flow.lane, label.to_wire());
        }
    }

    pub(super) fn refuse(&mut self, lane: Lane, label: u32) {
        self.counters.refused += 1;
        let reason = errno::ECONNREFUSED as u32;
        self.send_control(lane, MessageHeader::new(MessageKind::Refused, label, reason, 0));
    }

    /// Removes a waiting connection that has ended (its client closed it).
    pub(super) fn drop_pending(&mut self, flow_id: FlowId, listener: Option<u32>, lane: Lane) {
        self.counters.gone_before_accept += 1;
        self.flows.remove(flow_id.0);
        let Some(id) = listener else { return };
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.queue.retain(|f| *f != flow_id);
        }
        self.left_queue(ListenerId(id), lane.channel);
    }

    pub(super) fn enqueue(&mut self, id: ListenerId, flow_id: FlowId, lane: Lane) {
        let Some(listener) = self.listeners.get_mut(id.0) else { return };
        listener.queue.push_back(flow_id);
        if let Some(offer) = listener.offers.get_mut(lane.channel) {
            offer.waiting += 1;
        }
        self.notify(Handle::Listener(id));
    }
}
