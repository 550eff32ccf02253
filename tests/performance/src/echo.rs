//! A server that sends back what it receives. It uses sockets and epoll as any program does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

const LISTENER: Token = Token(usize::MAX);
const EVENTS_MAX: usize = 1024;
const READ_MAX: usize = 64 * 1024;

struct Connection {
    stream: TcpStream,
    /// Bytes that found no room yet; nothing is read while there are any.
    unsent: Vec<u8>,
}

/// Serves `address` until the process is terminated.
///
/// # Errors
/// Errors of listening or of waiting; connections that fail are closed and ignored.
pub fn serve(address: SocketAddr) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(address)?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(EVENTS_MAX);
    let (mut connections, mut buffer) = (Slab::new(), vec![0; READ_MAX]);
    println!("listening on {address}");
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            result => result?,
        }
        for event in &events {
            if event.token() == LISTENER {
                accept_all(&poll, &listener, &mut connections)?;
                continue;
            }
            let at = event.token().0;
            let Some(connection) = connections.get_mut(at) else { continue };
            if !matches!(connection.serve(&mut buffer), Ok(true)) {
                connections.remove(at);
            }
        }
    }
}

fn accept_all(poll: &Poll, listener: &TcpListener, connections: &mut Slab<Connection>) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                let entry = connections.vacant_entry();
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(&mut stream, Token(entry.key()), interest)?;
                entry.insert(Connection { stream, unsent: Vec::new() });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Connection {
    /// Reads and replies until neither is possible; `false` after the client has finished.
    fn serve(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        loop {
            while !self.unsent.is_empty() {
                match self.stream.write(&self.unsent) {
                    Ok(n) => drop(self.unsent.drain(..n)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
            match self.stream.read(buffer) {
                Ok(0) => return Ok(false),
                Ok(n) => self.unsent.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }
}
