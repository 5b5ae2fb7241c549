//! The page buffers of a channel, allocated by the client.

use crate::bitset::BitSet;
use crate::geometry::MAX_PAGES;

/// The free page buffers. The server does not know them.
pub(crate) struct BufferPool {
    free: BitSet<{ MAX_PAGES / 64 }>,
    left: usize,
}

impl BufferPool {
    /// A pool of `pages` free buffers.
    pub fn new(pages: usize) -> Self {
        Self {
            free: (0..pages).collect(),
            left: pages,
        }
    }

    /// Fills `to` with free buffers, or takes no buffer if too few are free. It takes the lowest numbers, so that
    /// few buffers are ever touched, and often adjacent ones. Returns true if it took them.
    pub fn take(&mut self, to: &mut [u16]) -> bool {
        if to.len() > self.left {
            return false;
        }
        for page in to.iter_mut() {
            // The count shows that there are enough.
            *page = self.free.pop().unwrap_or_default() as u16;
        }
        self.left -= to.len();
        true
    }

    /// Returns buffers to the pool.
    pub fn give(&mut self, pages: &[u16]) {
        pages
            .iter()
            .for_each(|&page| self.free.insert(usize::from(page)));
        self.left += pages.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_is_taken_twice_and_all_are_returned() {
        let mut pool = BufferPool::new(70);
        let (mut one, mut other) = ([0; 40], [0; 30]);
        assert!(pool.take(&mut one) && pool.take(&mut other));
        assert!(!pool.take(&mut [0; 1]));
        let mut all: Vec<u16> = one.iter().chain(&other).copied().collect();
        all.sort();
        assert_eq!(all, (0..70).collect::<Vec<_>>());
        pool.give(&one);
        assert!(!pool.take(&mut [0; 41]));
        assert!(pool.take(&mut [0; 40]));
    }
}
