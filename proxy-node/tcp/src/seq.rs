//! Sequence numbers: 32 bits that wrap (RFC 9293 §3.4).

use core::fmt;

/// A sequence number. Comparisons hold for numbers less than 2³¹ apart.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub(crate) struct Seq(pub u32);

impl Seq {
    /// The number `n` after this one.
    pub fn plus(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// The number `n` before this one.
    pub fn minus(self, n: u32) -> Seq {
        Seq(self.0.wrapping_sub(n))
    }

    /// The distance from `earlier` to this number; 0 if this number is before `earlier`.
    pub fn since(self, earlier: Seq) -> u32 {
        let d = self.0.wrapping_sub(earlier.0);
        if (d as i32) < 0 { 0 } else { d }
    }

    /// self < other
    pub fn before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// self > other
    pub fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// The later of the two.
    pub fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    /// The earlier of the two.
    pub fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }
}

/// The sequence numbers `start .. end`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct SeqRange {
    pub start: Seq,
    pub end: Seq,
}

impl SeqRange {
    /// The range `start .. end`.
    pub const fn new(start: Seq, end: Seq) -> SeqRange {
        SeqRange { start, end }
    }

    /// How many numbers it holds; 0 if `end` is before `start`.
    pub fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    /// Whether the two overlap or are adjacent.
    pub fn touches(&self, other: &SeqRange) -> bool {
        !self.end.before(other.start) && !self.start.after(other.end)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_the_wrap() {
        let a = Seq(u32::MAX - 2);
        let b = a.plus(10);
        assert!(a.before(b) && b.after(a) && !b.before(a) && !a.before(a));
        assert_eq!((b.since(a), a.since(b), b.minus(10)), (10, 0, a));
        assert_eq!((a.max(b), a.min(b)), (b, a));
    }
}
