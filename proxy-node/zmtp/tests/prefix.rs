//! Length-prefixed messages: headers as described, bounds, any split of the stream.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

use csp_zmtp::{
    ByteOrder, Counters, Cursor, Description, DescriptionError, Prefix, PrefixError, PrefixReader, Width,
    sofh_encoding, sofh_header,
};
use proptest::prelude::*;

/// Reads `bytes` in chunks of `step`: header and length of each message.
fn read(prefix: Prefix, bytes: &[u8], step: usize) -> Result<Vec<(u64, Vec<u8>, usize)>, PrefixError> {
    let (mut reader, mut counters) = (PrefixReader::new(prefix), Counters::default());
    let mut got = Vec::new();
    for end in (step..bytes.len() + step).step_by(step) {
        let from = reader.released() as usize;
        let received = &bytes[from..end.min(bytes.len())];
        let mut input = Cursor::new(from as u64, received.chunks(3));
        while let Some(found) = reader.next(&mut input, &mut counters)? {
            got.push((found.at, found.header.to_vec(), found.body_len));
        }
        assert!(reader.needed() > end.min(bytes.len()) as u64);
    }
    assert_eq!(counters.prefixed_received, got.len() as u64);
    Ok(got)
}

#[test]
fn sofh_is_these_bytes() {
    let prefix = Prefix::sofh(1 << 20).unwrap();
    // SBE 1.0 in little-endian byte order has encoding type 0xeb50.
    let header = sofh_header(&prefix, 10, 0xeb50).unwrap();
    assert_eq!(header, [0, 0, 0, 16, 0xeb, 0x50]);
    assert_eq!(sofh_encoding(&header), Some(0xeb50));
    assert_eq!(sofh_encoding(&header[..5]), None);
    let bytes = [&header[..], &[7; 10], &[0, 0, 0, 6, 0, 1], &header, &[8; 10]].concat();
    let expected = vec![(0, header.to_vec(), 10), (16, vec![0, 0, 0, 6, 0, 1], 0), (22, header.to_vec(), 10)];
    for step in 1..bytes.len() {
        assert_eq!(read(prefix, &bytes, step), Ok(expected.clone()));
    }
}

fn description(width: Width, order: ByteOrder, counted_from: usize) -> Description {
    Description { header_len: 12, length_offset: 2, width, order, counted_from, message_len_max: 200 }
}

#[test]
fn described_headers_are_written_and_read() {
    for width in [Width::One, Width::Two, Width::Four, Width::Eight] {
        for order in [ByteOrder::Big, ByteOrder::Little] {
            for (counted_from, value) in [(12, 100), (2 + width as usize, 110 - width as u8), (0, 112)] {
                let prefix = Prefix::new(description(width, order, counted_from)).unwrap();
                let mut header = [0xaa; 12];
                prefix.write_length(100, &mut header).unwrap();
                let bytes = [&header[..], &[1; 100]].concat();
                assert_eq!(read(prefix, &bytes, 5), Ok(vec![(0, header.to_vec(), 100)]));
                let at = if order == ByteOrder::Big { 1 + width as usize } else { 2 };
                assert_eq!((header[at], header[1], header[2 + width as usize]), (value, 0xaa, 0xaa));
                assert!(prefix.write_length(189, &mut header).is_err());
            }
        }
    }
    let wide =
        Prefix::new(Description { message_len_max: 1000, ..description(Width::One, ByteOrder::Big, 12) });
    assert!(wide.unwrap().write_length(256, &mut [0; 12]).is_err(), "one byte cannot say 256");
    assert_eq!(Width::from_bytes(3), None);
}

#[test]
fn descriptions_that_are_no_header_are_refused() {
    let good = description(Width::Four, ByteOrder::Big, 0);
    for bad in [
        Description { length_offset: 9, ..good },
        Description { length_offset: usize::MAX, ..good },
        Description { header_len: 65, ..good },
    ] {
        assert!(matches!(Prefix::new(bad), Err(DescriptionError::Header { .. })));
    }
    let beyond = Prefix::new(Description { counted_from: 13, ..good });
    assert_eq!(beyond, Err(DescriptionError::Counted { from: 13, header_len: 12 }));
    assert_eq!(Prefix::sofh(5), Err(DescriptionError::Bound { most: 5 }));
}

#[test]
fn lengths_that_cannot_be_are_refused_and_counted() {
    let prefix = Prefix::sofh(100).unwrap();
    let short = PrefixError::Short { at: 7, found: 5 };
    assert_eq!(read(prefix, &[0, 0, 0, 7, 0, 0, 9, 0, 0, 0, 5, 0, 0], 4), Err(short));
    let long = PrefixError::TooLong { at: 0, found: 101, most: 100 };
    assert_eq!(read(prefix, &[0, 0, 0, 101, 0, 0], 6), Err(long));
    let eight = Prefix::new(description(Width::Eight, ByteOrder::Little, 12)).unwrap();
    let found = u64::MAX;
    assert_eq!(read(eight, &[0xff; 12], 12), Err(PrefixError::TooLong { at: 0, found, most: 200 }));
    let (mut reader, mut counters) = (PrefixReader::new(prefix), Counters::default());
    for _ in 0..2 {
        let mut input = Cursor::new(0, std::iter::once(&[0, 0, 0, 0, 0, 0][..]));
        let error = reader.next(&mut input, &mut counters).unwrap_err();
        assert_eq!(error, PrefixError::Short { at: 0, found: 0 });
    }
    assert_eq!(counters.prefixed_failed_short, 1);
    let mut input = Cursor::new(1, std::iter::once(&[0][..]));
    let error = PrefixReader::new(prefix).next(&mut input, &mut counters).unwrap_err();
    assert_eq!(error, PrefixError::Gap { at: 0, found: 1 });
}

proptest! {
    #[test]
    fn any_split_gives_the_same_messages(
        bodies in prop::collection::vec(0usize..90, 1..8),
        step in 1usize..40,
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let prefix = Prefix::sofh(100).unwrap();
        let mut bytes: Vec<u8> = bodies
            .iter()
            .flat_map(|len| [&sofh_header(&prefix, *len, 9).unwrap()[..], &vec![1; *len]].concat())
            .collect();
        if let Some((at, value)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let whole = read(prefix, &bytes, bytes.len());
        prop_assert_eq!(read(prefix, &bytes, step), whole.clone());
        if damage.is_none() {
            let lens: Vec<usize> = whole.unwrap().into_iter().map(|(_, _, len)| len).collect();
            prop_assert_eq!(lens, bodies);
        }
    }
}
