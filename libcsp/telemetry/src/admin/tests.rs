//! Tests of the admin endpoint over real sockets.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use serde_json::json;

use super::*;
use crate::metrics::MetricWriter;
use csp_api::ConditionState;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// An address of this test's own. On 127.0.0.1 a port that was closed may be another process' listener the next moment, or
/// the very port that connect() chooses for itself: then the socket connects to itself.
const OWN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 83, 57, 1)), 0);

/// Status code, headers and body of a GET.
async fn get_path(address: SocketAddr, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
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
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.contains("csp_up 1.0"), "{body}");

    readiness.set("policy", ConditionState::Degraded, "etcd is away, serving on the last-known-good policy");
    let (status, _, body) = get_path(address, "/readyz").await;
    let expected = "{\"conditions\":[{\"name\":\"policy\",\"reason\":\"etcd is away, serving on the last-known-good \
                    policy\",\"state\":\"degraded\"}],\"ready\":true}";
    assert_eq!((status, body.as_str()), (200, expected));
    readiness.set("lan", ConditionState::Failed, "lan0 is down");
    let (status, _, body) = get_path(address, "/readyz").await;
    assert_eq!(status, 503);
    assert!(body.contains("lan0 is down") && body.contains("\"ready\":false"), "{body}");
    readiness.set("lan", ConditionState::Ok, "");
    assert_eq!(get_path(address, "/readyz").await.0, 200);

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
