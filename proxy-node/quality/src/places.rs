//! Who may use the table of items: each flow has some places for itself, so that none can take what all
//! others need; the rest is common.

#[derive(Debug, Default)]
pub(crate) struct Places {
    common: u32,
    taken: u32,
}

impl Places {
    /// Divides a table of `items_max`: half of it in equal parts of at least one for `flows` flows. Returns
    /// such a part.
    pub fn divide(&mut self, items_max: u32, flows: u32) -> u32 {
        let own = (items_max / 2).checked_div(flows).unwrap_or(0).max(1);
        self.common = items_max.saturating_sub(own * flows);
        self.taken = 0;
        own
    }

    /// Returns whether there is a place for a flow that has `own` places for itself and `items` items.
    #[inline]
    pub fn has(&self, own: u32, items: u32) -> bool {
        items < own || self.taken < self.common
    }

    /// Records that a flow that had `items` has one more.
    #[inline]
    pub fn add(&mut self, own: u32, items: u32) {
        self.taken += u32::from(items >= own);
    }

    /// Records that a flow has `after` items instead of `before`.
    #[inline]
    pub fn remove(&mut self, own: u32, before: u32, after: u32) {
        self.taken = self.taken.saturating_sub(before.saturating_sub(after.max(own)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flow_takes_what_others_have_for_themselves() {
        let mut places = Places::default();
        assert_eq!(places.divide(20, 5), 2);
        let mut items = 0;
        while places.has(2, items) {
            places.add(2, items);
            items += 1;
        }
        assert_eq!(items, 12);
        assert!(places.has(2, 1) && !places.has(2, 2));
        places.remove(2, 12, 11);
        assert!(places.has(2, 2));
        places.remove(2, 11, 0);
        assert_eq!(places.taken, 0);
    }
}
