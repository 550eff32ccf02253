//! Consistent choice of a backend for new flows, after the Maglev load balancer (Eisenbud et al., NSDI 2016,
//! §3.4). The backends take turns in filling the table, each by its own permutation, so that shares are even
//! and few entries change when a backend is added or removed. All network nodes with the same backends make
//! the same choice.

use core::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Entries of the table: a prime, so that every skip visits every entry, and some 100 times [`BACKENDS_MAX`],
/// so that shares differ by about 1 %.
pub const MAGLEV_TABLE_LEN: usize = 16_381;
/// Largest number of backends (workers of all proxies together).
pub const BACKENDS_MAX: usize = 160;

const EMPTY: u16 = u16::MAX;
const _: () = assert!(BACKENDS_MAX * 100 <= MAGLEV_TABLE_LEN && BACKENDS_MAX < EMPTY as usize);

#[derive(Clone, Copy, Debug)]
struct Backend<B> {
    backend: B,
    weight: u32,
    /// Turns that it has not had yet, in units of the largest weight's share of one.
    credit: u32,
    offset: u32,
    skip: u32,
    next: u32,
}

/// The lookup table. Its memory is allocated once; rebuilding does not allocate.
#[derive(Clone, Debug)]
pub struct Maglev<B> {
    entries: Box<[u16]>,
    backends: Vec<Backend<B>>,
}

impl<B: Copy> Default for Maglev<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: Copy> Maglev<B> {
    /// Creates a table without backends.
    pub fn new() -> Self {
        Maglev {
            entries: vec![EMPTY; MAGLEV_TABLE_LEN].into_boxed_slice(),
            backends: Vec::with_capacity(BACKENDS_MAX),
        }
    }

    /// Fills the table for these backends. `name` identifies a backend on every network node. All nodes must
    /// pass the names in the same order, which may be any order. Returns `false` if there are more than
    /// [`BACKENDS_MAX`] backends; those beyond the limit are left out.
    pub fn rebuild<'n>(&mut self, backends: impl Iterator<Item = (&'n [u8], u8, B)>) -> bool {
        self.clear();
        let mut complete = true;
        for (name, worker, backend) in backends {
            complete &= self.add((name, worker), 1, backend);
        }
        self.fill();
        complete
    }

    /// As [`rebuild`](Self::rebuild) for backends with weights, of which those with weight 0 get no entry:
    /// one with twice the weight has twice as many turns.
    pub fn rebuild_weighted<'n>(&mut self, backends: impl Iterator<Item = (&'n [u8], u16, B)>) -> bool {
        self.clear();
        let mut complete = true;
        for (name, weight, backend) in backends.filter(|(_, weight, _)| *weight > 0) {
            complete &= self.add((name, 0), weight.into(), backend);
        }
        self.fill();
        complete
    }

    fn clear(&mut self) {
        self.entries.fill(EMPTY);
        self.backends.clear();
    }

    fn add(&mut self, (name, worker): (&[u8], u8), weight: u32, backend: B) -> bool {
        if self.backends.len() == BACKENDS_MAX {
            return false;
        }
        let offset = place(name, worker, 1) % MAGLEV_TABLE_LEN as u64;
        let skip = place(name, worker, 2) % (MAGLEV_TABLE_LEN as u64 - 1) + 1;
        let (offset, skip) = (offset as u32, skip as u32);
        self.backends.push(Backend { backend, weight, credit: 0, offset, skip, next: 0 });
        true
    }

    fn fill(&mut self) {
        let turn = self.backends.iter().map(|backend| backend.weight).max().unwrap_or(0);
        // Each has a turn in the first round, however small its weight.
        self.backends.iter_mut().for_each(|backend| backend.credit = turn - backend.weight);
        let mut left = if turn == 0 { 0 } else { self.entries.len() };
        while left > 0 {
            for (index, backend) in self.backends.iter_mut().enumerate() {
                backend.credit += backend.weight;
                if backend.credit < turn || left == 0 {
                    continue;
                }
                backend.credit -= turn;
                let at = next_free(backend, &self.entries);
                self.entries[at] = index as u16;
                left -= 1;
            }
        }
    }

    /// Returns the backend for a flow with this hash; `None` if there are no backends.
    pub fn choose(&self, hash: u64) -> Option<B> {
        let index = self.entries[(hash % MAGLEV_TABLE_LEN as u64) as usize];
        self.backends.get(usize::from(index)).map(|b| b.backend)
    }

    /// Returns the number of backends.
    pub fn len(&self) -> usize {
        self.backends.len()
    }

    /// Returns whether there are no backends.
    pub fn is_empty(&self) -> bool {
        self.backends.is_empty()
    }
}

