//! The link header and the hellos: their bytes as documented, round trips, damage.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::{check_error, damaged, damages, noise};
use csp_types::{NodeId, Role};
use csp_wire::WireError;
use csp_wire::link::{self, Hello, HelloAck, HelloRefused, Purpose, RefusalCode, Resume};
use proptest::prelude::*;

fn any_header() -> impl Strategy<Value = link::Header> {
    (1u8..=9, any::<u16>(), 0u32..200, any::<u64>()).prop_map(|(kind, credits, body_len, sequence)| {
        let kind = link::Kind::from_u8(kind).unwrap();
        let body_len = if kind == link::Kind::Credit { 0 } else { body_len };
        link::Header { kind, credits, body_len, sequence }
    })
}

/// Fields of a HELLO and texts it borrows.
#[derive(Clone, Debug)]
struct HelloParts {
    role: Role,
    purpose: Purpose,
    worker: u8,
    pool: (u8, u8),
    receive_depth: u32,
    incarnation: u64,
    node_id: NodeId,
    process_id: String,
    resume: Option<Resume>,
    token: Vec<u8>,
}

impl HelloParts {
    fn hello(&self) -> Hello<'_> {
        Hello {
            role: self.role,
            purpose: self.purpose,
            worker: self.worker,
            pool_index: self.pool.0,
            pool_size: self.pool.1,
            receive_depth: self.receive_depth,
            incarnation: self.incarnation,
            node_id: self.node_id,
            process_id: &self.process_id,
            resume: self.resume,
            token: &self.token,
        }
    }

    fn ack(&self) -> HelloAck<'_> {
        HelloAck {
            role: self.role,
            purpose: self.purpose,
            worker: self.worker,
            pool_index: self.pool.0,
            pool_size: self.pool.1,
            receive_depth: self.receive_depth,
            incarnation: self.incarnation,
            node_id: self.node_id,
            process_id: &self.process_id,
            resume: self.resume,
        }
    }
}

fn any_hello() -> impl Strategy<Value = HelloParts> {
    let role = (1u8..=5).prop_map(|role| Role::from_u8(role).unwrap());
    let purpose = prop_oneof![
        Just(Purpose::Tunnel),
        Just(Purpose::Channel),
        Just(Purpose::Message),
        Just(Purpose::Packets)
    ];
    let pool = (1u8..=16).prop_flat_map(|size| (0..size, Just(size)));
    let node_id = "[a-z0-9][a-z0-9._-]{0,62}".prop_map(|id| id.parse::<NodeId>().unwrap());
    let resume = prop::option::of(any::<([u8; 16], u64)>());
    let resume = resume.prop_map(|given| given.map(|(session, received)| Resume { session, received }));
    let rest = ("[!-~]{0,127}", resume, prop::collection::vec(any::<u8>(), 0..=1024));
    (role, purpose, any::<u8>(), pool, 1u32.., any::<u64>(), node_id, rest).prop_map(
        |(role, purpose, worker, pool, receive_depth, incarnation, node_id, rest)| {
            let (process_id, resume, token) = rest;
            HelloParts {
                role,
                purpose,
                worker,
                pool,
                receive_depth,
                incarnation,
                node_id,
                process_id,
                resume,
                token,
            }
        },
    )
}

#[test]
fn the_link_header_is_laid_out_as_documented() {
    let header =
        link::Header { kind: link::Kind::Channel, credits: 0x0102, body_len: 3, sequence: 0x0807_0605 };
    let mut message = header.emit().to_vec();
    assert_eq!(message, [1, 9, 2, 1, 3, 0, 0, 0, 5, 6, 7, 8, 0, 0, 0, 0]);
    message.extend(*b"abc");
    assert_eq!(link::Header::parse(&message), Ok((header, &b"abc"[..])));
    message.push(0);
    let error = link::Header::parse(&message).unwrap_err();
    assert_eq!(error, WireError::Length { what: "link body length", offset: 4, found: 3 });
    message[0] = 2;
    assert!(matches!(link::Header::parse(&message), Err(WireError::Version { found: 2, .. })));
}

