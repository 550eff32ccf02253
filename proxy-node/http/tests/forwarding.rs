//! Heads that go on: what is removed, what is added, and that they mean the same.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::{corpus, with_request, with_response};
use csp_http::exchange::{Connection, Plan};
use csp_http::forward::{
    Answer, Edit, EditError, Edits, Origin, OriginFields, PeerText, RequestForward, ResponseForward, TooLong,
    TraceIds, answer, request, response, trailers,
};
use csp_http::head::{Framing, Method, Scheme};
use csp_http::limits::HEAD_LEN_MAX;
use csp_http::name::Name;
use csp_http::{Fault, Limits};
use proptest::prelude::*;

const ORIGIN: OriginFields = OriginFields { x_forwarded: true, forwarded: true };
const TRACE: TraceIds = TraceIds { trace: [0xab; 16], span: [0xcd; 8], sampled: true };

fn plain(peer: &PeerText) -> RequestForward<'_> {
    let fields = OriginFields::default();
    RequestForward {
        path: b"/",
        host: None,
        default_host: b"default",
        origin: Origin { peer, is_trusted: false, scheme: Scheme::Http, fields },
        trace: None,
        request_id: None,
        upgrade: false,
        expect: false,
        edits: Edits::NONE,
        extra: &[],
    }
}

/// Forwards a request as `change` says.
fn forward(text: &str, peer: &str, change: impl FnOnce(&mut RequestForward<'_>)) -> String {
    let peer = PeerText::new(peer.parse().unwrap());
    let mut how = plain(&peer);
    change(&mut how);
    let written = with_request(text.as_bytes(), &[], &Limits::default(), |head| {
        let mut out = [0; 4_096];
        let written = request(&mut out, &head, &how).unwrap();
        String::from_utf8_lossy(&out[..written.len]).into_owned()
    });
    written.unwrap().unwrap()
}

#[test]
fn the_origin_of_an_untrusted_client_is_its_address() {
    let text = "GET / HTTP/1.1\r\nHost: a:81\r\nX-Forwarded-For: 1.1.1.1\r\nx-forwarded-proto: https\r\n\
        X-Forwarded-Host: b\r\nX-Forwarded-Port: 1\r\nForwarded: for=1.1.1.1\r\nA: b\r\n\r\n";
    assert_eq!(
        forward(text, "2001:db8::1", |how| how.origin.fields = ORIGIN),
        "GET / HTTP/1.1\r\nHost: a:81\r\nA: b\r\nX-Forwarded-For: 2001:db8::1\r\nX-Forwarded-Host: a:81\r\n\
         X-Forwarded-Proto: http\r\nForwarded: for=\"[2001:db8::1]\";host=\"a:81\";proto=http\r\n\r\n"
    );
    assert_eq!(forward(text, "192.0.2.1", |_| ()), "GET / HTTP/1.1\r\nHost: a:81\r\nA: b\r\n\r\n");
}

#[test]
fn a_trusted_peer_is_added_to_what_it_says() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\n\
        X-Forwarded-Proto: https\r\nForwarded: for=1.1.1.1\r\n\r\n";
    let trusted = |fields| {
        forward(text, "::ffff:192.0.2.1", |how| (how.origin.fields, how.origin.is_trusted) = (fields, true))
    };
    assert_eq!(
        trusted(ORIGIN),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1, 2.2.2.2, 192.0.2.1\r\n\
         X-Forwarded-Host: a\r\nX-Forwarded-Proto: https\r\n\
         Forwarded: for=1.1.1.1, for=192.0.2.1;host=\"a\";proto=http\r\n\r\n"
    );
    assert_eq!(trusted(OriginFields::default()), text);
}

#[test]
fn traces_continue_or_begin() {
    const SENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let text = |lines: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    let traced = |lines: &str| {
        forward(&text(lines), "192.0.2.1", |how| (how.trace, how.origin.is_trusted) = (Some(&TRACE), true))
    };
    assert_eq!(
        traced(&format!("Traceparent: {SENT}\r\nTracestate: x=y\r\n")),
        text("Tracestate: x=y\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-cdcdcdcdcdcdcdcd-00\r\n")
    );
    let new = format!("traceparent: 00-{}-cdcdcdcdcdcdcdcd-01\r\n", "ab".repeat(16));
    assert_eq!(traced(""), text(&new));
    let untrusted = |trace| {
        let lines = format!("Traceparent: {SENT}\r\nTracestate: x=y\r\n");
        forward(&text(&lines), "192.0.2.1", |how| how.trace = trace)
    };
    assert_eq!(untrusted(Some(&TRACE)), text(&new));
    assert_eq!(untrusted(None), text(""));
    // What is malformed, or occurs twice, begins a new trace, and its state does not belong to that.
    assert_eq!(traced("Traceparent: 00-0\r\nTracestate: x=y\r\n"), text(&new));
    assert_eq!(traced(&format!("Traceparent: {SENT}\r\n").repeat(2)), text(&new));
}

