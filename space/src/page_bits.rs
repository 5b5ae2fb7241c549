//! A set of pages of a run.

/// A bit for each page of a run.
pub(crate) struct PageBits(Vec<u64>);

impl PageBits {
    pub(crate) fn new(pages: usize) -> Self {
        Self(vec![0; pages.div_ceil(64)])
    }

    pub(crate) fn contains(&self, page: usize) -> bool {
        self.0[page / 64] & 1 << (page % 64) != 0
    }

    pub(crate) fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    pub(crate) fn remove(&mut self, page: usize) {
        self.0[page / 64] &= !(1 << (page % 64));
    }
}