/// Returns the next free entry in the backend's permutation. A free entry exists: the caller fills no more
/// entries than the table has.
fn next_free<B>(backend: &mut Backend<B>, entries: &[u16]) -> usize {
    loop {
        let step = u64::from(backend.next) * u64::from(backend.skip);
        let at = ((u64::from(backend.offset) + step) % entries.len() as u64) as usize;
        backend.next += 1;
        if entries[at] == EMPTY {
            return at;
        }
    }
}

/// A hash with fixed keys, so that all network nodes compute the same value. Names of backends are trusted
/// input.
fn place(name: &[u8], worker: u8, which: u64) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0x6373_706d_6167_6c65, which);
    hasher.write(name);
    hasher.write_u8(worker);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(proxies: &[&'static str], workers: u8) -> Maglev<(&'static str, u8)> {
        let mut table = Maglev::new();
        let all = proxies.iter().flat_map(|p| (0..workers).map(move |w| (p.as_bytes(), w, (*p, w))));
        assert!(table.rebuild(all));
        table
    }

    fn hashes() -> impl Iterator<Item = u64> {
        (0..100_000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[test]
    fn every_backend_gets_its_share() {
        let table = table(&["pn-1", "pn-2", "pn-3"], 2);
        let mut counts = std::collections::HashMap::new();
        hashes().for_each(|hash| *counts.entry(table.choose(hash).unwrap()).or_insert(0u32) += 1);
        assert_eq!(counts.len(), 6);
        let fair = 100_000 / 6;
        assert!(counts.values().all(|c| c.abs_diff(fair) < fair / 20), "{counts:?}");
    }

    #[test]
    fn losing_a_proxy_moves_hardly_any_flow_of_the_others() {
        let before = table(&["pn-1", "pn-2", "pn-3", "pn-4"], 1);
        let after = table(&["pn-1", "pn-2", "pn-4"], 1);
        let kept = hashes().filter(|h| before.choose(*h).unwrap().0 != "pn-3").count();
        let moved = hashes()
            .filter(|h| before.choose(*h).unwrap().0 != "pn-3" && before.choose(*h) != after.choose(*h))
            .count();
        assert!(moved * 20 < kept, "{moved} of {kept} flows of proxies that stay were moved");
        assert!(hashes().all(|h| after.choose(h).unwrap().0 != "pn-3"));
    }

    /// The bars of issue "the front": shares of ten weighted servers, and what moves if one of them goes.
    #[test]
    fn weights_are_shares_and_the_loss_of_one_moves_hardly_more_than_its_own() {
        let names: Vec<String> = (1..=10).map(|at| format!("10.1.2.{at}:8080")).collect();
        let table = |gone: usize| {
            let mut table = Maglev::new();
            let all = names.iter().enumerate().filter(|(at, _)| *at != gone);
            assert!(table.rebuild_weighted(all.map(|(at, name)| (name.as_bytes(), at as u16 + 1, at))));
            table
        };
        let whole = table(usize::MAX);
        for at in 0..10 {
            let share = whole.entries.iter().filter(|entry| usize::from(**entry) == at).count() as f64;
            let fair = MAGLEV_TABLE_LEN as f64 * (at + 1) as f64 / 55.0;
            assert!((share / fair - 1.0).abs() <= 0.02, "server {at}: {share} entries of {fair:.0}");
        }
        for gone in 0..10 {
            let after = table(gone);
            let all = (0..MAGLEV_TABLE_LEN as u64).map(|hash| (whole.choose(hash), after.choose(hash)));
            let moved = all.filter(|(before, after)| before != after && *before != Some(gone)).count();
            assert!(moved * 50 <= MAGLEV_TABLE_LEN, "without {gone} {moved} entries of others move");
        }
        let mut many = Maglev::new();
        assert!(many.rebuild_weighted((0..100).map(|at| (&b"x"[..], if at == 0 { 1 } else { 256 }, at))));
        assert!(many.entries.contains(&0), "a small share is one");
        let mut none = Maglev::new();
        assert!(none.rebuild_weighted([(&b"a"[..], 0, 'a')].into_iter()));
        assert_eq!(none.choose(1), None, "weight 0 gets no new flow");
    }

    #[test]
    fn no_backend_means_no_choice_and_too_many_are_left_out() {
        let mut table = Maglev::new();
        assert_eq!(table.choose(7), None);
        assert!(!table.rebuild((0..=BACKENDS_MAX).map(|i| (&b"pn"[..], i as u8, i))));
        assert_eq!(table.len(), BACKENDS_MAX);
        assert!(table.rebuild(std::iter::empty()));
        assert_eq!(table.choose(7), None::<usize>);
    }
}
