//! Secrets and what they grant, for a limited time. Pure: the time is an argument.

use std::sync::Arc;
use std::time::Duration;

use csp_identity::{Access, Peer};
use sha2::{Digest, Sha256};

/// Octets of a secret; it is written in hex.
const SECRET_LEN: usize = 32;

/// What a secret stands for.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// The person whose certificate it was asked for with.
    pub(super) issuer: Arc<Peer>,
    /// What it allows.
    pub(super) access: Access,
}

/// There is no room for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full;

/// Secrets of one kind.
#[derive(Debug)]
pub(super) struct Table {
    /// In the order in which they were added, which is the order in which they expire.
    entries: Vec<Entry>,
    life: Duration,
    entries_max: usize,
    of_issuer_max: usize,
}

#[derive(Debug)]
struct Entry {
    /// SHA-256 of the secret.
    digest: [u8; 32],
    grant: Grant,
    until: Duration,
}

impl Table {
    /// Returns an empty table whose secrets are valid for `life`.
    pub(super) fn new(life: Duration, entries_max: usize, of_issuer_max: usize) -> Self {
        Table { entries: Vec::new(), life, entries_max, of_issuer_max }
    }

    /// Makes a secret; the issuer's oldest one gives way to it when the issuer has as many as allowed.
    pub(super) fn add(&mut self, grant: Grant, now: Duration) -> Result<String, Full> {
        self.expire(now);
        let mut of_issuer =
            self.entries.iter().enumerate().filter(|(_, e)| e.grant.issuer.identity == grant.issuer.identity);
        let oldest = of_issuer.next().map(|(at, _)| at);
        if let Some(oldest) = oldest
            && of_issuer.count() + 1 >= self.of_issuer_max
        {
            self.entries.remove(oldest);
        }
        if self.entries.len() >= self.entries_max {
            return Err(Full);
        }
        let secret: [u8; SECRET_LEN] = rand::random();
        let secret: String = secret.iter().map(|octet| format!("{octet:02x}")).collect();
        self.entries.push(Entry { digest: digest(&secret), grant, until: now + self.life });
        Ok(secret)
    }

    /// Returns what a secret grants.
    pub(super) fn find(&self, secret: &str, now: Duration) -> Option<Grant> {
        self.at(secret, now).map(|at| self.entries[at].grant.clone())
    }

    /// Returns how long a secret has been valid.
    pub(super) fn age(&self, secret: &str, now: Duration) -> Option<Duration> {
        self.at(secret, now).map(|at| self.life.saturating_sub(self.entries[at].until.saturating_sub(now)))
    }

    /// Removes a secret and returns what it granted.
    pub(super) fn take(&mut self, secret: &str, now: Duration) -> Option<Grant> {
        self.at(secret, now).map(|at| self.entries.remove(at).grant)
    }

    /// Returns how many have not expired.
    pub(super) fn len(&self, now: Duration) -> usize {
        self.entries.iter().filter(|entry| now < entry.until).count()
    }

    /// Compares with every entry, whole digests each time: the time taken says nothing about them.
    fn at(&self, secret: &str, now: Duration) -> Option<usize> {
        let digest = digest(secret);
        let found = self
            .entries
            .iter()
            .enumerate()
            .fold(None, |found, (at, entry)| if same(&entry.digest, &digest) { Some(at) } else { found });
        found.filter(|at| now < self.entries[*at].until)
    }

    fn expire(&mut self, now: Duration) {
        self.entries.retain(|entry| now < entry.until);
    }
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

fn same(left: &[u8; 32], right: &[u8; 32]) -> bool {
    std::hint::black_box(left.iter().zip(right).fold(0, |differing, (l, r)| differing | (l ^ r))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(60);

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn grant(name: &str) -> Grant {
        let identity = format!("csp://demo/operator/{name}").parse().unwrap();
        let peer = Peer {
            identity,
            serial: String::new(),
            not_before: 0,
            not_after: 0,
            certificate: Vec::new().into(),
        };
        Grant { issuer: Arc::new(peer), access: Access::Viewer }
    }

    #[test]
    fn a_secret_is_found_until_it_expires_or_is_taken() {
        let mut table = Table::new(LIFE, 4, 4);
        let first = table.add(grant("alice"), at(0)).unwrap();
        let second = table.add(grant("bob"), at(1)).unwrap();
        assert!(first.len() == 64 && first != second);
        assert_eq!(table.find(&second, at(1)).unwrap().issuer.identity.id.as_str(), "bob");
        assert_eq!((table.age(&second, at(4)), table.age(&first, at(60))), (Some(at(3)), None));
        assert!(table.find(&first, at(59)).is_some() && table.find(&first, at(60)).is_none());
        for wrong in ["", "00", &first[1..], &first.to_uppercase(), &"0".repeat(64)] {
            assert!(table.find(wrong, at(1)).is_none());
        }
        assert_eq!((table.len(at(59)), table.len(at(60)), table.len(at(61))), (2, 1, 0));
        assert!(table.take(&second, at(2)).is_some() && table.take(&second, at(2)).is_none());
    }

    #[test]
    fn one_person_replaces_their_own_and_cannot_fill_the_table() {
        let mut table = Table::new(LIFE, 3, 2);
        let mut add = |name: &str, s: u64| table.add(grant(name), at(s));
        let of_alice: Vec<String> = (0..3).map(|s| add("alice", s).unwrap()).collect();
        let of_bob = add("bob", 3).unwrap();
        assert_eq!(add("carol", 3), Err(Full));
        let of_carol = add("carol", 61).unwrap();
        let found = |secret: &String, s: u64| table.find(secret, at(s)).is_some();
        assert!(!found(&of_alice[0], 3), "the oldest gave way");
        assert!(found(&of_alice[2], 61) && found(&of_bob, 61) && found(&of_carol, 61));
    }
}
