//! Limits how much data applications may have in flight to clients: windows are granted from the send-buffer
//! pool, so that granted bytes always fit.

/// Largest initial window of a flow, in bytes; a flow whose path carries more in a round trip gets a larger
/// one ([`SendBudget::widen`]).
pub const WINDOW_MAX: u32 = 256 * 1024;
const WINDOW_MIDDLE: u32 = 64 * 1024;
/// Smallest window granted; if there is no memory for it, a new flow is refused.
pub const WINDOW_MIN: u32 = 16 * 1024;

/// The memory that windows are granted from: each window reserves [`csp_tcp::send_memory`] bytes of it.
#[derive(Debug)]
pub struct SendBudget {
    total: u64,
    reserved: u64,
    block_len: usize,
}

impl SendBudget {
    /// Creates a budget of `total` bytes of memory in blocks of `block_len`.
    pub fn new(total: u64, block_len: usize) -> Self {
        SendBudget { total, reserved: 0, block_len }
    }

    /// Returns the memory that a window needs; none for a window of 0.
    pub(crate) fn worth(&self, window: u32) -> u64 {
        if window == 0 { 0 } else { csp_tcp::send_memory(window, self.block_len) }
    }

    /// Returns a window for a new flow: large while less than a quarter of the pool is reserved, smaller as
    /// it fills, `None` if it is exhausted.
    pub fn reserve(&mut self) -> Option<u32> {
        let window = match self.reserved {
            r if r < self.total / 4 => WINDOW_MAX,
            r if r < self.total / 2 => WINDOW_MIDDLE,
            _ => WINDOW_MIN,
        };
        let window = if self.reserved + self.worth(window) > self.total { WINDOW_MIN } else { window };
        if self.reserved + self.worth(window) > self.total {
            return None;
        }
        self.reserved += self.worth(window);
        Some(window)
    }

    /// Returns the new window of a flow that could use `wanted` bytes: `wanted` as long as at most a quarter
    /// of the pool is reserved, otherwise `window` unchanged.
    pub fn widen(&mut self, window: u32, wanted: u32) -> u32 {
        let reserved = (self.reserved + self.worth(wanted)).saturating_sub(self.worth(window));
        if wanted <= window || reserved > self.total / 4 {
            return window;
        }
        self.reserved = reserved;
        wanted
    }

    /// Releases a window.
    pub fn release(&mut self, window: u32) {
        self.reserved = self.reserved.saturating_sub(self.worth(window));
    }

    /// Releases the difference between two windows.
    pub fn shrink(&mut self, from: u32, to: u32) {
        self.reserved = (self.reserved + self.worth(to)).saturating_sub(self.worth(from));
    }

    /// Returns the number of bytes that are not reserved.
    pub(crate) fn free(&self) -> u64 {
        self.total.saturating_sub(self.reserved)
    }

    /// Returns the number of reserved bytes.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_shrink_as_the_pool_fills_and_never_exceed_it() {
        let total = 4 * csp_tcp::send_memory(WINDOW_MAX, 512);
        let mut budget = SendBudget::new(total, 512);
        let windows: Vec<u32> = std::iter::from_fn(|| budget.reserve()).collect();
        assert_eq!(windows[0], WINDOW_MAX);
        assert!(windows.windows(2).all(|w| w[0] >= w[1]), "windows only shrink: {windows:?}");
        assert_eq!(*windows.last().unwrap(), WINDOW_MIN);
        let worth: u64 = windows.iter().map(|w| csp_tcp::send_memory(*w, 512)).sum();
        assert_eq!(worth, budget.reserved());
        assert!(worth <= total && total - worth < csp_tcp::send_memory(WINDOW_MIN, 512));
        budget.release(WINDOW_MIN);
        assert_eq!(budget.reserve(), Some(WINDOW_MIN));
        windows.iter().for_each(|window| budget.shrink(*window, window / 2));
        windows.iter().for_each(|window| budget.release(window / 2));
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn a_window_is_widened_out_of_the_first_quarter_of_the_pool_only() {
        let mut budget = SendBudget::new(4 * csp_tcp::send_memory(4 * WINDOW_MAX, 512), 512);
        let window = budget.reserve().unwrap();
        assert_eq!(budget.widen(window, window / 2), window, "nothing is taken back");
        assert_eq!(budget.widen(window, 2 * window), 2 * window);
        assert_eq!(budget.widen(2 * window, 5 * window), 2 * window, "more than the quarter");
        assert_eq!(budget.widen(2 * window, 4 * window), 4 * window);
        assert_eq!(budget.reserve(), Some(WINDOW_MIDDLE), "others still find a window");
        assert_eq!(budget.widen(WINDOW_MIDDLE, WINDOW_MAX), WINDOW_MIDDLE);
        budget.release(WINDOW_MIDDLE);
        budget.release(4 * window);
        assert_eq!(budget.reserved(), 0);
    }
}
