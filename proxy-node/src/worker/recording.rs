//! Where a worker's records, counters and events go.

use super::ProxyWorker;
use crate::core::{EndedConnection, ServerChange};
use crate::daemon::{ConnectionLog, HttpBoard, HttpLog, ServiceBoard, WorkerEvents};

impl ProxyWorker {
    /// Sets where connections are recorded.
    pub fn set_connection_log(&mut self, log: ConnectionLog) {
        self.log = Some(log);
    }

    /// Sets where HTTP requests are recorded, and where what is counted of them is published.
    pub fn set_http(&mut self, log: Option<HttpLog>, board: HttpBoard) {
        (self.http_log, self.http) = (log, Some(board));
    }

    pub(crate) fn http_log(&self) -> Option<&HttpLog> {
        self.http_log.as_ref()
    }

    pub(crate) fn http_addresses(&self) -> csp_policy::LogAddresses {
        self.http_addresses
    }

    pub(crate) fn http_board(&self) -> Option<&HttpBoard> {
        self.http.as_ref()
    }

    pub(crate) fn connection_log(&self) -> Option<&ConnectionLog> {
        self.log.as_ref()
    }

    /// Sets where what is counted by service is published.
    pub fn set_service_board(&mut self, services: ServiceBoard) {
        self.services = Some(services);
    }

    pub(crate) fn service_board(&self) -> Option<&ServiceBoard> {
        self.services.as_ref()
    }

    /// Returns the records of connections that have ended ([`ProxyCore::take_ended_connections`]).
    pub(crate) fn take_ended_connections(
        &mut self,
        room: Vec<EndedConnection>,
    ) -> (Vec<EndedConnection>, u64) {
        self.core.take_ended_connections(room)
    }

    /// Sets where this worker's events are reported.
    pub fn set_events(&mut self, events: WorkerEvents) {
        self.events = Some(events);
    }

    pub(crate) fn events(&self) -> Option<&WorkerEvents> {
        self.events.as_ref()
    }

    /// Returns the servers that came into use or went out of it since the last call.
    pub(crate) fn take_server_changes(&mut self) -> Vec<ServerChange> {
        self.core.take_server_changes()
    }
}
