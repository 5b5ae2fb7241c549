//! Zipf's distribution, sampled without a table, which `rand_distr` does by rejection: a table of
//! 131,072 probabilities would take part in the memory that is measured.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf as Law};

/// YCSB's exponent, which the field's key-value benchmarks use.
const EXPONENT: f64 = 0.99;

/// Ranks from 0, rank k with a probability in proportion to (k + 1)^-0.99.
#[derive(Clone, Copy, Debug)]
pub struct Zipf(Law<f64>);

impl Zipf {
    /// Of `ranks` ranks, at least one.
    pub fn new(ranks: u64) -> Self {
        Self(Law::new(ranks.max(1) as f64, EXPONENT).expect("it has a rank"))
    }

    /// The rank that goes with a random number.
    pub fn rank(&self, random: u64) -> u64 {
        self.0.sample(&mut SmallRng::seed_from_u64(random)) as u64 - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_pattern::mix;

    #[test]
    fn ranks_come_as_often_as_their_probability_says() {
        let (ranks, draws) = (1000, 400_000);
        let zipf = Zipf::new(ranks);
        let mut seen = vec![0u64; ranks as usize];
        for i in 0..draws {
            seen[zipf.rank(mix(i)) as usize] += 1;
        }
        let weight = |rank: usize| ((rank + 1) as f64).powf(-0.99);
        let total: f64 = (0..ranks as usize).map(weight).sum();
        for rank in [0, 1, 9, 99] {
            let expected = weight(rank) / total * draws as f64;
            let ratio = seen[rank] as f64 / expected;
            assert!((0.9..1.1).contains(&ratio), "rank {rank}: {ratio}");
        }
        assert!(seen[ranks as usize - 1] > 0);
    }

    #[test]
    fn one_rank_is_always_the_first() {
        let zipf = Zipf::new(1);
        assert!((0..100).all(|i| zipf.rank(mix(i)) == 0));
    }
}
