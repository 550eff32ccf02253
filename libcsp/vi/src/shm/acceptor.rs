//! The listening side: connections without a request yet, and requests that the caller has not answered.
//!
//! Any process may connect, so every table is bounded and no call waits. A connection that has sent no
//! request holds one of [`SILENT_MAX`] places until a later connection needs it; descriptors sent along are
//! dropped by the kernel.

use std::path::{Path, PathBuf};

use super::rendezvous::{Kind, PACKET_LEN_MAX, Packet};
use super::sys;
use crate::slots::{ID_BITS, Slots};
use crate::{ConnectRequest, Counters, RequestId, ViConfig, ViError};

/// Largest number of connections that have not sent their request.
const SILENT_MAX: usize = 64;

/// Largest number of requests that wait for the caller's answer.
const REQUESTS_MAX: usize = 256;

/// Largest number of listeners of one provider over its life, ended ones included.
const LISTENERS_MAX: usize = 1 << 16;

/// Connections accepted from one listener per call.
const ACCEPT_BURST: usize = 32;

struct Listener {
    socket: sys::Fd,
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Listener {
    /// Removes the socket file, unless its path names another file by now.
    fn unlink(&self) {
        if self.identity.is_some() && sys::identity(&self.path) == self.identity {
            sys::unlink(&self.path);
        }
    }
}

struct Silent {
    socket: sys::Fd,
    listener: u32,
    order: u64,
}

/// A request that waits for the caller's answer.
pub(super) struct Waiting {
    pub socket: sys::Fd,
    pub config: ViConfig,
}

/// The object that an epoll token identifies; the two bits above an id say what kind it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token {
    Listener(u32),
    Silent(u64),
    Vi(u64),
}

impl Token {
    pub(super) fn to_u64(self) -> u64 {
        match self {
            Token::Listener(id) => u64::from(id),
            Token::Silent(id) => 1 << ID_BITS | id,
            Token::Vi(id) => 2 << ID_BITS | id,
        }
    }

    pub(super) fn from_u64(token: u64) -> Self {
        let id = token & ((1 << ID_BITS) - 1);
        match token >> ID_BITS {
            0 => Token::Listener(token as u32),
            1 => Token::Silent(id),
            _ => Token::Vi(id),
        }
    }
}

pub(super) struct Acceptor {
    /// In the order of the calls of `listen`; `None` once ended.
    listeners: Vec<Option<Listener>>,
    silent: Slots<Silent>,
    pub waiting: Slots<Waiting>,
    order: u64,
    floor: i32,
    reserve: Option<sys::Fd>,
}

impl Acceptor {
    pub(super) fn new(floor: i32) -> Self {
        Acceptor {
            listeners: Vec::new(),
            silent: Slots::new(SILENT_MAX),
            waiting: Slots::new(REQUESTS_MAX),
            order: 0,
            floor,
            reserve: None,
        }
    }

    pub(super) fn listen(&mut self, epoll: &sys::Fd, path: &Path) -> Result<(), ViError> {
        if self.listeners.len() >= LISTENERS_MAX {
            return Err(ViError::Exhausted("listener"));
        }
        let socket = match sys::listen(path) {
            // The socket file of a dead listener remains; a live listener accepts connections.
            Err(sys::Errno(libc::EADDRINUSE)) if is_stale(path) => {
                sys::unlink(path);
                sys::listen(path)
            }
            other => other,
        };
        let socket = socket.map_err(|e| e.of("listen"))?.lifted(self.floor);
        let token = Token::Listener(self.listeners.len() as u32);
        sys::watch(epoll, &socket, token.to_u64()).map_err(|e| e.of("epoll_ctl"))?;
        self.reserve = sys::reserve().ok().map(|fd| fd.lifted(self.floor));
        let listener = Listener { socket, path: path.to_owned(), identity: sys::identity(path) };
        self.listeners.push(Some(listener));
        Ok(())
    }

