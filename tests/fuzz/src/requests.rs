//! Requests of REQ and DEALER peers to a channel.

use csp_services::{Asked, AskedError, Wanted};

use crate::{Bounds, Check, Target};

/// The text of a request.
pub static REQUESTS: Target = Target {
    name: "requests",
    check: Check::Parser(check),
    examples,
    words: &[
        "\"get\"",
        "\"query\"",
        "\"release\"",
        "\"translate\"",
        "\"format\"",
        "\"handler\"",
        "\"output\"",
        "\"json\"",
        "\"schema\"",
        "\"message\"",
        "\"name\"",
        "\"module\"",
        "\"parameters\"",
        "null",
        "true",
        "{}",
        "[]",
        ":",
        ",",
        "\\u0000",
        "\\ud800",
        "\u{feff}",
    ],
    len_max: 32_768,
    bounds: Bounds { held: (16 << 10, 64), allocated: (32 << 10, 256) },
};

fn check(text: &[u8]) -> bool {
    let read = Asked::read(text, true);
    match &read {
        Ok(Asked::Handler(asked)) => {
            assert_eq!(Asked::read(text, false), read);
            assert!(
                (1..=63).contains(&asked.name.len())
                    && asked.hash.as_ref().is_none_or(|hash| hash.len() == 64)
            );
        }
        Ok(asked) => {
            assert!(Asked::read(text, false).is_err(), "a module follows {asked:?}");
            if let Asked::Query { wanted: Wanted::Query(sql), .. } = asked {
                assert!(sql.len() <= text.len() && sql.trim() == sql);
            }
        }
        Err(AskedError::Form(why)) => check_reason(why, text),
        Err(AskedError::Refused(refused)) => {
            assert!(refused.place.is_none());
            check_reason(&refused.message, text);
        }
    }
    read.is_ok()
}

/// A reason quotes the request once at most.
fn check_reason(why: &str, text: &[u8]) {
    assert!(!why.is_empty() && why.len() <= text.len() + 256, "{why}");
}

fn examples() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"get": "channel"}"#,
        r#"{"get": "formats"}"#,
        r#"{"get": "queries"}"#,
        r#"{"get": "handlers"}"#,
        r#"{"release": "ticks-q1.7"}"#,
        r#"{"query": " SELECT origin FROM flights WHERE delay > 10 ", "output": "json"}"#,
        r#"{"translate": {"schema": "<messageSchema id=\"1\" version=\"0\"/>", "message": "Flight"}, "output": "sbe"}"#,
        r#"{"format": {"name": "bids", "schema": "<messageSchema/>", "message": "Bid"}}"#,
        r#"{"handler": {"name": "mine-1", "module": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "parameters": "a\nb"}}"#,
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
