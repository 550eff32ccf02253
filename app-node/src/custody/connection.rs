//! One connection in custody: moves bytes between the programs' Unix socket and the flow. Each direction ends
//! on its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use csp_app::{AppError, AppSide, Directions, FlowId};
use csp_types::Instant;
use csp_wire::channel::Ticket;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrUnix};

/// The owner's action on a connection after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Keep it.
    Continue,
    /// Close it: both sides have finished.
    Close,
    /// Reset it: the programs have closed it without reading everything, or the client's side is gone.
    Reset,
}

/// Bytes that the receiving side has not accepted yet.
#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    at: usize,
}

impl Held {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or(&[])
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.at = 0;
    }

    fn taken(&mut self, len: usize) {
        self.at += len;
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// The events registered with epoll; `None` if the socket is not in the set.
    watched: Option<EventFlags>,
    to_programs: Held,
    to_client: Held,
    /// The end of the client's stream was passed on to the programs.
    client_ended: bool,
    /// The programs' end of stream was passed on to the client.
    programs_ended: bool,
    /// No program holds the other end any more.
    hung_up: bool,
    /// The client's connection has failed. Programs still receive the bytes that it sent before.
    broken: bool,
    /// The flow has no room.
    flow_full: bool,
    /// The user of the process that left it.
    pub uid: u32,
    /// The ticket with which the connection was left. Processes that share it use the ticket to set options.
    pub ticket: Ticket,
    /// Bytes moved to programs and to the client since the owner read this field.
    pub moved: (u64, u64),
}

impl Connection {
    pub fn new(socket: OwnedFd, uid: u32, ticket: Ticket) -> Self {
        Connection {
            socket,
            watched: None,
            to_programs: Held::default(),
            to_client: Held::default(),
            client_ended: false,
            programs_ended: false,
            hung_up: false,
            broken: false,
            flow_full: false,
            uid,
            ticket,
            moved: (0, 0),
        }
    }

    /// Moves all bytes that can be moved.
    pub fn serve(
        &mut self,
        side: &mut AppSide,
        now: Instant,
        flow: FlowId,
        hung_up: bool,
        chunk: &mut [u8],
    ) -> Fate {
        self.hung_up |= hung_up;
        match self.client_to_programs(side, now, flow, chunk) {
            Fate::Continue => {}
            fate => return fate,
        }
        let was_broken = self.broken;
        match self.programs_to_client(side, now, flow, chunk) {
            Fate::Continue => {}
            fate => return fate,
        }
        if self.broken {
            return match (self.hung_up, was_broken) {
                (true, _) => Fate::Reset,
                (false, true) => Fate::Continue,
                (false, false) => self.client_to_programs(side, now, flow, chunk),
            };
        }
        match self.hung_up && self.programs_ended && self.to_client.rest().is_empty() {
            true if self.to_programs.rest().is_empty() => {
                self.sign();
                Fate::Close
            }
            true => Fate::Reset,
            false => Fate::Continue,
        }
    }

    /// Gives our socket a name (autobind, unix(7)), by which the filter recognises a regular end of the
    /// stream. If the name is missing, because the client has reset the connection or the agent has ended,
    /// programs get ECONNRESET.
    fn sign(&self) {
        if let Err(error) = rustix::net::bind(&self.socket, &SocketAddrUnix::new_unnamed()) {
            tracing::warn!(%error, "a connection's end could not be marked: programs get ECONNRESET");
        }
    }

