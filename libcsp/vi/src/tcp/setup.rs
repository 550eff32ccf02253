//! Connections before they are VIs: dialled, accepted, asked, answered.

use std::io;
use std::net::SocketAddr;

use super::end::{End, Stage};
use super::frame::{Kind, Setup};
use super::incoming::{Body, Frame, Incoming};
use super::sys::{self, Connection, Moved};
use super::turn::Token;
use super::{Listener, TcpProvider};
use crate::clock::monotonic_ms;
use crate::receives::Receives;
use crate::{ConnectRequest, Event, RequestId, ViConfig, ViError, ViId};

/// Largest number of connections whose request has not arrived.
pub(super) const SILENT_MAX: usize = 64;

/// Largest number of requests that wait for the caller's answer.
pub(super) const REQUESTS_MAX: usize = 256;

/// Largest number of connections accepted in one turn.
const ACCEPTS_MAX: usize = 64;

/// The sizes of an end that exchanges set-ups only.
const BARE: ViConfig = ViConfig { receive_depth: 2, send_depth: 2, message_len: 1 };

/// A connection whose request has not arrived.
pub(super) struct Silent {
    pub connection: Connection,
    listener: u32,
    incoming: Incoming,
    order: u64,
}

/// A connection whose request the caller has not answered.
pub(super) struct Waiting {
    pub connection: Connection,
    pub setup: Setup,
}

impl TcpProvider {
    pub(super) fn add_listener(&mut self, address: SocketAddr) -> Result<(), ViError> {
        let socket = sys::listen(address)?;
        let token = Token::Listener(self.listeners.len() as u64);
        let watched = self.watched.add(socket.raw(), token.to_bits());
        watched.map_err(|error| sys::failed("epoll_ctl", &error))?;
        self.listeners.push(Listener { socket, is_readable: true });
        Ok(())
    }

    /// Starts the connection of an end.
    pub(super) fn dial(&mut self, vi: u64, to: SocketAddr) -> io::Result<()> {
        let connection = Connection::start(to, self.source)?;
        self.watched.add(connection.raw(), Token::End(vi).to_bits())?;
        if let Some(end) = self.ends.get_mut(vi) {
            end.connection = Some(connection);
        }
        Ok(())
    }

    /// Fails a connecting VI.
    pub(super) fn refuse(&mut self, vi: u64, reason: ViError) {
        if let Some(end) = self.ends.get_mut(vi) {
            (end.stage, end.connection) = (Stage::Closed, None);
            self.reports.refused(vi, reason);
        }
    }

    /// Accepts what listeners have. One that cannot be accepted, for want of descriptors, is tried again.
    pub(super) fn accept_all(&mut self) {
        self.has_more_to_accept = false;
        for index in 0..self.listeners.len() {
            let mut accepted = 0;
            while let Some(listener) = self.listeners.get_mut(index).filter(|l| l.is_readable) {
                if accepted == ACCEPTS_MAX {
                    self.has_more_to_accept = true;
                    break;
                }
                match listener.socket.accept() {
                    Ok(connection) => self.add_silent(connection, index as u32),
                    Err(error) => {
                        listener.is_readable = error.kind() != io::ErrorKind::WouldBlock;
                        break;
                    }
                }
                accepted += 1;
            }
        }
    }

    fn add_silent(&mut self, connection: Connection, listener: u32) {
        if self.silent.is_full() {
            self.counters.handshakes_dropped += 1;
            let oldest = self.silent.iter().min_by_key(|(_, silent)| silent.order).map(|(id, _)| id);
            oldest.and_then(|id| self.silent.remove(id));
        }
        self.order += 1;
        let (socket, order) = (connection.raw(), self.order);
        let silent = Silent { connection, listener, incoming: Incoming::default(), order };
        if let Some(id) = self.silent.insert(silent)
            && self.watched.add(socket, Token::Silent(id).to_bits()).is_err()
        {
            self.silent.remove(id);
        }
    }

