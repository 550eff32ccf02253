//! What is valid arrives: requests one after the other on a connection, with bodies of each framing, and
//! their responses, in any division of the bytes.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::proxy::Proxy;
use common::{read_body, with_request, with_response};
use csp_http::Limits;
use csp_http::head::Framing;
use proptest::prelude::*;

/// A message's body.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Payload {
    None,
    Length(Vec<u8>),
    Chunked(Vec<Vec<u8>>),
}

impl Payload {
    /// Returns the field of framing and the empty line, and the body, as a peer sends them.
    fn text(&self, extension: &str) -> Vec<u8> {
        match self {
            Payload::None => b"\r\n".to_vec(),
            Payload::Length(body) => {
                [format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
            }
            Payload::Chunked(chunks) => {
                let mut text = b"Transfer-Encoding: chunked\r\n\r\n".to_vec();
                for chunk in chunks {
                    text.extend(format!("{:X}{extension}\r\n", chunk.len()).bytes());
                    text.extend(chunk);
                    text.extend(b"\r\n");
                }
                text.extend(b"0\r\n\r\n");
                text
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Payload::None => Vec::new(),
            Payload::Length(body) => body.clone(),
            Payload::Chunked(chunks) => chunks.concat(),
        }
    }
}

/// A request and its response.
#[derive(Clone, Debug)]
struct Exchange {
    method: &'static str,
    request: Payload,
    hints: usize,
    status: u16,
    response: Payload,
    /// The member answers when the head has come, not at the end of the request.
    early: bool,
}

impl Exchange {
    fn request(&self, at: usize) -> Vec<u8> {
        let head = format!("{} /{at} HTTP/1.1\r\nHost: a\r\nX-At:{at}\r\n", self.method);
        [head.as_bytes(), &self.request.text(";x=y")].concat()
    }

    fn response(&self, at: usize) -> Vec<u8> {
        let hints = "HTTP/1.1 103 Hints\r\nLink: </x>\r\n\r\n".repeat(self.hints);
        let head = format!("{hints}HTTP/1.1 {} Some\r\nX-At: {at}\r\n", self.status);
        let body =
            if self.has_body() { self.response.text("") } else { b"Content-Length: 7\r\n\r\n".to_vec() };
        [head.as_bytes(), &body].concat()
    }

    fn has_body(&self) -> bool {
        self.method != "HEAD" && self.status != 304
    }
}

fn any_payload() -> impl Strategy<Value = Payload> {
    let bytes = |least: usize| prop::collection::vec(any::<u8>(), least..40);
    prop_oneof![
        Just(Payload::Length(Vec::new())),
        bytes(1).prop_map(Payload::Length),
        prop::collection::vec(bytes(1), 0..4).prop_map(Payload::Chunked),
    ]
}

fn any_exchange() -> impl Strategy<Value = Exchange> {
    let method = prop::sample::select(vec!["GET", "HEAD", "POST", "FROB"]);
    let request = prop_oneof![1 => Just(Payload::None), 2 => any_payload()];
    let status = prop::sample::select(vec![200u16, 304, 404, 500]);
    (method, request, 0..3usize, status, any_payload(), any::<bool>()).prop_map(
        |(method, request, hints, status, response, early)| Exchange {
            method,
            request,
            hints,
            status,
            response,
            early,
        },
    )
}

/// Passes exchanges through the proxy; the member answers each request when it has come.
fn run(exchanges: &[Exchange], cut: usize, pipelined: bool) -> Proxy {
    let mut proxy = Proxy::default();
    (proxy.from_client.slice, proxy.from_member.slice) = (cut, cut);
    let answer = |proxy: &mut Proxy, end: bool| {
        let at = proxy.client.exchanges() as usize;
        let Some(exchange) = at.checked_sub(1).and_then(|at| exchanges.get(at)) else { return false };
        let is_due = end || exchange.early || proxy.client.is_request_complete();
        if !proxy.client.is_awaited() || !is_due {
            return false;
        }
        for part in exchange.response(at - 1).chunks(cut) {
            proxy.from_member.push(part);
            proxy.run();
        }
        true
    };
    for (at, exchange) in exchanges.iter().enumerate() {
        for part in exchange.request(at).chunks(cut) {
            proxy.from_client.push(part);
            proxy.run();
            if !pipelined {
                answer(&mut proxy, false);
            }
        }
        while !pipelined && answer(&mut proxy, true) {}
    }
    while answer(&mut proxy, true) {}
    proxy
}

/// Reads the bodies of requests in bytes that were sent to members.
fn requests(mut bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (limits, mut found) = (Limits::default(), Vec::new());
    while !bytes.is_empty() {
        let head =
            with_request(bytes, &[], &limits, |head| (head.path().to_vec(), head.framing(), head.head_len()));
        let (path, framing, len) = head.unwrap().unwrap();
        let body = read_body(framing, &bytes[len..], &[], &limits).unwrap();
        bytes = &bytes[bytes.len() - body.rest..];
        found.push((path, body.payload));
    }
    found
}

/// A final response: status, `X-At`, body.
type Got = (u16, Vec<u8>, Vec<u8>);

/// Reads the final responses, with the values of `X-At`, and counts the interim ones.
fn responses(mut bytes: &[u8], exchanges: &[Exchange]) -> (usize, Vec<Got>) {
    let (limits, mut hints, mut found) = (Limits::default(), 0, Vec::new());
    while !bytes.is_empty() {
        let is_head = exchanges[found.len()].method == "HEAD";
        let head = with_response(bytes, &[], &limits, |head| {
            let at = head
                .fields()
                .find(|field| field.name == b"X-At")
                .map_or(Vec::new(), |field| field.value.to_vec());
            (head.status(), at, head.framing(is_head), head.head_len())
        });
        let (status, at, framing, len) = head.unwrap().unwrap();
        if status < 200 {
            (hints, bytes) = (hints + 1, &bytes[len..]);
            continue;
        }
        assert_ne!(framing, Framing::UntilClose);
        let body = read_body(framing, &bytes[len..], &[], &limits).unwrap();
        bytes = &bytes[bytes.len() - body.rest..];
        found.push((status, at, body.payload));
    }
    (hints, found)
}

fn check(exchanges: &[Exchange], cut: usize, pipelined: bool) -> Result<(), TestCaseError> {
    let proxy = run(exchanges, cut, pipelined);
    let (hints, got) = responses(&proxy.to_client, exchanges);
    let expected: Vec<_> = exchanges
        .iter()
        .enumerate()
        .map(|(at, exchange)| {
            let body = if exchange.has_body() { exchange.response.bytes() } else { Vec::new() };
            (exchange.status, at.to_string().into_bytes(), body)
        })
        .collect();
    prop_assert_eq!(got, expected);
    prop_assert_eq!(hints, exchanges.iter().map(|exchange| exchange.hints).sum::<usize>());
    prop_assert!(proxy.log.iter().all(|line| line == "Keep" || line == "kept"), "{:?}", proxy.log);
    // A request whose response came early may have been cut short on its connection, which is not kept then.
    if exchanges.iter().all(|exchange| !exchange.early) {
        prop_assert!(proxy.earlier.is_empty());
        let expected: Vec<_> = exchanges
            .iter()
            .enumerate()
            .map(|(at, exchange)| (format!("/{at}").into_bytes(), exchange.request.bytes()))
            .collect();
        prop_assert_eq!(requests(&proxy.to_member), expected);
    }
    prop_assert!(proxy.client.is_idle() && proxy.from_client.unread() == 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_exchanges_complete(
        exchanges in prop::collection::vec(any_exchange(), 1..6),
        cut in prop_oneof![1usize..30, Just(10_000)],
        pipelined in any::<bool>(),
    ) {
        check(&exchanges, cut, pipelined)?;
    }
}
