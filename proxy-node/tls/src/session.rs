//! One connection's TLS session, at the server's end or at the client's.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{Error, HandshakeKind};

use super::client::Store;
use super::engine::{Engine, Step};
use super::{ClientIdentity, ClientTls, ClientVerifier, Failure, ServerTls, TlsChallenges};

/// A record's header: type, version, length (RFC 8446 §5.1).
const HEADER_LEN: usize = 5;
/// Largest payload of an encrypted record (RFC 5246 §6.2.3, which allows more than RFC 8446 §5.2).
const PAYLOAD_MAX: usize = (1 << 14) + 2048;
/// Largest number of plaintext bytes in one record (RFC 8446 §5.1).
const PLAINTEXT_MAX: usize = 1 << 14;
/// Room beside its plaintext for a record: header, explicit nonce, tag, the type of its content, and the key
/// update that may precede it.
const OVERHEAD: usize = HEADER_LEN + 8 + 16 + 1 + 64;
/// Smallest room for which a record is made, unless all that waits fits into less.
const RECORD_MIN: usize = 1024;
/// Plaintext bytes that are kept although they are encrypted: so much is moved at once.
const WRITTEN_KEPT: usize = 64 * 1024;
/// Largest part of a handshake that waits to be joined or sent, in bytes: longer chains of certificates are
/// refused.
const HANDSHAKE_MAX: usize = 64 * 1024;

/// Records that were sent and are not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Position of the record's end in the stream of ciphertext.
    end: u64,
    /// Plaintext bytes in it.
    plaintext: u32,
}

/// A session.
pub struct Session {
    pub(crate) engine: Engine,
    /// Ciphertext that is being processed: at most a record, and parts of a handshake message that is longer.
    pub(crate) incoming: Vec<u8>,
    /// The plaintext of one record, of which `read` bytes were consumed.
    plaintext: Vec<u8>,
    read: usize,
    /// Plaintext to be encrypted, of which `encrypted` bytes were.
    written: Vec<u8>,
    encrypted: usize,
    /// What the protocol itself has to send.
    handshake: Vec<u8>,
    /// Number of ciphertext bytes given out, and the records among them that are not acknowledged.
    sent: u64,
    records: VecDeque<Sent>,
    /// Plaintext bytes in those records.
    in_flight: u64,
    pub(crate) established: bool,
    closed_by_peer: bool,
    closing: bool,
    closed: bool,
    pub(crate) failure: Option<Failure>,
    /// How the client's certificate is verified, until the handshake is complete.
    pub(crate) clients: Option<ClientVerifier>,
    /// The challenges that the first record may be of.
    challenges: Option<TlsChallenges>,
    /// Whether the handshake is that of a challenge.
    is_challenge: bool,
    /// Whom the client's certificate names.
    identity: Option<Arc<ClientIdentity>>,
    /// Whether the server must choose an application protocol.
    needs_protocol: bool,
    /// Where sessions with servers of this name are kept, until the handshake is complete.
    kept: Option<(Arc<Store>, ServerName<'static>)>,
    /// Whether steps of the handshake may be dear, whether such are put off, and whether one is.
    pub(crate) is_dear: bool,
    pub(crate) puts_off: bool,
    pub(crate) put_off: bool,
}

impl Session {
    /// Begins a session with a client. `None` if the configuration permits none.
    #[must_use]
    pub fn new(tls: &ServerTls) -> Option<Self> {
        let connection = UnbufferedServerConnection::new(tls.config()).ok()?;
        let engine = Engine::Server(connection);
        let (clients, challenges) = (tls.clients().cloned(), tls.challenges().cloned());
        Some(Session { clients, challenges, is_dear: tls.is_dear(), ..Session::of(engine) })
    }

    /// Begins a session with the server at this address, whose first message waits to be sent. `None` if the
    /// configuration permits none.
    #[must_use]
    pub fn towards(tls: &ClientTls, server: SocketAddr) -> Option<Self> {
        let config = tls.config();
        let needs_protocol = !config.alpn_protocols.is_empty();
        let name = tls.name_of(server);
        let kept = Some((Arc::clone(tls.sessions()), name.clone()));
        let connection = UnbufferedClientConnection::new(config, name).ok()?;
        let engine = Engine::Client(connection);
        let mut session = Session { needs_protocol, kept, ..Session::of(engine) };
        session.process();
        Some(session)
    }

