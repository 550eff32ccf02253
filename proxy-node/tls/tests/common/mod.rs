//! A handshake in memory, and time that stands.
#![allow(dead_code, reason = "no test needs all of it")]

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use csp_tls::{ServerTls, Session};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, Error, HandshakeKind};

pub const NAME: &str = "www.csp.test";

pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Seconds since 1970, as one sets them.
#[derive(Debug)]
pub struct Clock(pub AtomicU64);

impl Clock {
    pub fn at(seconds: u64) -> Arc<Clock> {
        Arc::new(Clock(AtomicU64::new(seconds)))
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

/// What became of a handshake.
pub struct Done {
    pub server: Session,
    /// How it went, or what the client says.
    pub client: Result<HandshakeKind, Error>,
}

/// Has a client connect to what a service offers, and both say a word.
pub fn connect(client: &Arc<ClientConfig>, tls: &ServerTls) -> Done {
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = Session::new(tls).unwrap();
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    client.writer().write_all(b"hello").unwrap();
    server.write(b"welcome");
    let mut failed = None;
    for _ in 0..20 {
        while client.wants_write() {
            client.write_tls(&mut to_server).unwrap();
        }
        while let Some(len) = server.next_record(to_server.len(), [&to_server[..]].into_iter()) {
            server.take_record([&to_server[..len]].into_iter());
            to_server.drain(..len);
            if server.is_established() {
                server.consume(usize::MAX);
            }
        }
        server.encrypt(100_000, &mut to_client);
        let mut bytes = &to_client[..];
        while !bytes.is_empty() && failed.is_none() {
            client.read_tls(&mut bytes).unwrap();
            failed = client.process_new_packets().err();
        }
        to_client.clear();
    }
    let mut read = Vec::new();
    let _ = client.reader().read_to_end(&mut read); // it ends with WouldBlock
    let kind = client.handshake_kind().ok_or(Error::HandshakeNotComplete);
    Done { server, client: failed.map_or(kind, Err) }
}
