//! The Internet checksum against its definition, the RFC's example and itself in parts.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use csp_wire::checksum::{Checksum, checksum, update};
use proptest::prelude::*;

/// The definition (RFC 1071 §1): one's complement sum of big-endian words, a last odd byte padded with zero.
fn by_definition(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
    words.fold(0u16, |sum, word| {
        let sum = u32::from(sum) + u32::from(word);
        (sum as u16) + (sum >> 16) as u16
    })
}

#[test]
fn the_example_of_rfc_1071() {
    // RFC 1071 §3: the sum of these bytes is ddf2.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    let mut sum = Checksum::new();
    sum.add(&bytes);
    assert_eq!(sum.partial(), 0xddf2);
    assert_eq!(sum.finish(), !0xddf2);
}

#[test]
fn the_example_of_rfc_1624() {
    // RFC 1624 §4: field dd2f, a word goes from 5555 to 3285, the new field is 0000 (and not ffff).
    assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn nothing_sums_to_nothing() {
    assert_eq!(Checksum::new().partial(), 0);
    assert_eq!(checksum(&[]), 0xffff);
    assert!(!Checksum::new().is_valid());
}

#[test]
fn carries_are_not_lost_in_the_longest_packet() {
    let bytes = [0xff; 65_535];
    assert_eq!(!checksum(&bytes), by_definition(&bytes));
}

#[test]
fn a_pseudo_header_needs_one_family_and_a_length_that_fits() {
    let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
    assert_eq!(Checksum::pseudo(v4, v6, 6, 20), None);
    assert_eq!(Checksum::pseudo(v4, v4, 6, 65_536), None);
    assert!(Checksum::pseudo(v6, v6, 6, 65_536).is_some());
}

proptest! {
    #![proptest_config(common::config())]

    #[test]
    fn equals_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(!checksum(&bytes), by_definition(&bytes));
    }

    #[test]
    fn parts_of_any_length_sum_like_the_whole(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        cuts in prop::collection::vec(0usize..300, 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        cuts.push(bytes.len());
        let (mut sum, mut from) = (Checksum::new(), 0);
        for to in cuts {
            sum.add(&bytes[from..to]);
            from = to;
        }
        prop_assert_eq!(sum.partial(), by_definition(&bytes));
    }

    #[test]
    fn an_update_equals_a_recomputation(
        mut words in prop::collection::vec(any::<u16>(), 2..40), at in any::<usize>(), new in any::<u16>(),
    ) {
        let bytes = |words: &[u16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        // A covered word that is never zero, as every IP header has: without one, 0 and ffff are both right.
        words.push(0x4500);
        let field = checksum(&bytes(&words));
        let at = at % (words.len() - 1);
        let old = std::mem::replace(&mut words[at], new);
        prop_assert_eq!(update(field, old, new), checksum(&bytes(&words)));
    }

    #[test]
    fn a_partial_field_completes_to_the_full_checksum(
        source in any::<Ipv4Addr>(), destination in any::<Ipv4Addr>(),
        mut segment in prop::collection::vec(any::<u8>(), 20..200),
    ) {
        let pseudo = Checksum::pseudo_v4(source, destination, 6, segment.len() as u16);
        segment[16..18].fill(0);
        let mut full = pseudo;
        full.add(&segment);
        // What the kernel or the card does for NEEDS_CSUM: sum the segment with the partial sum in its field.
        segment[16..18].copy_from_slice(&pseudo.partial().to_be_bytes());
        prop_assert_eq!(checksum(&segment), full.finish());
        // And the receiver is content with the outcome.
        segment[16..18].copy_from_slice(&full.finish().to_be_bytes());
        let mut received = pseudo;
        received.add(&segment);
        prop_assert!(received.is_valid());
    }

    #[test]
    fn pseudo_headers_are_the_bytes_the_rfcs_draw(
        source in any::<Ipv6Addr>(), destination in any::<Ipv6Addr>(), protocol in any::<u8>(), len in any::<u32>(),
        source_v4 in any::<Ipv4Addr>(), destination_v4 in any::<Ipv4Addr>(),
    ) {
        // RFC 8200 §8.1
        let mut drawn = [&source.octets()[..], &destination.octets(), &len.to_be_bytes()].concat();
        drawn.extend([0, 0, 0, protocol]);
        prop_assert_eq!(Checksum::pseudo_v6(source, destination, protocol, len).partial(), by_definition(&drawn));
        // RFC 9293 §3.1
        let len = len as u16;
        let mut drawn = [source_v4.octets(), destination_v4.octets()].concat();
        drawn.extend([0, protocol]);
        drawn.extend(len.to_be_bytes());
        let sum = Checksum::pseudo_v4(source_v4, destination_v4, protocol, len);
        prop_assert_eq!(sum.partial(), by_definition(&drawn));
    }
}