    fn client_to_programs(
        &mut self,
        side: &mut AppSide,
        now: Instant,
        flow: FlowId,
        chunk: &mut [u8],
    ) -> Fate {
        while !self.hung_up {
            let rest = self.to_programs.rest();
            if !rest.is_empty() {
                match rustix::net::send(&self.socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    Ok(len) => {
                        self.to_programs.taken(len);
                        self.moved.0 += len as u64;
                        continue;
                    }
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    // Data that the programs wrote before they closed the socket is still read.
                    Err(_) => self.hung_up = true,
                }
                break;
            }
            match self.client_ended {
                true if self.broken => return Fate::Reset,
                true => break,
                false => {}
            }
            match side.read(now, flow, chunk, false) {
                Ok(0) if self.broken => return Fate::Reset,
                Ok(0) => {
                    self.client_ended = true;
                    self.sign();
                    let _ = rustix::net::shutdown(&self.socket, Shutdown::Write); // the programs may have closed their end
                }
                Ok(len) => self.to_programs.keep(chunk.get(..len).unwrap_or(&[])),
                Err(AppError::WouldBlock) => break,
                Err(_) => return Fate::Reset,
            }
        }
        Fate::Continue
    }

    fn programs_to_client(
        &mut self,
        side: &mut AppSide,
        now: Instant,
        flow: FlowId,
        chunk: &mut [u8],
    ) -> Fate {
        self.flow_full = false;
        loop {
            let rest = self.to_client.rest();
            if !rest.is_empty() {
                match side.write(now, flow, &[rest]) {
                    Ok(len) => {
                        self.to_client.taken(len);
                        self.moved.1 += len as u64;
                        continue;
                    }
                    Err(AppError::WouldBlock) => {
                        self.flow_full = true;
                        return Fate::Continue;
                    }
                    Err(_) => return self.fail(),
                }
            }
            if self.programs_ended {
                return Fate::Continue;
            }
            match side.write_room(flow) {
                Ok(_) => {}
                Err(AppError::WouldBlock) => {
                    self.flow_full = true;
                    return Fate::Continue;
                }
                // The client accepts no more data. The programs get the error at their next write.
                Err(AppError::Pipe) if !self.hung_up => {
                    let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
                    self.programs_ended = true;
                    return Fate::Continue;
                }
                Err(_) => return self.fail(),
            }
            match rustix::net::recv(&self.socket, &mut *chunk, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => {
                    self.programs_ended = true;
                    self.hung_up |= has_hung_up(&self.socket);
                    if !self.hung_up {
                        let write = Directions { read: false, write: true };
                        let _ = side.shutdown(now, flow, write); // a broken flow reports the error at the next read
                    }
                }
                Ok((_, len)) => self.to_client.keep(chunk.get(..len).unwrap_or(&[])),
                Err(Errno::AGAIN | Errno::INTR) => return Fate::Continue,
                Err(_) => return Fate::Reset,
            }
        }
    }

    /// Ends the programs' direction, because the client's connection has failed.
    fn fail(&mut self) -> Fate {
        (self.broken, self.programs_ended) = (true, true);
        self.to_client = Held::default();
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read); // the programs may have closed their end
        Fate::Continue
    }

    /// Registers with epoll the events that the connection waits for.
    pub fn watch(&mut self, set: &OwnedFd, flow: FlowId) {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, !self.flow_full && !self.programs_ended);
        wanted.set(EventFlags::OUT, !self.to_programs.rest().is_empty());
        // epoll always reports a hang-up. While the flow has no room for the remaining bytes, it would report
        // it again at once.
        let wanted = if self.hung_up && self.flow_full { None } else { Some(wanted) };
        if wanted == self.watched {
            return;
        }
        let data = EventData::new_u64(flow.to_wire().into());
        let done: io::Result<()> = match (self.watched, wanted) {
            (None, Some(flags)) => epoll::add(set, &self.socket, data, flags).map_err(Into::into),
            (Some(_), Some(flags)) => epoll::modify(set, &self.socket, data, flags).map_err(Into::into),
            (_, None) => epoll::delete(set, &self.socket).map_err(Into::into),
        };
        if let Err(error) = done {
            tracing::error!(%error, "a connection in custody cannot be watched");
        }
        self.watched = wanted;
    }
}

/// Returns whether no program holds the other end any more; otherwise a program has shut down its writing
/// direction.
fn has_hung_up(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags};
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&none)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}
