//! What a handler was given and has not used, although it was to.

/// Rows that are missing in what a handler emits, since its state was made. A handler whose state is replaced
/// begins with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// They came after the time up to which rows were waited for.
    pub late: u64,
    /// They gave way to others, or found no room, because the state is bounded.
    pub evicted: u64,
    /// They are not of the format that they are said to have, or have a value that the result cannot say.
    pub invalid: u64,
    /// They have a null in a key or in their time, and can meet no other.
    pub unmatched: u64,
    /// They are longer than the state or the result has room for.
    pub too_long: u64,
}

impl Losses {
    /// The counts with their names, as metrics and lists have them.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        let Losses { late, evicted, invalid, unmatched, too_long } = *self;
        [
            ("late", late),
            ("evicted", evicted),
            ("invalid", invalid),
            ("unmatched", unmatched),
            ("too_long", too_long),
        ]
    }

    /// Adds those of another handler.
    pub fn add(&mut self, other: &Losses) {
        let Losses { late, evicted, invalid, unmatched, too_long } = *other;
        for (own, more) in [
            (&mut self.late, late),
            (&mut self.evicted, evicted),
            (&mut self.invalid, invalid),
            (&mut self.unmatched, unmatched),
            (&mut self.too_long, too_long),
        ] {
            *own = own.saturating_add(more);
        }
    }
}
