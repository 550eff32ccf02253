//! Tests of the admin endpoint over TLS: which roles it serves, and when it ends their connections.

use std::path::PathBuf;
use std::sync::Arc;

use csp_authority::{Authority, Request, Timestamp};
use csp_identity::{Credentials, ExpectedServer, IdentityRole};
use csp_types::{NodeId, Role};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long a connection may take to end after its certificate has ended, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// An admin endpoint with an identity, and its cluster's authority.
struct Secured {
    directory: PathBuf,
    server: AdminServer,
    credentials: Credentials,
}

fn id(text: &str) -> NodeId {
    text.parse().unwrap()
}

/// The server of these tests.
fn server() -> ExpectedServer {
    ExpectedServer::Node(Role::ProxyNode, id("pn-1"))
}

impl Secured {
    async fn start(name: &str) -> Secured {
        let directory = std::env::temp_dir().join(format!("csp-admin-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        Authority::create(&directory, id("test"), 10 * DAY, Timestamp::now()).unwrap();
        let credentials = issue(&directory, IdentityRole::ProxyNode, "pn-1", DAY);
        tokio::spawn(credentials.clone().follow());
        let options = AdminOptions {
            node: json!({ "id": "pn-1" }),
            guarded: Router::new().route(
                "/role",
                get(|Extension(caller): Extension<Caller>| async move { format!("{:?}", caller.access()) }),
            ),
            credentials: Some(credentials.clone()),
            ..AdminOptions::default()
        };
        options.readiness.set("lan", ConditionState::Degraded, "a secret reason");
        let server = AdminServer::start(OWN, options).await.unwrap();
        Secured { directory, server, credentials }
    }

    fn issue(&self, role: IdentityRole, name: &str, lifetime: Duration) -> Credentials {
        issue(&self.directory, role, name, lifetime)
    }

    async fn connect(&self, config: rustls::ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.server.address()).await?;
        TlsConnector::from(Arc::new(config)).connect(self.server.address().ip().into(), stream).await
    }

    async fn connect_as(&self, credentials: &Credentials) -> TlsStream<TcpStream> {
        self.connect(csp_identity::client_config(Some(credentials), server())).await.unwrap()
    }

    /// Status and body of a request.
    async fn ask(&self, credentials: &Credentials, path: &str) -> (u16, String) {
        ask(&mut self.connect_as(credentials).await, path).await
    }

    async fn end(self) {
        self.server.shutdown().await;
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

fn issue(directory: &std::path::Path, role: IdentityRole, name: &str, lifetime: Duration) -> Credentials {
    let now = Timestamp::now();
    let mut request = Request::new(role, id(name)).lifetime(lifetime);
    request.force = true;
    if role.serves() {
        request = request.address(OWN.ip());
    }
    let issued = Authority::open(directory, now).unwrap().issue(&request, now).unwrap();
    Credentials::open(&issued.folder).unwrap()
}

/// Status and body of one request on a connection that is kept.
async fn ask(stream: &mut TlsStream<TcpStream>, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        stream.read_buf(&mut answer).await.unwrap();
        let text = String::from_utf8_lossy(&answer).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_lowercase();
        let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        if body.len() >= len.parse::<usize>().unwrap() {
            return (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned());
        }
    }
}

/// Waits until the server has closed the connection.
async fn closed(mut stream: TlsStream<TcpStream>) {
    let mut rest = Vec::new();
    // Cut off: without a farewell of TLS.
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection is still open");
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_decide_what_is_served() {
    let secured = Secured::start("roles").await;
    for (role, status) in [
        (IdentityRole::Viewer, 200),
        (IdentityRole::Operator, 200),
        (IdentityRole::Admin, 200),
        (IdentityRole::MgmtNode, 200),
        (IdentityRole::AppNode, 403),
        (IdentityRole::Etcd, 403),
    ] {
        let credentials = secured.issue(role, "someone", DAY);
        assert_eq!(secured.ask(&credentials, "/v1/node").await.0, status, "{role}");
        assert_eq!(secured.ask(&credentials, "/metrics").await.0, status, "{role}");
        let (_, body) = secured.ask(&credentials, "/readyz").await;
        assert_eq!(body.contains("a secret reason"), status == 200, "{role}: {body}");
    }
    let operator = secured.issue(IdentityRole::Operator, "someone", DAY);
    assert_eq!(secured.ask(&operator, "/role").await.1, "Some(Operator)");
    secured.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_see_whether_it_lives_and_no_more() {
    let secured = Secured::start("strangers").await;
    let cluster = csp_identity::client_config(Some(&secured.issue(IdentityRole::Viewer, "v", DAY)), server());
    // Without a certificate, but with trust in the cluster's authority.
    let mut anonymous = cluster.clone();
    anonymous.client_auth_cert_resolver = Arc::new(NoCertificate);
    let mut stream = secured.connect(anonymous).await.unwrap();
    assert_eq!(ask(&mut stream, "/healthz").await, (200, "ok\n".to_owned()));
    let (status, body) = ask(&mut stream, "/readyz").await;
    assert_eq!((status, body.contains("lan")), (200, false), "{body}");
    assert_eq!(ask(&mut stream, "/in-service").await, (200, "yes\n".to_owned()));
    let (status, body) = ask(&mut stream, "/metrics").await;
    assert_eq!(status, 401);
    assert!(body.contains("cspctl pki issue"), "{body}");

    // Plain HTTP is no TLS.
    let mut plain = TcpStream::connect(secured.server.address()).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
    assert!(!rest_of(plain).await.contains("200"));

    // Another cluster's authority and certificate.
    let other = Secured::start("others").await;
    let stranger = csp_identity::client_config(Some(&other.issue(IdentityRole::Admin, "eve", DAY)), server());
    let refused = secured.connect(stranger.clone()).await.unwrap_err().to_string();
    assert!(refused.contains("invalid peer certificate"), "{refused}");
    let mut forged = cluster;
    forged.client_auth_cert_resolver = stranger.client_auth_cert_resolver;
    match secured.connect(forged).await {
        // A client of TLS 1.3 learns at its first read that it was refused.
        Ok(stream) => closed(stream).await,
        Err(error) => assert!(error.to_string().contains("alert"), "{error}"),
    }
    other.end().await;
    secured.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_is_no_other_daemon_and_neither_etcd_nor_management() {
    let secured = Secured::start("wanted").await;
    let viewer = secured.issue(IdentityRole::Viewer, "v", DAY);
    for wanted in [
        ExpectedServer::Etcd,
        ExpectedServer::Management,
        ExpectedServer::Node(Role::ProxyNode, id("pn-2")),
        ExpectedServer::Node(Role::AppNode, id("pn-1")),
    ] {
        let config = csp_identity::client_config(Some(&viewer), wanted);
        let error = secured.connect(config).await.unwrap_err().to_string();
        let expected = format!("the server is csp://test/proxy-node/pn-1, and not {wanted}");
        assert!(error.contains(&expected), "{error}");
    }
    let mut stream = secured.connect(csp_identity::client_config(Some(&viewer), server())).await.unwrap();
    assert_eq!(ask(&mut stream, "/v1/node").await.0, 200);
    secured.end().await;
}

/// Comes without a certificate.
#[derive(Debug)]
struct NoCertificate;

impl rustls::client::ResolvesClientCert for NoCertificate {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_ends_its_live_connections_and_no_others() {
    let secured = Secured::start("revoked").await;
    let (mallory, bob) =
        (secured.issue(IdentityRole::Admin, "mallory", DAY), secured.issue(IdentityRole::Admin, "bob", DAY));
    let mut bobs = secured.connect_as(&bob).await;
    let mut mallorys = secured.connect_as(&mallory).await;
    assert_eq!(ask(&mut mallorys, "/v1/node").await.0, 200);
    let now = Timestamp::now();
    let mut authority = Authority::open(&secured.directory, now).unwrap();
    assert!(authority.revoke(IdentityRole::Admin, id("mallory"), now).unwrap().changed);
    drop(authority);
    closed(mallorys).await;
    assert_eq!(ask(&mut bobs, "/v1/node").await.0, 200);
    match secured.connect(csp_identity::client_config(Some(&mallory), server())).await {
        Ok(stream) => closed(stream).await,
        Err(error) => assert!(error.to_string().contains("alert"), "{error}"),
    }
    secured.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_lost_or_older_takes_no_revocation_back() {
    let secured = Secured::start("lists").await;
    let mallory = secured.issue(IdentityRole::Admin, "mallory", DAY);
    let own = secured.directory.join("issued/proxy-node/pn-1").join(csp_identity::REVOKED);
    let old = std::fs::read(&own).unwrap();
    let now = Timestamp::now();
    Authority::open(&secured.directory, now)
        .unwrap()
        .revoke(IdentityRole::Admin, id("mallory"), now)
        .unwrap();
    let revoked = std::fs::read(&own).unwrap();
    secured.credentials.check();
    let problem = || secured.credentials.state().problem;
    assert_eq!(problem(), None);
    for (text, words) in [(Vec::new(), "no list"), (old, "older list")] {
        std::fs::write(&own, text).unwrap();
        // What is wrong once may be half written.
        for _ in 0..2 {
            assert!(!secured.credentials.check());
        }
        assert!(problem().is_some_and(|problem| problem.contains(words)), "{:?}", problem());
        match secured.connect(csp_identity::client_config(Some(&mallory), server())).await {
            Ok(stream) => closed(stream).await,
            Err(error) => assert!(error.to_string().contains("alert"), "{error}"),
        }
    }
    std::fs::write(&own, revoked).unwrap();
    secured.credentials.check();
    assert_eq!(problem(), None);
    secured.end().await;
}

/// Sends its certificate many times over, as a chain.
#[derive(Debug)]
struct LongChain(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for LongChain {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sends_beside_its_certificate_is_not_looked_at() {
    let secured = Secured::start("chain").await;
    let viewer = secured.issue(IdentityRole::Viewer, "v", DAY);
    let mut config = csp_identity::client_config(Some(&viewer), server());
    let own = config.client_auth_cert_resolver.resolve(&[], &[]).unwrap();
    let mut chain = own.cert.clone();
    chain.extend(own.cert.clone());
    let key = rustls::sign::CertifiedKey::new(chain, own.key.clone());
    config.client_auth_cert_resolver = Arc::new(LongChain(Arc::new(key)));
    assert_eq!(ask(&mut secured.connect(config.clone()).await.unwrap(), "/v1/node").await.0, 200);
    // The authority's certificate does not make the one before it right.
    let other = Secured::start("chain-of-another").await;
    let stranger = csp_identity::client_config(Some(&other.issue(IdentityRole::Admin, "eve", DAY)), server());
    let forged = stranger.client_auth_cert_resolver.resolve(&[], &[]).unwrap();
    let chain = vec![forged.cert[0].clone(), own.cert[0].clone()];
    let key = rustls::sign::CertifiedKey::new(chain, forged.key.clone());
    config.client_auth_cert_resolver = Arc::new(LongChain(Arc::new(key)));
    match secured.connect(config).await {
        Ok(stream) => closed(stream).await,
        Err(error) => assert!(error.to_string().contains("alert"), "{error}"),
    }
    other.end().await;
    secured.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_expires_ends_its_connection() {
    let secured = Secured::start("expires").await;
    let brief = secured.issue(IdentityRole::Viewer, "brief", Duration::from_secs(4));
    let mut stream = secured.connect_as(&brief).await;
    assert_eq!(ask(&mut stream, "/v1/node").await.0, 200);
    closed(stream).await;
    secured.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let secured = Secured::start("renewed").await;
    let viewer = secured.issue(IdentityRole::Viewer, "v", DAY);
    let serial = |stream: &TlsStream<TcpStream>| {
        let chain = stream.get_ref().1.peer_certificates().unwrap();
        csp_identity::Peer::of_chain(chain).unwrap().serial
    };
    let mut old = secured.connect_as(&viewer).await;
    let mut changes = secured.credentials.changes();
    secured.issue(IdentityRole::ProxyNode, "pn-1", DAY);
    tokio::time::timeout(PATIENCE, changes.changed()).await.expect("noticed").unwrap();
    let new = secured.connect_as(&viewer).await;
    assert_ne!(serial(&old), serial(&new));
    assert_eq!(ask(&mut old, "/v1/node").await.0, 200, "connections of before go on");
    secured.end().await;
}