    /// Ends a listener and removes its socket file; its pending requests remain. Returns `false` if there is
    /// no such listener.
    pub(super) fn unlisten(&mut self, epoll: &sys::Fd, listener: u32) -> bool {
        let ended = self.listeners.get_mut(listener as usize).and_then(Option::take);
        if let Some(listener) = &ended {
            sys::unwatch(epoll, &listener.socket);
            listener.unlink();
        }
        ended.is_some()
    }

    /// Accepts connections of a listener. Requests that have arrived already are passed to `found`.
    pub(super) fn accept(
        &mut self,
        epoll: &sys::Fd,
        number: u32,
        counters: &mut Counters,
        mut found: impl FnMut(ConnectRequest),
    ) {
        for _ in 0..ACCEPT_BURST {
            let Some(Some(listener)) = self.listeners.get(number as usize) else { return };
            match sys::accept(&listener.socket) {
                Ok(socket) => {
                    let socket = socket.lifted(self.floor);
                    self.make_room(epoll, counters);
                    self.order += 1;
                    let silent = Silent { socket, listener: number, order: self.order };
                    let Some(id) = self.silent.insert(silent) else { return };
                    let Some(silent) = self.silent.get(id) else { return };
                    if sys::watch(epoll, &silent.socket, Token::Silent(id).to_u64()).is_err() {
                        self.silent.remove(id);
                        counters.handshakes_dropped += 1;
                    } else if let Some(request) = self.receive_request(epoll, id, counters) {
                        found(request);
                    }
                }
                Err(sys::Errno(libc::EMFILE | libc::ENFILE)) => {
                    // Without accepting and closing the connection the listener would stay readable and the
                    // caller would spin.
                    self.reserve = None;
                    drop(sys::accept(&listener.socket));
                    self.reserve = sys::reserve().ok().map(|fd| fd.lifted(self.floor));
                    counters.handshakes_dropped += 1;
                }
                Err(_) => return,
            }
        }
    }

    fn make_room(&mut self, epoll: &sys::Fd, counters: &mut Counters) {
        if self.silent.iter().count() < SILENT_MAX {
            return;
        }
        let oldest = self.silent.iter().min_by_key(|(_, silent)| silent.order).map(|(id, _)| id);
        if let Some(silent) = oldest.and_then(|id| self.silent.remove(id)) {
            sys::unwatch(epoll, &silent.socket);
            counters.handshakes_dropped += 1;
        }
    }

    /// Reads the request of a silent connection, if it has arrived.
    pub(super) fn receive_request(
        &mut self,
        epoll: &sys::Fd,
        id: u64,
        counters: &mut Counters,
    ) -> Option<ConnectRequest> {
        let mut bytes = [0; PACKET_LEN_MAX];
        let got = sys::receive(&self.silent.get(id)?.socket, &mut bytes);
        if got == Err(sys::Errno(libc::EAGAIN)) {
            return None;
        }
        let Silent { socket, listener, .. } = self.silent.remove(id)?;
        sys::unwatch(epoll, &socket);
        let packet = got.ok().and_then(|len| bytes.get(..len)).map(Packet::parse);
        let Some(Ok(Packet { kind: Kind::Request, config, private_data })) = packet else {
            counters.handshakes_malformed += 1;
            return None;
        };
        let peer_uid = sys::peer_uid(&socket);
        let Some(id) = self.waiting.insert(Waiting { socket, config }) else {
            counters.handshakes_dropped += 1;
            return None;
        };
        Some(ConnectRequest { id: RequestId(id), private_data, peer_uid, listener: Some(listener) })
    }

    pub(super) fn descriptors(&self, into: &mut Vec<i32>) {
        into.extend(self.listeners.iter().flatten().map(|l| l.socket.raw()));
        into.extend(self.silent.iter().map(|(_, s)| s.socket.raw()));
        into.extend(self.waiting.iter().map(|(_, w)| w.socket.raw()));
        into.extend(self.reserve.iter().map(sys::Fd::raw));
    }

    /// Removes the socket files of all listeners, unless their paths name other files by now.
    pub(super) fn unlink(&self) {
        self.listeners.iter().flatten().for_each(Listener::unlink);
    }
}

fn is_stale(path: &Path) -> bool {
    matches!(sys::connect(path), Err(sys::Errno(libc::ECONNREFUSED)))
}