    /// Receives the request of a connection.
    pub(super) fn read_request(&mut self, id: u64) {
        let Some(silent) = self.silent.get_mut(id) else { return };
        // SAFETY: no place is given.
        let moved = unsafe { silent.connection.receive(None, &mut self.scratch) };
        let len = match moved {
            Moved::None => return,
            Moved::Bytes(len @ 1..) => len,
            Moved::Bytes(0) | Moved::Over => return drop(self.silent.remove(id)),
        };
        let mut bytes = self.scratch.get(..len).unwrap_or(&[]);
        match silent.incoming.feed(&mut Receives::new(&BARE), &mut bytes) {
            Ok(None) => {}
            // A connector sends nothing more before it is answered.
            Ok(Some(Frame { header, body: Body::Setup(setup) }))
                if header.kind == Kind::Request && bytes.is_empty() =>
            {
                self.on_request(id, &setup);
            }
            _ => {
                self.counters.handshakes_malformed += 1;
                self.silent.remove(id);
            }
        }
    }

    fn on_request(&mut self, id: u64, setup: &[u8]) {
        let Some(Silent { connection, listener, .. }) = self.silent.remove(id) else { return };
        let Ok(setup) = Setup::parse(setup) else {
            self.counters.handshakes_malformed += 1;
            return;
        };
        let (socket, private_data) = (connection.raw(), setup.private_data.clone());
        let Some(id) = self.waiting.insert(Waiting { connection, setup }) else {
            self.counters.handshakes_dropped += 1;
            return;
        };
        if self.watched.rename(socket, Token::Waiting(id).to_bits()).is_err() {
            self.waiting.remove(id);
            return;
        }
        let request =
            ConnectRequest { id: RequestId(id), private_data, peer_uid: None, listener: Some(listener) };
        self.reports.events.push_back(Event::Request(request));
    }

    /// Drops the request of a peer that has given up, or that sends before it is answered.
    pub(super) fn check_waiting(&mut self, id: u64) {
        if self.waiting.get(id).is_some_and(|waiting| waiting.connection.is_disturbed()) {
            self.waiting.remove(id);
            self.reports
                .events
                .retain(|event| !matches!(event, Event::Request(request) if request.id.0 == id));
        }
    }

    /// Makes an end of a connection that was accepted.
    pub(super) fn admit(
        &mut self,
        stage: Stage,
        connection: Connection,
        config: ViConfig,
    ) -> Result<u64, ViError> {
        let socket = connection.raw();
        let vi = self.insert(End::new(stage, Some(connection), config)?)?;
        if let Err(error) = self.watched.rename(socket, Token::End(vi).to_bits()) {
            self.ends.remove(vi);
            return Err(sys::failed("epoll_ctl", &error));
        }
        Ok(vi)
    }

    /// Rejects a connector's request.
    pub(super) fn turn_away(&mut self, connection: Connection, reason: u32) {
        // Without room for another end the connection is closed, which refuses the request as well.
        let Ok(vi) = self.admit(Stage::Lingering, connection, BARE) else { return };
        if let Some(end) = self.ends.get_mut(vi) {
            let pushed = end.push_own(Kind::Reject, reason, &[]);
            debug_assert!(pushed.is_some(), "the first frame fits");
        }
        self.linger(vi);
    }

    /// Sends the last frames of an end, and waits until its peer has closed the connection.
    pub(super) fn linger(&mut self, vi: u64) {
        self.lingering.push(vi, monotonic_ms());
        self.send(vi);
    }

    /// Handles the answer to the request of an end.
    pub(super) fn on_accept(&mut self, vi: u64, setup: &[u8]) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        match Setup::parse(setup) {
            Ok(setup) if setup.config.message_len == end.config.message_len => {
                end.set_peer(&setup.config);
                end.stage = Stage::Opening;
                let private_data = setup.private_data;
                self.reports.events.push_back(Event::Established { vi: ViId(vi), private_data });
            }
            Ok(_) => self.refuse(vi, ViError::Protocol("the message lengths differ")),
            Err(reason) => self.refuse(vi, reason),
        }
    }
}