#[test]
fn request_ids_are_kept_from_trusted_peers_only() {
    let text = |id: &str| format!("GET / HTTP/1.1\r\nHost: a\r\nX-Request-ID: {id}\r\n\r\n");
    let sent = |id: &str, is_trusted: bool| {
        forward(&text(id), "192.0.2.1", |how| {
            (how.origin.is_trusted, how.request_id) = (is_trusted, Some([7; 16]));
        })
    };
    let own = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: {}\r\n\r\n", "07".repeat(16));
    assert_eq!(sent("abc", true), text("abc"));
    assert_eq!(sent("abc", false), own);
    assert_eq!(sent("a b", true), own);
    assert_eq!(sent(&"a".repeat(129), true), own);
}

#[test]
fn edits_change_fields_but_not_framing() {
    let edits = Edits::new([
        Edit::Remove("cookie".into()),
        Edit::Set("X-A".into(), b"new".as_slice().into()),
        Edit::Add("X-B".into(), b"second".as_slice().into()),
    ]);
    let edits: &Edits = Box::leak(Box::new(edits.unwrap()));
    let text = "GET / HTTP/1.1\r\nHost: a\r\nCookie: x\r\nx-a: 1\r\nX-A: 2\r\nX-B: first\r\n\r\n";
    assert_eq!(
        forward(text, "192.0.2.1", |how| {
            how.edits = edits;
            how.extra = &[(b"X-C", b"c")];
        }),
        "GET / HTTP/1.1\r\nHost: a\r\nX-B: first\r\nX-A: new\r\nX-B: second\r\nX-C: c\r\n\r\n"
    );
    let error = |edit: Edit| Edits::new([edit]).unwrap_err();
    let set = |name: &str, value: &str| Edit::Set(name.into(), value.as_bytes().into());
    for name in ["Content-Length", "transfer-encoding", "Connection", "Host", "TE", "Upgrade"] {
        assert_eq!(error(set(name, "1")), EditError::Framing(name.into()));
        assert_eq!(error(Edit::Remove(name.into())), EditError::Framing(name.into()));
    }
    assert_eq!(error(set("a b", "1")), EditError::Name("a b".into()));
    for value in ["a\r\nb", "a\0", " a", "a\t", "\u{7f}"] {
        assert_eq!(error(set("a", value)), EditError::Value("a".into()));
    }
}

#[test]
fn edits_act_in_order_and_on_fields_of_the_proxy() {
    let set = |name: &str, value: &str| Edit::Set(name.into(), value.as_bytes().into());
    let add = |name: &str, value: &str| Edit::Add(name.into(), value.as_bytes().into());
    let edits = |edits: Vec<Edit>| -> &'static Edits { Box::leak(Box::new(Edits::new(edits).unwrap())) };
    let text = "GET / HTTP/1.1\r\nHost: a\r\nX_User: root\r\nx-user: root\r\n\r\n";
    let ordered = edits(vec![
        add("X-A", "1"),
        set("X-User", "1"),
        set("x_user", "2"),
        add("X-B", "1"),
        Edit::Remove("x-a".into()),
    ]);
    assert_eq!(
        forward(text, "192.0.2.1", |how| how.edits = ordered),
        "GET / HTTP/1.1\r\nHost: a\r\nx_user: 2\r\nX-B: 1\r\n\r\n"
    );
    let own = edits(vec![
        set("X-Forwarded-For", "hidden"),
        Edit::Remove("X-Forwarded-Proto".into()),
        Edit::Remove("X-Forwarded-Host".into()),
        Edit::Remove("Forwarded".into()),
        Edit::Remove("traceparent".into()),
        set("X-Request-Id", "1"),
    ]);
    assert_eq!(
        forward("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "192.0.2.1", |how| {
            (how.edits, how.origin.fields, how.trace, how.request_id) =
                (own, ORIGIN, Some(&TRACE), Some([7; 16]));
        }),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: hidden\r\nX-Request-Id: 1\r\n\r\n"
    );
    let mut out = [0; 256];
    let no_date = edits(vec![Edit::Remove("Date".into()), Edit::Remove("X-Secret".into())]);
    let plan = Plan { framing: Framing::None, connection: Connection::Implied };
    let (date, fields) = (Some(&b"now"[..]), &[][..]);
    let len = answer(
        &mut out,
        &Answer { status: 204, plan, missing_body: None, date, fields, own: &[], edits: no_date },
    );
    assert_eq!(&out[..len.unwrap()], b"HTTP/1.1 204 No Content\r\n\r\n");
    let len = trailers(&mut out, b"X-Sum: 1\r\nX_Secret: 2\r\n\r\n", no_date);
    assert_eq!(&out[..len.unwrap()], b"0\r\nX-Sum: 1\r\n\r\n");
}

