//! Progress of the library, and the handling of what its callbacks recorded.

use std::ptr::null_mut;

use super::core::{Owner, SILENT_MAX, Silent, Todo};
use super::end::Stage;
use super::sys::{self, Endpoint, Status};
use super::{LISTEN_EVERY, PROGRESS_MAX, UcxProvider};
use crate::ViError;

impl UcxProvider {
    /// Lets the library make progress and handles the results.
    pub(super) fn progress(&mut self) {
        // Many workers have a provider that nobody has connected to: progress is a system call or two.
        self.idle_turns += 1;
        if self.worker.core().is_idle() && self.idle_turns < LISTEN_EVERY {
            return;
        }
        self.idle_turns = 0;
        for _ in 0..PROGRESS_MAX {
            let did = self.worker.progress();
            self.handle();
            let core = self.worker.core();
            if did == 0 || !core.reports.is_empty() {
                break;
            }
        }
        self.expire_lingering();
    }

    fn handle(&mut self) {
        while let Some((endpoint, status)) = self.worker.core_mut().failures.pop_front() {
            self.on_failure(endpoint, status);
        }
        while let Some(request) = self.worker.core_mut().incoming.pop_front() {
            self.admit(request);
        }
        for _ in 0..self.worker.core().todo.len() {
            match self.worker.core_mut().todo.pop_front() {
                Some(Todo::Send(vi, kind)) => self.send_control(vi, kind),
                Some(Todo::Close(vi)) => self.close(vi),
                Some(Todo::CloseUnowned(endpoint)) => self.worker.close(endpoint),
                Some(Todo::Reject(request)) => self.worker.reject(request),
                None => break,
            }
        }
    }

    fn close(&mut self, vi: u64) {
        let Some(end) = self.worker.core_mut().ends.get_mut(vi) else { return };
        if end.stage == Stage::Lingering {
            return self.finish(vi);
        }
        let endpoint = std::mem::replace(&mut end.endpoint, null_mut());
        self.worker.close(endpoint);
    }

    fn on_failure(&mut self, endpoint: *mut Endpoint, status: Status) {
        let text = self.worker.api.text(status);
        let core = self.worker.core_mut();
        match core.owners.get(&endpoint).copied() {
            None => {}
            Some(Owner::Silent(id)) => {
                core.silent.remove(id);
                self.worker.close(endpoint);
            }
            Some(Owner::Waiting(id)) => {
                core.waiting.remove(id);
                self.worker.close(endpoint);
            }
            Some(Owner::End(vi)) => {
                match core.ends.get(vi).map(|end| end.stage) {
                    Some(Stage::Connecting) if status == sys::ERR_REJECTED => {
                        core.refuse(vi, ViError::Rejected);
                    }
                    Some(Stage::Connecting) => {
                        let address = "the listener".to_owned();
                        core.refuse(vi, ViError::Unreachable { address, reason: text });
                    }
                    Some(Stage::Opening | Stage::Open) => core.end(vi, false),
                    _ => {}
                }
                self.close(vi);
            }
        }
    }

    /// Creates the endpoint of an announced connection, which must then send its request.
    fn admit(&mut self, request: *mut sys::ConnRequest) {
        if self.worker.core().silent.iter().count() >= SILENT_MAX {
            let core = self.worker.core_mut();
            core.counters.handshakes_dropped += 1;
            let oldest = core.silent.iter().min_by_key(|(_, silent)| silent.order).map(|(id, _)| id);
            if let Some(silent) = oldest.and_then(|id| core.silent.remove(id)) {
                self.worker.close(silent.endpoint);
            }
        }
        let Ok(endpoint) = self.worker.admit(request) else {
            self.worker.core_mut().counters.handshakes_dropped += 1;
            return;
        };
        self.order += 1;
        let order = self.order;
        let core = self.worker.core_mut();
        match core.silent.insert(Silent { endpoint, order }) {
            Some(id) => {
                core.owners.insert(endpoint, Owner::Silent(id));
            }
            None => self.worker.close(endpoint),
        }
    }
}
