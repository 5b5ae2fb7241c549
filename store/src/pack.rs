//! Packing one page as an lz4 block.
//!
//! Why not a library's: a page's size allows more. Positions fit in 16 bits with room to
//! spare, so the table of an earlier page need not be cleared: its positions are below
//! this page's first. Noise is skipped sooner, and a page that does not get small enough
//! is given up as soon as that shows. Nanoseconds of thread time a page, packed and unpacked,
//! beside lz4_flex 0.14 on the same pages (`cargo test --release -p store --lib
//! beside_lz4_flex -- --ignored --nocapture`):
//!
//! | pages | this | lz4_flex |
//! |---|---|---|
//! | half noise, half one value | 600, 140 | 880, 500 |
//! | program text | 3920, 1290 | 4750, 1160 |
//! | records of pointers | 3890, 1270 | 3850, 840 |
//! | nearly all zero | 530, 370 | 520, 2510 |
//! | noise, given up | 290 | 540 |
//!
//! Packed pages are up to 2 % larger. liblz4 1.10, measured beside both, packs like lz4_flex
//! and unpacks the first two kinds in 300 and 1100.
//!
//! The format is lz4's, end rules included: any lz4 decoder reads it.

use wired::PAGE;

/// A page that does not get smaller than this is not worth packing: it is kept as it is, or
/// goes to disk. Three quarters of a page.
pub(crate) const WORTH_IT: usize = PAGE / 4 * 3;

/// Bytes a copy of literals may write past its end, and lengths past [`WORTH_IT`] before
/// that is noticed.
const SLACK: usize = 64;

/// Entries of the table: 8 KiB, a quarter of the smallest first-level cache.
const TABLE_BITS: u32 = 12;
/// Positions looked at before the next step gets one byte longer, as a power of two: 16.
/// With 32, half a page of noise costs half as much again, and text packs 2 % smaller.
const PATIENCE: u32 = 4;

/// The last match starts before this: the format's rule.
const LAST_MATCH: usize = PAGE - 12;
/// Matches end before this: the format's rule.
const LAST_LITERALS: usize = PAGE - 5;
/// Matches are at least this long.
pub(crate) const MIN_MATCH: usize = 4;
/// A length of this or more goes on in further bytes.
pub(crate) const LONG: usize = 15;

/// What packs.
pub(crate) struct Packer {
    /// Where a page's words were last seen, by their hash: position plus `base`.
    table: [u16; 1 << TABLE_BITS],
    /// Position 0 of this page in the table; those of earlier pages are below.
    base: u16,
    out: [u8; WORTH_IT + SLACK],
}

impl Packer {
    pub fn new() -> Self {
        Self {
            table: [0; 1 << TABLE_BITS],
            base: 0,
            out: [0; WORTH_IT + SLACK],
        }
    }

    /// What was packed last: `len` bytes of it.
    pub fn packed(&self, len: usize) -> &[u8] {
        &self.out[..len]
    }

    /// Packs a page; how long it got, or `None` where that is not worth it.
    pub fn pack(&mut self, page: &[u8; PAGE]) -> Option<usize> {
        match self.base.checked_add(2 * PAGE as u16) {
            Some(_) => self.base += PAGE as u16,
            None => {
                self.table.fill(0);
                self.base = PAGE as u16;
            }
        }
        let mut search = Search {
            page,
            table: &mut self.table,
            base: u32::from(self.base),
        };
        let mut out = Out {
            bytes: &mut self.out,
            len: 0,
        };
        let (mut anchor, mut at) = (0, 1);
        search.seen(0, load(page, 0));
        while let Some((start, from)) = search.next_match(anchor, at) {
            let end = start + common(page, start, from);
            out.put(page, anchor..start, Some((start - from, end - start)))?;
            (anchor, at) = (end, end);
            if end <= LAST_MATCH {
                search.seen(end as u32 - 2, load(page, end - 2));
            }
        }
        out.put(page, anchor..PAGE, None)?;
        Some(out.len)
    }
}

/// The search for what repeats in a page.
struct Search<'a> {
    page: &'a [u8; PAGE],
    table: &'a mut [u16; 1 << TABLE_BITS],
    base: u32,
}

