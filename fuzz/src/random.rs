//! Random numbers from a seed: the same on every machine, for ever, since a seed names a
//! program.

/// A generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// One that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number from `least` up to `most`, both included.
    pub fn between(&mut self, least: i64, most: i64) -> i64 {
        least + (self.word() % (most - least + 1) as u64) as i64
    }

    /// Returns true once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.word().is_multiple_of(n)
    }

    /// One of `choices`, which is not empty.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.word() % choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        let mut random = Random::new(7);
        assert_eq!(
            [random.word(), random.word()],
            [0x63cb_e1e4_5932_0dd7, 0x044c_3cd7_f43c_661c]
        );
    }
}
