//! The ClientHello that is looked at: those of rustls, in any pieces and records, and what hostile clients
//! make of one.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

use std::sync::Arc;

use csp_tls::{CLIENT_HELLO_LEN_MAX, Hello, HelloReader, server_name};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

const NAME: &str = "db.example.com";

/// Returns what a client of rustls sends first; an address as `name` is not sent.
fn by_rustls(name: &str) -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat()
}

fn named(name: &[u8]) -> Vec<u8> {
    let entry = [&[0][..], &(name.len() as u16).to_be_bytes(), name].concat();
    extension(0, &[&(entry.len() as u16).to_be_bytes()[..], &entry].concat())
}

/// Returns a ClientHello with these extensions; `None`: it ends before them.
fn message(extensions: Option<&[Vec<u8>]>) -> Vec<u8> {
    let mut body = [&[3, 3][..], &[7; 32], &[32], &[9; 32]].concat();
    body.extend([0, 4, 0x0a, 0x0a, 0x13, 0x01]); // GREASE (RFC 8701) and a cipher suite
    body.extend([1, 0]);
    if let Some(extensions) = extensions {
        let all = extensions.concat();
        body.extend((all.len() as u16).to_be_bytes());
        body.extend(all);
    }
    let len = (body.len() as u32).to_be_bytes();
    [&[1][..], &len[1..], &body].concat()
}

/// Puts a message into records with at most `max` bytes of it each.
fn records(message: &[u8], max: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(max).flat_map(record).collect()
}

fn whole(bytes: &[u8]) -> Hello {
    HelloReader::default().read([bytes].into_iter())
}

fn gathered(bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    assert_eq!(HelloReader::gather(bytes.chunks(7), &mut message), Hello::Whole);
    message
}

#[test]
fn a_hello_is_whole_with_its_last_byte_however_it_arrives() {
    let sent = by_rustls(NAME);
    let message = &sent[5..];
    assert_eq!(server_name(message).unwrap(), Some(NAME));
    for max in [1, 2, 3, 4, 5, 100, 16_384] {
        let stream = records(message, max);
        assert_eq!(gathered(&[&stream[..], b"and more"].concat()), message);
        // Byte by byte, with all that came before.
        let mut reader = HelloReader::default();
        for end in 1..=stream.len() {
            let expected = if end == stream.len() { Hello::Whole } else { Hello::Partial };
            assert_eq!(reader.read(stream[..end].chunks(50)), expected, "{max}: {end}");
        }
        for split in 0..stream.len() {
            let (first, second) = stream.split_at(split);
            let mut reader = HelloReader::default();
            assert_eq!(reader.read([first].into_iter()), Hello::Partial);
            assert_eq!(reader.read([first, second].into_iter()), Hello::Whole, "{max}: {split}");
        }
    }
}

#[test]
fn the_name_is_found_among_other_extensions() {
    let grease = extension(0x2a2a, &[0]);
    let ech = extension(0xfe0d, &[0; 250]);
    let key_share = extension(51, &[1; 1_300]);
    for (extensions, expected) in [
        (vec![grease.clone(), named(b"db.example.com"), ech.clone(), key_share.clone()], Some(NAME)),
        (vec![ech, key_share, named(b"DB.example.com.")], Some("DB.example.com")),
        (vec![grease], None),
        (vec![], None),
    ] {
        let message = message(Some(&extensions));
        assert_eq!(server_name(&message).unwrap(), expected);
        assert_eq!(whole(&records(&message, 400)), Hello::Whole);
    }
    assert_eq!(server_name(&message(None)).unwrap(), None);
    let no_name = by_rustls("10.1.2.3");
    assert_eq!(server_name(&no_name[5..]).unwrap(), None, "an address is not sent as a name");
}

#[test]
fn what_can_be_read_in_two_ways_is_malformed() {
    let list = |body: &[u8]| vec![extension(0, body)];
    for (extensions, what) in [
        (vec![named(b"a.example"), named(b"b.example")], "two extensions"),
        (vec![named(b"")], "an empty name"),
        (vec![named(b".")], "a dot"),
        (vec![named(b"a b")], "a space"),
        (vec![named(b"a\0.example")], "a NUL"),
        (vec![named("é.example".as_bytes())], "not ASCII"),
        (vec![named(&[b'a'; 254])], "a long name"),
        (list(&[]), "no list"),
        (list(&[0, 0]), "an empty list"),
        (list(&[0, 4, 1, 0, 1, b'a']), "another kind of name"),
        (list(&[0, 5, 0, 0, 1, b'a']), "a long list"),
        (list(&[0, 4, 0, 0, 2, b'a']), "a long entry"),
        (list(&[0, 4, 0, 0, 1, b'a', 0]), "bytes behind the list"),
        (list(&[0, 8, 0, 0, 1, b'a', 0, 0, 1, b'b']), "two names"),
        (vec![vec![0, 10, 0, 9, 1]], "an extension beyond the end"),
        (vec![vec![0]], "half an extension"),
    ] {
        assert!(server_name(&message(Some(&extensions))).is_err(), "{what}");
    }
    let good = message(Some(&[named(b"a.example")]));
    (0..good.len()).filter(|len| *len != 4 + 2 + 32 + 33 + 6 + 2).for_each(|len| {
        assert!(server_name(&good[..len]).is_err(), "{len} bytes");
    });
    assert!(server_name(&[&good[..], &[0]].concat()).is_err(), "bytes behind the extensions");
}

#[test]
fn what_is_no_hello_is_told_at_once_and_none_is_without_end() {
    for (bytes, expected) in [
        (&b""[..], Hello::Partial),
        (b"\x16", Hello::Partial),
        (b"\x16\x03\x01\x02", Hello::Partial),
        (b"GET / HTTP/1.1\r\n", Hello::Other),
        (b"\0", Hello::Other),
        (b"\x80\x2e\x01\x03\x01", Hello::Other), // SSL 2
        (b"\x16\x02", Hello::Other),
        (b"\x15\x03\x03\0\x02\x02\x28", Hello::Other),
        (b"\x16\x03\x01\0\0", Hello::Malformed),
        (b"\x16\x03\x01\x40\x01", Hello::Malformed),
        (b"\x16\x03\x01\0\x04\x02", Hello::Malformed), // a ServerHello
        (b"\x16\x03\x01\0\x04\x01\0\x40\0", Hello::Malformed), // 16 KiB and its header
        (b"\x16\x03\x01\0\x02\x01\0\x17", Hello::Malformed), // another kind of record within
        (b"\x16\x03\x01\0\x02\x01\0\x16\x02", Hello::Malformed),
    ] {
        assert_eq!(whole(bytes), expected, "{bytes:02x?}");
        let mut reader = HelloReader::default();
        let last = (1..=bytes.len()).map(|end| reader.read([&bytes[..end]].into_iter())).last();
        assert_eq!(last.unwrap_or(Hello::Partial), expected, "{bytes:02x?} byte by byte");
    }
    // In records of a byte its headers count, too.
    let long = message(Some(&[extension(51, &[1; 4_000])]));
    assert_eq!(whole(&records(&long, 1)), Hello::Malformed);
    assert_eq!(whole(&records(&long, 10)), Hello::Whole);
    let longest = message(Some(&[extension(51, &[1; 16_000])]));
    let stream = records(&longest, 16_384);
    assert!(stream.len() < CLIENT_HELLO_LEN_MAX);
    assert_eq!((whole(&stream), whole(&stream[..stream.len() - 1])), (Hello::Whole, Hello::Partial));
}
