//! The ClientHello by whose name a connection is passed on. The first byte chooses the length of slices.

use csp_tls::{CLIENT_HELLO_LEN_MAX, Hello, HelloReader, ServerNames, server_name};
use csp_wire::tls::{HELLO_LEN_MAX, client_hello};

use crate::{Bounds, Check, Target};

/// One outcome for any slices and for any number of calls; what is whole is the same message in other
/// records.
pub static CLIENT_HELLO: Target = Target {
    name: "client_hello",
    check: Check::Parser(check),
    examples,
    words: &[
        "\x16\x03\x01",
        "\x01\0\0",
        "\0\0\0\x0c\0\x0a\0\0\x07",
        "\0\0",
        "\x40\0",
        "a.example",
        "\x2a\x2a\0\0",
    ],
    len_max: 20_000,
    bounds: Bounds { held: (256 << 10, 8), allocated: (1 << 20, 64) },
};

fn check(input: &[u8]) -> bool {
    let Some((first, stream)) = input.split_first() else { return false };
    let step = 1 + usize::from(*first);
    let at_once = HelloReader::default().read([stream].into_iter());
    assert_eq!(HelloReader::default().read(stream.chunks(step)), at_once);
    let mut reader = HelloReader::default();
    let ends = (step..stream.len()).step_by(step).chain([stream.len()]);
    let mut in_calls = Hello::Partial;
    for end in ends {
        in_calls = reader.read(stream[..end].chunks(step));
        if in_calls != Hello::Partial {
            break;
        }
    }
    assert_eq!(in_calls, at_once);
    if at_once != Hello::Whole {
        return false;
    }
    let mut message = Vec::new();
    assert_eq!(HelloReader::gather(stream.chunks(step), &mut message), Hello::Whole);
    assert!(message.len() <= CLIENT_HELLO_LEN_MAX);
    let in_records = records(&message, 1 + message.len() / 3);
    let mut again = Vec::new();
    assert_eq!(HelloReader::gather([&in_records[..]].into_iter(), &mut again), Hello::Whole);
    assert_eq!(again, message);
    let Ok(name) = server_name(&message) else { return false };
    let mut names = ServerNames::default();
    for known in ["a.example", "*.example", "*.a.example"] {
        names.insert(known, known);
    }
    if let Some(name) = name {
        let found = names.find(name);
        let lower = name.to_ascii_lowercase();
        assert_eq!(found.is_some(), lower == "a.example" || lower.ends_with(".example"));
    }
    true
}

fn records(message: &[u8], max: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(max).flat_map(record).collect()
}

fn examples() -> Vec<Vec<u8>> {
    let hello = |name: Option<&str>| {
        let mut out = [0; HELLO_LEN_MAX];
        let len = client_hello(name, &mut out).expect("it fits");
        out[..len].to_vec()
    };
    let with = |step: u8, stream: &[u8]| [&[step][..], stream].concat();
    let named = hello(Some("b.a.example"));
    vec![
        with(255, &hello(None)),
        with(0, &hello(Some("a.example"))),
        with(6, &records(&named[5..], 50)),
        with(40, &[&named[..], b"more"].concat()),
    ]
}
