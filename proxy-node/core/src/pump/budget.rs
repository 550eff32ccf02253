//! How much an application may have under way to a client: windows are granted out of the send-buffer pool, so that
//! what was granted always fits.

/// Largest window that a flow begins with, in bytes; one whose path takes more in a round trip gets more
/// ([`SendBudget::widen`]).
pub const WINDOW_MAX: u32 = 256 * 1024;
const WINDOW_MIDDLE: u32 = 64 * 1024;
/// Smallest window granted; below this a new flow is refused.
pub const WINDOW_MIN: u32 = 16 * 1024;

/// The memory that windows are granted from: what a window is worth ([`csp_tcp::send_memory`]) is set aside for it.
#[derive(Debug)]
pub struct SendBudget {
    total: u64,
    reserved: u64,
    block_len: usize,
}

impl SendBudget {
    /// A budget of `total` bytes of memory in blocks of `block_len`.
    pub fn new(total: u64, block_len: usize) -> Self {
        SendBudget { total, reserved: 0, block_len }
    }

    /// Memory for a window; none for none.
    fn worth(&self, window: u32) -> u64 {
        if window == 0 { 0 } else { csp_tcp::send_memory(window, self.block_len) }
    }

    /// A window for one more flow: large while less than a quarter of the pool is reserved, smaller as it fills, `None`
    /// when it is used up.
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

    /// A flow could use a window of `wanted` bytes. What it has from now on: that, while large windows are granted,
    /// else `window` as before.
    pub fn widen(&mut self, window: u32, wanted: u32) -> u32 {
        let reserved = (self.reserved + self.worth(wanted)).saturating_sub(self.worth(window));
        if wanted <= window || reserved > self.total / 4 {
            return window;
        }
        self.reserved = reserved;
        wanted
    }

    /// Gives a window back.
    pub fn release(&mut self, window: u32) {
        self.reserved = self.reserved.saturating_sub(self.worth(window));
    }

    /// Gives back what lies between two windows.
    pub fn shrink(&mut self, from: u32, to: u32) {
        self.reserved = (self.reserved + self.worth(to)).saturating_sub(self.worth(from));
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
