//! The link header and the hellos: their bytes as documented, round trips, damage.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::{check_error, damaged, damages, noise};
use csp_types::{NodeId, Role};
use csp_wire::WireError;
use csp_wire::link::{self, Hello, HelloAck, HelloRefused, Purpose, RefusalCode, Resume, Sender, Versions};
use proptest::prelude::*;

fn any_header() -> impl Strategy<Value = link::Header> {
    (1u8..=12, any::<u16>(), 0u32..200, any::<u64>()).prop_map(|(kind, credits, body_len, sequence)| {
        let kind = link::Kind::from_u8(kind).unwrap();
        let body_len = if kind == link::Kind::Credit { 0 } else { body_len };
        link::Header { kind, credits, body_len, sequence }
    })
}

/// Fields of a HELLO and texts it borrows.
#[derive(Clone, Debug)]
struct HelloParts {
    versions: Versions,
    role: Role,
    purpose: Purpose,
    worker: u8,
    pool: (u8, u8),
    receive_depth: u32,
    incarnation: u64,
    nonce: [u8; 16],
    node_id: NodeId,
    process_id: String,
    resume: Option<Resume>,
    token: Vec<u8>,
    extension: Vec<u8>,
    proof: Option<[u8; 32]>,
}

impl HelloParts {
    fn sender(&self) -> Sender<'_> {
        Sender {
            versions: self.versions,
            role: self.role,
            purpose: self.purpose,
            worker: self.worker,
            pool_index: self.pool.0,
            pool_size: self.pool.1,
            receive_depth: self.receive_depth,
            incarnation: self.incarnation,
            nonce: self.nonce,
            node_id: self.node_id,
            process_id: &self.process_id,
            resume: self.resume,
        }
    }

    fn hello(&self) -> Hello<'_> {
        Hello { sender: self.sender(), token: &self.token, extension: &self.extension, proof: self.proof }
    }

    fn ack(&self) -> HelloAck<'_> {
        HelloAck { sender: self.sender(), extension: &self.extension, proof: self.proof }
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
    let resume = prop::option::of(any::<([u8; 16], u64, u32)>())
        .prop_map(|given| given.map(|(session, received, attempt)| Resume { session, received, attempt }));
    let token = prop::collection::vec(any::<u8>(), 0..=1024);
    let versions = (0u16..=9, 5u16..=9).prop_map(|(a, b)| Versions { lowest: a.min(b), highest: a.max(b) });
    let extension = prop::collection::vec(any::<u8>(), 0..=link::EXTENSION_LEN_MAX);
    let end = (versions, any::<[u8; 16]>(), extension, any::<Option<[u8; 32]>>());
    let rest = ("[!-~]{0,127}", resume, token, end);
    (role, purpose, any::<u8>(), pool, 1u32.., any::<u64>(), node_id, rest).prop_map(
        |(role, purpose, worker, pool, receive_depth, incarnation, node_id, rest)| {
            let (process_id, resume, token, (versions, nonce, extension, proof)) = rest;
            HelloParts {
                versions,
                role,
                purpose,
                worker,
                pool,
                receive_depth,
                incarnation,
                nonce,
                node_id,
                process_id,
                resume,
                token,
                extension,
                proof,
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

/// A HELLO as documented, without resume, extension and proof.
const HELLO: &[u8] = b"\x06\x00\x05\x00\x05\x02\x03\x01\x02\x00\x40\0\0\0\x22\x11\0\0\0\0\0\0\
    NNNNNNNNNNNNNNNN\x04an-1\x02p7\x03\x00tok\x00\x00";

#[test]
fn the_hello_is_laid_out_as_documented() {
    let hello = Hello {
        sender: Sender {
            versions: Versions { lowest: 5, highest: 6 },
            role: Role::Process,
            purpose: Purpose::Channel,
            worker: 3,
            pool_index: 1,
            pool_size: 2,
            receive_depth: 64,
            incarnation: 0x1122,
            nonce: [b'N'; 16],
            node_id: "an-1".parse().unwrap(),
            process_id: "p7",
            resume: None,
        },
        token: b"tok",
        extension: b"",
        proof: None,
    };
    let mut bytes = [0; link::HELLO_LEN_MAX];
    let len = hello.emit(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], HELLO);
    assert_eq!(len, hello.len());

    let resume = Some(Resume { session: *b"0123456789abcdef", received: 0x0a0b, attempt: 3 });
    let sender = Sender { resume, ..hello.sender };
    let hello = Hello { sender, extension: b"new", proof: Some([b'P'; 32]), ..hello };
    let len = hello.emit(&mut bytes).unwrap();
    let expected = b"\x06\x00\x05\x00\x05\x02\x03\x01\x02\x01\x40\0\0\0\x22\x11\0\0\0\0\0\0NNNNNNNNNNNNNNNN\x04an-1\x02p7\
        0123456789abcdef\x0b\x0a\0\0\0\0\0\0\x03\0\0\0\x03\x00tok\x03new\x20PPPPPPPPPPPPPPPPPPPPPPPPPPPPPPPP";
    assert_eq!(&bytes[..len], expected);
}

/// The `what` of the error that a HELLO with one byte changed meets.
fn hello_error(at: usize, value: u8) -> &'static str {
    let mut bytes = HELLO.to_vec();
    bytes[at] = value;
    Hello::parse(&bytes).unwrap_err().what()
}

#[test]
fn a_wrong_hello_is_refused_for_what_is_wrong() {
    assert_eq!(hello_error(0, 4), "hello protocol version");
    assert_eq!(hello_error(2, 7), "hello protocol version");
    assert_eq!(hello_error(4, 6), "hello role");
    assert_eq!(hello_error(5, 0), "hello purpose");
    assert_eq!(hello_error(7, 2), "hello pool index");
    assert_eq!(hello_error(8, 0), "hello pool size");
    assert_eq!(hello_error(8, 17), "hello pool size");
    assert_eq!(hello_error(9, 2), "hello flags");
    assert_eq!(hello_error(9, 1), "hello session", "cut off");
    assert_eq!(hello_error(10, 0), "hello receive depth");
    assert_eq!(hello_error(39, b'A'), "hello node id");
    assert_eq!(hello_error(38, 0), "hello node id");
    assert_eq!(hello_error(44, b'\n'), "hello process id");
    assert_eq!(hello_error(44, 0xff), "hello process id");
    assert_eq!(hello_error(47, 5), "hello token length");
    assert_eq!(hello_error(46, 7), "hello token");
    assert_eq!(hello_error(51, 65), "hello extension");
    assert_eq!(hello_error(52, 32), "hello proof", "cut off");
    assert_eq!(hello_error(52, 1), "hello proof");
    assert_eq!(Hello::parse(&[HELLO, b"x"].concat()).unwrap_err().what(), "hello");
    // A HELLO of the form before version 5 has one version at its start, and is refused for it even where it
    // is shorter.
    assert!(matches!(Hello::parse(&[4, 0]), Err(WireError::Version { found: 4, .. })));
}

#[test]
fn the_ends_use_the_highest_version_that_both_speak() {
    let range = |lowest, highest| Versions { lowest, highest };
    for (a, b, common) in [
        (range(5, 5), range(5, 5), Some(5)),
        (range(5, 7), range(6, 9), Some(7)),
        (range(5, 9), range(6, 6), Some(6)),
        (range(5, 6), range(7, 8), None),
    ] {
        assert_eq!((a.common(b), b.common(a)), (common, common), "{a}, {b}");
    }
    assert_eq!((range(5, 5).to_string(), range(5, 7).to_string()), ("5".to_owned(), "5 to 7".to_owned()));
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
        sender: Sender {
            versions: Versions::SPOKEN,
            role: Role::ProxyNode,
            purpose: Purpose::Tunnel,
            worker: 0,
            pool_index: 0,
            pool_size: 1,
            receive_depth: 1,
            incarnation: 0,
            nonce: [0; 16],
            node_id: "pn-1".parse().unwrap(),
            process_id: &long,
            resume: None,
        },
        extension: &[],
        proof: None,
    };
    assert_eq!(ack.emit(&mut out), Err(WireError::TooLarge { what: "hello process id" }));
    let sender = Sender { process_id: "", ..ack.sender };
    let ack = HelloAck { sender, extension: &[0; link::EXTENSION_LEN_MAX + 1], proof: None };
    assert_eq!(ack.emit(&mut out), Err(WireError::TooLarge { what: "hello extension" }));
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
