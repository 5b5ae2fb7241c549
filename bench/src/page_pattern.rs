//! What the pages hold: different on every page and in every version, checkable from its
//! number alone, and compressing 2:1 under lz4 like the middling of real memory.

use crate::prelude::*;

/// Words in a page.
pub const WORDS: usize = 512;

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// Words of noise, then as many that repeat: long enough that lz4's tokens hardly count.
const RUN: usize = 64;

/// Words looked at on a random access: both ends, the version and its echo, both kinds of
/// run. The whole page is looked at when reading in order.
const PROBES: [usize; 5] = [0, 1, 77, 300, 511];

/// A well-mixed word of a number (splitmix64's finaliser).
pub fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The word `i` of a page in a version.
fn word(page: u64, version: u8, i: usize) -> u64 {
    match i {
        0 => u64::from(version),
        1 => mix(page ^ u64::from(version) << 56),
        _ if (i / RUN).is_multiple_of(2) => mix(page << 9 ^ i as u64),
        _ => page.wrapping_mul(0x0101_0101),
    }
}

/// A page's words, to be written or checked in place. Volatile: the work is the access.
#[derive(Clone, Copy)]
pub struct PageAt {
    start: *mut u64,
    number: u64,
}

impl PageAt {
    /// The page `number` of the memory at `base`.
    ///
    /// # Safety
    /// `base` points to more than `number` pages of readable and writable memory that
    /// outlive the value, whose page `number` no other thread writes meanwhile.
    pub unsafe fn new(base: *mut u8, number: u64) -> Self {
        // SAFETY: inside the memory, by the caller's promise.
        unsafe { Self::at(base.add(number as usize * PAGE), number) }
    }

    /// The page `number`, wherever it lies just now.
    ///
    /// # Safety
    /// `start` points to a page of readable and writable memory that outlives the value
    /// and that no other thread writes meanwhile.
    pub unsafe fn at(start: *mut u8, number: u64) -> Self {
        Self {
            start: start.cast(),
            number,
        }
    }

    /// Writes the whole page.
    pub fn write(self, version: u8) {
        for i in 0..WORDS {
            // SAFETY: the page is readable and writable, as `new` was promised.
            unsafe {
                self.start
                    .add(i)
                    .write_volatile(word(self.number, version, i))
            };
        }
    }

    /// Reads the whole page and checks it.
    pub fn check(self, version: u8) -> Result<()> {
        (0..WORDS).try_for_each(|i| self.check_word(version, i))
    }

    /// Reads and checks a few words.
    pub fn probe(self, version: u8) -> Result<()> {
        PROBES.iter().try_for_each(|i| self.check_word(version, *i))
    }

    /// Makes it the next version by writing the words that differ.
    pub fn advance(self, to: u8) {
        for i in [0, 1] {
            // SAFETY: the page is readable and writable, as `new` was promised.
            unsafe { self.start.add(i).write_volatile(word(self.number, to, i)) };
        }
    }

    fn check_word(self, version: u8, i: usize) -> Result<()> {
        // SAFETY: the page is readable and writable, as `new` was promised.
        let found = unsafe { self.start.add(i).read_volatile() };
        let expected = word(self.number, version, i);
        if found == expected {
            return Ok(());
        }
        let page = self.number;
        bail!(ExperimentError::WrongData {
            page,
            word: i,
            found,
            expected
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u64, version: u8) -> Vec<u8> {
        let mut words = vec![0u64; WORDS * (number as usize + 1)];
        // SAFETY: the vector holds that many pages.
        unsafe { PageAt::new(words.as_mut_ptr().cast(), number) }.write(version);
        words[WORDS * number as usize..]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect()
    }

    #[test]
    fn a_page_compresses_two_to_one() {
        for number in [0, 1, 77] {
            let ratio = PAGE as f64 / lz4_flex::compress(&page(number, 3)).len() as f64;
            assert!((1.9..2.1).contains(&ratio), "{ratio}");
        }
    }

    #[test]
    fn a_stale_page_and_another_page_are_found() {
        let mut words = vec![0u64; WORDS];
        // SAFETY: the vector holds one page.
        let at = unsafe { PageAt::new(words.as_mut_ptr().cast(), 0) };
        at.write(1);
        assert!(at.check(1).is_ok() && at.probe(1).is_ok());
        assert!(at.check(2).is_err() && at.probe(2).is_err());
        at.advance(2);
        assert!(at.check(2).is_ok());
        words.fill(0);
        assert!(at.probe(2).is_err() && at.probe(0).is_err());
    }
}
