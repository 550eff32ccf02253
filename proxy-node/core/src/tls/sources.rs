//! How many handshakes the clients of a source may begin: a bounded table of sources.
//!
//! A handshake costs the client little and the proxy a signature. Each service may bound how many a source
//! begins in a second: an IPv4 address, or an IPv6 network of 64 bits, which one client has. A source may
//! begin as many at once as in a second (the generic cell rate algorithm, ITU-T I.371).

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use csp_types::{Duration, Instant};
use siphasher::sip::SipHasher13;

/// Sources that are known at once, in sets of [`WAYS`].
const SOURCES: usize = 8_192;
/// Places that a source may have.
const WAYS: usize = 4;
/// What a source may begin at once, in seconds of its rate.
const BURST: Duration = Duration::from_secs(1);

/// A source: when it would have used up what it has begun, at the rate that it may.
#[derive(Clone, Copy, Debug, Default)]
struct Source {
    hash: u64,
    until: Instant,
}

/// The sources of handshakes of a worker.
#[derive(Debug)]
pub(crate) struct Sources {
    hasher: SipHasher13,
    /// Allocated with the first service that has a bound.
    places: Vec<Source>,
}

impl Sources {
    /// Creates a table without sources. `key`: a secret, without which clients cannot choose addresses that
    /// share a set.
    pub(crate) fn new(key: &[u8; 16]) -> Self {
        Sources { hasher: SipHasher13::new_with_key(key), places: Vec::new() }
    }

    /// Returns whether a source may begin a handshake with a service at which it may begin `rate` a second,
    /// and counts it. When a set is full, the source that has begun least lately is forgotten.
    pub(crate) fn admits(&mut self, now: Instant, service: u32, source: IpAddr, rate: u32) -> bool {
        if self.places.is_empty() {
            self.places.resize(SOURCES, Source::default());
        }
        let hash = self.hash(service, source);
        let first = hash as usize % (SOURCES / WAYS) * WAYS;
        let Some(set) = self.places.get_mut(first..first + WAYS) else { return true };
        let known = set.iter().position(|place| place.hash == hash);
        let place = match known {
            Some(at) => set.get_mut(at),
            None => set.iter_mut().min_by_key(|place| place.until),
        };
        let Some(place) = place else { return true };
        let since = if place.hash == hash { place.until.max(now) } else { now };
        let next = since + Duration::from_nanos(1_000_000_000 / u64::from(rate.max(1)));
        if next > now + BURST {
            return false;
        }
        *place = Source { hash, until: next };
        true
    }

    fn hash(&self, service: u32, source: IpAddr) -> u64 {
        let mut hasher = self.hasher;
        service.hash(&mut hasher);
        match source.to_canonical() {
            IpAddr::V4(address) => address.to_bits().hash(&mut hasher),
            IpAddr::V6(address) => ((address.to_bits() >> 64) as u64).hash(&mut hasher),
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 10;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + ms * 1_000_000)
    }

    fn begun(sources: &mut Sources, ms: u64, source: &str, tries: usize) -> usize {
        let source = source.parse().unwrap();
        (0..tries).filter(|_| sources.admits(at(ms), 1, source, RATE)).count()
    }

    #[test]
    fn a_source_begins_a_second_s_worth_at_once_and_then_at_its_rate() {
        let mut sources = Sources::new(&[1; 16]);
        assert_eq!(begun(&mut sources, 0, "192.0.2.1", 50), 10);
        assert_eq!(begun(&mut sources, 0, "192.0.2.2", 50), 10);
        assert_eq!(begun(&mut sources, 99, "192.0.2.1", 50), 0);
        assert_eq!(begun(&mut sources, 350, "192.0.2.1", 50), 3);
        assert_eq!(begun(&mut sources, 60_000, "192.0.2.1", 50), 10);
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_a_mapped_address_that_of_ipv4() {
        let mut sources = Sources::new(&[1; 16]);
        assert_eq!(begun(&mut sources, 0, "2001:db8:0:1::1", 6), 6);
        assert_eq!(begun(&mut sources, 0, "2001:db8:0:1:ffff::2", 50), 4);
        assert_eq!(begun(&mut sources, 0, "2001:db8:0:2::1", 50), 10);
        assert_eq!(begun(&mut sources, 0, "192.0.2.1", 6), 6);
        assert_eq!(begun(&mut sources, 0, "::ffff:192.0.2.1", 50), 4);
        assert!(sources.admits(at(0), 2, "192.0.2.1".parse().unwrap(), RATE), "another service");
    }

    #[test]
    fn any_number_of_sources_takes_the_same_memory() {
        let mut sources = Sources::new(&[1; 16]);
        for n in 0..100_000_u32 {
            assert!(sources.admits(at(0), 1, IpAddr::V4(n.into()), RATE));
        }
        assert_eq!(sources.places.len(), SOURCES);
    }
}
