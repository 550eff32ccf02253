//! Tests of the admin endpoint over real sockets.

mod identities;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::metrics::MetricWriter;
use csp_api::ConditionState;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// An address of this test's own. On 127.0.0.1 a port that was closed may be another process' listener the
/// next moment, or the very port that connect() chooses for itself: then the socket connects to itself.
const OWN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 83, 57, 1)), 0);

/// Status code, headers and body of a GET.
async fn get_path(address: SocketAddr, path: &str) -> (u16, String, String) {
    get_accepting(address, path, "*/*").await
}

/// As [`get_path`], for a client that accepts these media types.
async fn get_accepting(address: SocketAddr, path: &str, accept: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: test\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

#[tokio::test]
async fn it_serves_health_readiness_metrics_and_the_daemons_own_routes() {
    let options = AdminOptions {
        node: json!({ "id": "pn-1" }),
        routes: Router::new().route("/v1/flows", get(|| async { "[]" })),
        ..AdminOptions::default()
    };
    let readiness = options.readiness.clone();
    options.metrics.register(|out: &mut MetricWriter| out.gauge("csp_up", "Up", &[], 1.0));
    let server = AdminServer::start(OWN, options).await.unwrap();
    let address = server.address();
    assert_eq!(get_path(address, "/healthz").await.0, 200);
    assert_eq!(get_path(address, "/v1/flows").await.2, "[]");
    assert_eq!(get_path(address, "/v1/node").await.2, "{\"id\":\"pn-1\"}");
    assert_eq!(get_path(address, "/nothing").await.0, 404);
    let (status, head, body) = get_path(address, "/metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("csp_up 1\n"), "{body}");
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let (status, head, body) = get_accepting(address, "/metrics", accept).await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.contains("csp_up 1.0") && body.ends_with("# EOF\n"), "{body}");

    readiness.set("policy", ConditionState::Degraded, "etcd is away, serving on the last-known-good policy");
    let (status, _, body) = get_path(address, "/readyz").await;
    let expected = "{\"conditions\":[{\"name\":\"policy\",\"reason\":\"etcd is away, serving on the last-known-good \
                    policy\",\"state\":\"degraded\"}],\"ready\":true}";
    assert_eq!((status, body.as_str()), (200, expected));
    readiness.set("lan", ConditionState::Failed, "lan0 is down");
    let (status, _, body) = get_path(address, "/readyz").await;
    assert_eq!(status, 503);
    assert!(body.contains("lan0 is down") && body.contains("\"ready\":false"), "{body}");
    assert_eq!(get_path(address, "/in-service").await.0, 503);
    readiness.set("lan", ConditionState::Ok, "");
    assert_eq!(get_path(address, "/readyz").await.0, 200);
    assert_eq!(get_path(address, "/in-service").await.0, 200);
    readiness.set_draining(true);
    assert_eq!(get_path(address, "/readyz").await.0, 200, "a node that drains is ready");
    assert_eq!(get_path(address, "/in-service").await.0, 503);

    server.shutdown().await;
    TcpStream::connect(address).await.unwrap_err();
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let first = AdminServer::start(ANY, AdminOptions::default()).await.unwrap();
    let address = first.address();
    let error = AdminServer::start(address, AdminOptions::default()).await.unwrap_err();
    let expected = format!("admin.listen: cannot listen on {address}: Address already in use (os error 98)");
    assert_eq!(error.to_string(), expected);
}

fn brief() -> Limits {
    let (head, request) = (Duration::from_secs(1), Duration::from_secs(1));
    Limits { connections: 4, connections_of_address: 3, head, request, body_len: 16, ..Limits::default() }
}

/// A connection from `from`.
async fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

/// What comes until the server closes.
async fn rest_of(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A connection that is closed with unread bytes is reset: that is an end, too.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn silent_and_slow_peers_are_closed() {
    let server = AdminServer::start_limited(OWN, AdminOptions::default(), brief()).await.unwrap();
    let silent = TcpStream::connect(server.address()).await.unwrap();
    let mut slow = TcpStream::connect(server.address()).await.unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").await.unwrap();
    let mut kept = TcpStream::connect(server.address()).await.unwrap();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
    let (silent, slow, kept) = tokio::join!(rest_of(silent), rest_of(slow), rest_of(kept));
    for refused in [silent, slow] {
        assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 408"), "{refused}");
    }
    assert!(kept.starts_with("HTTP/1.1 200") && kept.ends_with("ok\n"), "{kept}");
    server.shutdown().await;
}

#[tokio::test]
async fn one_peer_cannot_take_all_connections_nor_all_peers_more_than_there_are() {
    let limits = Limits { head: Duration::from_secs(3600), ..brief() };
    let server = AdminServer::start_limited(OWN, AdminOptions::default(), limits).await.unwrap();
    let to = server.address();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(connect_from("127.83.57.2", to).await);
    }
    assert_eq!(rest_of(connect_from("127.83.57.2", to).await).await, "", "it has its share");
    let mut other = connect_from("127.83.57.3", to).await;
    other.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    other.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert_eq!(rest_of(connect_from("127.83.57.4", to).await).await, "", "all are taken");
    drop(other);
    // The server notices the end of a connection in its own time.
    while rest_of_request(connect_from("127.83.57.4", to).await).await.is_empty() {}
    server.shutdown().await;
}

/// The answer to a request on this connection, which is closed then.
async fn rest_of_request(mut stream: TcpStream) -> String {
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await;
    rest_of(stream).await
}

#[tokio::test]
async fn a_request_that_is_too_long_or_takes_too_long_is_refused() {
    let routes = Router::new()
        .route("/v1/length", axum::routing::post(|body: String| async move { body.len().to_string() }))
        .route("/v1/never", get(std::future::pending::<()>));
    let options = AdminOptions { routes, ..AdminOptions::default() };
    let server = AdminServer::start_limited(OWN, options, brief()).await.unwrap();
    assert_eq!(get_path(server.address(), "/v1/never").await.0, 408);
    for (len, status) in [(16, "200"), (17, "413")] {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let head = "POST /v1/length HTTP/1.1\r\nHost: test\r\nConnection: close\r\n";
        let request = format!("{head}Content-Length: {len}\r\n\r\n{}", "x".repeat(len));
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = rest_of(stream).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{answer}");
    }
    server.shutdown().await;
}
