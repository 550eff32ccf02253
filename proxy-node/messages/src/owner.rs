//! The owner of a channel: the proxy worker that orders and distributes its messages.
//!
//! Rendezvous hashing: every worker has a score for the channel's name, and the highest owns the channel. When a worker
//! leaves, only its channels move; when one joins, channels move only to it. The result depends on nothing but the names,
//! so that all nodes with the same membership agree.

use std::hash::Hasher as _;

use csp_types::NodeId;
use siphasher::sip::SipHasher13;

/// A worker of a proxy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// The proxy.
    pub proxy: NodeId,
    /// Index of the worker in the proxy.
    pub worker: u16,
}

/// Returns the owner of the channel `name` among `workers`, in whatever order they are; `None` if there are none.
pub fn owner_of(name: &str, workers: impl IntoIterator<Item = Owner>) -> Option<Owner> {
    workers.into_iter().max_by_key(|worker| (score(name, *worker), *worker))
}

/// The keys are constants, since all nodes must agree. The lengths keep (name, proxy) pairs apart.
fn score(name: &str, worker: Owner) -> u64 {
    let proxy = worker.proxy.as_str();
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(&(name.len() as u64).to_le_bytes());
    hasher.write(name.as_bytes());
    hasher.write(proxy.as_bytes());
    hasher.write(&worker.worker.to_le_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(proxies: u16, each: u16) -> Vec<Owner> {
        let proxy = |n: u16| format!("proxy-{n}").parse().unwrap();
        (0..proxies).flat_map(|n| (0..each).map(move |worker| Owner { proxy: proxy(n), worker })).collect()
    }

    #[test]
    fn only_the_channels_of_a_worker_that_leaves_move_and_evenly() {
        let all = workers(4, 2);
        let names: Vec<String> = (0..8_000).map(|n| format!("channel-{n}")).collect();
        let gone = all[3];
        let rest = all.iter().copied().filter(|worker| *worker != gone);
        let mut moved_to = std::collections::BTreeMap::new();
        for name in &names {
            let before = owner_of(name, all.iter().copied()).unwrap();
            let after = owner_of(name, rest.clone()).unwrap();
            match before == gone {
                true => *moved_to.entry(after).or_insert(0) += 1,
                false => assert_eq!(before, after, "{name}"),
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
        let owner = |all: &[Owner], name| {
            let Owner { proxy, worker } = owner_of(name, all.iter().copied()).unwrap();
            format!("{proxy}/{worker}")
        };
        let before = ["a", "orders", "quotes.eu"].map(|name| owner(&all, name));
        all.reverse();
        assert_eq!(["a", "orders", "quotes.eu"].map(|name| owner(&all, name)), before);
        // A node of another version must find the same.
        assert_eq!(before, ["proxy-0/1", "proxy-1/1", "proxy-0/2"]);
        assert_eq!(owner_of("a", []), None);
    }
}
