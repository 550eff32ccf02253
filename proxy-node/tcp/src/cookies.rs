//! SYN cookies (RFC 4987 §3.6): handshakes without state, used when the table of half-open connections is
//! full.
//!
//! The peer carries what a connection block would have stored. The sequence number of the SYN/ACK is
//!
//! ```text
//!    31        30 29      27 26                     14 13                    0
//!   | period mod 4 | MSS index |  MAC over addresses,   |  MAC over the same,    |
//!   |              |           |  period and MSS index  |  and the peer's ISN    |
//! ```
//!
//! and, if the peer offers timestamps, the low bits of our TSval encode the other options of its SYN (the
//! clock value is reduced by less than 64 ms, so that it is never ahead of the segments that follow):
//!
//! ```text
//!    31                                 6     5     4    3          0
//!   | milliseconds, the low bits dropped | ECN | SACK | window scale |   15: no scaling
//! ```
//!
//! Without timestamps only the MSS is preserved.
//!
//! A blind attacker must guess both MACs. The first one alone shows whether a segment may follow another one
//! that carried the cookie and was lost: such a segment does not reveal the peer's ISN.
//!
//! This module contains the encoding only; tables, queues and decisions
//! are elsewhere.

use core::hash::Hasher;
use core::time::Duration;

use csp_types::{FourTuple, Instant};
use csp_wire::tcp::{Options, WINDOW_SCALE_MAX};
use siphasher::sip::SipHasher24;

use crate::isn::Keys;
use crate::seq::Seq;

pub use csp_types::options::SynCookies;

/// Duration of a period. A cookie is valid in its own period and the next: for 64 to 128 s.
const PERIOD: Duration = Duration::from_secs(64);
/// When this much time has passed since the last cookie was sent, no valid cookie can exist.
pub(crate) const VALID: Duration = Duration::from_secs(128);
/// The MSS values that a cookie can encode; the peer's MSS is rounded down to one of them. The first is the
/// smallest that the engine uses; the others are common for tunnels, Ethernet and jumbo frames.
const MSS_VALUES: [u16; 8] = [crate::MSS_MIN, 536, 1_220, 1_340, 1_400, 1_440, 1_460, 8_940];
const MAC_BITS: u32 = 27;
/// Low bits of the MAC, which depend on the peer's ISN.
const ISN_BITS: u32 = 14;
const MSS_BITS: u32 = 3;
const FEATURE_BITS: u32 = 6;
const ECN_BIT: u32 = 1 << 5;
const SACK_BIT: u32 = 1 << 4;
const NO_SCALING: u32 = 15;

const _: () = assert!(MSS_VALUES.len() == 1 << MSS_BITS && MAC_BITS + MSS_BITS + 2 == u32::BITS);
const _: () = assert!((WINDOW_SCALE_MAX as u32) < NO_SCALING);

/// The contents of the peer's SYN, as far as its acknowledgement restores them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CookieContents {
    /// The options of the SYN, as restored.
    pub options: Options,
    /// ECN was negotiated: the SYN/ACK accepted it (RFC 3168 §6.1.1).
    pub ecn: bool,
}

fn period(now: Instant) -> u64 {
    now.as_nanos() / PERIOD.as_nanos() as u64
}

/// The part of the MAC that does not depend on the peer's ISN, in its place, and the hasher to be continued.
fn mac_of_addresses(keys: &Keys, tuple: &FourTuple, period: u64, mss_index: u32) -> (u32, SipHasher24) {
    let mut hasher = keys.cookie_hasher(tuple);
    hasher.write_u64(period);
    hasher.write_u32(mss_index);
    ((hasher.finish() as u32) << ISN_BITS & ((1 << MAC_BITS) - 1), hasher)
}

fn mac(keys: &Keys, tuple: &FourTuple, peer_isn: Seq, period: u64, mss_index: u32) -> u32 {
    let (of_addresses, mut hasher) = mac_of_addresses(keys, tuple, period, mss_index);
    hasher.write_u32(peer_isn.0);
    of_addresses | (hasher.finish() as u32 & ((1 << ISN_BITS) - 1))
}