    pub(crate) fn of(engine: Engine) -> Self {
        Session {
            engine,
            incoming: Vec::new(),
            plaintext: Vec::new(),
            read: 0,
            written: Vec::new(),
            encrypted: 0,
            handshake: Vec::new(),
            sent: 0,
            records: VecDeque::new(),
            in_flight: 0,
            established: false,
            closed_by_peer: false,
            closing: false,
            closed: false,
            failure: None,
            clients: None,
            challenges: None,
            is_challenge: false,
            identity: None,
            needs_protocol: false,
            kept: None,
            is_dear: false,
            puts_off: false,
            put_off: false,
        }
    }
}

impl fmt::Debug for Session {
    /// Without keys and contents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("established", &self.established)
            .field("readable", &self.readable())
            .field("pending", &self.pending())
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

/// From the peer.
impl Session {
    /// Returns the length of the next record if all of it is there, and it can be [taken](Self::take_record):
    /// no plaintext waits to be read. `available` bytes have arrived, and `header` has the first of them.
    #[must_use]
    pub fn next_record<'a>(&self, available: usize, header: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
        if available < HEADER_LEN || self.readable() > 0 || self.closed_by_peer || self.failure.is_some() {
            return None;
        }
        if self.put_off || self.is_away() {
            return None;
        }
        let mut bytes = [0; HEADER_LEN];
        for (to, from) in bytes.iter_mut().zip(header.flatten()) {
            *to = *from;
        }
        match record_len(bytes) {
            // rustls says what is wrong with it.
            None => Some(HEADER_LEN),
            Some(len) => Some(len).filter(|len| *len <= available),
        }
    }

    /// Processes the bytes of one record.
    pub fn take_record<'a>(&mut self, record: impl Iterator<Item = &'a [u8]>) {
        record.for_each(|slice| self.incoming.extend_from_slice(slice));
        if self.incoming.len() > HANDSHAKE_MAX {
            let error = Error::General("a message of the handshake is too long".into());
            self.failure.get_or_insert(Failure::Protocol(error));
            return;
        }
        if let Some(challenges) = self.challenges.take() {
            self.answer(&challenges);
        }
        match self.is_to_put_off() {
            true => self.put_off = true,
            false => self.process(),
        }
    }

    /// Begins the session anew if its first record is that of a challenge.
    fn answer(&mut self, challenges: &TlsChallenges) {
        let connection = challenges.of(&self.incoming).map(UnbufferedServerConnection::new);
        if let Some(Ok(connection)) = connection {
            (self.engine, self.clients, self.is_challenge) = (Engine::Server(connection), None, true);
        }
    }

    /// Reports that no more ciphertext follows what was [taken](Self::take_record).
    pub fn stream_ended(&mut self) {
        if !self.closed_by_peer && self.failure.is_none() && !self.put_off && !self.is_away() {
            self.failure = Some(Failure::Truncated);
        }
    }

    /// Returns the number of decrypted bytes that are not consumed.
    #[inline]
    #[must_use]
    pub fn readable(&self) -> usize {
        self.plaintext.len() - self.read
    }

    /// Returns the decrypted bytes.
    #[inline]
    #[must_use]
    pub fn plaintext(&self) -> &[u8] {
        &self.plaintext[self.read..]
    }

    /// Removes the first `len` decrypted bytes.
    pub fn consume(&mut self, len: usize) {
        self.read += len.min(self.readable());
        if self.readable() == 0 {
            // An idle session holds no memory for records.
            (self.plaintext, self.read) = (Vec::new(), 0);
        }
    }

    /// Returns whether the handshake is complete.
    #[inline]
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// Returns the application protocol that the handshake has chosen (RFC 7301), if any.
    #[must_use]
    pub fn protocol(&self) -> Option<&[u8]> {
        self.engine.protocol()
    }