#[test]
fn the_hello_is_laid_out_as_documented() {
    let hello = Hello {
        role: Role::Process,
        purpose: Purpose::Channel,
        worker: 3,
        pool_index: 1,
        pool_size: 2,
        receive_depth: 64,
        incarnation: 0x1122,
        node_id: "an-1".parse().unwrap(),
        process_id: "p7",
        resume: None,
        token: b"tok",
    };
    let mut bytes = [0; link::HELLO_LEN_MAX];
    let len = hello.emit(&mut bytes).unwrap();
    let expected = b"\x04\x00\x05\x02\x03\x01\x02\x00\x40\0\0\0\x22\x11\0\0\0\0\0\0\x04an-1\x02p7\x03\x00tok";
    assert_eq!(&bytes[..len], expected);
    assert_eq!(len, hello.len());

    let resume = Some(Resume { session: *b"0123456789abcdef", received: 0x0a0b });
    let len = Hello { resume, ..hello }.emit(&mut bytes).unwrap();
    let expected = b"\x04\x00\x05\x02\x03\x01\x02\x01\x40\0\0\0\x22\x11\0\0\0\0\0\0\x04an-1\x02p7\
        0123456789abcdef\x0b\x0a\0\0\0\0\0\0\x03\x00tok";
    assert_eq!(&bytes[..len], expected);
}

/// The `what` of the error that a HELLO with one byte changed meets.
fn hello_error(at: usize, value: u8) -> &'static str {
    let mut bytes =
        *b"\x04\x00\x05\x02\x03\x01\x02\x00\x40\0\0\0\x22\x11\0\0\0\0\0\0\x04an-1\x02p7\x03\x00tok";
    bytes[at] = value;
    Hello::parse(&bytes).unwrap_err().what()
}

#[test]
fn a_wrong_hello_is_refused_for_what_is_wrong() {
    assert_eq!(hello_error(0, 1), "hello protocol version");
    assert_eq!(hello_error(2, 6), "hello role");
    assert_eq!(hello_error(3, 0), "hello purpose");
    assert_eq!(hello_error(5, 2), "hello pool index");
    assert_eq!(hello_error(6, 0), "hello pool size");
    assert_eq!(hello_error(6, 17), "hello pool size");
    assert_eq!(hello_error(7, 2), "hello flags");
    assert_eq!(hello_error(7, 1), "hello session", "cut off");
    assert_eq!(hello_error(8, 0), "hello receive depth");
    assert_eq!(hello_error(21, b'A'), "hello node id");
    assert_eq!(hello_error(20, 0), "hello node id");
    assert_eq!(hello_error(26, b'\n'), "hello process id");
    assert_eq!(hello_error(26, 0xff), "hello process id");
    assert_eq!(hello_error(29, 5), "hello token length");
    assert_eq!(hello_error(28, 4), "hello token");
    assert_eq!(hello_error(28, 2), "hello");
    // A newer HELLO is refused for its version even where it is shorter than this one.
    assert!(matches!(Hello::parse(&[9, 0]), Err(WireError::Version { found: 9, .. })));
}

#[test]
fn a_refusal_cannot_forge_log_lines() {
    let refused = HelloRefused { code: RefusalCode::ExpiredToken, text: "token expired 3 s ago" };
    let mut bytes = [0; 64];
    let len = refused.emit(&mut bytes).unwrap();
    assert_eq!(HelloRefused::parse(&bytes[..len]), Ok(refused));
    bytes[5] = b'\n';
    let error = HelloRefused::parse(&bytes[..len]).unwrap_err();
    assert_eq!(error, WireError::Value { what: "hello-refused text", offset: 5 });
    assert_eq!(HelloRefused::parse(&[0xff, 0xff]).unwrap().code, RefusalCode::Unspecified);
    for code in 0..=10 {
        let expected = if code <= 9 { code } else { 0 };
        assert_eq!(RefusalCode::from_u16(code) as u16, expected);
    }
}

