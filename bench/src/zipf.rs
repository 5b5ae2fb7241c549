//! Zipf's distribution, sampled without a table: a table of 131,072 probabilities would
//! take part in the memory that is measured.
//!
//! By rejection-inversion (W. Hörmann and G. Derflinger, *Rejection-inversion to generate
//! variates from monotone discrete distributions*, 1996): a point under the hat
//! x^-exponent is inverted, rounded to a rank, and taken if it is under the rank's bar.

use crate::page_pattern::mix;

/// YCSB's exponent, which the field's key-value benchmarks use.
pub const EXPONENT: f64 = 0.99;

/// Ranks 1 to n, rank k with a probability in proportion to k^-exponent.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    ranks: f64,
    exponent: f64,
    /// The hat's integral where ranks begin and where they end.
    first: f64,
    last: f64,
    /// A rank this little above its point is taken without a look at the bar.
    near: f64,
}

impl Zipf {
    /// Of `ranks` ranks, at least one; the exponent is not 1.
    pub fn new(ranks: u64, exponent: f64) -> Self {
        let mut zipf = Self {
            ranks: ranks as f64,
            exponent,
            first: 0.0,
            last: 0.0,
            near: 0.0,
        };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.ranks + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.bar(2.0));
        zipf
    }

    /// The rank, from 0, that goes with a random number.
    pub fn rank(&self, mut random: u64) -> u64 {
        loop {
            let part = (random >> 11) as f64 / (1u64 << 53) as f64;
            let point = self.last + part * (self.first - self.last);
            let x = self.inverse(point);
            let rank = x.round().clamp(1.0, self.ranks);
            if rank - x <= self.near || point >= self.integral(rank + 0.5) - self.bar(rank) {
                return rank as u64 - 1;
            }
            random = mix(random);
        }
    }

    fn bar(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    fn integral(&self, x: f64) -> f64 {
        (x.powf(1.0 - self.exponent) - 1.0) / (1.0 - self.exponent)
    }

    fn inverse(&self, y: f64) -> f64 {
        (1.0 + y * (1.0 - self.exponent)).powf(1.0 / (1.0 - self.exponent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_as_often_as_their_probability_says() {
        let (ranks, draws) = (1000, 400_000);
        let zipf = Zipf::new(ranks, 0.99);
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
        let zipf = Zipf::new(1, 0.99);
        assert!((0..100).all(|i| zipf.rank(mix(i)) == 0));
    }
}
