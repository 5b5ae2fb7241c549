//! A load that ends: pages that are written, checked and discarded at random.

use super::MemoryPart;

impl MemoryPart {
    /// Writes, checks and discards pages of this thread's alone. Returns how many read anything else than was last written.
    pub fn storm(self, thread: usize, first: usize, pages: usize, rounds: usize) -> usize {
        let memory = self.memory();
        let mut random = fastrand::Rng::with_seed(thread as u64);
        let mut versions: Vec<Option<u64>> = vec![Some(0); pages];
        let mut wrong = 0;
        for round in 0..rounds {
            let page = random.usize(..pages);
            if !memory.has(first + page, versions[page]) {
                wrong += 1;
            }
            match random.u32(..4) {
                0 => {
                    let count = random.usize(1..=8).min(pages - page);
                    memory.remove(first + page, count);
                    versions[page..page + count].fill(None);
                }
                1 | 2 => {
                    versions[page] = Some(round as u64 + 1);
                    memory.write(first + page, round as u64 + 1);
                }
                _ => {}
            }
        }
        let check = |page: &usize| !memory.has(first + page, versions[*page]);
        wrong + (0..pages).filter(check).count()
    }
}