#[test]
fn what_an_untrusted_peer_says_of_proxies_before_it_is_dropped() {
    let fields = "X-Real-IP: 1\r\nX_Real_IP: 1\r\nX-Forwarded-Prefix: /\r\nX-Forwarded_User: 1\r\n\
        X-Original-URL: /\r\nX-Rewrite-URL: /\r\nProxy: a\r\n";
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n{fields}X-Request-Id: 1\r\n\r\n");
    assert_eq!(forward(&text, "192.0.2.1", |_| ()), "GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n");
    assert_eq!(forward(&text, "192.0.2.1", |how| how.origin.is_trusted = true), text);
}

#[test]
fn what_a_client_says_of_its_certificate_is_dropped_whoever_it_is() {
    let fields = "Client-Cert: :a:\r\nclient_cert: :a:\r\nClient-Cert-Chain: :a:\r\nX-SSL-Client-Verify: SUCCESS\r\n\
        x_ssl_client_subject: CN=a\r\nX-SSL-Client-Anything: a\r\n";
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}Client: 1\r\nX-SSL: 1\r\n\r\n");
    for is_trusted in [false, true] {
        assert_eq!(
            forward(&text, "192.0.2.1", |how| how.origin.is_trusted = is_trusted),
            "GET / HTTP/1.1\r\nHost: a\r\nClient: 1\r\nX-SSL: 1\r\n\r\n"
        );
    }
    let edits = |edits: Vec<Edit>| -> &'static Edits { Box::leak(Box::new(Edits::new(edits).unwrap())) };
    let mut out = [0; 256];
    let none = edits(vec![]);
    let len = trailers(&mut out, b"X-Sum: 1\r\nClient-Cert: :a:\r\nX-SSL-Client-Verify: a\r\n\r\n", none);
    assert_eq!(&out[..len.unwrap()], b"0\r\nX-Sum: 1\r\n\r\n");
    // What the proxy says is subject to edits.
    let extra: &'static [(&'static [u8], &'static [u8])] =
        &[(b"Client-Cert", b":b:"), (b"X-SSL-Client-Verify", b"NONE")];
    let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let edits = edits(vec![Edit::Remove("client-cert".into())]);
    let forwarded = forward(text, "192.0.2.1", |how| (how.extra, how.edits) = (extra, edits));
    assert_eq!(forwarded, "GET / HTTP/1.1\r\nHost: a\r\nX-SSL-Client-Verify: NONE\r\n\r\n");
}

#[test]
fn connection_does_not_nominate_expect() {
    let text = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: expect, x-a\r\nX-A: 1\r\n\
        Content-Length: 1\r\n\r\n";
    assert_eq!(
        forward(text, "192.0.2.1", |how| how.expect = true),
        "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
    );
}

