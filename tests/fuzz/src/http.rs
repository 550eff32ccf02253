//! HTTP/1.1: heads, bodies, whole exchanges, and what a policy says of routes. In inputs of messages the
//! first byte chooses the length of slices.

use csp_http::forward::{Edits, Origin, OriginFields, PeerText, RequestForward, request};
use csp_http::head::{Framing, Request, Scheme, normalised};
use csp_http::limits::HEAD_LEN_MAX;
use csp_http::route::{PathSpec, RouteSpec, Routes, Subject, TextSpec};
use csp_http::{Limits, Refusal};

use crate::{Bounds, Check, Target};

#[path = "../../../proxy-node/http/tests/common/mod.rs"]
mod common;

use common::proxy::Proxy;
use common::{corpus, read_body, with_request, with_response};

/// Most of it is what the reader of the test allocates at each step.
const BOUNDS: Bounds = Bounds { held: (256 << 10, 350), allocated: (4 << 20, 34_000) };

/// A head of a request or a response: one outcome for any slices; what is accepted and forwarded is read
/// again alike, and forwarded again unchanged.
pub static HTTP_HEAD: Target = Target {
    name: "http_head",
    check: Check::Parser(head),
    examples: head_examples,
    words: &[
        "\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        " ",
        "\t",
        "\0",
        ":",
        ": ",
        ",",
        "Host: a\r\n",
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close, x\r\n",
        "Connection: upgrade\r\nUpgrade: x\r\n",
        "Expect: 100-continue\r\n",
        "HTTP/1.0",
        "HTTP/1.1",
        "HTTP/2.0",
        "GET / ",
        "http://a/",
        "/../",
        "%2e%2e",
        "[::1]",
    ],
    len_max: 4_096,
    bounds: BOUNDS,
};

/// A chunked body: one outcome for any slices, and no more payload than bytes.
pub static HTTP_BODY: Target = Target {
    name: "http_body",
    check: Check::Parser(body),
    examples: body_examples,
    words: &[
        "\r\n",
        "0\r\n",
        "\r\n\r\n",
        ";x=y",
        " ",
        "ffffffffffffffff",
        "7fffffffffffffff",
        "x: y\r\n",
        "\n",
    ],
    len_max: 8_192,
    bounds: BOUNDS,
};

/// Bytes of a client and of a member through the machine: it ends, the member gets the same bytes for any
/// slices, and another proxy finds as many requests in them.
pub static HTTP_EXCHANGE: Target = Target {
    name: "http_exchange",
    check: Check::Steps(exchange),
    examples: exchange_examples,
    words: HTTP_HEAD.words,
    len_max: 2_048,
    bounds: Bounds { held: (256 << 10, 350), allocated: (4 << 20, 70_000) },
};

/// A route of a policy: a table or a short mistake. Its automaton has a bound whatever the expression is.
pub static HTTP_ROUTE: Target = Target {
    name: "http_route",
    check: Check::Parser(route),
    examples: route_examples,
    words: &[
        "*.",
        ".",
        "host ",
        "prefix /",
        "exact /",
        "regex ",
        "header a=",
        "query a=",
        "cookie a=",
        "{1000}",
        "{0,9}",
        "(a|b)*",
        "[^a]",
        "(?i)",
        "\\d",
        "\\w+",
        ".*",
        "\\b",
        "$",
        "^",
        "%2f",
        "/../",
    ],
    len_max: 1_024,
    bounds: Bounds { held: (5 << 20, 64), allocated: (8 << 20, 64) },
};

/// Divides an input into the length of slices, as one cut or none, and the rest.
fn cut(bytes: &[u8]) -> ([usize; 1], &[u8]) {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    ([usize::from(*first % 32) + 1], rest)
}

fn examples_of(text: &str) -> impl Iterator<Item = Vec<u8>> {
    let accepted = corpus(text)
        .into_iter()
        .filter(|case| case.outcome.starts_with("ok ") && case.outcome != "ok nothing");
    accepted.map(|case| [b"\x06", &case.bytes[..]].concat())
}

fn head_examples() -> Vec<Vec<u8>> {
    let requests = examples_of(include_str!("../../../proxy-node/http/tests/corpus/requests.txt"));
    requests.chain(examples_of(include_str!("../../../proxy-node/http/tests/corpus/responses.txt"))).collect()
}

fn head(bytes: &[u8]) -> bool {
    let (cuts, bytes) = cut(bytes);
    if bytes.is_empty() {
        return false;
    }
    let limits = Limits::default();
    let response = |cuts: &[usize]| {
        with_response(bytes, cuts, &limits, |head| (head.status(), head.framing(false), head.is_persistent()))
    };
    let whole = response(&[]);
    assert_eq!(response(&cuts), whole);
    let request = |cuts: &[usize]| with_request(bytes, cuts, &limits, |head| meaning(&head));
    let meant = request(&[]);
    assert_eq!(request(&cuts), meant);
    if let Ok(Some(meant)) = &meant {
        let once = forwarded(bytes).expect("it was accepted");
        let again = with_request(&once, &[], &limits, |head| meaning(&head));
        assert_eq!(again.as_ref(), Ok(&Some(meant.clone())), "{}", once.escape_ascii());
        assert_eq!(forwarded(&once), Ok(once.clone()), "{}", once.escape_ascii());
    }
    for error in [meant.as_ref().err(), whole.as_ref().err()].into_iter().flatten() {
        assert!(!error.to_string().is_empty() && error.to_string().len() < 200);
    }
    matches!(meant, Ok(Some(_))) || matches!(whole, Ok(Some(_)))
}

/// What a request means to its recipient: method, path, query, framing.
type Meaning = (Vec<u8>, Vec<u8>, Option<Vec<u8>>, Framing);

