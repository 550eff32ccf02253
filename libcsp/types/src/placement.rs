//! The location of a message channel: its owner, the one proxy worker to which all its connections go.
//!
//! Rendezvous hashing (Thaler and Ravishankar, 1998): every worker has a score for the channel's key, and the
//! worker with the highest score owns the channel. When a worker leaves, only its channels move; when one
//! joins, channels move only to it. The result depends on nothing but the key and the names of proxies, so
//! that all nodes with the same view of the proxies agree.

use core::hash::Hasher as _;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

use crate::NodeId;

/// The key that determines the owner of a channel. Channels with equal keys have the same owner.
///
/// It is computed from the channel's address: a network node knows nothing else about a connection when it
/// chooses a worker, and channels that share an address share their connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlacementKey(u64);

impl PlacementKey {
    /// Returns the key of channels at this address.
    pub fn of_address(address: SocketAddr) -> Self {
        let mut hasher = hasher();
        let bits = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        hasher.write(&bits);
        hasher.write(&address.port().to_le_bytes());
        PlacementKey(hasher.finish())
    }

    fn score(self, worker: &Owner) -> u64 {
        let mut hasher = hasher();
        hasher.write(&self.0.to_le_bytes());
        hasher.write(&[worker.worker]);
        hasher.write(worker.proxy.as_str().as_bytes());
        hasher.finish()
    }
}

/// The hash keys are constants, since all nodes must agree.
fn hasher() -> SipHasher13 {
    SipHasher13::new_with_keys(0, 0)
}

/// A worker of a proxy, as the owner of channels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// The proxy.
    pub proxy: NodeId,
    /// The worker's number in the proxy.
    pub worker: u8,
}

/// The name of the proxy and the worker's number, as `pn-1/0`.
impl core::fmt::Display for Owner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}/{}", self.proxy, self.worker)
    }
}

/// Returns the owner of channels with this key among `workers`, in any order; `None` if there are none.
pub fn owner_of(key: PlacementKey, workers: impl IntoIterator<Item = Owner>) -> Option<Owner> {
    workers.into_iter().max_by_key(|worker| (key.score(worker), *worker))
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use super::*;

    fn workers(proxies: u16, each: u8) -> Vec<Owner> {
        let proxy = |n: u16| format!("proxy-{n}").parse().unwrap();
        (0..proxies).flat_map(|n| (0..each).map(move |worker| Owner { proxy: proxy(n), worker })).collect()
    }

    fn key(address: &str) -> PlacementKey {
        PlacementKey::of_address(address.parse().unwrap())
    }

    #[test]
    fn only_the_channels_of_a_worker_that_leaves_move_and_evenly() {
        let all = workers(4, 2);
        let gone = all[3];
        let rest = all.iter().copied().filter(|worker| *worker != gone);
        let mut moved_to = BTreeMap::new();
        for port in 0..8_000 {
            let key = PlacementKey::of_address(([10, 76, 0, 100], port).into());
            let before = owner_of(key, all.iter().copied()).unwrap();
            let after = owner_of(key, rest.clone()).unwrap();
            match before == gone {
                true => *moved_to.entry(after).or_insert(0) += 1,
                false => assert_eq!(before, after, "port {port}"),
            }
        }
        let moved: u32 = moved_to.values().sum();
        assert!((850..1_150).contains(&moved), "{moved} of 8,000 channels had one of 8 owners");
        assert_eq!(moved_to.len(), 7, "{moved_to:?}");
        assert!(moved_to.values().all(|count| (90..200).contains(count)), "{moved_to:?}");
    }

    #[test]
    fn the_order_of_workers_does_not_matter_and_owners_never_change() {
        let mut all = workers(3, 4);
        let addresses = ["10.76.0.100:5556", "10.76.0.100:5557", "[2001:db8::100]:5556"];
        let owners = |all: &[Owner]| {
            addresses.map(|address| owner_of(key(address), all.iter().copied()).unwrap().to_string())
        };
        let before = owners(&all);
        all.reverse();
        assert_eq!(owners(&all), before);
        // Nodes of other versions must compute the same result.
        assert_eq!(before, ["proxy-1/3", "proxy-0/3", "proxy-0/2"]);
        assert_eq!(owner_of(key(addresses[0]), []), None);
    }

    #[test]
    fn an_address_has_one_key_in_either_notation() {
        assert_eq!(key("10.76.0.100:5556"), key("[::ffff:10.76.0.100]:5556"));
        assert_ne!(key("10.76.0.100:5556"), key("10.76.0.100:5557"));
    }
}
