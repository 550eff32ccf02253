//! Heads of requests and responses: the corpus of what others got wrong, limits, and any division of the
//! bytes.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::{Case, corpus, outcome, with_request, with_response};
use csp_http::head::{Method, Scheme, TargetForm, Version};
use csp_http::{Fault, Limits, Refusal};
use proptest::prelude::*;

const REQUESTS: &str = include_str!("corpus/requests.txt");
const RESPONSES: &str = include_str!("corpus/responses.txt");

fn request(bytes: &[u8], cuts: &[usize]) -> (String, u16) {
    let limits = Limits::default();
    outcome(with_request(bytes, cuts, &limits, |request| (request.framing(), request.is_persistent())))
}

fn response(bytes: &[u8], cuts: &[usize]) -> (String, u16) {
    let limits = Limits::default();
    outcome(with_response(bytes, cuts, &limits, |head| (head.framing(false), head.is_persistent())))
}

fn check(text: &str, read: fn(&[u8], &[usize]) -> (String, u16)) {
    let mut wrong = Vec::new();
    for Case { name, outcome, bytes } in corpus(text) {
        let (found, line) = read(&bytes, &[]);
        let (expected, at) = match outcome.rsplit_once(' ').map(|(code, at)| (code, at.parse::<u16>())) {
            Some((code, Ok(at))) => (code.to_owned(), Some(at)),
            _ => (outcome.clone(), None),
        };
        if found != expected || at.is_some_and(|at| at != line) {
            wrong.push(format!("{name}: {found} in line {line}; expected {outcome}"));
        }
        for cuts in [&[1][..], &[2, 5], &[7, 1, 30]] {
            let divided = read(&bytes, cuts);
            if divided != (found.clone(), line) {
                wrong.push(format!(
                    "{name} in steps of {cuts:?}: {divided:?}; at once {found} in line {line}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn requests_of_the_corpus() {
    check(REQUESTS, request);
}

#[test]
fn responses_of_the_corpus() {
    check(RESPONSES, response);
}

/// haproxy #2836: an answer to HEAD with Transfer-Encoding, whose body never comes.
#[test]
fn an_answer_to_head_has_no_body_whatever_it_names() {
    for text in ["Transfer-Encoding: chunked", "Content-Length: 7", "X: y"] {
        let text = format!("HTTP/1.1 200 OK\r\n{text}\r\n\r\n");
        let limits = Limits::default();
        let framing = with_response(text.as_bytes(), &[], &limits, |head| head.framing(true)).unwrap();
        assert_eq!(framing, Some(csp_http::head::Framing::None), "{text}");
    }
}

#[test]
fn parts_of_a_request() {
    let text = b"\r\nPOST http://Example.com:80/a/b?c=d HTTP/1.1\r\nHost: example.com\r\nX: y \r\n\r\nbody";
    with_request(text, &[], &Limits::default(), |request| {
        assert_eq!(request.method(), Method::Post);
        assert_eq!(request.form(), TargetForm::Absolute(Scheme::Http));
        assert_eq!((request.path(), request.query()), (&b"/a/b"[..], Some(&b"c=d"[..])));
        let host = request.host().unwrap();
        assert_eq!((host.name, host.port), (&b"Example.com"[..], Some(80)));
        assert_eq!((request.version(), request.head_len()), (Version::Http11, text.len() - 4));
        assert!(request.bytes().starts_with(b"POST") && request.bytes().ends_with(b"\r\n\r\n"));
        let fields: Vec<_> = request.fields().map(|field| (field.name, field.value)).collect();
        assert_eq!(fields, [(&b"Host"[..], &b"example.com"[..]), (&b"X"[..], &b"y"[..])]);
    })
    .unwrap()
    .unwrap();
    let text = b"OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n";
    let path = with_request(text, &[], &Limits::default(), |request| request.path().to_vec()).unwrap();
    assert_eq!(path.unwrap(), b"*");
}

#[test]
fn limits_of_heads() {
    let limits = Limits {
        head_len_max: 400,
        line_len_max: 100,
        fields_max: 5,
        target_len_max: 50,
        ..Limits::default()
    };
    let fault = |text: String, cuts: &[usize]| {
        with_request(text.as_bytes(), cuts, &limits, |_| ()).map_err(|refusal| (refusal.fault, refusal.line))
    };
    for cuts in [&[][..], &[1], &[13]] {
        let target = |len: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(len));
        assert_eq!(fault(target(49), cuts), Ok(Some(())));
        assert_eq!(fault(target(50), cuts), Err((Fault::TargetTooLong, 1)));
        assert_eq!(fault(target(500), cuts), Err((Fault::TargetTooLong, 1)));
        let field = |len: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nX:{}\r\n\r\n", "x".repeat(len));
        assert_eq!(fault(field(98), cuts), Ok(Some(())));
        assert_eq!(fault(field(99), cuts), Err((Fault::FieldTooLong, 3)));
        assert_eq!(fault(field(500), cuts), Err((Fault::HeadTooLong, 0)));
        let fields = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "x: y\r\n".repeat(count));
        assert_eq!(fault(fields(4), cuts), Ok(Some(())));
        assert_eq!(fault(fields(5), cuts), Err((Fault::TooManyFields, 0)));
        assert_eq!(fault(fields(500), cuts), Err((Fault::TooManyFields, 0)));
    }
}

/// Found by the fuzz target: a fault behind the last permitted field was named if all had come at once.
#[test]
fn fields_beyond_the_limit_are_not_examined() {
    let text = format!("GET / HTTP/1.1\r\n{}(: x\r\n\r\n", "x: y\r\n".repeat(150));
    for cuts in [&[][..], &[1], &[700]] {
        assert_eq!(request(text.as_bytes(), cuts), ("too-many-fields".to_owned(), 0));
    }
}

#[test]
fn a_refusal_says_what_and_where() {
    let text = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 2\r\n\r\n";
    let refusal = with_request(text, &[], &Limits::default(), |_| ()).unwrap_err();
    assert_eq!(refusal, Refusal { fault: Fault::ContentLength, line: 3 });
    assert_eq!(
        refusal.to_string(),
        "content-length: line 3: Content-Length: expected one number of decimal digits"
    );
}

/// Codes are unique, and each stands in the README with its status.
#[test]
fn every_fault_is_documented() {
    let readme = include_str!("../README.md");
    let mut codes: Vec<&str> = Fault::ALL.iter().map(|fault| fault.code()).collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), Fault::ALL.len());
    for fault in Fault::ALL {
        let row = format!("| `{}` | {} |", fault.code(), fault.status());
        assert!(readme.contains(&row), "README.md lacks {row}");
    }
}

fn damaged(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let case = prop::sample::select(corpus(text).into_iter().map(|case| case.bytes).collect::<Vec<_>>());
    let byte = prop_oneof![prop::sample::select(b"\r\n \t:\0,/\\HT1.".to_vec()), any::<u8>()];
    let change = (any::<prop::sample::Index>(), byte, 0..3u8);
    (case, prop::collection::vec(change, 0..3)).prop_map(|(mut bytes, changes)| {
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => {
                    bytes.remove(at);
                }
                _ => {}
            }
        }
        bytes
    })
}

/// What the parser refuses the diagnosis must find, or the refusal has no line.
fn has_line((code, line): &(String, u16)) -> bool {
    let without = ["ok", "too", "head", "host", "truncated"];
    *line > 0 || without.iter().any(|start| code.starts_with(start))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_division_of_a_request_gives_the_same(
        bytes in damaged(REQUESTS),
        cuts in prop::collection::vec(1usize..20, 1..20),
    ) {
        let whole = request(&bytes, &[]);
        prop_assert!(has_line(&whole), "{:?}", whole);
        prop_assert_eq!(request(&bytes, &cuts), whole);
    }

    #[test]
    fn any_division_of_a_response_gives_the_same(
        bytes in damaged(RESPONSES),
        cuts in prop::collection::vec(1usize..20, 1..20),
    ) {
        let whole = response(&bytes, &[]);
        prop_assert!(has_line(&whole), "{:?}", whole);
        prop_assert_eq!(response(&bytes, &cuts), whole);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 1..300)) {
        let whole = request(&bytes, &[]);
        prop_assert_eq!(request(&bytes, &[3]), whole);
        response(&bytes, &[3]);
    }
}
