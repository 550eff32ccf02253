//! Files of captured packets that nodes and workers send, made into one.

use csp_plugins::pcap::{FILE_HEADER_LEN, RECORD_HEADER_LEN, file_header, merge, record_header, records};

use crate::{Bounds, Check, Target};

/// Several files, each behind its length in two bytes; the last one is the rest.
pub static PCAP_MERGE: Target = Target {
    name: "pcap_merge",
    check: Check::Parser(check),
    examples,
    words: &["\u{0}\u{0}"],
    len_max: 16_384,
    bounds: Bounds { held: (16 << 10, 48), allocated: (16 << 10, 256) },
};

fn check(bytes: &[u8]) -> bool {
    let (mut files, mut rest) = (Vec::new(), bytes);
    while let Some((len, after)) = rest.split_first_chunk() {
        let (file, after) = after.split_at(after.len().min(u16::from_le_bytes(*len).into()));
        files.push(file.to_vec());
        rest = after;
    }
    let Some(merged) = merge(&files) else {
        assert!(files.iter().any(|file| records(file).is_none()));
        return false;
    };
    let all = records(&merged).expect("what was merged is a file");
    let len = |file: &Vec<u8>| file.len() - FILE_HEADER_LEN;
    assert_eq!(len(&merged), files.iter().map(len).sum::<usize>());
    assert!(all.is_sorted_by_key(|record| record.time_ns), "the records are not in the order of time");
    let of_files = files.iter().flat_map(|file| records(file).expect("it was merged"));
    let mut of_files: Vec<_> = of_files.collect();
    of_files.sort_by_key(|record| record.time_ns);
    assert_eq!(all, of_files, "a record has changed");
    assert_eq!(merge(core::slice::from_ref(&merged)).as_ref(), Some(&merged));
    true
}

fn examples() -> Vec<Vec<u8>> {
    let file = |snap_len: u32, packets: &[(u64, u8)]| {
        let mut bytes = file_header(snap_len).to_vec();
        for (time_ns, len) in packets {
            bytes.extend_from_slice(&record_header(*time_ns, (*len).into(), 1_500));
            bytes.resize(bytes.len() + usize::from(*len), *len);
        }
        bytes
    };
    let files = [
        file(
            65_535,
            &[
                (1_700_000_000_000_000_001, 60),
                (1_700_000_000_000_000_009, 0),
                (1_700_000_001_999_999_999, 90),
            ],
        ),
        file(96, &[(1_700_000_000_000_000_005, 96), (1_700_000_000_000_000_005, 60)]),
        file(96, &[]),
    ];
    let behind_lens = |files: &[Vec<u8>]| {
        files
            .iter()
            .flat_map(|file| [&(file.len() as u16).to_le_bytes()[..], file].concat())
            .collect::<Vec<u8>>()
    };
    assert!(files[0].len() > FILE_HEADER_LEN + RECORD_HEADER_LEN);
    vec![behind_lens(&files), behind_lens(&files[..1])]
}
