//! Records between a network node's worker and a plug-in host: one encoding only, so that a record that
//! parses is emitted unchanged.

use csp_wire::packets::{COUNT_LEN, Count, HEADER_LEN, Head, Kind, MatchedRule, padded_len};

use crate::{Bounds, Check, Target, check_error};

/// The records of a stream.
pub static PACKETS: Target = Target {
    name: "packets",
    check: Check::Parser(check),
    examples,
    words: &[],
    len_max: 4_096,
    bounds: Bounds { held: (1 << 10, 4), allocated: (1 << 10, 16) },
};

fn check(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let (head, payload_len, len) = match Head::parse(bytes) {
            Ok(parsed) => parsed,
            Err(error) => {
                check_error(error, bytes);
                return false;
            }
        };
        assert!(len == padded_len(HEADER_LEN + payload_len) && len <= bytes.len());
        assert_eq!(head.emit(payload_len as u32), bytes[..HEADER_LEN]);
        let payload = &bytes[HEADER_LEN..HEADER_LEN + payload_len];
        if head.kind == Kind::Counts {
            let mut read = 0;
            for (count, raw) in Count::parse_all(payload).zip(payload.chunks_exact(COUNT_LEN)) {
                assert_eq!(count.emit(), raw);
                read += 1;
            }
            assert_eq!(read, payload_len / COUNT_LEN);
        }
        bytes = &bytes[len..];
    }
    true
}

fn examples() -> Vec<Vec<u8>> {
    let record = |head: Head, payload: &[u8]| {
        let mut bytes = head.emit(payload.len() as u32).to_vec();
        bytes.extend_from_slice(payload);
        bytes.resize(padded_len(bytes.len()), 0);
        bytes
    };
    let packet = Head {
        hops: 3,
        egress: true,
        partial: true,
        instance: 7,
        rule: MatchedRule { slot: 77, generation: 5 },
        interface: 2,
        coalesced: 44,
        ..Head::new(Kind::Packet, 1)
    };
    let counts =
        [Count { instance: 9, packets: 1, bytes: 1 << 40, dropped: 3 }.emit(), [0; COUNT_LEN]].concat();
    let records = [
        record(packet, &[0x45; 61]),
        record(Head { more: true, ..Head::new(Kind::Configure, 4) }, b"instance 3 a dscp\nset dscp 46\n"),
        record(Head::new(Kind::Call, 5), b"read\n"),
        record(Head::new(Kind::Drop, 6), b""),
        record(Head::new(Kind::Counts, 0), &counts),
        record(Head::new(Kind::Answer, 5), b"done\n"),
    ];
    vec![records.concat(), records[4].clone(), records[0].clone()]
}