/// The period in which the cookie `sequence` was made, if that is the current one or the previous one, and
/// its MSS index.
fn fields(now: Instant, sequence: Seq) -> Option<(u64, u32)> {
    let current = period(now);
    let age = (current as u32).wrapping_sub(sequence.0 >> (MAC_BITS + MSS_BITS)) & 3;
    let made = current.checked_sub(u64::from(age)).filter(|_| age <= 1)?;
    Some((made, sequence.0 >> MAC_BITS & ((1 << MSS_BITS) - 1)))
}

/// The initial sequence number of the SYN/ACK for a SYN with sequence number `peer_isn` and this MSS.
pub(crate) fn sequence(keys: &Keys, now: Instant, tuple: &FourTuple, peer_isn: Seq, mss: u16) -> Seq {
    let index = MSS_VALUES.iter().rposition(|&value| value <= mss).unwrap_or(0) as u32;
    let period = period(now);
    let mac = mac(keys, tuple, peer_isn, period, index);
    Seq((period as u32 & 3) << (MAC_BITS + MSS_BITS) | index << MAC_BITS | mac)
}

/// Returns the MSS in the cookie `sequence` if the cookie was made for this `peer_isn` in the current period
/// or the previous one.
pub(crate) fn verify(
    keys: &Keys,
    now: Instant,
    tuple: &FourTuple,
    peer_isn: Seq,
    sequence: Seq,
) -> Option<u16> {
    let (made, index) = fields(now, sequence)?;
    let received = sequence.0 & ((1 << MAC_BITS) - 1);
    (mac(keys, tuple, peer_isn, made, index) == received).then(|| MSS_VALUES[index as usize])
}

/// Returns whether `sequence` may be a valid cookie for a SYN with these addresses and an unknown sequence
/// number. Of other sequence numbers about one in 2¹⁴ passes, until the period ends.
pub(crate) fn may_be_valid(keys: &Keys, now: Instant, tuple: &FourTuple, sequence: Seq) -> bool {
    let Some((made, index)) = fields(now, sequence) else { return false };
    let (of_addresses, _) = mac_of_addresses(keys, tuple, made, index);
    (sequence.0 & ((1 << MAC_BITS) - 1)) >> ISN_BITS == of_addresses >> ISN_BITS
}

/// TSval of the SYN/ACK for a SYN with `options`; `clock` is the value without a cookie.
pub(crate) fn timestamp(clock: u32, options: &Options, ecn: bool) -> u32 {
    let mut features = options.window_scale.map_or(NO_SCALING, u32::from);
    features |= if options.sack_permitted { SACK_BIT } else { 0 };
    features |= if ecn { ECN_BIT } else { 0 };
    let coarse = clock & !((1 << FEATURE_BITS) - 1);
    let value = coarse | features;
    // Not ahead of the clock, so that the next segment's timestamp is not older (RFC 7323 §5.3).
    if (clock.wrapping_sub(value) as i32) < 0 { value.wrapping_sub(1 << FEATURE_BITS) } else { value }
}

