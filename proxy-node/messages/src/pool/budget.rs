//! Budgets of channels: how many blocks each may use, and how many are kept free for it.
//!
//! ```text
//!   |-- used by A --|-- used by B --|---- free ------------------------|
//!                                   |- guaranteed, not used -|- shared -|
//! ```
//! A channel uses its guarantee first, then shared blocks up to its largest budget.

use thiserror::Error;

use super::PoolError;

/// Memory of a channel in bytes, rounded up to blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Bytes that no other channel can use.
    pub guaranteed: u64,
    /// Largest number of bytes.
    pub max: u64,
}

/// Why a budget is not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BudgetError {
    /// The guarantee exceeds the largest budget.
    #[error("a channel's guaranteed memory is more than its largest")]
    GuaranteeAboveMax,
    /// The pool is smaller than the guarantees of all channels; contains the blocks that are left to
    /// guarantee.
    #[error("the pool has only {0} blocks left to guarantee")]
    Guarantees(u32),
    /// The pool was made for fewer channels.
    #[error("the pool was made for fewer channels")]
    Channel,
}

/// Blocks of one channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Blocks that no other channel can use.
    pub guaranteed: u32,
    /// Largest number of blocks.
    pub max: u32,
    /// Blocks in use.
    pub used: u32,
}

impl Usage {
    /// Blocks of the guarantee that are not in use.
    fn unused(&self) -> u32 {
        self.guaranteed.saturating_sub(self.used)
    }
}

#[derive(Debug)]
pub(super) struct Budgets {
    channels: Vec<Usage>,
    /// Sum of guarantees.
    guaranteed: u32,
    /// Blocks of all guarantees that are not in use.
    reserved: u32,
    free: u32,
    blocks: u32,
}

impl Budgets {
    pub fn new(blocks: u32, channels: usize) -> Self {
        Budgets {
            channels: vec![Usage::default(); channels],
            guaranteed: 0,
            reserved: 0,
            free: blocks,
            blocks,
        }
    }

    /// A guarantee that is set while other channels use the memory holds once they have released it.
    pub fn set(&mut self, channel: u16, budget: Option<Budget>, block_len: u64) -> Result<(), BudgetError> {
        let usage = self.channels.get_mut(usize::from(channel)).ok_or(BudgetError::Channel)?;
        let budget = budget.unwrap_or(Budget { guaranteed: 0, max: 0 });
        if budget.guaranteed > budget.max {
            return Err(BudgetError::GuaranteeAboveMax);
        }
        let blocks = |bytes: u64| u32::try_from(bytes.div_ceil(block_len)).unwrap_or(u32::MAX);
        let left = self.blocks - (self.guaranteed - usage.guaranteed);
        let guaranteed = blocks(budget.guaranteed);
        if guaranteed > left {
            return Err(BudgetError::Guarantees(left));
        }
        self.reserved -= usage.unused();
        *usage = Usage { guaranteed, max: blocks(budget.max), used: usage.used };
        self.guaranteed = self.blocks - left + guaranteed;
        self.reserved += usage.unused();
        Ok(())
    }

    pub fn admit(&self, channel: u16, blocks: u32) -> Result<(), PoolError> {
        let usage = self.channels.get(usize::from(channel)).filter(|usage| usage.max > 0);
        let usage = usage.ok_or(PoolError::UnknownChannel(channel))?;
        if blocks > usage.max.saturating_sub(usage.used) {
            return Err(PoolError::Budget);
        }
        let of_others = self.reserved - usage.unused();
        match blocks <= self.free.saturating_sub(of_others) {
            true => Ok(()),
            false => Err(PoolError::Exhausted),
        }
    }

    /// Records the use of `blocks`, which [`admit`](Self::admit) permitted.
    pub fn take(&mut self, channel: u16, blocks: u32) {
        let Some(usage) = self.channels.get_mut(usize::from(channel)) else { return };
        let before = usage.unused();
        usage.used += blocks;
        self.reserved -= before - usage.unused();
        self.free -= blocks;
    }

    pub fn give_back(&mut self, channel: u16, blocks: u32) {
        let Some(usage) = self.channels.get_mut(usize::from(channel)) else { return };
        let before = usage.unused();
        usage.used -= blocks;
        self.reserved += usage.unused() - before;
        self.free += blocks;
    }

    pub fn free(&self) -> u32 {
        self.free
    }

    /// Free blocks that are guaranteed to channels.
    pub fn reserved(&self) -> u32 {
        self.reserved.min(self.free)
    }

    pub fn usage(&self, channel: u16) -> Usage {
        self.channels.get(usize::from(channel)).copied().unwrap_or_default()
    }
}
