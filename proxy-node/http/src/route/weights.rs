//! Weights: which of several pools a request goes to.

/// Weights of choices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Weights {
    /// The sum of the weights up to each choice.
    sums: Box<[u64]>,
}

impl Weights {
    /// Creates the weights of choices, in order. A choice of weight 0 is never taken.
    pub fn new(weights: impl IntoIterator<Item = u32>) -> Self {
        let sums = weights.into_iter().scan(0u64, |sum, weight| {
            *sum += u64::from(weight);
            Some(*sum)
        });
        Weights { sums: sums.collect() }
    }

    /// Returns the choice for a number that the caller draws at random from all of its type. `None`: all
    /// weights are 0.
    pub fn pick(&self, draw: u32) -> Option<usize> {
        let total = *self.sums.last()?;
        let at = ((u128::from(draw) * u128::from(total)) >> 32) as u64;
        (total > 0).then(|| self.sums.partition_point(|sum| *sum <= at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_taken_by_weight() {
        let weights = Weights::new([1, 0, 3]);
        let mut counts = [0; 3];
        for draw in (0..=u32::MAX).step_by(1 << 24) {
            counts[weights.pick(draw).unwrap()] += 1;
        }
        assert_eq!(counts, [64, 0, 192]);
        assert_eq!(weights.pick(u32::MAX), Some(2));
        assert_eq!(Weights::new([0, 0]).pick(7), None);
        assert_eq!(Weights::new([]).pick(7), None);
        assert_eq!(Weights::new([u32::MAX; 9]).pick(u32::MAX), Some(8));
    }
}
