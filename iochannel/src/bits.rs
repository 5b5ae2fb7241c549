//! A small set of small numbers, private to one side.

/// Numbers below `64 * WORDS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bits<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Bits<WORDS> {
    /// None.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// Puts a number in.
    pub fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// Takes a number out; whether it was in.
    pub fn remove(&mut self, number: usize) -> bool {
        let was = self.has(number);
        self.0[number / 64] &= !(1 << (number % 64));
        was
    }

    /// Whether a number is in.
    pub fn has(&self, number: usize) -> bool {
        self.0[number / 64] & 1 << (number % 64) != 0
    }

    /// The least number in.
    pub fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }

    /// Takes the least number out.
    pub fn pop(&mut self) -> Option<usize> {
        self.first().inspect(|&number| {
            self.remove(number);
        })
    }

    /// Whether none is in.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// How many are in.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}
