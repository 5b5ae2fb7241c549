//! Unpacking one page from an lz4 block, whatever its bytes are.
//!
//! What is unpacked lies in memory that other processes write too: every length and every
//! distance is checked before it is used. The bytes themselves are a private copy, so that
//! what was checked stays as it is.

use crate::pack::{LONG, MIN_MATCH, copy16s};
use wired::PAGE;

/// Bytes behind a packed page that a copy may read, and ignores.
const SLACK: usize = 32;

/// Room for a packed page, or for one that is not packed.
pub(crate) struct Packed([u8; PAGE + SLACK]);

/// Where unpacking stands.
struct Cursor<'a> {
    from: &'a [u8; PAGE + SLACK],
    len: usize,
    at: usize,
}

impl Packed {
    pub fn new() -> Self {
        Self([0; PAGE + SLACK])
    }

    /// To be filled.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[..PAGE]
    }

    /// Unpacks the first `len` bytes into `page`; false if they are not a page.
    pub fn unpack(&self, len: usize, page: &mut [u8; PAGE]) -> bool {
        if len >= PAGE {
            page.copy_from_slice(&self.0[..PAGE]);
            return len == PAGE;
        }
        let cursor = Cursor {
            from: &self.0,
            len,
            at: 0,
        };
        cursor.unpack(page).is_some()
    }
}

impl Cursor<'_> {
    fn unpack(mut self, page: &mut [u8; PAGE]) -> Option<()> {
        let mut done = 0;
        loop {
            let token = usize::from(self.byte()?);
            let literals = self.length(token >> 4)?;
            if literals > self.len - self.at || literals > PAGE - done {
                return None;
            }
            // SAFETY: both ends were just checked; 16 bytes at a time only where the page
            // has room for them, and the packed bytes have slack.
            unsafe {
                let from = self.from.as_ptr().add(self.at);
                let to = page.as_mut_ptr().add(done);
                if done + literals + 16 <= PAGE {
                    copy16s(from, to, literals);
                } else {
                    std::ptr::copy_nonoverlapping(from, to, literals);
                }
            }
            self.at += literals;
            done += literals;
            if self.at == self.len {
                return (done == PAGE).then_some(());
            }
            let distance = self.distance()?;
            let length = self.length(token & LONG)? + MIN_MATCH;
            if distance == 0 || distance > done || length > PAGE - done {
                return None;
            }
            // SAFETY: just checked.
            unsafe { repeat(page, done, distance, length) };
            done += length;
        }
    }

    #[inline(always)]
    fn byte(&mut self) -> Option<u8> {
        let byte = (self.at < self.len).then(|| self.from[self.at]);
        self.at += 1;
        byte
    }

    #[inline(always)]
    fn distance(&mut self) -> Option<usize> {
        // `at` is at most `len` here, and there is slack behind.
        let bytes = [self.from[self.at], self.from[self.at + 1]];
        self.at += 2;
        (self.at <= self.len).then(|| usize::from(u16::from_le_bytes(bytes)))
    }

    /// A length of which the token has `short`. At most some 2^20: 255 for each byte.
    #[inline(always)]
    fn length(&mut self, short: usize) -> Option<usize> {
        let mut length = short;
        if short == LONG {
            loop {
                let byte = self.byte()?;
                length += usize::from(byte);
                if byte != 255 {
                    break;
                }
            }
        }
        Some(length)
    }
}

/// Copies the `length` bytes that begin `distance` before `done` to there: they repeat where
/// the two overlap.
///
/// # Safety
/// 0 < `distance` <= `done`, and `done + length` <= `PAGE`.
#[inline(always)]
unsafe fn repeat(page: &mut [u8; PAGE], done: usize, distance: usize, length: usize) {
    // SAFETY: every access is inside the page: reads at or after `done - distance`, writes
    // before `done + length`, or before the end of what `roomy` says there is.
    unsafe {
        let to = page.as_mut_ptr().add(done);
        let from = to.sub(distance);
        let roomy = done + length + 24 <= PAGE;
        if roomy && distance >= 8 && length <= 18 {
            // Most matches.
            copy_word(from, to);
            copy_word(from.add(8), to.add(8));
            copy_word(from.add(16), to.add(16));
        } else if roomy && distance >= 16 {
            copy16s(from, to, length);
        } else if roomy && distance.is_power_of_two() {
            // A run of one value of 1, 2, 4 or 8 bytes.
            let value = match distance {
                1 => u64::from(from.read()) * 0x0101_0101_0101_0101,
                2 => u64::from(from.cast::<u16>().read_unaligned()) * 0x1_0001_0001_0001,
                4 => u64::from(from.cast::<u32>().read_unaligned()) * 0x1_0000_0001,
                _ => from.cast::<u64>().read_unaligned(),
            };
            for at in (0..length).step_by(16) {
                to.add(at).cast::<[u64; 2]>().write_unaligned([value; 2]);
            }
        } else {
            // What repeats gets longer with each copy.
            let mut copied = 0;
            while copied < length {
                let count = (distance + copied).min(length - copied);
                std::ptr::copy_nonoverlapping(from, to.add(copied), count);
                copied += count;
            }
        }
    }
}

/// # Safety
/// Both have eight bytes.
#[inline(always)]
unsafe fn copy_word(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let word = from.cast::<u64>().read_unaligned();
        to.cast::<u64>().write_unaligned(word);
    }
}
