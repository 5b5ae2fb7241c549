//! A small set of small numbers, private to one thread: no shared memory, no allocation.

/// Numbers below `64 * WORDS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitSet<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> FromIterator<usize> for BitSet<WORDS> {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Self::EMPTY;
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

impl<const WORDS: usize> BitSet<WORDS> {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// Inserts a number.
    pub fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// Removes a number. Returns true if it was in the set.
    pub fn remove(&mut self, number: usize) -> bool {
        let was = self.has(number);
        self.0[number / 64] &= !(1 << (number % 64));
        was
    }

    /// Returns true if a number is in the set.
    pub fn has(&self, number: usize) -> bool {
        self.0[number / 64] & 1 << (number % 64) != 0
    }

    /// The smallest number.
    pub fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }

    /// Removes the smallest number.
    pub fn pop(&mut self) -> Option<usize> {
        self.first().inspect(|&number| {
            self.remove(number);
        })
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Size of the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}