    /// Returns whether the handshake has resumed a former session, once it is complete.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.engine.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns whom the client's certificate names, after the handshake; `None`: it has sent none.
    #[must_use]
    pub fn identity(&self) -> Option<&Arc<ClientIdentity>> {
        self.identity.as_ref()
    }

    /// Returns whether the peer has ended its stream, by close_notify: nothing follows the readable bytes.
    #[inline]
    #[must_use]
    pub fn is_closed_by_peer(&self) -> bool {
        self.closed_by_peer
    }

    /// Returns why the session failed, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Runs the protocol until it needs more from the peer, or has plaintext.
    pub(crate) fn process(&mut self) {
        if self.put_off || self.is_away() {
            return;
        }
        if matches!(self.failure, Some(Failure::Protocol(_))) {
            return; // its alert waits already, and rustls would find the same record wrong again
        }
        loop {
            let (discard, step) =
                self.engine.step(&mut self.incoming, &mut self.plaintext, &mut self.handshake);
            let mut goes_on = match step {
                Step::Read => self.plaintext.is_empty(),
                Step::Encoded => self.failure.is_none() || self.engine.wants_write(),
                Step::Sent => true,
                Step::Closed => {
                    self.closed_by_peer = true;
                    true
                }
                Step::Ready => {
                    self.handshake_done();
                    false
                }
                Step::Waits => false,
                Step::Unreadable(error) => {
                    self.failure = Some(Failure::Protocol(error));
                    self.plaintext.is_empty()
                }
                Step::Failed(error) => {
                    self.failure.get_or_insert(Failure::Protocol(error));
                    self.engine.wants_write() // an alert
                }
            };
            self.incoming.drain(..discard.min(self.incoming.len()));
            if self.handshake.len() > HANDSHAKE_MAX {
                self.failure.get_or_insert(Failure::Protocol(Error::General("too much to send".into())));
                goes_on = false;
            }
            if !goes_on {
                break;
            }
        }
        if self.incoming.is_empty() {
            self.incoming = Vec::new();
        }
    }

    /// Notes that the handshake is complete, unless the peer's certificate is not what it should be.
    fn handshake_done(&mut self) {
        if self.is_challenge {
            self.failure.get_or_insert(Failure::Challenge);
        }
        if let Some(clients) = self.clients.take() {
            let chain = self.engine.peer_certificates();
            let verified = match self.engine.handshake_kind() {
                // rustls has verified it.
                Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) => Ok(()),
                _ => clients.verify_again(chain),
            };
            self.identity = chain.and_then(<[_]>::first).and_then(ClientIdentity::of).map(Arc::new);
            let unread = chain.is_some_and(|chain| !chain.is_empty()) && self.identity.is_none();
            match verified {
                Err(error) => self.failure = Some(Failure::Protocol(error)),
                Ok(()) if unread => self.failure = Some(Failure::Unnamed),
                Ok(()) => {}
            }
        }
        if let Some((sessions, name)) = self.kept.take() {
            let chain = self.engine.peer_certificates().unwrap_or_default();
            if let Err(error) = sessions.established(name, chain, self.is_resumed()) {
                self.failure.get_or_insert(Failure::Protocol(error));
            }
        }
        if !self.established && self.needs_protocol && self.engine.protocol().is_none() {
            self.failure.get_or_insert(Failure::NoProtocol);
        }
        self.established |= self.failure.is_none();
    }
}

/// To the peer.
impl Session {
    /// Adds plaintext to what is to be encrypted.
    pub fn write(&mut self, bytes: &[u8]) {
        if !self.closing {
            self.written.extend_from_slice(bytes);
        }
    }

