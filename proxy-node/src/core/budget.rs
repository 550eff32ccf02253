//! How much an application may have under way to a client: windows are granted out of the send-buffer pool, so that
//! what was granted always fits.

/// Largest window granted to one flow, in bytes.
pub const WINDOW_MAX: u32 = 256 * 1024;
const WINDOW_MIDDLE: u32 = 64 * 1024;
/// Smallest window granted; below this a new flow is refused.
pub const WINDOW_MIN: u32 = 16 * 1024;

/// The pool of bytes that windows are granted from.
#[derive(Debug)]
pub struct SendBudget {
    total: u64,
    reserved: u64,
}

impl SendBudget {
    /// A budget of `total` bytes.
    pub fn new(total: u64) -> Self {
        SendBudget { total, reserved: 0 }
    }

    /// A window for one more flow: large while less than a quarter of the pool is reserved, smaller as it fills, `None`
    /// when it is used up.
    pub fn reserve(&mut self) -> Option<u32> {
        let window = match self.reserved {
            r if r < self.total / 4 => WINDOW_MAX,
            r if r < self.total / 2 => WINDOW_MIDDLE,
            _ => WINDOW_MIN,
        };
        let window = if self.reserved + u64::from(window) > self.total { WINDOW_MIN } else { window };
        if self.reserved + u64::from(window) > self.total {
            return None;
        }
        self.reserved += u64::from(window);
        Some(window)
    }

    /// Gives a window back.
    pub fn release(&mut self, window: u32) {
        self.reserved = self.reserved.saturating_sub(u64::from(window));
    }

    /// Bytes reserved now.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_shrink_as_the_pool_fills_and_never_exceed_it() {
        let total = 4 * u64::from(WINDOW_MAX);
        let mut budget = SendBudget::new(total);
        let windows: Vec<u32> = std::iter::from_fn(|| budget.reserve()).collect();
        assert_eq!(windows[0], WINDOW_MAX);
        assert!(windows.windows(2).all(|w| w[0] >= w[1]), "windows only shrink: {windows:?}");
        assert_eq!(*windows.last().unwrap(), WINDOW_MIN);
        assert_eq!(windows.iter().map(|w| u64::from(*w)).sum::<u64>(), total);
        budget.release(WINDOW_MIN);
        assert_eq!(budget.reserve(), Some(WINDOW_MIN));
    }
}