#[test]
fn what_does_not_fit_its_field_is_not_emitted() {
    let long = "x".repeat(256);
    let mut out = [0; 4096];
    let refused = HelloRefused { code: RefusalCode::Full, text: &long };
    assert_eq!(refused.emit(&mut out), Err(WireError::TooLarge { what: "hello-refused text" }));
    let ack = HelloAck {
        role: Role::ProxyNode,
        purpose: Purpose::Tunnel,
        worker: 0,
        pool_index: 0,
        pool_size: 1,
        receive_depth: 1,
        incarnation: 0,
        node_id: "pn-1".parse().unwrap(),
        process_id: &long,
        resume: None,
    };
    assert_eq!(ack.emit(&mut out), Err(WireError::TooLarge { what: "hello process id" }));
}

/// Whatever parses is what its own emission says: no two spellings of one message.
fn check_hostile(bytes: &[u8]) {
    match link::Header::parse(bytes) {
        Ok((header, body)) => assert_eq!([&header.emit()[..], body].concat(), bytes),
        Err(error) => check_error(error, bytes),
    }
    let mut out = vec![0xaa; bytes.len().max(link::HELLO_LEN_MAX)];
    match Hello::parse(bytes).map(|hello| hello.emit(&mut out).unwrap()) {
        Ok(len) => assert_eq!(out[..len], *bytes),
        Err(error) => check_error(error, bytes),
    }
    match HelloAck::parse(bytes).map(|ack| ack.emit(&mut out).unwrap()) {
        Ok(len) => assert_eq!(out[..len], *bytes),
        Err(error) => check_error(error, bytes),
    }
    match HelloRefused::parse(bytes) {
        Ok(refused) => assert_eq!(refused.len(), bytes.len()),
        Err(error) => check_error(error, bytes),
    }
}

proptest! {
    #![proptest_config(common::config())]

    #[test]
    fn link_header_round_trip(header in any_header()) {
        let mut message = header.emit().to_vec();
        message.resize(link::HEADER_LEN + header.body_len as usize, 7);
        let (parsed, body) = link::Header::parse(&message).unwrap();
        prop_assert_eq!((parsed, body.len()), (header, header.body_len as usize));
        let cut = link::Header::parse(&message[..message.len() - 1]);
        prop_assert!(cut.is_err());
    }

    #[test]
    fn hello_round_trip(parts in any_hello(), cut in 0usize..2000) {
        let (hello, ack) = (parts.hello(), parts.ack());
        let mut bytes = vec![0xaa; link::HELLO_LEN_MAX];
        let len = hello.emit(&mut bytes).unwrap();
        prop_assert_eq!(len, hello.len());
        prop_assert_eq!(Hello::parse(&bytes[..len]), Ok(hello));
        prop_assert!(Hello::parse(&bytes[..cut % len]).is_err());
        let ack_len = ack.emit(&mut bytes).unwrap();
        prop_assert_eq!(ack_len, ack.len());
        prop_assert_eq!(HelloAck::parse(&bytes[..ack_len]), Ok(ack));
        prop_assert!(HelloAck::parse(&bytes[..cut % ack_len]).is_err());
    }

    #[test]
    fn noise_is_survived(bytes in noise(), first in 0u8..3, second in 0u8..10) {
        check_hostile(&bytes);
        let mut bytes = bytes;
        if let Some([a, b, ..]) = bytes.first_chunk_mut::<2>() {
            (*a, *b) = (first, second);
        }
        check_hostile(&bytes);
    }

    #[test]
    fn damage_is_survived(header in any_header(), hello in any_hello(), damages in damages()) {
        check_hostile(&damaged(header.emit().to_vec(), &damages));
        let mut bytes = vec![0; hello.hello().len()];
        hello.hello().emit(&mut bytes).unwrap();
        check_hostile(&damaged(bytes, &damages));
    }
}
