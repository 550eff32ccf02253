//! Memory of a handler that outlives its calls: a block of fixed size, and a bounded ask for more.

use thiserror::Error;

use crate::handler::Needs;

/// More memory was asked for than the handler has declared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the handler has declared less memory")]
pub struct NoMemory;

/// The state of a handler at one stage. All of its memory is allocated when it is made.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct State {
    block: Box<[u8]>,
    /// Its capacity is the most that may be asked for.
    more: Vec<u8>,
    more_max: usize,
    layout: Option<u32>,
}

impl State {
    /// State of zeros.
    pub fn new(needs: &Needs) -> Self {
        let more_max = needs.more_max as usize;
        State {
            block: vec![0; needs.state as usize].into_boxed_slice(),
            more: Vec::with_capacity(more_max),
            more_max,
            layout: needs.layout,
        }
    }

    /// Makes state of the same size zeros again, for a handler with these needs.
    pub fn renew(&mut self, needs: &Needs) {
        self.block.fill(0);
        self.more.clear();
        self.layout = needs.layout;
    }

    /// Returns the block.
    #[inline]
    pub fn block(&mut self) -> &mut [u8] {
        &mut self.block
    }

    /// Returns `len` bytes beside the block. Bytes that were there before keep their values; others are 0.
    ///
    /// # Errors
    /// When the handler has declared less.
    pub fn ask(&mut self, len: usize) -> Result<&mut [u8], NoMemory> {
        if len > self.more_max {
            return Err(NoMemory);
        }
        self.more.resize(len, 0);
        Ok(&mut self.more)
    }

    /// Returns the bytes of memory in use.
    pub fn len(&self) -> usize {
        self.block.len() + self.more.len()
    }

    /// Returns whether no memory is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether a handler with these needs can take the state over.
    pub fn fits(&self, needs: &Needs) -> bool {
        let same_len = self.block.len() == needs.state as usize && self.more_max == needs.more_max as usize;
        same_len && needs.layout.is_some() && self.layout == needs.layout
    }

    /// Returns a number of 8 bytes of the block; 0 outside it.
    #[inline]
    pub fn number(&self, at: usize) -> u64 {
        self.block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    /// Sets a number of 8 bytes of the block; nothing outside it.
    #[inline]
    pub fn set_number(&mut self, at: usize, number: u64) {
        if let Some(bytes) = self.block.get_mut(at..at + 8) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_bounded_and_keeps_its_bytes() {
        let mut state = State::new(&Needs { state: 8, more_max: 100, ..Needs::default() });
        state.ask(10).unwrap()[9] = 7;
        assert_eq!(state.ask(100).unwrap()[9..12], [7, 0, 0]);
        assert_eq!(state.ask(101), Err(NoMemory));
        assert_eq!(state.len(), 108);
    }

    #[test]
    fn numbers_are_in_the_block() {
        let mut state = State::new(&Needs { state: 16, ..Needs::default() });
        state.set_number(8, u64::MAX - 1);
        state.set_number(9, 3);
        assert_eq!((state.number(8), state.number(0), state.number(9)), (u64::MAX - 1, 0, 0));
    }

    #[test]
    fn state_is_for_handlers_of_its_size_and_layout() {
        let needs = Needs { state: 16, layout: Some(3), ..Needs::default() };
        let mut state = State::new(&needs);
        state.set_number(0, 7);
        assert!(state.fits(&needs) && !state.fits(&Needs { state: 8, ..needs }));
        let other = Needs { layout: Some(4), ..needs };
        assert!(!state.fits(&other) && !state.fits(&Needs { layout: None, ..needs }));
        state.renew(&other);
        assert!(state.fits(&other) && state.number(0) == 0);
        assert!(!State::new(&Needs { layout: None, ..needs }).fits(&Needs { layout: None, ..needs }));
    }
}
