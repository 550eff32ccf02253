//! Tunnel records and channel messages: their bytes as documented, round trips, damage.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::net::SocketAddr;

use common::{check_error, damaged, damages, noise};
use csp_types::{Duration, FlowLabel, Instant};
use csp_wire::bytes::Writer;
use csp_wire::channel::{self, Message, MessageHeader, MessageKind, Messages};
use csp_wire::tunnel::{self, Age, Flags, Record, RecordKind, Records};
use csp_wire::{Ecn, WireError};
use proptest::prelude::*;

fn any_label() -> impl Strategy<Value = FlowLabel> {
    (1u32..1 << 22, any::<u8>()).prop_map(|(index, generation)| FlowLabel::new(index, generation))
}

/// A record without its payload, and the payload.
fn any_record() -> impl Strategy<Value = (Record<'static>, Vec<u8>)> {
    let kind = (1u8..=5).prop_map(|kind| RecordKind::from_u8(kind).unwrap());
    let numbers = (any::<u8>(), any::<u32>(), any::<u16>(), any::<u16>());
    let payload = prop::collection::vec(any::<u8>(), 1..120);
    (kind, prop::option::of(any_label()), 0u8..32, 0u8..4, numbers, payload).prop_map(
        |(kind, label, flags, ecn, (worker, age, coalesced, segment_size), payload)| {
            let shape = if kind == RecordKind::Unknown || flags & 16 != 0 {
                Flags::RETURN_UNKNOWN
            } else {
                Flags::COMPACTED
            };
            let all = [Flags::CHECKSUM_VERIFIED, shape, Flags::FLOW_NEW, Flags::FLOW_END];
            let drawn = all.into_iter().zip(0..).filter(|(_, bit)| flags >> bit & 1 != 0);
            let set = drawn.map(|(flag, _)| flag).fold(Flags::NONE, Flags::union);
            let needs_label = set.contains(Flags::COMPACTED) || kind == RecordKind::FlowEnd;
            let no_label = if needs_label { FlowLabel::new(1, 0) } else { FlowLabel::NONE };
            let record = Record {
                kind,
                label: label.unwrap_or(no_label),
                worker,
                flags: set,
                ecn: Ecn::from_bits(ecn),
                age: Age::from_nanos(age),
                coalesced,
                segment_size,
                payload: &[],
            };
            (record, if kind == RecordKind::FlowEnd { Vec::new() } else { payload })
        },
    )
}

/// A message header and a payload that suits it.
fn any_message() -> impl Strategy<Value = (MessageHeader, Vec<u8>)> {
    let data = prop::collection::vec(any::<u8>(), 1..120);
    (1u8..=16, any::<bool>(), any_label(), any::<(u32, u32)>(), data, any::<bool>()).prop_map(
        |(kind, flag, label, (id, argument), data, long)| {
            let kind = MessageKind::from_u8(kind).unwrap();
            let payload = match kind {
                MessageKind::Data => data,
                MessageKind::Listen => vec![4; channel::ADDRESS_LEN],
                MessageKind::Open | MessageKind::Connected => vec![6; channel::OpenPayload::LEN],
                MessageKind::Connect if long => vec![6; 2 * channel::ADDRESS_LEN],
                MessageKind::Connect => vec![6; channel::ADDRESS_LEN],
                MessageKind::Option => vec![9; 8],
                _ => Vec::new(),
            };
            let header = MessageHeader {
                kind,
                flags: if kind == MessageKind::Close { flag.into() } else { 0 },
                id: if kind.is_of_flow() { label.to_wire() } else { id },
                payload_len: payload.len() as u32,
                argument,
            };
            (header, payload)
        },
    )
}

