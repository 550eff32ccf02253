//! Which bytes of a body are payload, and what is refused.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::{Body, read_body};
use csp_http::head::Framing;
use csp_http::{Fault, Limits};
use proptest::prelude::*;

fn chunked(text: &[u8]) -> Result<Body, Fault> {
    read_body(Framing::Chunked, text, &[], &Limits::default())
}

fn payload(text: &str) -> Vec<u8> {
    chunked(text.as_bytes()).unwrap().payload
}

#[test]
fn chunks_become_payload() {
    assert_eq!(payload("5\r\nhello\r\n0\r\n\r\n"), b"hello");
    assert_eq!(payload("0\r\n\r\n"), b"");
    assert_eq!(payload("1\r\na\r\n00A\r\n0123456789\r\n000\r\n\r\n"), b"a0123456789");
    let body = chunked(b"2;a=b\r\nxy\r\n3 ; q=\"a;b\"\r\nabc\r\n0;last\r\n\r\nGET").unwrap();
    assert_eq!((body.payload.as_slice(), body.chunks.as_slice(), body.rest), (&b"xyabc"[..], &[2, 3][..], 3));
}

#[test]
fn trailers_are_one_piece_and_those_that_frame_are_dropped() {
    let body =
        chunked(b"1\r\na\r\n0\r\nGrpc-Status: 0\r\nContent-Length: 5\r\nX:\r\nHost: b\r\n\r\n").unwrap();
    let (status, x) = (b"Grpc-Status".to_vec(), b"X".to_vec());
    assert_eq!(body.trailers, [(status, b"0".to_vec()), (x, Vec::new())]);
}

#[test]
fn malformed_chunks_are_refused() {
    for (text, fault) in [
        ("\r\n", Fault::ChunkSize),
        ("x\r\n", Fault::ChunkSize),
        ("-1\r\n", Fault::ChunkSize),
        ("+1\r\na\r\n", Fault::ChunkSize),
        ("0x1\r\na\r\n", Fault::ChunkSize),
        (" 1\r\na\r\n", Fault::ChunkSize),
        (";a\r\n", Fault::ChunkSize),
        ("1_0\r\n", Fault::ChunkSize),
        // A size of 2^63 and more, and one that 64 bits would cut to 1.
        ("8000000000000000\r\n", Fault::ChunkSize),
        ("10000000000000001\r\n", Fault::ChunkSize),
        ("00000000000000001\r\n", Fault::ChunkSize),
        // Line ends: "TERM.EXT" and "EXT.TERM" variants, where one program ends a line at LF alone and
        // another one does not.
        ("1\na\r\n", Fault::BareLf),
        ("1;a\na\r\n", Fault::BareLf),
        ("1;\nxx\r\n45\r\n0\r\n\r\n", Fault::BareLf),
        ("1\r\ra", Fault::BareCr),
        ("1\rXa", Fault::BareCr),
        ("1\r\na\n0\r\n\r\n", Fault::ChunkEnd),
        ("1\r\nab\r\n", Fault::ChunkEnd),
        ("1\r\na0\r\n\r\n", Fault::ChunkEnd),
        ("1\r\na\r0\r\n\r\n", Fault::ChunkEnd),
        ("1 \r\na\r\n", Fault::ChunkExtension),
        ("1 2\r\na\r\n", Fault::ChunkExtension),
        ("1;a\0b\r\n", Fault::ChunkExtension),
        ("0\r\n x: y\r\n\r\n", Fault::Fold),
        ("0\r\nx : y\r\n\r\n", Fault::SpaceInName),
        ("0\r\nx\r\n\r\n", Fault::Trailer),
        ("0\r\nx: y\n\r\n", Fault::BareLf),
        ("0\r\nx: y\rz\r\n\r\n", Fault::BareCr),
        ("0\r\nx: \0\r\n\r\n", Fault::Nul),
        ("0\r\n\rX", Fault::BareCr),
    ] {
        assert_eq!(chunked(text.as_bytes()).map(|body| body.payload), Err(fault), "{text:?}");
    }
}

#[test]
fn extensions_are_bounded_and_payload_earns_more() {
    let long = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(5_000));
    assert_eq!(chunked(long.as_bytes()).map(|body| body.payload), Err(Fault::ChunkExtension));
    let one = format!("1;{}\r\na\r\n", "x".repeat(99));
    assert_eq!(chunked(one.repeat(42).as_bytes()).map(|body| body.payload), Err(Fault::ChunkExtension));
    // As signed uploads to object stores have it: 85 bytes with each 64 KiB.
    let signed = format!("10000;chunk-signature={}\r\n{}\r\n", "0".repeat(64), "a".repeat(0x1_0000));
    let body = chunked(format!("{}0\r\n\r\n", signed.repeat(100)).as_bytes()).unwrap();
    assert_eq!(body.payload.len(), 100 << 16);
}

#[test]
fn trailer_sections_are_bounded() {
    let long = format!("0\r\nx: {}\r\n\r\n", "y".repeat(9_000));
    assert_eq!(chunked(long.as_bytes()).map(|body| body.payload), Err(Fault::TrailerTooLong));
    let many = format!("0\r\n{}\r\n", "x:y\r\n".repeat(101));
    assert_eq!(chunked(many.as_bytes()).map(|body| body.payload), Err(Fault::TooManyFields));
}

#[test]
fn lengths_end_a_body_and_a_stream_that_ends_before_is_truncated() {
    let limits = Limits::default();
    let body = read_body(Framing::Length(3), b"abcGET", &[], &limits).unwrap();
    assert_eq!((body.payload.as_slice(), body.rest), (&b"abc"[..], 3));
    let body = read_body(Framing::None, b"GET", &[], &limits).unwrap();
    assert_eq!(body.rest, 3);
    let body = read_body(Framing::UntilClose, b"abc", &[], &limits).unwrap();
    assert_eq!(body.payload, b"abc");
    for (framing, text) in [
        (Framing::Length(4), "abc"),
        (Framing::Chunked, "3\r\nabc"),
        (Framing::Chunked, "3\r\nabc\r\n0\r\n"),
        (Framing::Chunked, ""),
    ] {
        let outcome = read_body(framing, text.as_bytes(), &[], &limits);
        assert_eq!(outcome.map(|body| body.payload), Err(Fault::TruncatedBody), "{text}");
    }
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let chunk = (prop::collection::vec(any::<u8>(), 1..40), prop_oneof![Just(""), Just(";a=b"), Just(" ;c")]);
    let chunks = prop::collection::vec(chunk, 0..6);
    let trailers = prop::collection::vec("[a-z]{1,5}: ?[ -~]{0,9}\r\n", 0..3);
    (chunks, trailers, prop::collection::vec(any::<u8>(), 0..5)).prop_map(|(chunks, trailers, rest)| {
        let mut text = Vec::new();
        for (payload, extension) in chunks {
            text.extend(format!("{:x}{extension}\r\n", payload.len()).bytes());
            text.extend(payload);
            text.extend(b"\r\n");
        }
        text.extend(format!("0\r\n{}\r\n", trailers.concat()).bytes());
        text.extend(rest);
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_division_of_a_body_gives_the_same(
        mut text in any_body(),
        cuts in prop::collection::vec(1usize..9, 1..20),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        if let Some((at, byte)) = damage {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let whole = read_body(Framing::Chunked, &text, &[], &Limits::default());
        prop_assert_eq!(read_body(Framing::Chunked, &text, &cuts, &Limits::default()), whole);
    }
}