/// Restores the SYN's contents from a verified acknowledgement with `options`. `clock` is our timestamp clock
/// now. An echo that cannot stem from the validity period counts as no timestamps.
pub(crate) fn recall(mss: u16, clock: u32, options: &Options) -> CookieContents {
    let recent = |echo: u32| u128::from(clock.wrapping_sub(echo)) <= (VALID + PERIOD).as_millis();
    let timestamps = options.timestamps.filter(|timestamps| recent(timestamps.echo));
    let features = timestamps.map_or(NO_SCALING, |timestamps| timestamps.echo);
    let scale = features & NO_SCALING;
    CookieContents {
        options: Options {
            mss: Some(mss),
            window_scale: (scale != NO_SCALING).then_some(scale as u8),
            sack_permitted: features & SACK_BIT != 0,
            timestamps,
            ..Options::default()
        },
        ecn: features & ECN_BIT != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_wire::tcp::Timestamps;

    fn keys() -> Keys {
        Keys::new(&[7; 16])
    }

    fn tuple(port: u16) -> FourTuple {
        let local = "10.0.0.2:80".parse().unwrap();
        FourTuple { local, remote: core::net::SocketAddr::new([10, 0, 0, 1].into(), port) }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_cookie_is_good_for_one_to_two_periods_and_for_its_own_connection_only() {
        let (keys, isn) = (keys(), Seq(0xffff_fffe));
        for start in (0..400).step_by(7) {
            let cookie = sequence(&keys, at(start), &tuple(1), isn, 1_460);
            for age in 0..600 {
                let found = verify(&keys, at(start + age), &tuple(1), isn, cookie);
                if age <= 64 {
                    assert_eq!(found, Some(1_460), "made at {start}, {age} s old");
                } else if age >= 128 {
                    assert_eq!(found, None, "made at {start}, {age} s old");
                }
            }
            assert_eq!(verify(&keys, at(start), &tuple(2), isn, cookie), None);
            assert_eq!(verify(&keys, at(start), &tuple(1), isn.plus(1), cookie), None);
            for bit in 0..32 {
                assert_eq!(verify(&keys, at(start), &tuple(1), isn, Seq(cookie.0 ^ 1 << bit)), None);
            }
        }
    }

    #[test]
    fn without_the_peers_isn_a_cookie_is_recognised_as_long_as_it_is_valid_and_little_else_is() {
        let keys = keys();
        for start in (0..400).step_by(7) {
            let cookie = sequence(&keys, at(start), &tuple(1), Seq(start as u32), 1_460);
            for age in 0..200 {
                let found = may_be_valid(&keys, at(start + age), &tuple(1), cookie);
                assert!(found || age > 64, "made at {start}, {age} s old");
                assert!(!found || age < 128, "made at {start}, {age} s old");
            }
        }
        let others = (0..1 << 20).map(|n: u32| Seq(n.wrapping_mul(2_654_435_761)));
        let passed = others.filter(|other| may_be_valid(&keys, at(1_000), &tuple(1), *other)).count();
        assert!((32..128).contains(&passed), "{passed} of 2²⁰: about 64 are expected");
    }

    #[test]
    fn all_of_the_mac_depends_on_the_addresses_and_its_low_bits_on_the_peers_isn() {
        let mut changed = [0; 2];
        for n in 0..64 {
            let cookie = |port, isn| sequence(&keys(), at(1), &tuple(port), Seq(isn), 1_460).0;
            changed[0] |= cookie(1, 5) ^ cookie(2 + n, 5);
            changed[1] |= cookie(1, 5) ^ cookie(1, 6 + u32::from(n));
        }
        assert_eq!(changed, [(1 << MAC_BITS) - 1, (1 << ISN_BITS) - 1]);
    }

    #[test]
    fn an_mss_is_rounded_down_to_one_of_eight() {
        let check = |mss, kept| {
            let cookie = sequence(&keys(), at(1), &tuple(1), Seq(5), mss);
            assert_eq!(verify(&keys(), at(1), &tuple(1), Seq(5), cookie), Some(kept), "{mss}");
        };
        for (mss, kept) in [(0, 88), (535, 88), (536, 536), (1_459, 1_440), (1_460, 1_460), (65_535, 8_940)] {
            check(mss, kept);
        }
    }

    #[test]
    fn what_the_syn_offered_comes_back_in_the_timestamp() {
        for clock in [0, 1, 63, 64, 100_000, u32::MAX] {
            for scale in (0..=14).map(Some).chain([None]) {
                for (sack_permitted, ecn) in [(false, false), (true, false), (false, true), (true, true)] {
                    let syn = Options { window_scale: scale, sack_permitted, ..Options::default() };
                    let value = timestamp(clock, &syn, ecn);
                    assert!(clock.wrapping_sub(value) < 128, "behind the clock, but not by much");
                    let echoed = Some(Timestamps { value: 1, echo: value });
                    let ack = Options { timestamps: echoed, ..Options::default() };
                    let contents = recall(1_460, clock.wrapping_add(90_000), &ack);
                    let options = Options { mss: Some(1_460), timestamps: echoed, ..syn };
                    assert_eq!(contents, CookieContents { options, ecn });
                }
            }
        }
        let plain = Options { mss: Some(536), ..Options::default() };
        assert_eq!(recall(536, 1, &Options::default()), CookieContents { options: plain, ecn: false });
        let old = Options { timestamps: Some(Timestamps { value: 1, echo: 0 }), ..Options::default() };
        assert_eq!(recall(536, 1 << 20, &old).options, plain, "an echo of long ago");
    }
}
