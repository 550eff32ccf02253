//! Sizes of files: one size, or SPECweb99's static mix.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// SPECweb99's classes: the share of requests, and the length of the smallest file. SPEC counts in
/// 1,024 bytes and has then a mean of 14,727; in thousands the mean is 14,382, and the paper's is
/// 14,384.
const CLASSES: [(f64, u32); 4] = [(0.35, 100), (0.50, 1_000), (0.14, 10_000), (0.01, 100_000)];
/// Files of a class by popularity: the n-th is requested with a weight of 1/n (Zipf), and has this many
/// times the length of the smallest.
const BY_POPULARITY: [u32; 9] = [5, 4, 6, 3, 7, 2, 8, 9, 1];

/// Sizes of files and how often each is requested.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Size in bytes, and the sum of the shares up to it.
    files: Vec<(u32, f64)>,
}

impl Sizes {
    /// Every file has this size.
    pub fn fixed(bytes: u32) -> Self {
        Sizes { files: vec![(bytes, 1.0)] }
    }

    /// SPECweb99's static mix: 36 files from 100 to 900,000 bytes.
    pub fn specweb99() -> Self {
        let harmonic: f64 = (1..=BY_POPULARITY.len()).map(|rank| 1.0 / rank as f64).sum();
        let mut sum = 0.0;
        let mut files = Vec::with_capacity(CLASSES.len() * BY_POPULARITY.len());
        for (share, smallest) in CLASSES {
            for (rank, times) in BY_POPULARITY.iter().enumerate() {
                sum += share / (rank + 1) as f64 / harmonic;
                files.push((smallest * times, sum));
            }
        }
        Sizes { files }
    }

    /// Returns a size.
    pub fn draw(&self, random: &mut ChaCha8Rng) -> u32 {
        if let [(bytes, _)] = self.files[..] {
            return bytes;
        }
        let drawn: f64 = random.random();
        let at = self.files.partition_point(|(_, sum)| *sum <= drawn);
        self.files[at.min(self.files.len() - 1)].0
    }

    /// Returns each size with its share of requests.
    pub fn shares(&self) -> impl Iterator<Item = (u32, f64)> {
        let mut before = 0.0;
        self.files.iter().map(move |(bytes, sum)| {
            let share = sum - before;
            before = *sum;
            (*bytes, share)
        })
    }

    /// Returns the mean size in bytes.
    pub fn mean(&self) -> f64 {
        self.shares().map(|(bytes, share)| f64::from(bytes) * share).sum()
    }

    /// Returns the largest size in bytes.
    pub fn largest(&self) -> u32 {
        self.files.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0)
    }
}

/// Returns a time that is distributed exponentially with this mean.
pub fn exponential(random: &mut ChaCha8Rng, mean: f64) -> f64 {
    let uniform: f64 = random.random();
    // 1 − uniform is in (0, 1].
    -mean * (1.0 - uniform).ln()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::{Sizes, exponential};

    #[test]
    fn the_mix_has_the_papers_mean() {
        let mix = Sizes::specweb99();
        assert!((mix.mean() / 14_384.0 - 1.0).abs() < 0.001, "{}", mix.mean());
        assert_eq!((mix.shares().count(), mix.largest()), (36, 900_000));
        assert!((mix.shares().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
        let mut random = ChaCha8Rng::seed_from_u64(1999);
        let count = 200_000;
        let drawn: f64 = (0..count).map(|_| f64::from(mix.draw(&mut random))).sum::<f64>() / f64::from(count);
        assert!((drawn / mix.mean() - 1.0).abs() < 0.02, "{drawn}");
    }

    #[test]
    fn times_between_arrivals_have_the_mean_and_deviation_of_an_exponential_distribution() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let drawn: Vec<f64> = (0..100_000).map(|_| exponential(&mut random, 50.0)).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let variance = drawn.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
        assert!((mean - 50.0).abs() < 0.7 && (variance.sqrt() - 50.0).abs() < 1.5, "{mean} {variance}");
    }
}
