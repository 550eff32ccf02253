//! A set of numbers, stored as spans.

/// Spans `from .. to` in order, neither overlapping nor touching.
#[derive(Clone, Default, Debug)]
pub struct Spans(Vec<(u64, u64)>);

impl Spans {
    pub fn insert(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = self.0.partition_point(|span| span.1 < from);
        let behind = self.0.partition_point(|span| span.0 <= to);
        let joined = self.0[first..behind].iter().fold((from, to), |a, b| (a.0.min(b.0), a.1.max(b.1)));
        self.0.splice(first..behind, [joined]);
    }

    /// Whether the set contains all of `from .. to`.
    pub fn contain(&self, from: u64, to: u64) -> bool {
        self.0.iter().any(|span| span.0 <= from && to <= span.1)
    }

    /// End of the contiguous span that contains `next`.
    pub fn end_of_first(&self, next: u64) -> u64 {
        self.0.iter().find(|span| span.0 <= next && next <= span.1).map_or(next, |span| span.1)
    }
}

#[test]
fn spans_join() {
    let mut spans = Spans::default();
    for (from, to) in [(10, 20), (30, 40), (1, 5), (5, 10), (40, 40), (19, 31)] {
        spans.insert(from, to);
    }
    assert_eq!(spans.0, [(1, 40)]);
    assert!(spans.contain(1, 40) && !spans.contain(0, 2));
    assert_eq!((spans.end_of_first(1), spans.end_of_first(41)), (40, 41));
}