fn records_body(records: &[(Record<'static>, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![0xaa; 8192];
    let mut writer = Writer::new(&mut body);
    for (record, payload) in records {
        Record { payload, ..*record }.emit_to(&mut writer).unwrap();
    }
    let len = writer.len();
    body.truncate(len);
    body
}

fn messages_body(messages: &[(MessageHeader, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![0xaa; 8192];
    let mut writer = Writer::new(&mut body);
    for (header, payload) in messages {
        Message { header: *header, payload }.emit_to(&mut writer).unwrap();
    }
    let len = writer.len();
    body.truncate(len);
    body
}

#[test]
fn the_tunnel_record_is_laid_out_as_documented() {
    let record = Record {
        kind: RecordKind::Segment,
        label: FlowLabel::new(5, 2),
        worker: 1,
        flags: Flags::COMPACTED | Flags::CHECKSUM_VERIFIED,
        ecn: Ecn::Ect0,
        age: Age::from_nanos(0x0a0b_0c0d),
        coalesced: 3,
        segment_size: 1460,
        payload: b"seg",
    };
    let mut bytes = [0xaa; 24];
    assert_eq!(record.emit(&mut bytes), Ok(24));
    let expected = [
        3, 1, 1, 0x23, 5, 0, 0x80, 0, 0x0d, 0x0c, 0x0b, 0x0a, 3, 0, 0xb4, 5, 3, 0, 0, 0, b's', b'e', b'g', 0,
    ];
    assert_eq!(bytes, expected);
    assert_eq!(Record::parse(&bytes), Ok((record, 24)));
    assert_eq!(record.emit(&mut [0; 23]), Err(WireError::NoSpace { what: "tunnel record", needed: 24 }));
}

#[test]
fn ages_grow_saturate_and_are_taken_from_the_receivers_clock() {
    let ms = Duration::from_millis;
    for (age, by, expected) in [
        (Age::ZERO, ms(0), 0),
        (Age::from_nanos(5), ms(1), 1_000_005),
        (Age::ZERO, ms(4_294), 4_294_000_000),
        (Age::ZERO, ms(4_295), u32::MAX),
        (Age::from_nanos(u32::MAX - 1), ms(1), u32::MAX),
        (Age::MAX, Duration::MAX, u32::MAX),
    ] {
        assert_eq!(age.older(by), Age::from_nanos(expected));
    }
    assert_eq!(Age::from_nanos(7).before(Instant::from_nanos(10)), Instant::from_nanos(3));
    assert_eq!(Age::MAX.before(Instant::from_nanos(10)), Instant::ZERO);
    // Every record of a body grows older by the same, whatever lies behind the last whole one.
    let flow_end = Record::flow_end(FlowLabel::new(3, 0), 0);
    let segment =
        Record { age: Age::from_nanos(9), kind: RecordKind::Segment, flags: Flags::NONE, ..flow_end };
    let mut body =
        records_body(&[(segment, b"abcde".to_vec()), (flow_end, Vec::new()), (segment, b"x".to_vec())]);
    tunnel::grow_older(&mut body, ms(1));
    let ages: Vec<_> = Records::new(&body).map(|record| record.unwrap().age).collect();
    let grown = Age::from_nanos(1_000_009);
    assert_eq!(ages, [grown, Age::from_nanos(1_000_000), grown]);
    tunnel::grow_older(&mut body[..7], ms(1));
    tunnel::grow_older(&mut [0xff; 30], ms(1));
}

#[test]
fn a_wrong_record_is_refused_for_what_is_wrong() {
    let good = [3, 1, 1, 0x22, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 7, 7, 0, 0];
    let refusal = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        let error = Record::parse(&bytes).unwrap_err();
        (error.what(), error.offset())
    };
    assert_eq!(refusal(0, 1), ("tunnel record version", 0));
    assert_eq!(refusal(1, 6), ("tunnel record type", 1));
    assert_eq!(refusal(1, 4), ("tunnel record flags", 3));
    assert_eq!(refusal(1, 3), ("tunnel record payload length", 16));
    assert_eq!(refusal(3, 0x80), ("tunnel record flags", 3));
    assert_eq!(refusal(3, 0x62), ("tunnel record flags", 3));
    assert_eq!(refusal(4, 0), ("tunnel record label", 4));
    assert_eq!(refusal(7, 0x40), ("tunnel record label", 4));
    assert_eq!(refusal(16, 0), ("tunnel record payload length", 16));
    assert_eq!(refusal(16, 1), ("tunnel record padding", 21));
    assert_eq!(refusal(16, 5), ("tunnel record payload", 20));
    assert_eq!(refusal(23, 1), ("tunnel record padding", 23));
    assert_eq!(Record::parse(&good[..22]).unwrap_err().what(), "tunnel record padding");
}

#[test]
fn the_channel_message_is_laid_out_as_documented() {
    let header = MessageHeader::of_flow(MessageKind::Data, FlowLabel::new(9, 1), 0, 3);
    let message = Message { header, payload: b"abc" };
    let mut bytes = [0xaa; 24];
    assert_eq!(message.emit(&mut bytes), Ok(24));
    assert_eq!(bytes, *b"\x07\0\0\0\x09\0\x40\0\x03\0\0\0\0\0\0\0abc\0\0\0\0\0");
    assert_eq!(Message::parse(&bytes), Ok((message, 24)));
    let close = MessageHeader { flags: channel::CLOSE_UNREAD, ..header };
    let close = MessageHeader { kind: MessageKind::Close, payload_len: 0, ..close };
    assert_eq!(MessageHeader::parse(&close.emit()), Ok(close));
    let wider = MessageHeader { kind: MessageKind::Credit, flags: channel::CREDIT_WIDER, ..close };
    assert_eq!(MessageHeader::parse(&wider.emit()), Ok(wider));
}

#[test]
fn a_wrong_channel_message_is_refused_for_what_is_wrong() {
    let good = *b"\x07\0\0\0\x09\0\x40\0\x03\0\0\0\0\0\0\0abc\0\0\0\0\0";
    let refusal = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        let error = Message::parse(&bytes).unwrap_err();
        (error.what(), error.offset())
    };
    assert_eq!(refusal(0, 0), ("channel message type", 0));
    assert_eq!(refusal(0, 22), ("channel message type", 0));
    assert_eq!(refusal(0, 9), ("channel message payload length", 8), "SHUTDOWN has no payload");
    assert_eq!(refusal(1, 1), ("channel message flags", 1));
    assert_eq!(refusal(3, 1), ("channel message reserved bytes", 2));
    assert_eq!(refusal(7, 0x80), ("channel message label", 4));
    assert_eq!(refusal(8, 0), ("channel message payload length", 8));
    assert_eq!(refusal(8, 9), ("channel message payload", 16));
    assert_eq!(refusal(23, 1), ("channel message padding", 23));
    let no_label = MessageHeader::new(MessageKind::Credit, 0, 1, 0);
    assert_eq!(MessageHeader::parse(&no_label.emit()).unwrap_err().what(), "channel message label");
}

#[test]
fn the_socket_address_is_laid_out_as_documented() {
    let v4 = channel::emit_address("10.76.0.100:80".parse().unwrap());
    assert_eq!(v4, [4, 0, 80, 0, 10, 76, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let v6 = channel::emit_address("[fd00::1]:258".parse().unwrap());
    assert_eq!(v6, [6, 0, 2, 1, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let refusal = |mut bytes: [u8; 20], at: usize, value| {
        bytes[at] = value;
        let error = channel::parse_address(&bytes, 0).unwrap_err();
        (error.what(), error.offset())
    };
    assert_eq!(refusal(v4, 0, 5), ("socket address family", 0));
    assert_eq!(refusal(v4, 1, 1), ("socket address reserved byte", 1));
    assert_eq!(refusal(v4, 19, 1), ("socket address padding", 19));
}

#[test]
fn the_ends_of_a_connection_are_of_one_family() {
    let (v4, v6) = ("10.0.0.1:1".parse().unwrap(), "[::1]:1".parse().unwrap());
    let open = channel::OpenPayload { local: v4, remote: v6, window: 1 };
    let error = WireError::Value { what: "socket address family", offset: 20 };
    assert_eq!(channel::OpenPayload::parse(&open.emit()), Err(error));
    let mut out = [0; channel::ConnectPayload::LEN_MAX];
    channel::ConnectPayload { remote: v4, local: Some(v6) }.emit(&mut out).unwrap();
    assert_eq!(channel::ConnectPayload::parse(&out), Err(error));
}

/// Whatever parses is what its own emission says: no two spellings of one list. What was read before an error
/// is spelt as it stood.
fn check_hostile(bytes: &[u8]) {
    let mut out = vec![0xaa; bytes.len()];
    let mut writer = Writer::new(&mut out);
    for record in Records::new(bytes) {
        match record {
            Ok(record) => record.emit_to(&mut writer).unwrap(),
            Err(error) => check_error(error, bytes),
        }
    }
    assert!(bytes.starts_with(writer.written()));
    let whole = Records::new(bytes).all(|record| record.is_ok());
    assert!(!whole || writer.len() == bytes.len());
    let mut writer = Writer::new(&mut out);
    for message in Messages::new(bytes) {
        match message {
            Ok(message) => {
                message.emit_to(&mut writer).unwrap();
                check_payloads(message.payload);
            }
            Err(error) => check_error(error, bytes),
        }
    }
    assert!(bytes.starts_with(writer.written()));
    let whole = Messages::new(bytes).all(|message| message.is_ok());
    assert!(!whole || writer.len() == bytes.len());
}

fn check_payloads(payload: &[u8]) {
    let spelt = |emitted: Result<Vec<u8>, WireError>| match emitted {
        Ok(emitted) => assert_eq!(emitted, payload),
        Err(error) => check_error(error, payload),
    };
    spelt(channel::ListenPayload::parse(payload).map(|parsed| parsed.emit().to_vec()));
    spelt(channel::OpenPayload::parse(payload).map(|parsed| parsed.emit().to_vec()));
    spelt(channel::OptionPayload::parse(payload).map(|parsed| parsed.emit().to_vec()));
    spelt(channel::ConnectPayload::parse(payload).map(|parsed| {
        let mut out = vec![0; parsed.len()];
        parsed.emit(&mut out).unwrap();
        out
    }));
}

proptest! {
    #![proptest_config(common::config())]

    #[test]
    fn records_round_trip(records in prop::collection::vec(any_record(), 0..6)) {
        let body = records_body(&records);
        prop_assert_eq!(body.len() % tunnel::ALIGNMENT, 0);
        let parsed: Vec<_> = Records::new(&body).collect::<Result<_, _>>().unwrap();
        let sent: Vec<_> = records.iter().map(|(record, payload)| Record { payload, ..*record }).collect();
        prop_assert_eq!(parsed, sent);
    }

    #[test]
    fn messages_round_trip(messages in prop::collection::vec(any_message(), 0..6)) {
        let body = messages_body(&messages);
        prop_assert_eq!(body.len() % channel::ALIGNMENT, 0);
        let parsed: Vec<_> = Messages::new(&body).collect::<Result<_, _>>().unwrap();
        let sent: Vec<_> = messages.iter().map(|(header, payload)| Message { header: *header, payload }).collect();
        prop_assert_eq!(parsed, sent);
    }

    #[test]
    fn a_list_ends_at_its_first_fault(
        records in prop::collection::vec(any_record(), 1..6), messages in prop::collection::vec(any_message(), 1..6),
        cut in 1usize..tunnel::RECORD_HEADER_LEN,
    ) {
        // Every record and message is longer than the cut, so it spoils exactly the last one.
        let body = records_body(&records);
        let found: Vec<_> = Records::new(&body[..body.len() - cut]).collect();
        let whole = found.iter().filter(|record| record.is_ok()).count();
        prop_assert_eq!((whole, found.len()), (records.len() - 1, records.len()));
        let cut = cut.min(15);
        let body = messages_body(&messages);
        let found: Vec<_> = Messages::new(&body[..body.len() - cut]).collect();
        let whole = found.iter().filter(|message| message.is_ok()).count();
        prop_assert_eq!((whole, found.len()), (messages.len() - 1, messages.len()));
    }

    #[test]
    fn connection_payloads_round_trip(v6 in any::<bool>(), ips in any::<(u128, u128)>(), ports in any::<(u16, u16)>(), window in any::<u32>()) {
        let address = |ip: u128, port| if v6 {
            SocketAddr::new(std::net::Ipv6Addr::from(ip).into(), port)
        } else {
            SocketAddr::new(std::net::Ipv4Addr::from(ip as u32).into(), port)
        };
        let (local, remote) = (address(ips.0, ports.0), address(ips.1, ports.1));
        let open = channel::OpenPayload { local, remote, window };
        prop_assert_eq!(channel::OpenPayload::parse(&open.emit()), Ok(open));
        let listen = channel::ListenPayload { address: local };
        prop_assert_eq!(channel::ListenPayload::parse(&listen.emit()), Ok(listen));
        let option = channel::OptionPayload { value: u64::from(window) << 7 };
        prop_assert_eq!(channel::OptionPayload::parse(&option.emit()), Ok(option));
        for local in [None, Some(local)] {
            let connect = channel::ConnectPayload { remote, local };
            let mut out = [0xaa; channel::ConnectPayload::LEN_MAX];
            let len = connect.emit(&mut out).unwrap();
            prop_assert_eq!(len, connect.len());
            prop_assert_eq!(channel::ConnectPayload::parse(&out[..len]), Ok(connect));
        }
    }

    #[test]
    fn noise_is_survived(bytes in noise(), first in 0u8..18, second in 0u8..10) {
        check_hostile(&bytes);
        check_payloads(&bytes);
        let mut bytes = bytes;
        if let Some([a, b, ..]) = bytes.first_chunk_mut::<2>() {
            (*a, *b) = (first, second);
        }
        check_hostile(&bytes);
    }

    #[test]
    fn damage_is_survived(
        records in prop::collection::vec(any_record(), 1..4),
        messages in prop::collection::vec(any_message(), 1..4), damages in damages(),
    ) {
        check_hostile(&damaged(records_body(&records), &damages));
        check_hostile(&damaged(messages_body(&messages), &damages));
    }
}
