//! What clients say to filters of HTTP: a line with an origin, a line with `Accept`.

use csp_filters::{CorsSpec, Filters, Preference, Spec};
use csp_http::head::Host;

use crate::{Bounds, Check, Target};

/// An origin that is allowed is a whole origin of the policy; empty elements of `Accept` mean nothing.
pub static HTTP_FILTERS: Target = Target {
    name: "http_filters",
    check: Check::Parser(check),
    examples,
    words: &[
        "https://",
        "http://",
        ".example.com",
        "*",
        ":443",
        "@",
        "#",
        "\\",
        "/",
        ";q=",
        "1.000",
        "+json",
        ", ",
    ],
    len_max: 1_024,
    bounds: Bounds { held: (64 << 10, 8), allocated: (256 << 10, 16) },
};

fn examples() -> Vec<Vec<u8>> {
    [
        "https://app.example\ntext/html,application/xhtml+xml,*/*;q=0.8",
        "https://a.b.example.com\napplication/json;q=0.5, text/html;q=0.4",
        "http://localhost:3000\napplication/problem+json",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn check(input: &[u8]) -> bool {
    let (origin, accept) = match input.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &b""[..]),
    };
    let origins = ["https://app.example", "https://*.example.com", "http://localhost:3000"];
    let cors = CorsSpec { origins: origins.map(str::to_owned).to_vec(), ..CorsSpec::default() };
    let filters = Filters::new(Spec { cors: Some(cors), ..Spec::default() }, [0; 2]).expect("it is right");
    let is_allowed = filters.cors.is_some_and(|cors| cors.allows(origin));
    if is_allowed && origin != b"https://app.example" && origin != b"http://localhost:3000" {
        let name = origin.strip_prefix(b"https://").expect("the scheme of the policy");
        let host = Host::parse(name).expect("a host");
        assert!(host.port.is_none() && host.name == name && name.ends_with(b".example.com"));
    }
    let preference = Preference::of(accept);
    let padded = [b", ,", accept, b" ,, "].concat();
    assert_eq!(Preference::of(&padded), preference);
    is_allowed || preference != Preference::Any
}