fn meaning(head: &Request<'_>) -> Meaning {
    (head.method_name().to_vec(), head.path().to_vec(), head.query().map(<[u8]>::to_vec), head.framing())
}

fn forwarded(bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
    let written = with_request(bytes, &[], &Limits::default(), |head| {
        let peer = PeerText::new([192, 0, 2, 1].into());
        let fields = OriginFields::default();
        let how = RequestForward {
            path: head.path(),
            host: None,
            default_host: b"default",
            origin: Origin { peer: &peer, is_trusted: false, scheme: Scheme::Http, fields },
            trace: None,
            request_id: None,
            upgrade: true,
            expect: true,
            edits: Edits::NONE,
            extra: &[],
        };
        let mut out = vec![0; HEAD_LEN_MAX];
        let len = request(&mut out, &head, &how).expect("it has room").len;
        out.truncate(len);
        out
    });
    written.map(|written| written.expect("the head is complete"))
}

fn body_examples() -> Vec<Vec<u8>> {
    let texts = [
        "\x033\r\nabc\r\n0\r\n\r\n",
        "\x01A;x=\"y\"\r\n0123456789\r\n1 ; z\r\na\r\n00\r\nX: y\r\nHost: b\r\n\r\nrest",
        "\x080\r\n\r\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn body(bytes: &[u8]) -> bool {
    let (cuts, bytes) = cut(bytes);
    let limits = Limits::default();
    let whole = read_body(Framing::Chunked, bytes, &[], &limits);
    assert_eq!(read_body(Framing::Chunked, bytes, &cuts, &limits), whole);
    whole.is_ok_and(|body| {
        assert_eq!(body.chunks.iter().sum::<u64>(), body.payload.len() as u64);
        true
    })
}

fn exchange_examples() -> Vec<Vec<u8>> {
    let get = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    let post = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n";
    let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc";
    let switch =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc";
    let pairs = [(get, ok), (post, chunked), (upgrade, switch), (get, "HTTP/1.0 200 OK\r\n\r\nabc")];
    pairs
        .map(|(client, member)| {
            let len = client.len() as u16;
            [&[7][..], &len.to_be_bytes(), client.as_bytes(), member.as_bytes()].concat()
        })
        .to_vec()
}

/// Behind the first byte: the length of the client's bytes, those, and the member's.
fn exchange(bytes: &[u8]) {
    let ([size], bytes) = cut(bytes);
    let Some((len, bytes)) = bytes.split_first_chunk() else { return };
    let len = usize::from(u16::from_be_bytes(*len)).min(bytes.len());
    let (client, member) = bytes.split_at(len);
    let run = |size: usize| {
        let mut proxy = Proxy::default();
        (proxy.from_client.slice, proxy.from_member.slice) = (size, size);
        for part in client.chunks(if size == 0 { usize::MAX } else { size }) {
            proxy.from_client.push(part);
            proxy.run();
        }
        proxy.from_member.push(member);
        proxy.run();
        proxy
    };
    let (whole, divided) = (run(0), run(size));
    assert_eq!(divided.sent().escape_ascii().to_string(), whole.sent().escape_ascii().to_string());
    // Behind 101 the bytes are those of another protocol.
    if !whole.to_client.windows(12).any(|text| text == b"HTTP/1.1 101") {
        let (seen, sent) = (whole.requests_found(), whole.member_requests());
        assert_eq!(seen, sent, "{}", whole.sent().escape_ascii());
    }
}

fn route_examples() -> Vec<Vec<u8>> {
    let texts = [
        "host *.example.com\nprefix /a/b\nheader x-a=1\nquery q=2",
        "regex /v[0-9]+/(a|b)*.{1,20}\ncookie a=[a-z]+",
        "host a.example.com.\nexact /a/../%62\nmethod GET",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Lines of the form `WHAT TEXT`.
fn spec(text: &str) -> Option<RouteSpec> {
    let mut spec = RouteSpec::default();
    for line in text.lines() {
        let (what, text) = line.split_once(' ')?;
        let named = || {
            let (name, pattern) = text.split_once('=')?;
            Some((name.to_owned(), TextSpec::Regex(pattern.to_owned())))
        };
        match what {
            "host" => spec.hosts.push(text.to_owned()),
            "prefix" => spec.path = PathSpec::Prefix(text.to_owned()),
            "exact" => spec.path = PathSpec::Exact(text.to_owned()),
            "regex" => spec.path = PathSpec::Regex(text.to_owned()),
            "method" => spec.methods.push(text.to_owned()),
            "header" => spec.headers.push(named()?),
            "cookie" => spec.cookies.push(named()?),
            "query" => spec.query.push(named()?),
            _ => return None,
        }
    }
    Some(spec)
}

fn route(bytes: &[u8]) -> bool {
    let Some(spec) = core::str::from_utf8(bytes).ok().and_then(spec) else { return false };
    let routes = match Routes::compile(&[spec]) {
        Ok(routes) => routes,
        Err(error) => {
            assert!(error.to_string().len() < 1_000, "{error}");
            return false;
        }
    };
    let text = b"GET /v1/ab?q=2 HTTP/1.1\r\nHost: a.example.com\r\nX-A: 1\r\nCookie: a=b\r\n\r\n";
    let found = with_request(text, &[], &Limits::default(), |head| {
        let mut room = Vec::new();
        let path = normalised(head.path(), &mut room).expect("it has a normal form");
        routes.find(&Subject::new(&head, path, [192, 0, 2, 1].into()))
    });
    assert!(found.is_ok_and(|found| found.is_some_and(|found| found.is_none_or(|found| found.route == 0))));
    true
}