impl Search<'_> {
    /// Notes the position, and returns the last one of the same hash: 0 if there is none.
    #[inline(always)]
    fn seen(&mut self, at: u32, word: u64) -> u32 {
        let slot = &mut self.table[hash(word)];
        let before = u32::from(*slot);
        *slot = (self.base + at) as u16;
        // No branch: which of the two it is cannot be foretold.
        before.saturating_sub(self.base)
    }

    /// The next match at or after `at`: where it starts, and where the same bytes are.
    #[inline(always)]
    fn next_match(&mut self, anchor: usize, at: usize) -> Option<(usize, usize)> {
        let page = self.page;
        let mut at = at as u32;
        let mut looks = 1u32 << PATIENCE;
        loop {
            if at > LAST_MATCH as u32 {
                return None;
            }
            let word = load(page, at as usize);
            let from = self.seen(at, word);
            if load_half(page, from as usize) == word as u32 {
                let (mut at, mut from) = (at as usize, from as usize);
                while at > anchor && from > 0 && page[at - 1] == page[from - 1] {
                    at -= 1;
                    from -= 1;
                }
                return Some((at, from));
            }
            at += looks >> PATIENCE;
            looks += 1;
        }
    }
}

/// The packed page, as far as it is written.
struct Out<'a> {
    bytes: &'a mut [u8; WORTH_IT + SLACK],
    len: usize,
}

impl Out<'_> {
    /// Writes a sequence: literals, then a match (distance, length) unless it is the last.
    #[inline(always)]
    fn put(
        &mut self,
        page: &[u8; PAGE],
        literals: std::ops::Range<usize>,
        found: Option<(usize, usize)>,
    ) -> Option<()> {
        let count = literals.len();
        // Token, lengths, distance: with the literals they must be worth it.
        if self.len + count + count / 255 + 2 > WORTH_IT {
            return None;
        }
        let token = self.len;
        self.len += 1;
        let high = self.put_length(count);
        // SAFETY: `literals` lie in the page, and their end in `bytes` is at most at
        // `WORTH_IT`, by the check above; 16 bytes at a time only where both have them.
        unsafe {
            let from = page.as_ptr().add(literals.start);
            let to = self.bytes.as_mut_ptr().add(self.len);
            if literals.end + 16 <= PAGE {
                copy16s(from, to, count);
            } else {
                std::ptr::copy_nonoverlapping(from, to, count);
            }
        }
        self.len += count;
        let mut low = 0;
        if let Some((distance, length)) = found {
            self.bytes[self.len..self.len + 2].copy_from_slice(&(distance as u16).to_le_bytes());
            self.len += 2;
            low = self.put_length(length - MIN_MATCH);
        }
        self.bytes[token] = high << 4 | low;
        Some(())
    }

    /// Writes what of a length does not fit in its half of the token, and returns what does.
    #[inline(always)]
    fn put_length(&mut self, length: usize) -> u8 {
        if length < LONG {
            return length as u8;
        }
        let mut rest = length - LONG;
        while rest >= 255 {
            self.bytes[self.len] = 255;
            self.len += 1;
            rest -= 255;
        }
        self.bytes[self.len] = rest as u8;
        self.len += 1;
        LONG as u8
    }
}

/// The eight bytes at `at`, which is at most `LAST_MATCH`.
#[inline(always)]
fn load(page: &[u8; PAGE], at: usize) -> u64 {
    debug_assert!(at <= PAGE - 8);
    // SAFETY: as above; all callers' positions come from `next_match` and `common`, which
    // bound them, or from the table, which holds such positions only.
    unsafe { page.as_ptr().add(at).cast::<u64>().read_unaligned().to_le() }
}

/// The four bytes at `at`, which is at most `LAST_MATCH`.
#[inline(always)]
fn load_half(page: &[u8; PAGE], at: usize) -> u32 {
    debug_assert!(at <= PAGE - 4);
    // SAFETY: as in `load`.
    unsafe { page.as_ptr().add(at).cast::<u32>().read_unaligned().to_le() }
}

/// Of five bytes: with four, words of a heap, whose upper halves are alike, collide.
#[inline(always)]
fn hash(word: u64) -> usize {
    // 2^40 over the golden ratio.
    ((word << 24).wrapping_mul(0x9e_3779_b97f) >> (64 - TABLE_BITS)) as usize
}

/// How many bytes from `at` on are those from `from` on.
#[inline(always)]
fn common(page: &[u8; PAGE], at: usize, from: usize) -> usize {
    let mut len = MIN_MATCH;
    while at + len + 8 <= LAST_LITERALS {
        let differ = load(page, at + len) ^ load(page, from + len);
        if differ != 0 {
            return len + differ.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    while at + len < LAST_LITERALS && page[at + len] == page[from + len] {
        len += 1;
    }
    len
}

/// Copies `count` bytes, 16 at a time: up to 15 more, and 16 if none.
///
/// # Safety
/// Both have `count` bytes and 16 more, and do not overlap within 16.
#[inline(always)]
pub(crate) unsafe fn copy16s(from: *const u8, to: *mut u8, count: usize) {
    let mut done = 0;
    loop {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = from.add(done).cast::<[u64; 2]>().read_unaligned();
            to.add(done).cast::<[u64; 2]>().write_unaligned(bytes);
        }
        done += 16;
        if done >= count {
            return;
        }
    }
}
