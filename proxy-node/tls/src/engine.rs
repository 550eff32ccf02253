//! rustls' connection of either side, behind the few calls that a session makes.

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CommonState, Error, HandshakeKind};

/// The connection of one side.
pub(crate) enum Engine {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
    /// It is on another thread.
    Away,
}

/// What one step of the protocol has led to.
pub(crate) enum Step {
    /// Records of plaintext were read.
    Read,
    /// There is something for the peer.
    Encoded,
    /// What was for the peer is on its way.
    Sent,
    /// The peer has sent close_notify.
    Closed,
    /// The handshake is complete, and nothing is left to process.
    Ready,
    /// More of the peer is needed.
    Waits,
    /// A record cannot be decrypted; the next step says the same, with an alert.
    Unreadable(Error),
    /// The peer has violated the protocol, or this side refuses it.
    Failed(Error),
}

/// Calls a method of either connection; `$else` if it is away.
macro_rules! of_either {
    ($engine:expr, $connection:ident => $call:expr, $else:expr) => {
        match $engine {
            Engine::Server($connection) => $call,
            Engine::Client($connection) => $call,
            Engine::Away => $else,
        }
    };
}

impl Engine {
    /// Runs one step; returns it with the number of bytes of `incoming` that were processed. Plaintext, and
    /// what the protocol has to send, are appended.
    pub(crate) fn step(
        &mut self,
        incoming: &mut [u8],
        plaintext: &mut Vec<u8>,
        handshake: &mut Vec<u8>,
    ) -> (usize, Step) {
        of_either!(
            self,
            connection => step(connection.process_tls_records(incoming), plaintext, handshake),
            (0, Step::Waits)
        )
    }

    /// Encrypts plaintext as one record; returns its length. `None`: the protocol does not permit it now.
    /// The error: the keys are used up, or `out` is too short.
    pub(crate) fn encrypt(
        &mut self,
        incoming: &mut [u8],
        plaintext: &[u8],
        out: &mut [u8],
    ) -> Option<Result<usize, ()>> {
        of_either!(self, connection => match connection.process_tls_records(incoming) {
            UnbufferedStatus { discard: 0, state: Ok(ConnectionState::WriteTraffic(mut traffic)) } => {
                Some(traffic.encrypt(plaintext, out).map_err(drop))
            }
            _ => None,
        }, None)
    }

    /// Writes close_notify; returns its length.
    pub(crate) fn close_notify(&mut self, incoming: &mut [u8], out: &mut [u8]) -> Option<usize> {
        of_either!(self, connection => match connection.process_tls_records(incoming).state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => traffic.queue_close_notify(out).ok(),
            _ => None,
        }, None)
    }

    fn common(&self) -> Option<&CommonState> {
        of_either!(self, connection => Some(connection), None)
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.common().is_some_and(CommonState::wants_write)
    }

    pub(crate) fn protocol(&self) -> Option<&[u8]> {
        self.common()?.alpn_protocol()
    }

    pub(crate) fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.common()?.peer_certificates()
    }

    pub(crate) fn handshake_kind(&self) -> Option<HandshakeKind> {
        self.common()?.handshake_kind()
    }
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plaintext: &mut Vec<u8>,
    handshake: &mut Vec<u8>,
) -> (usize, Step) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                None => break Step::Read,
                Some(Ok(record)) => {
                    plaintext.extend_from_slice(record.payload);
                    discard += record.discard;
                }
                Some(Err(error)) => break Step::Unreadable(error),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let at = handshake.len();
            if let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut []) {
                handshake.resize(at + size.required_size, 0);
                let _ = data.encode(&mut handshake[at..]); // its size is what was asked for
            }
            Step::Encoded
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Step::Sent
        }
        Ok(ConnectionState::PeerClosed) => Step::Closed,
        Ok(ConnectionState::WriteTraffic(_)) => Step::Ready,
        // 0-RTT is off, and later states are unknown.
        Ok(_) => Step::Waits,
        Err(error) => Step::Failed(error),
    };
    (discard, step)
}
