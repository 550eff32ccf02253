//! The state that the library's callbacks change. They only record events; the provider acts on them when the
//! library has returned.

use std::collections::{HashMap, VecDeque};

use super::end::{End, Stage};
use super::frame::{Header, Kind, REJECT_MISMATCH, Setup};
use super::sys::{ConnRequest, Endpoint, Status};
use crate::reports::Reports;
use crate::slots::{SLOTS_MAX, Slots};
use crate::{Completion, ConnectRequest, Counters, Event, RequestId, ViError, ViId};

/// Largest number of connections whose request has not arrived.
pub(super) const SILENT_MAX: usize = 64;

/// Largest number of requests that wait for the caller's answer.
const REQUESTS_MAX: usize = 256;

/// Largest number of connections that the library has announced and that have no endpoint yet.
const INCOMING_MAX: usize = 256;

/// The owner of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    Silent(u64),
    Waiting(u64),
    End(u64),
}

pub(super) struct Silent {
    pub endpoint: *mut Endpoint,
    pub order: u64,
}

pub(super) struct Waiting {
    pub endpoint: *mut Endpoint,
    pub setup: Setup,
}

/// Work to be done when the library has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Todo {
    /// Send a message without a body.
    Send(u64, Kind),
    /// Close the endpoint of a VI; a lingering VI is removed.
    Close(u64),
    /// Close an endpoint without an owner.
    CloseUnowned(*mut Endpoint),
    /// Reject an announced connection.
    Reject(*mut ConnRequest),
}

pub(super) struct Core {
    pub ends: Slots<End>,
    pub silent: Slots<Silent>,
    pub waiting: Slots<Waiting>,
    pub owners: HashMap<*mut Endpoint, Owner>,
    pub reports: Reports,
    pub incoming: VecDeque<*mut ConnRequest>,
    pub failures: VecDeque<(*mut Endpoint, Status)>,
    pub todo: VecDeque<Todo>,
    /// Endpoints whose closing the library has not completed.
    pub closing: usize,
    pub counters: Counters,
}

impl Core {
    pub(super) fn new() -> Self {
        Core {
            ends: Slots::new(SLOTS_MAX),
            silent: Slots::new(SILENT_MAX),
            waiting: Slots::new(REQUESTS_MAX),
            owners: HashMap::new(),
            reports: Reports::default(),
            incoming: VecDeque::new(),
            failures: VecDeque::new(),
            todo: VecDeque::new(),
            closing: 0,
            counters: Counters::default(),
        }
    }

    /// Whether there is neither a connection nor anything to be done.
    pub(super) fn is_idle(&self) -> bool {
        let has_connections = !(self.ends.is_empty() && self.silent.is_empty() && self.waiting.is_empty());
        let has_work = !(self.incoming.is_empty() && self.failures.is_empty() && self.todo.is_empty());
        !has_connections && !has_work && self.closing == 0
    }

    /// Records a connection that the library announces.
    pub(super) fn on_connection(&mut self, request: *mut ConnRequest) {
        if self.incoming.len() >= INCOMING_MAX {
            self.counters.handshakes_dropped += 1;
            self.todo.push_back(Todo::Reject(request));
        } else {
            self.incoming.push_back(request);
        }
    }

