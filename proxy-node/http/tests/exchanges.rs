//! Exchanges through the machine: what reaches the member, what reaches the client, and what becomes of both
//! connections. Each runs in several divisions of the bytes.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::corpus;
use common::proxy::Proxy;
use csp_http::Limits;
use csp_http::exchange::{Loss, StreamEnd};
use proptest::prelude::*;

/// An event of a script.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The client or the member sends bytes.
    Client(&'static str),
    Member(&'static str),
    /// It ends its stream.
    ClientFin,
    MemberFin,
    MemberLost,
}
use Event::{Client, ClientFin, Member, MemberFin, MemberLost};

/// Runs a script; `size`: the bytes of one step, 0 for all.
fn run_in(script: &[Event], size: usize, limits: Limits) -> Proxy {
    let mut proxy = Proxy::default();
    proxy.limits = limits;
    (proxy.from_client.slice, proxy.from_member.slice) = (size, size);
    for event in script {
        let (bytes, is_client) = match event {
            Client(text) => (text.as_bytes(), true),
            Member(text) => (text.as_bytes(), false),
            ClientFin => {
                proxy.from_client.end = StreamEnd::Finished;
                (&b""[..], true)
            }
            MemberFin | MemberLost => {
                let lost = matches!(event, MemberLost);
                proxy.from_member.end = if lost { StreamEnd::Lost } else { StreamEnd::Finished };
                (&b""[..], false)
            }
        };
        let size = if size == 0 { bytes.len().max(1) } else { size };
        for part in bytes.chunks(size) {
            if is_client {
                proxy.from_client.push(part)
            } else {
                proxy.from_member.push(part)
            }
            proxy.run();
        }
        proxy.run();
    }
    proxy
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compares what a script leads to, whatever the division.
fn check(script: &[Event], to_member: &str, to_client: &str, log: &[&str]) {
    for size in [0, 1, 7] {
        let proxy = run_in(script, size, Limits::default());
        assert_eq!(text(&proxy.sent()), to_member, "to the member, in steps of {size}");
        assert_eq!(text(&proxy.to_client), to_client, "to the client, in steps of {size}");
        assert_eq!(proxy.log, log, "in steps of {size}");
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What an idle kept connection takes of this crate.
#[test]
fn connections_are_small() {
    let sizes = (size_of::<csp_http::exchange::ClientSide>(), size_of::<csp_http::exchange::MemberSide>());
    assert!(sizes.0 <= 96 && sizes.1 <= 112, "{sizes:?}");
}

#[test]
fn requests_on_kept_connections() {
    let script = [Client(GET), Member(OK), Client(GET), Member(OK)];
    check(&script, &GET.repeat(2), &OK.repeat(2), &["Keep", "kept", "Keep", "kept"]);
}

/// A pipelined request waits for the end of the exchange before it.
#[test]
fn pipelined_requests_are_served_one_after_the_other() {
    const TWO: &str = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n";
    for size in [0, 1, 9] {
        let proxy = run_in(&[Client(TWO)], size, Limits::default());
        assert_eq!(text(&proxy.sent()), "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(proxy.from_client.unread(), TWO.len() / 2);
    }
    check(&[Client(TWO), Member(OK), Member(OK)], TWO, &OK.repeat(2), &["Keep", "kept", "Keep", "kept"]);
}

#[test]
fn hop_by_hop_fields_do_not_pass() {
    let request = "POST http://a/x?y HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Hop , close\r\nX-Hop: 1\r\n\
        Keep-Alive: 5\r\nTE: gzip\r\nProxy-Authorization: x\r\nProxy-Connection: y\r\nTrailer: z\r\n\
        Upgrade: h2c\r\nHTTP2-Settings: q\r\nX_Forwarded_For: 1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\n\
        Forwarded: for=1.2.3.4\r\nX-End:  2 \r\nContent-Length: 3\r\n\r\nabc";
    let answer = "HTTP/1.1 200 Fine\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nServer: s\r\n\
        Content-Length : 2\r\n\r\nok";
    check(
        &[Client(request), Member(answer)],
        "POST /x?y HTTP/1.1\r\nHost: a\r\nX-End: 2\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 200 Fine\r\nServer: s\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        &["Finish", "kept"],
    );
}

#[test]
fn chunks_keep_their_sizes_and_lose_their_extensions() {
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n\
        3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0;z\r\nX: y\r\nHost: b\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nGrpc-Status:0\r\n\r\n";
    check(
        &[Client(request), Member(answer)],
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\na\r\n0123456789\r\n0\r\nX: y\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nGrpc-Status: 0\r\n\r\n",
        &["Keep", "kept"],
    );
}

#[test]
fn a_response_until_close_becomes_chunks() {
    let proxy =
        run_in(&[Client(GET), Member("HTTP/1.1 200 OK\r\n\r\nhello"), MemberFin], 0, Limits::default());
    assert_eq!(
        text(&proxy.to_client),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    );
    assert_eq!(proxy.log, ["Keep"]);
    let empty = run_in(&[Client(GET), Member("HTTP/1.0 200 OK\r\n\r\n"), MemberFin], 0, Limits::default());
    assert_eq!(text(&empty.to_client), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
}

/// A member that is lost in the middle must not look as if it had finished.
#[test]
fn a_lost_member_does_not_complete_a_response() {
    let proxy =
        run_in(&[Client(GET), Member("HTTP/1.1 200 OK\r\n\r\nhel"), MemberLost], 0, Limits::default());
    assert!(text(&proxy.to_client).ends_with("3\r\nhel"), "{}", text(&proxy.to_client));
    assert_eq!(proxy.log, ["502 truncated-body", "Finish"]);
    let old = "GET / HTTP/1.0\r\n\r\n";
    let proxy =
        run_in(&[Client(old), Member("HTTP/1.1 200 OK\r\n\r\nhel"), MemberLost], 0, Limits::default());
    assert_eq!(proxy.log, ["502 truncated-body", "Reset"]);
    let short = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel";
    let proxy = run_in(&[Client(GET), Member(short), MemberFin], 0, Limits::default());
    assert_eq!(proxy.log, ["502 truncated-body", "Finish"]);
}

#[test]
fn clients_of_http_1_0() {
    let request = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    check(
        &[Client(request), Member("HTTP/1.1 103 Hints\r\n\r\n"), Member(OK)],
        "GET / HTTP/1.1\r\nHost: default\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok",
        &["Keep", "kept"],
    );
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    check(
        &[Client(request), Member(chunked)],
        "GET / HTTP/1.1\r\nHost: default\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok",
        &["Finish", "kept"],
    );
}

#[test]
fn responses_without_a_body() {
    let head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
    // haproxy #2836.
    check(
        &[
            Client(head),
            Member("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Client(GET),
            Member(OK),
        ],
        &format!("{head}{GET}"),
        &format!("HTTP/1.1 200 OK\r\n\r\n{OK}"),
        &["Keep", "kept", "Keep", "kept"],
    );
    check(
        &[Client(head), Member("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n")],
        head,
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n",
        &["Keep", "kept"],
    );
    check(
        &[Client(GET), Member("HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n")],
        GET,
        "HTTP/1.1 204 No Content\r\n\r\n",
        &["Keep"],
    );
    check(
        &[Client(GET), Member("HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nETag: x\r\n\r\n")],
        GET,
        "HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 7\r\n\r\n",
        &["Keep", "kept"],
    );
}

#[test]
fn a_refused_request_is_answered_and_nothing_reaches_the_member() {
    let request =
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET";
    for size in [0, 1] {
        let proxy = run_in(&[Client(request), ClientFin], size, Limits::default());
        assert_eq!(text(&proxy.sent()), "");
        assert_eq!(
            text(&proxy.to_client),
            "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(proxy.log, ["400 two-lengths", "Finish", "Closed"]);
        assert_eq!(proxy.from_client.unread(), 0, "what is behind is discarded, so that nothing is reset");
    }
}

#[test]
fn a_broken_body_after_the_response_has_begun_cuts_it() {
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let script = [Client(request), Member("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"), Client("x\r\n")];
    let proxy = run_in(&script, 0, Limits::default());
    assert_eq!(proxy.log, ["400 chunk-size", "Finish"]);
    assert!(text(&proxy.to_client).ends_with("\r\n\r\nab"));
}

#[test]
fn expectations() {
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    check(
        &[Client(head), Member("HTTP/1.1 100 Continue\r\n\r\n"), Client("abc"), Member(OK)],
        &format!("{head}abc"),
        &format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"),
        &["Keep", "kept"],
    );
    // The client has got no 100: it may send the body or not, and the connection ends.
    check(
        &[
            Client(head),
            Member("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"),
            Client("abc"),
            ClientFin,
        ],
        head,
        "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        &["Finish", "Closed"],
    );
    // HTTP/1.0 knows no expectations.
    let old = "PUT / HTTP/1.0\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    check(&[Client(old)], "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", "", &[]);
}

#[test]
fn a_response_that_ends_before_the_request() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n";
    // The rest is discarded within the bound, and the connection kept; the member's is not.
    check(
        &[Client(head), Client("01234"), Member(OK), Client("56789"), Client(GET)],
        &format!("{head}01234{GET}"),
        OK,
        &["Keep"],
    );
    let limits = Limits { drain_len_max: 3, ..Limits::default() };
    let script = [Client(head), Client("01234"), Member(OK), Client("56789"), Client(GET), ClientFin];
    let proxy = run_in(&script, 0, limits);
    assert_eq!(proxy.log, ["Keep", "Finish", "Closed"]);
    assert_eq!(text(&proxy.sent()), format!("{head}01234"));
}

#[test]
fn upgrades() {
    let request = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: x\r\n\r\n";
    // 101 with bytes behind it, and bytes of the client that do not wait.
    check(
        &[
            Client(request),
            Member("HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\u{1}hi"),
            Client("\u{2}ho"),
            MemberFin,
            Client("\u{3}"),
            ClientFin,
        ],
        "GET /chat HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: x\r\nUpgrade: websocket\r\n\
         Connection: upgrade\r\n\r\n\u{2}ho\u{3}",
        "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\u{1}hi",
        &["Finish", "tunnel: client's end"],
    );
    // The member refuses: the connection goes on as HTTP.
    check(
        &[Client(request), Member(OK), Client(GET)],
        &format!(
            "GET /chat HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: x\r\nUpgrade: websocket\r\n\
             Connection: upgrade\r\n\r\n{GET}"
        ),
        OK,
        &["Keep", "kept"],
    );
    // Nobody asked.
    let switch = "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let proxy = run_in(&[Client(GET), Member(switch)], 0, Limits::default());
    assert_eq!(proxy.log, ["502 unexpected-switch", "Keep"]);
}

#[test]
fn a_client_that_has_finished_gets_its_response() {
    let script = [Client(GET), ClientFin, Member(OK)];
    check(
        &script,
        GET,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        &["Finish", "kept", "Closed"],
    );
    check(&[ClientFin], "", "", &["Closed"]);
    let proxy = run_in(
        &[Client("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"), ClientFin],
        0,
        Limits::default(),
    );
    assert_eq!(proxy.log, ["400 truncated-body", "Finish", "Closed"]);
}

/// sozu #1442, kong #11160 and pingora #979: a kept connection that turns out closed must neither be a 502
/// nor send a POST twice. What the member has read decides.
#[test]
fn a_member_that_closes_before_an_answer() {
    let mut proxy = run_in(&[Client(GET), Member(OK), Client(GET), MemberFin], 0, Limits::default());
    assert_eq!(proxy.log, ["Keep", "kept", "Maybe"]);
    assert_eq!(proxy.member.loss(Some(GET.len() as u64)), Loss::Unread, "it has read the first request only");
    assert_eq!(proxy.member.loss(Some(GET.len() as u64 + 1)), Loss::Maybe);
    assert!(proxy.client.is_awaited(), "another member can answer");
    // Another member.
    proxy.member = Default::default();
    proxy.member.begin(false, false);
    assert_eq!(proxy.member.loss(None), Loss::Unread, "nothing was sent yet");
    let answered =
        run_in(&[Client(GET), Member("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")], 0, Limits::default());
    assert_eq!(answered.member.loss(Some(0)), Loss::Answered);
    let hinted =
        run_in(&[Client(GET), Member("HTTP/1.1 103 Hints\r\n\r\n"), MemberFin], 0, Limits::default());
    assert_eq!(hinted.log, ["Answered"]);
}

#[test]
fn members_at_fault() {
    for (answer, fault) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "502 content-length-twice"),
        ("SSH-2.0-x\r\n", "502 start-line"),
    ] {
        let proxy = run_in(&[Client(GET), Member(answer)], 0, Limits::default());
        assert_eq!(proxy.log, [fault, "Keep"], "the client is not at fault");
        assert!(text(&proxy.to_client).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    }
    // Bytes that nobody asked for: behind a response, and on a kept connection.
    let proxy = run_in(&[Client(GET), Member("HTTP/1.1 204 x\r\n\r\nextra")], 0, Limits::default());
    assert_eq!(proxy.log, ["Keep"], "the connection is not kept");
    let proxy = run_in(&[Client(GET), Member(OK), Member(OK)], 0, Limits::default());
    assert_eq!(proxy.log, ["Keep", "kept", "member: unasked"]);
    let hints = "HTTP/1.1 103 Hints\r\n\r\n".repeat(17).leak();
    let proxy = run_in(&[Client(GET), Member(hints)], 0, Limits::default());
    assert_eq!(proxy.log, ["502 too-many-interim", "Keep"]);
}

#[test]
fn a_draining_proxy_closes_after_the_exchange() {
    let mut proxy = run_in(&[Client(GET)], 0, Limits::default());
    assert!(!proxy.client.close_after_exchange());
    proxy.from_member.push(OK.as_bytes());
    proxy.run();
    assert!(text(&proxy.to_client).contains("\r\nConnection: close\r\n"));
    let mut idle = run_in(&[Client(GET), Member(OK)], 0, Limits::default());
    assert!(idle.client.close_after_exchange());
}

/// Each request of the corpus with another one behind it: another program finds as many requests in what goes
/// to the member as were forwarded, however the member answers.
#[test]
fn no_request_of_the_corpus_hides_another_one() {
    for case in corpus(include_str!("corpus/requests.txt")) {
        for size in [0, 3] {
            let mut proxy = Proxy::default();
            proxy.from_client.slice = size;
            proxy.from_client.push(&case.bytes);
            proxy.from_client.push(GET.as_bytes());
            proxy.run();
            for _ in 0..3 {
                if proxy.member_requests() > 0 && proxy.client.is_awaited() {
                    proxy.from_member.push(OK.as_bytes());
                    proxy.run();
                }
            }
            let seen = proxy.requests_found();
            assert_eq!(seen, proxy.member_requests(), "{}: {}", case.name, text(&proxy.sent()));
            assert!(seen <= 2 && (seen == 0 || case.outcome.starts_with("ok")), "{}", case.name);
        }
    }
}

fn any_bytes(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        8 => prop::sample::select(words).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

const CLIENT_WORDS: &[&str] = &[
    GET,
    "POST /a/../b?c HTTP/1.1\r\nHost: a\r\n",
    "HEAD / HTTP/1.0\r\n",
    "Content-Length: 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Expect: 100-continue\r\n",
    "Connection: close\r\n",
    "Connection: upgrade\r\nUpgrade: x\r\n",
    "\r\n",
    "abc",
    "3\r\nabc\r\n",
    "0\r\n\r\n",
];
const MEMBER_WORDS: &[&str] = &[
    OK,
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "HTTP/1.1 204 x\r\n",
    "HTTP/1.1 200 x\r\n",
    "HTTP/1.0 500 x\r\n",
    "Content-Length: 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "\r\n",
    "abc",
    "3\r\nabc\r\n",
    "0\r\n\r\n",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// No panic, no endless loop, and the member gets the same bytes of requests in any division.
    #[test]
    fn any_bytes_in_any_division(
        client in any_bytes(CLIENT_WORDS),
        member in any_bytes(MEMBER_WORDS),
        size in 1usize..9,
        fin in any::<bool>(),
    ) {
        let run = |size: usize| {
            let mut proxy = Proxy::default();
            (proxy.from_client.slice, proxy.from_member.slice) = (size, size);
            for part in client.chunks(if size == 0 { usize::MAX } else { size }) {
                proxy.from_client.push(part);
                proxy.run();
            }
            if fin {
                proxy.from_client.end = StreamEnd::Finished;
                proxy.run();
            }
            proxy.from_member.push(&member);
            proxy.run();
            proxy.from_member.end = StreamEnd::Finished;
            proxy.run();
            proxy
        };
        let (whole, divided) = (run(0), run(size));
        prop_assert_eq!(text(&divided.sent()), text(&whole.sent()));
        // Without the end a fault may wait for further bytes to be seen.
        prop_assert!(!fin || divided.log == whole.log, "{:?} {:?}", divided.log, whole.log);
    }
}
