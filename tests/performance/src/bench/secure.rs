//! TLS for the bench: a certificate for all contenders, and a client that counts handshakes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use csp_cluster::Cluster;
use csp_cluster::testing::{P256, certificate};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, SignatureScheme, StreamOwned,
};

use super::contender::Running;
use super::offer::Offered;
use super::own_folder;
use super::report::Sample;

/// Connections that are made at once.
pub const AT_ONCE: u32 = 16;
/// The name of the certificate, which all contenders have.
pub const NAME: &str = "bench.csp.test";
const PATIENCE: Duration = Duration::from_secs(5);

/// A kind of handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// With certificate and signature.
    Full,
    /// By the ticket of an earlier connection.
    Resumed,
}

impl Kind {
    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Full => "full",
            Kind::Resumed => "resumed",
        }
    }
}

/// Makes the certificate (ECDSA, P-256) where the proxies look for it; returns a file with chain and key, as
/// HAProxy takes it.
///
/// # Errors
/// What openssl says, or a file that cannot be written.
pub fn make_certificate(cluster: &Cluster) -> Result<PathBuf> {
    let folder = cluster.scratch().join("tls");
    certificate(&folder, NAME, P256, 1)?;
    let [chain, key] = ["pem", "key"].map(|suffix| folder.join(format!("{NAME}.{suffix}")));
    let both = cluster.scratch().join("haproxy.pem");
    std::fs::write(&both, [std::fs::read(chain)?, std::fs::read(key)?].concat())?;
    Ok(both)
}

/// Counts handshakes of a kind, each with one request, by a process of the client's host.
///
/// # Errors
/// The process cannot run.
pub fn ask(cluster: &Cluster, running: &Running, seconds: u32, kind: Kind) -> Result<Sample> {
    let tool = own_folder()?.join("csp-bench").to_string_lossy().into_owned();
    let arguments = ["handshakes", &running.secure, "/100B", &seconds.to_string(), kind.name()];
    let text = cluster.client.run(&tool, &arguments)?;
    Ok(serde_json::from_str::<Offered>(&text).with_context(|| text.clone())?.into())
}

/// Makes connections for so many seconds, [`AT_ONCE`] at a time: a handshake, a request, its answer, the end.
///
/// # Errors
/// The server cannot be reached at all. What goes wrong later is part of what is returned.
pub fn run(server: SocketAddr, path: &str, seconds: u64, kind: Kind) -> Result<Offered> {
    // Tickets are each one's own: together they would run out of them.
    let configs = (0..AT_ONCE).map(|_| client(kind, false)).collect::<Result<Vec<_>>>()?;
    configs.iter().try_for_each(|config| connect(config, server, path).map(drop))?;
    let (begin, time) = (Instant::now(), Duration::from_secs(seconds));
    let turn = &|config: &Arc<ClientConfig>| {
        let (mut latencies, mut wrong) = (Vec::new(), None);
        while begin.elapsed() < time {
            let due = Instant::now();
            match connect(config, server, path) {
                Ok(made) if (made == HandshakeKind::Resumed) == (kind == Kind::Resumed) => {
                    latencies.push(due.elapsed().as_secs_f64() * 1e6);
                }
                Ok(made) => _ = wrong.get_or_insert(format!("a handshake was {made:?}")),
                Err(error) => _ = wrong.get_or_insert(format!("{error:#}")),
            }
        }
        (latencies, wrong)
    };
    let turns: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = configs.iter().map(|config| scope.spawn(move || turn(config))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let elapsed = begin.elapsed().as_secs_f64();
    let wrong = turns.iter().find_map(|(_, wrong)| wrong.clone());
    let mut latencies: Vec<f64> = turns.into_iter().flat_map(|(latencies, _)| latencies).collect();
    latencies.sort_by(f64::total_cmp);
    let last = latencies.len().saturating_sub(1);
    let share = |of: f64| latencies.get((last as f64 * of) as usize).copied().unwrap_or(f64::NAN);
    let answered = latencies.len() as u64;
    let latency_us = [share(0.5), share(0.9), share(0.99), share(1.0)];
    Ok(Offered { due: answered, answered, wrong, rate: answered as f64 / elapsed, latency_us })
}

fn connect(config: &Arc<ClientConfig>, server: SocketAddr, path: &str) -> Result<HandshakeKind> {
    let stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut tls = Tls::open(config, stream)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
    tls.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match tls.read_to_end(&mut answer) {
        // A server may end TCP without close_notify (nginx at times).
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
        _ => {}
    }
    if !answer.starts_with(b"HTTP/1.1 200") {
        bail!("answered {:?}", String::from_utf8_lossy(&answer[..answer.len().min(40)]));
    }
    tls.0.conn.handshake_kind().context("no handshake")
}

/// A client's end of TLS over a blocking socket.
pub struct Tls(StreamOwned<ClientConnection, TcpStream>);

impl Tls {
    /// Begins it; the handshake is made with the first bytes.
    ///
    /// # Errors
    /// The configuration does not do.
    pub fn open(config: &Arc<ClientConfig>, stream: TcpStream) -> Result<Self> {
        let name = ServerName::try_from(NAME)?;
        Ok(Tls(StreamOwned::new(ClientConnection::new(Arc::clone(config), name)?, stream)))
    }
}

impl Read for Tls {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Tls {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Returns how a client makes handshakes of a kind; with `http2` it offers `h2` and nothing else.
///
/// # Errors
/// The provider lacks something.
pub fn client(kind: Kind, http2: bool) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let verifier = Arc::new(Any(ring::default_provider()));
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.resumption = match kind {
        Kind::Full => Resumption::disabled(),
        Kind::Resumed => Resumption::in_memory_sessions(256),
    };
    config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    Ok(Arc::new(config))
}

/// Takes any certificate whose key signs: contenders are compared here, not trusted.
#[derive(Debug)]
struct Any(rustls::crypto::CryptoProvider);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
