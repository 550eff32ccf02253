//! What an operator has counted. The counters lie in its state, so that they outlive a change of its path and
//! a snapshot shows them.
//!
//! ```text
//!   state block  | magic | fingerprint | counters … | times … | rows, groups …
//!                0       8             16           128       256
//! ```

use csp_handlers::{Losses, State};

/// Bytes of the block that all operators use.
pub(crate) const HEADER: usize = 256;
/// Where the operator's own numbers of the header begin.
pub(crate) const OWN: usize = 128;

const MAGIC: u64 = u64::from_le_bytes(*b"CSPoper2");
const FINGERPRINT: usize = 8;
const FIRST: usize = 16;

/// What an operator has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages processed, those that are not valid not included.
    pub read: u64,
    /// Messages that a condition did not accept, or that a sample left out; groups that HAVING did not
    /// accept.
    pub refused: u64,
    /// Messages or rows emitted.
    pub emitted: u64,
    /// Messages that are not of their format, or have a value that the result cannot say.
    pub invalid: u64,
    /// Rows that came behind the watermark, and were not used.
    pub late: u64,
    /// Rows that gave way, or found no room, because the state is bounded, while they could still have been
    /// used.
    pub evicted: u64,
    /// Rows with a null in a key or in their time: they can meet no other.
    pub unmatched: u64,
    /// Rows longer than the state or the result has room for.
    pub too_long: u64,
    /// Rows or groups in the state at present.
    pub held: u64,
    /// Their bytes.
    pub held_bytes: u64,
}

/// A counter's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    Read,
    Refused,
    Emitted,
    Invalid,
    Late,
    Evicted,
    Unmatched,
    TooLong,
    Held,
    HeldBytes,
}

impl Counter {
    #[inline]
    fn at(self) -> usize {
        FIRST + 8 * self as usize
    }

    #[inline]
    pub fn add(self, state: &mut State, count: u64) {
        state.set_number(self.at(), state.number(self.at()).wrapping_add(count));
    }

    #[inline]
    pub fn set(self, state: &mut State, count: u64) {
        state.set_number(self.at(), count);
    }
}

impl Counters {
    /// Reads the counters of an operator's state; `None` if it is no operator of this crate, or has processed
    /// nothing.
    #[must_use]
    pub fn of(state: &State) -> Option<Counters> {
        let number = |counter: Counter| state.number(counter.at());
        (state.number(0) == MAGIC).then(|| Counters {
            read: number(Counter::Read),
            refused: number(Counter::Refused),
            emitted: number(Counter::Emitted),
            invalid: number(Counter::Invalid),
            late: number(Counter::Late),
            evicted: number(Counter::Evicted),
            unmatched: number(Counter::Unmatched),
            too_long: number(Counter::TooLong),
            held: number(Counter::Held),
            held_bytes: number(Counter::HeldBytes),
        })
    }

    /// Messages and rows that are in no result although no condition refused them: those that came late, gave
    /// way or found no room, were not valid, met no other or were too long.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let Counters {
            read: _,
            refused: _,
            emitted: _,
            invalid,
            late,
            evicted,
            unmatched,
            too_long,
            held: _,
            held_bytes: _,
        } = *self;
        [invalid, late, evicted, unmatched, too_long].into_iter().fold(0, u64::saturating_add)
    }

    /// The counters with their names, as metrics and lists have them.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("read", self.read),
            ("refused", self.refused),
            ("emitted", self.emitted),
            ("invalid", self.invalid),
            ("late", self.late),
            ("evicted", self.evicted),
            ("unmatched", self.unmatched),
            ("too_long", self.too_long),
            ("held", self.held),
            ("held_bytes", self.held_bytes),
        ]
    }
}

/// Returns what the operator with this state was given and has not used.
pub(crate) fn losses(state: &State) -> Losses {
    let Counters { late, evicted, invalid, unmatched, too_long, .. } =
        Counters::of(state).unwrap_or_default();
    Losses { late, evicted, invalid, unmatched, too_long }
}

/// Makes the state an operator's own: it is cleared unless the same operator with the same meaning has
/// written it. Returns whether it was cleared.
#[inline]
pub(crate) fn claim(state: &mut State, fingerprint: u64) -> bool {
    if state.number(0) == MAGIC && state.number(FINGERPRINT) == fingerprint {
        return false;
    }
    state.block().fill(0);
    state.set_number(0, MAGIC);
    state.set_number(FINGERPRINT, fingerprint);
    true
}

/// A number for what an operator's state means.
pub(crate) fn fingerprint(meaning: &str) -> u64 {
    // FNV-1a.
    meaning.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