    /// Ends the stream to the peer, by close_notify after what was written.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Returns whether there is something to [encrypt](Self::encrypt).
    #[inline]
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.handshake.is_empty()
            || self.is_writable() && (self.pending() > 0 || self.closing && !self.closed)
    }

    /// Returns the number of written bytes that are not encrypted.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> usize {
        self.written.len() - self.encrypted
    }

    /// Returns the number of written bytes that the peer has not acknowledged. `queued` is the number of
    /// ciphertext bytes that were given out and that it has not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self, queued: u64) -> u64 {
        let acknowledged = self.sent.saturating_sub(queued);
        let done = self.records.iter().take_while(|record| record.end <= acknowledged);
        let done: u64 = done.map(|record| u64::from(record.plaintext)).sum();
        self.in_flight - done + self.pending() as u64
    }

    /// Forgets the records that the peer has acknowledged. `queued` as for
    /// [`unacknowledged`](Self::unacknowledged).
    pub fn acknowledged(&mut self, queued: u64) {
        let acknowledged = self.sent.saturating_sub(queued);
        while let Some(record) = self.records.pop_front_if(|record| record.end <= acknowledged) {
            self.in_flight -= u64::from(record.plaintext);
        }
    }

    /// Appends at most `room` bytes of ciphertext to `out`: what the protocol has to send, then what was
    /// written.
    pub fn encrypt(&mut self, room: usize, out: &mut Vec<u8>) {
        self.process(); // what answers the peer's messages precedes what was written
        let first = self.handshake.len().min(room);
        out.extend(self.handshake.drain(..first));
        if self.handshake.is_empty() {
            self.handshake = Vec::new();
        }
        self.sent += first as u64;
        let mut left = room - first;
        while self.handshake.is_empty() && self.is_writable() {
            let wanted = self.pending().min(PLAINTEXT_MAX);
            let len = wanted.min(left.saturating_sub(OVERHEAD));
            if wanted == 0 || len < wanted.min(RECORD_MIN) {
                break;
            }
            let Some(taken) = self.encrypt_record(len, out) else { break };
            left = left.saturating_sub(taken);
        }
        if self.encrypted >= WRITTEN_KEPT {
            self.written.drain(..self.encrypted);
            self.encrypted = 0;
        }
        if self.pending() == 0 {
            (self.written, self.encrypted) = (Vec::new(), 0);
            if self.closing && !self.closed && self.is_writable() && left >= OVERHEAD + 2 {
                self.closed = self.close_notify(out).is_some() || self.failure.is_some();
            }
        }
    }

    fn is_writable(&self) -> bool {
        self.established && !matches!(self.failure, Some(Failure::Protocol(_) | Failure::KeysUsedUp))
    }

    /// Encrypts the next `len` bytes as one record; returns its length.
    fn encrypt_record(&mut self, len: usize, out: &mut Vec<u8>) -> Option<usize> {
        let (from, at) = (self.encrypted, out.len());
        out.resize(at + len + OVERHEAD, 0);
        match self.engine.encrypt(&mut self.incoming, &self.written[from..from + len], &mut out[at..]) {
            None => {
                out.truncate(at);
                None
            }
            Some(Ok(taken)) => {
                out.truncate(at + taken);
                self.encrypted += len;
                self.sent += taken as u64;
                self.in_flight += len as u64;
                self.records.push_back(Sent { end: self.sent, plaintext: len as u32 });
                Some(taken)
            }
            Some(Err(())) => {
                out.truncate(at);
                self.failure.get_or_insert(Failure::KeysUsedUp);
                None
            }
        }
    }

    fn close_notify(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        let at = out.len();
        out.resize(at + OVERHEAD + 2, 0);
        let written = self.engine.close_notify(&mut self.incoming, &mut out[at..]);
        out.truncate(at + written.unwrap_or(0));
        self.sent += written.unwrap_or(0) as u64;
        written
    }
}

/// Returns the length of a record with its header; `None` if this is the header of none.
fn record_len(header: [u8; HEADER_LEN]) -> Option<usize> {
    let [kind, major, _, high, low] = header;
    let payload = usize::from(u16::from_be_bytes([high, low]));
    // change_cipher_spec, alert, handshake, application_data
    let is_record = (20..=23).contains(&kind) && major == 3 && payload <= PAYLOAD_MAX;
    is_record.then_some(HEADER_LEN + payload)
}
