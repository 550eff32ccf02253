//! Which coding a client gets, and what its head says.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use csp_filters::compress::{Coding, Compress, CompressSpec, rewrite};
use csp_filters::{Filters, Spec};
use csp_support::Random;

fn filters(spec: CompressSpec) -> Result<Filters, String> {
    Filters::new(Spec { compress: Some(spec), ..Spec::default() }, [1, 2]).map_err(|error| error.to_string())
}

fn spec(codings: &[(Coding, u8)]) -> CompressSpec {
    CompressSpec { is_on: true, codings: codings.to_vec(), types: Vec::new(), least: 1_024 }
}

fn compress() -> Compress {
    filters(spec(&[(Coding::Br, 4), (Coding::Gzip, 5)])).unwrap().compress.unwrap()
}

fn chosen(accepted: &[&str]) -> Option<&'static str> {
    compress().choose(accepted.iter().map(|value| value.as_bytes())).map(|(coding, _)| coding.name())
}

/// RFC 9110 §12.5.3.
#[test]
fn a_client_gets_what_it_wants_most() {
    for (accepted, coding) in [
        (&["gzip"][..], Some("gzip")),
        (&["gzip, deflate, br, zstd"], Some("br")),
        (&["gzip", "br"], Some("br")),
        (&["br;q=0.1, gzip"], Some("gzip")),
        (&["GZIP;Q=1.000"], Some("gzip")),
        (&["*"], Some("br")),
        (&["*;q=0.5, br;q=0"], Some("gzip")),
        (&["gzip;q=0.5, *;q=0.8"], Some("br")),
        (&["identity;q=0.5, gzip;q=0.5"], Some("gzip")),
        (&["identity, gzip;q=0.9"], None),
        (&["gzip;q=0, gzip"], None),
        (&["gzip;q=0"], None),
        (&["gzip;q=0.000, br;q=0."], None),
        (&["deflate, zstd"], None),
        (&[""], None),
        (&[], None),
    ] {
        assert_eq!(chosen(accepted), coding, "{accepted:?}");
    }
}

#[test]
fn what_is_no_weight_is_no_wish() {
    for wrong in ["gzip;q=2", "gzip;q=1.001", "gzip;q=0.1234", "gzip;q=-1", "gzip;q=", "gzip;x=1"] {
        let got = chosen(&[wrong]);
        assert!(got.is_none(), "{wrong}: {got:?}");
    }
    let mut random = Random::new(5);
    let parts =
        ["gzip", "br", "*", "identity", ";", ";q=", "0.", "1", "999", ",", " ", "\t", "=", "\u{e4}", "q"];
    for _ in 0..20_000 {
        let text: String = (0..random.below(24)).map(|_| parts[random.below(15) as usize]).collect();
        chosen(&[&text]);
    }
    assert_eq!(chosen(&[&format!("{}gzip", "a,".repeat(32))]), None, "the list is looked at so far");
}

#[test]
fn mistakes_are_named() {
    let both = [(Coding::Br, 4), (Coding::Br, 5)];
    for (spec, what) in [
        (spec(&[]), "compress: no algorithm; one of br, gzip"),
        (spec(&both), "compress: br stands twice"),
        (spec(&[(Coding::Br, 12)]), "compress: br has no level 12: br has 0 to 11, gzip 1 to 9"),
        (spec(&[(Coding::Gzip, 0)]), "compress: gzip has no level 0: br has 0 to 11, gzip 1 to 9"),
        (
            CompressSpec { types: vec!["Text/HTML".to_owned()], ..spec(&both[..1]) },
            "compress: \"Text/HTML\" is no media type in lower case, like application/json or text/*",
        ),
        (
            CompressSpec { types: vec!["a/b".to_owned(); 65], ..spec(&both[..1]) },
            "compress: 65 types; allowed are 64",
        ),
    ] {
        assert_eq!(filters(spec).unwrap_err(), what);
    }
}

fn rewritten(head: &str, coding: Option<Coding>) -> String {
    let mut out = Vec::new();
    rewrite(head.as_bytes(), coding, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_head_says_that_its_body_is_compressed() {
    let head = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nAccept-Ranges: bytes\r\nVary: Cookie\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        rewritten(head, Some(Coding::Gzip)),
        "HTTP/1.1 200 OK\r\nETag: W/\"1\"\r\nVary: Cookie\r\nTransfer-Encoding: chunked\r\nVary: Accept-Encoding\r\nContent-Encoding: gzip\r\n\r\n"
    );
    assert_eq!(rewritten(head, None), head.replacen("\r\n\r\n", "\r\nVary: Accept-Encoding\r\n\r\n", 1));
    let weak = "HTTP/1.1 200 OK\r\netag:W/\"1\"\r\nvary: x, Accept-encoding\r\n\r\n";
    assert_eq!(
        rewritten(weak, Some(Coding::Br)),
        weak.replacen("\r\n\r\n", "\r\nContent-Encoding: br\r\n\r\n", 1)
    );
    assert_eq!(rewritten(weak, None), weak);
}