    /// Releases a send buffer whose message was sent or, because the endpoint failed, not sent.
    pub(super) fn on_sent(&mut self, vi: u64, buffer: u16, has_left: bool) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        let signal = end.release(buffer);
        if end.stage == Stage::Dead && !end.is_sending() {
            self.ends.remove(vi);
        } else if let (Some(wr_id), Stage::Open, true) = (signal, end.stage, has_left) {
            self.reports.completions.push_back(Completion::Sent { vi: ViId(vi), wr_id });
        }
    }

    /// Processes a message. `from` is the endpoint for the reply, null if the message does not ask for one.
    pub(super) fn on_message(&mut self, header: &[u8], data: &[u8], from: *mut Endpoint) {
        let Some(header) = Header::parse(header) else {
            self.counters.violations += 1;
            return;
        };
        if header.kind == Kind::Request {
            return self.on_request(data, from);
        }
        // Messages to a VI that was removed meanwhile are not a violation.
        let Some(vi) = self.ends.whole(header.vi) else { return };
        let Some(end) = self.ends.get_mut(vi) else { return };
        if end.key != header.key {
            self.counters.violations += 1;
            return;
        }
        match (header.kind, end.stage) {
            (Kind::Accept, Stage::Connecting) => self.on_accept(vi, data),
            (Kind::Reject, Stage::Connecting) => {
                let mismatch = header.immediate == REJECT_MISMATCH;
                self.refuse(
                    vi,
                    if mismatch {
                        ViError::Protocol("the message lengths differ")
                    } else {
                        ViError::Rejected
                    },
                );
            }
            (Kind::Data | Kind::Credit | Kind::Close, Stage::Opening | Stage::Open) => {
                self.on_open(vi, &header, data);
            }
            (Kind::Close, Stage::Lingering) => self.todo.push_back(Todo::Send(vi, Kind::CloseAck)),
            (Kind::CloseAck, Stage::Lingering) => self.todo.push_back(Todo::Close(vi)),
            (Kind::Data | Kind::Credit | Kind::Close, Stage::Lingering | Stage::Closed | Stage::Dead) => {}
            _ => self.counters.violations += 1,
        }
    }

    fn on_request(&mut self, data: &[u8], from: *mut Endpoint) {
        let Some(&Owner::Silent(id)) = self.owners.get(&from) else {
            self.counters.handshakes_malformed += 1;
            return;
        };
        self.silent.remove(id);
        self.owners.remove(&from);
        let Ok(setup) = Setup::parse(data) else {
            self.counters.handshakes_malformed += 1;
            return self.todo.push_back(Todo::CloseUnowned(from));
        };
        let private_data = setup.private_data.clone();
        match self.waiting.insert(Waiting { endpoint: from, setup }) {
            Some(id) => {
                self.owners.insert(from, Owner::Waiting(id));
                let request =
                    ConnectRequest { id: RequestId(id), private_data, peer_uid: None, listener: None };
                self.reports.events.push_back(Event::Request(request));
            }
            None => {
                self.counters.handshakes_dropped += 1;
                self.todo.push_back(Todo::CloseUnowned(from));
            }
        }
    }

    fn on_accept(&mut self, vi: u64, data: &[u8]) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        match Setup::parse(data) {
            Ok(setup) if setup.config.message_len == end.config.message_len => {
                end.set_peer(setup.vi, setup.key, &setup.config);
                end.stage = Stage::Opening;
                let private_data = setup.private_data;
                self.reports.events.push_back(Event::Established { vi: ViId(vi), private_data });
            }
            Ok(_) => self.refuse(vi, ViError::Protocol("the message lengths differ")),
            Err(reason) => self.refuse(vi, reason),
        }
    }

    /// Fails a connecting VI.
    pub(super) fn refuse(&mut self, vi: u64, reason: ViError) {
        if let Some(end) = self.ends.get_mut(vi) {
            end.stage = Stage::Closed;
        }
        self.reports.refused(vi, reason);
        self.todo.push_back(Todo::Close(vi));
    }

    fn on_open(&mut self, vi: u64, header: &Header, data: &[u8]) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        if end.reported.has_ended() {
            return;
        }
        if !end.window.update(header.posted) {
            return self.violate(vi);
        }
        match header.kind {
            Kind::Data => match end.receives.store(data, header.immediate) {
                None => self.violate(vi),
                Some(arrived) => self.reports.arrived(vi, &mut end.reported, arrived),
            },
            Kind::Close => {
                self.end(vi, true);
                self.todo.push_back(Todo::Send(vi, Kind::CloseAck));
            }
            _ => {}
        }
    }

    fn violate(&mut self, vi: u64) {
        self.counters.violations += 1;
        self.end(vi, false);
        self.todo.push_back(Todo::Close(vi));
    }

    /// Records the end of a VI.
    pub(super) fn end(&mut self, vi: u64, clean: bool) {
        if let Some(end) = self.ends.get_mut(vi) {
            self.reports.end(&mut end.reported, clean);
        }
    }

    /// Records that the caller polled a completion.
    pub(super) fn on_polled(&mut self, completion: &Completion) {
        if let Completion::Received { vi, .. } = completion
            && let Some(end) = self.ends.get_mut(vi.0)
        {
            self.reports.polled(&mut end.reported);
        }
    }

    /// Opens a VI whose `Established` was polled.
    pub(super) fn open(&mut self, vi: u64) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        end.stage = Stage::Open;
        self.reports.open(vi, &mut end.reported);
    }

    /// Queues the end of VIs whose last message was polled.
    pub(super) fn report_ends(&mut self) {
        for index in 0..if self.reports.has_endings() { self.ends.len() } else { 0 } {
            if let Some((id, end)) = self.ends.at_mut(index)
                && end.stage == Stage::Open
            {
                self.reports.report_end(id, &mut end.reported);
            }
        }
    }

    /// Discards all completions and events of a VI that the caller releases.
    pub(super) fn discard_reports(&mut self, vi: u64) {
        if let Some(end) = self.ends.get_mut(vi) {
            self.reports.discard(vi, &mut end.reported);
        }
    }
}
