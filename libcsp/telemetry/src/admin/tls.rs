//! Accepts connections of the admin endpoint, over TLS if the daemon has an identity, and derives the
//! [`Caller`] from the client's certificate.

use std::sync::Arc;
use std::time::Duration;

use csp_identity::{Caller, Credentials, Peer, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// Accepts connections, over TLS if the daemon has an identity.
#[derive(Clone)]
pub(super) struct Acceptor {
    credentials: Option<Credentials>,
    /// Timeout of a TLS handshake.
    handshake_timeout: Duration,
}

/// A byte stream, plain or over TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An accepted connection with its authenticated caller.
pub(super) struct Accepted {
    pub(super) stream: Box<dyn Stream>,
    pub(super) caller: Caller,
}

impl Acceptor {
    pub(super) fn new(credentials: Option<Credentials>, handshake_timeout: Duration) -> Self {
        Acceptor { credentials, handshake_timeout }
    }

    /// Completes the handshake of a new connection. Returns `None` if it fails or times out, or if the
    /// certificate is not one of this cluster.
    pub(super) async fn accept(&self, stream: TcpStream) -> Option<Accepted> {
        let Some(credentials) = &self.credentials else {
            return Some(Accepted { stream: Box::new(stream), caller: Caller::Local });
        };
        let tls = TlsAcceptor::from(credentials.server_config());
        let accepted = tokio::time::timeout(self.handshake_timeout, tls.accept(stream)).await.ok()?;
        let stream = accepted.inspect_err(|error| tracing::debug!(%error, "TLS handshake")).ok()?;
        let caller = match stream.get_ref().1.peer_certificates() {
            None => Caller::Anonymous,
            Some(chain) => {
                let peer = Peer::of_chain(chain).map_err(|error| error.to_string());
                let peer = peer.and_then(|peer| {
                    credentials.verify_client(&peer, UnixTime::now()).map(|()| Caller::Peer(Arc::new(peer)))
                });
                peer.inspect_err(|error| tracing::warn!(error, "a client's certificate is refused")).ok()?
            }
        };
        Some(Accepted { stream: Box::new(stream), caller })
    }

    /// Resolves when the caller's certificate expires or is no longer accepted. Never resolves for callers
    /// without one.
    pub(super) async fn revoked(&self, caller: &Caller) {
        let (Some(credentials), Caller::Peer(peer)) = (&self.credentials, caller) else {
            return std::future::pending().await;
        };
        let mut changes = credentials.changes();
        loop {
            let now = UnixTime::now();
            if let Err(error) = credentials.verify_client(peer, now) {
                tracing::info!(peer = %peer.identity, error, "a client's connection ends");
                return;
            }
            // The certificate is valid through its last second.
            let life = peer.life_left(now) + Duration::from_secs(1);
            tokio::select! {
                () = tokio::time::sleep(life) => {}
                Ok(()) = changes.changed() => {}
            }
        }
    }
}