#[test]
fn upgrades_go_on_where_permitted() {
    let text =
        "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c, websocket\r\nConnection: upgrade\r\nTE: trailers\r\n\r\n";
    assert_eq!(
        forward(text, "192.0.2.1", |_| ()),
        "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n"
    );
    assert_eq!(
        forward(text, "192.0.2.1", |how| how.upgrade = true),
        "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nUpgrade: h2c, websocket\r\nConnection: upgrade, TE\r\n\r\n"
    );
    // Without the option it is no request to upgrade (RFC 9110 §7.8).
    let text = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(forward(text, "192.0.2.1", |how| how.upgrade = true), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
}

#[test]
fn another_host_and_path() {
    let text = "GET /old?q=1 HTTP/1.1\r\nHost: a\r\n\r\n";
    let changed = forward(text, "192.0.2.1", |how| {
        how.host = Some(b"b:81");
        how.path = b"/new";
    });
    assert_eq!(changed, "GET /new?q=1 HTTP/1.1\r\nHost: b:81\r\n\r\n");
}

/// RFC 9110 §7.6.2.
#[test]
fn options_are_forwarded_a_number_of_times() {
    let text =
        |method: &str, most: &str| format!("{method} / HTTP/1.1\r\nHost: a\r\nMax-Forwards: {most}\r\n\r\n");
    let most = |method: &str, most: &str| {
        let text = text(method, most);
        with_request(text.as_bytes(), &[], &Limits::default(), |head| head.max_forwards()).unwrap().unwrap()
    };
    assert_eq!(most("OPTIONS", "0"), Some(0));
    assert_eq!(
        (most("GET", "0"), most("OPTIONS", "x"), most("OPTIONS", "+1"), most("OPTIONS", "")),
        Default::default()
    );
    assert_eq!(forward(&text("OPTIONS", "7"), "192.0.2.1", |_| ()), text("OPTIONS", "6"));
    assert_eq!(forward(&text("GET", "7"), "192.0.2.1", |_| ()), text("GET", "7"));
}

#[test]
fn a_head_that_exceeds_its_buffer_is_an_error() {
    let peer = PeerText::new("192.0.2.1".parse().unwrap());
    let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for len in 0..text.len() + 1 {
        let written = with_request(text, &[], &Limits::default(), |head| {
            request(&mut vec![0; len], &head, &plain(&peer)).map(|written| written.len)
        });
        let expected = if len < text.len() { Err(TooLong(len)) } else { Ok(text.len()) };
        assert_eq!(written.unwrap().unwrap(), expected);
    }
}

#[test]
fn answers_of_the_proxy() {
    let plan = Plan { framing: Framing::Length(3), connection: Connection::Close };
    let mut out = [0; 500];
    let fields: &[(&[u8], &[u8])] = &[(b"Content-Type", b"text/plain")];
    let head = Answer {
        status: 405,
        plan,
        missing_body: None,
        date: Some(b"D"),
        fields,
        own: &[],
        edits: Edits::NONE,
    };
    let len = answer(&mut out, &head).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&out[..len]),
        "HTTP/1.1 405 Method Not Allowed\r\nDate: D\r\nContent-Type: text/plain\r\n\
         Allow: GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
    );
    let set =
        [Edit::Set("content-type".into(), (*b"text/html").into()), Edit::Set("X".into(), (*b"1").into())];
    let edits = &Edits::new(set).unwrap();
    let len = answer(&mut out, &Answer { status: 403, date: None, edits, ..head }).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&out[..len]),
        "HTTP/1.1 403 Forbidden\r\ncontent-type: text/html\r\nX: 1\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
    );
    for fault in Fault::ALL {
        assert!(!csp_http::forward::reason_phrase(fault.status()).is_empty(), "{fault:?}");
    }
}

#[test]
fn responses_get_a_date_and_edits() {
    let text = "HTTP/1.1 200 OK\r\nServer: s\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 0\r\n\r\n";
    let edits = Edits::new([Edit::Remove("Server".into())]).unwrap();
    let plan = Plan { framing: Framing::Length(0), connection: Connection::Implied };
    let how = ResponseForward { plan: Some(plan), date: Some(b"D"), edits: &edits, extra: &[] };
    let written = with_response(text.as_bytes(), &[], &Limits::default(), |head| {
        let mut out = [0; 500];
        let len = response(&mut out, &head, &how).unwrap();
        String::from_utf8_lossy(&out[..len]).into_owned()
    });
    assert_eq!(
        written.unwrap().unwrap(),
        "HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nDate: D\r\nContent-Length: 0\r\n\r\n"
    );
}

/// What a request means to its recipient.
#[derive(PartialEq, Eq, Debug)]
struct Meaning {
    method: (Method, Vec<u8>),
    target: (Vec<u8>, Option<Vec<u8>>),
    host: Option<Vec<u8>>,
    framing: Framing,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

fn meaning(text: &[u8]) -> Option<Meaning> {
    with_request(text, &[], &Limits::default(), |head| {
        let nominated: Vec<Vec<u8>> = head
            .fields()
            .filter(|field| field.known == Name::Connection)
            .flat_map(|field| csp_http::name::elements(field.value))
            .map(|name| name.to_ascii_lowercase())
            .collect();
        let passes = |name: Name| {
            let origin = matches!(name, Name::XForwardedFor | Name::Forwarded | Name::Lookalike);
            !name.is_framing() && name != Name::Expect && !origin
        };
        let fields = head
            .fields()
            .filter(|field| passes(field.known) && !nominated.contains(&field.name.to_ascii_lowercase()));
        Meaning {
            method: (head.method(), head.method_name().to_vec()),
            target: (head.path().to_vec(), head.query().map(<[u8]>::to_vec)),
            host: head.host().map(|host| host.name.to_vec()),
            framing: head.framing(),
            fields: fields.map(|field| (field.name.to_vec(), field.value.to_vec())).collect(),
        }
    })
    .ok()?
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let field = prop_oneof![
        3 => "[A-Za-z-]{1,12}:[ \t]{0,2}[!-~]{0,12}[ \t]{0,2}".prop_map(String::into_bytes),
        1 => prop::sample::select(vec![
            "Content-Length: 3",
            "Transfer-Encoding: chunked",
            "Connection: x, close",
            "Connection: keep-alive, Y",
            "X: 1",
            "Y: 2",
            "Expect: 100-continue",
            "Upgrade: websocket",
            "TE: trailers",
            "X-Forwarded-For: 1.1.1.1",
            "Forwarded: for=x",
            "Content_Length: 5",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(32u8..127, 1..9).prop_map(|value| [b"Z: ", &value[..]].concat()),
    ];
    let line = prop::sample::select(vec![
        "GET / HTTP/1.1",
        "POST /a/b?c=d?e HTTP/1.1",
        "PUT http://a/x HTTP/1.1",
        "HEAD http://A:80 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "FROB /x? HTTP/1.1",
        "GET /old HTTP/1.0",
    ]);
    (line, prop::collection::vec(field, 0..8)).prop_map(|(line, fields)| {
        let mut text = format!("{line}\r\nHost: a\r\n").into_bytes();
        for field in fields {
            text.extend(field);
            text.extend(b"\r\n");
        }
        text.extend(b"\r\n");
        text
    })
}

/// Forwards a request without additions; `None` if it is refused.
fn passed_on(text: &[u8]) -> Option<Vec<u8>> {
    with_request(text, &[], &Limits::default(), |head| {
        let peer = PeerText::new("192.0.2.1".parse().unwrap());
        let how = RequestForward { path: head.path(), ..plain(&peer) };
        let mut out = vec![0; HEAD_LEN_MAX];
        let written = request(&mut out, &head, &how).unwrap();
        out.truncate(written.len);
        out
    })
    .ok()?
}

fn check_meaning(text: &[u8]) {
    let Some(mut before) = meaning(text) else { return };
    before.host.get_or_insert(b"default".to_vec());
    let once = passed_on(text).expect("it was accepted");
    let shown = || format!("{}\nbecomes\n{}", text.escape_ascii(), once.escape_ascii());
    let after = meaning(&once).unwrap_or_else(|| panic!("the forwarded head is refused: {}", shown()));
    assert_eq!(before, after, "{}", shown());
    // A second proxy changes nothing.
    assert_eq!(passed_on(&once), Some(once.clone()), "{}", shown());
}

#[test]
fn accepted_requests_of_the_corpus_mean_the_same_after_forwarding() {
    for case in corpus(include_str!("corpus/requests.txt")) {
        check_meaning(&case.bytes);
    }
}

/// The head that a client gets has the status and the framing that the machine has decided.
#[test]
fn accepted_responses_of_the_corpus_mean_the_same_after_forwarding() {
    for case in corpus(include_str!("corpus/responses.txt")) {
        let parts = with_response(&case.bytes, &[], &Limits::default(), |head| {
            let framing = match head.framing(false) {
                Framing::UntilClose => Framing::Chunked,
                framing => framing,
            };
            let plan = Plan { framing, connection: Connection::Implied };
            let plan = Some(plan).filter(|_| head.status() >= 200);
            let mut out = vec![0; HEAD_LEN_MAX];
            let how = ResponseForward { plan, date: None, edits: Edits::NONE, extra: &[] };
            let len = response(&mut out, &head, &how).unwrap();
            out.truncate(len);
            (head.status(), framing, out)
        });
        let Ok(Some((status, framing, out))) = parts else { continue };
        let again = with_response(&out, &[], &Limits::default(), |head| (head.status(), head.framing(false)));
        assert_eq!(again, Ok(Some((status, framing))), "{}: {}", case.name, out.escape_ascii());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn forwarded_requests_mean_the_same(text in any_request()) {
        check_meaning(&text);
    }
}
