//! Trans: reads what is mapped at an address (Self-Paging in Nemesis, section 6.3).
//!
//! Linux exposes a process's page table in `/proc/self/pagemap`: one 64-bit word a page, and since
//! 6.7 a scan of a range for pages of given categories. It hides the physical frame and shows
//! presence and protection.
//!
//! Measured (`cargo run --release -p translation --example translation_costs`): the pages of 2 MiB
//! with 512 / 64 / 8 present, by scan 7.6 / 2.1 / 1.4 us, by reading 16.9 / 3.9 / 2.5 us.

use crate::capability::{Capabilities, Feature};
use crate::uapi;
use linux_raw_sys::general as sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, pread};
use std::ops::Range;
use wired::PAGE;

/// Bits of a pagemap word (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
const WRITE_PROTECTED: u64 = 1 << 57;

/// Words of one read: handler threads run on small stacks.
const WORDS: usize = 256;

/// The page table's state of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// A page is mapped.
    pub present: bool,
    /// The kernel swapped the page out or left a marker in its place: poison reads as swapped, too.
    pub swapped: bool,
    /// Stores fault by userfaultfd.
    pub write_protected: bool,
    /// True if the page was stored to since it was last marked clean. Known only where stores are
    /// tracked ([`crate::UserfaultOptions::async_write_protect`]).
    pub dirty: Option<bool>,
    /// The page belongs to a file or to shared memory.
    pub file_or_shared: bool,
}

/// The page table of an address space: that of the process that opened it, of which a child opens its own after fork, or
/// another's. Open it early: a process that changed its user may lack permission.
#[derive(Debug)]
pub struct Pagemap {
    fd: OwnedFd,
    scan: bool,
}

impl Pagemap {
    /// Opens `/proc/self/pagemap`.
    pub fn open(capabilities: &Capabilities) -> Result<Self, Errno> {
        let fd = rustix::fs::open(
            c"/proc/self/pagemap",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            fd,
            scan: capabilities.has(Feature::PagemapScan),
        })
    }

    /// Opens the page table of another process, which is read a page at a time.
    pub fn of_process(pid: i32) -> Result<Self, Errno> {
        let path = format!("/proc/{pid}/pagemap");
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd, scan: false })
    }

    /// Reads what is mapped at `addr`.
    pub fn trans(&self, addr: usize) -> Result<Translation, Errno> {
        let mut word = [0];
        self.entries(addr, &mut word)?;
        Ok(Translation {
            present: word[0] & PRESENT != 0,
            swapped: word[0] & SWAPPED != 0,
            write_protected: word[0] & WRITE_PROTECTED != 0,
            dirty: self.dirty(addr & !(PAGE - 1))?,
            file_or_shared: word[0] & FILE_OR_SHARED != 0,
        })
    }

    fn dirty(&self, page: usize) -> Result<Option<bool>, Errno> {
        if !self.scan {
            return Ok(None);
        }
        let tracked = u64::from(sys::PAGE_IS_WPALLOWED);
        let mut dirty = None;
        let request = Scan {
            required: tracked,
            any_of: 0,
            shown: tracked | u64::from(sys::PAGE_IS_WRITTEN),
            flags: 0,
        };
        self.scan(page, PAGE, request, |_, categories| {
            dirty = Some(categories & u64::from(sys::PAGE_IS_WRITTEN) != 0);
        })?;
        Ok(dirty)
    }

    /// Sets a bit for each page of the range that has contents (present, or swapped out by the
    /// kernel), clears the others, and returns how many have. `bitmap` holds 64 pages a word.
    ///
    /// # Panics
    /// If the bitmap is smaller than the range.
    pub fn present_pages(
        &self,
        addr: usize,
        len: usize,
        bitmap: &mut [u64],
    ) -> Result<usize, Errno> {
        let pages = len / PAGE;
        let bitmap = &mut bitmap[..pages.div_ceil(64)];
        bitmap.fill(0);
        let mut mark = |range: Range<usize>| {
            for page in range {
                bitmap[page / 64] |= 1 << (page % 64);
            }
        };
        self.runs_with_contents(addr, len, &mut mark)?;
        Ok(bitmap.iter().map(|word| word.count_ones() as usize).sum())
    }

    /// Calls `each` with the index of every page of the range that a private mapping of an object
    /// has copied: its contents are nowhere else.
    pub fn private_copies(
        &self,
        addr: usize,
        len: usize,
        mut each: impl FnMut(usize),
    ) -> Result<(), Errno> {
        /// Few: a handler calls this on a signal stack of 8 KiB.
        const WORDS: usize = 64;
        let mut words = [0; WORDS];
        for first in (0..len / PAGE).step_by(WORDS) {
            let words = &mut words[..WORDS.min(len / PAGE - first)];
            self.entries(addr + first * PAGE, words)?;
            let copied = |word: &u64| word & (PRESENT | SWAPPED) != 0 && word & FILE_OR_SHARED == 0;
            for (page, _) in words.iter().enumerate().filter(|(_, word)| copied(word)) {
                each(first + page);
            }
        }
        Ok(())
    }

    /// Passes the runs of pages with contents to `each`, by page index in the range, rising.
    pub fn runs_with_contents(
        &self,
        addr: usize,
        len: usize,
        mut each: impl FnMut(Range<usize>),
    ) -> Result<(), Errno> {
        if self.scan {
            let kinds = u64::from(sys::PAGE_IS_PRESENT | sys::PAGE_IS_SWAPPED);
            let request = Scan {
                required: 0,
                any_of: kinds,
                shown: kinds,
                flags: 0,
            };
            return self.scan(addr, len, request, |range, _| {
                each((range.start - addr) / PAGE..(range.end - addr) / PAGE);
            });
        }
        let mut words = [0; WORDS];
        for first in (0..len / PAGE).step_by(WORDS) {
            let words = &mut words[..WORDS.min(len / PAGE - first)];
            self.entries(addr + first * PAGE, words)?;
            for run in runs(words, |word| word & (PRESENT | SWAPPED) != 0) {
                each(first + run.start..first + run.end);
            }
        }
        Ok(())
    }

    /// Reads the words of the pages from `addr` on.
    pub(crate) fn entries(&self, addr: usize, words: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: eight bytes each; every bit pattern is a valid value.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(words))
        };
        let offset = (addr / PAGE * size_of::<u64>()) as u64;
        let mut read = 0;
        while read < bytes.len() {
            match pread(&self.fd, &mut bytes[read..], offset + read as u64) {
                // The address lies past the end of user addresses.
                Ok(0) => return Err(Errno::FAULT),
                Ok(n) => read += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn scan(
        &self,
        addr: usize,
        len: usize,
        want: Scan,
        mut each: impl FnMut(Range<usize>, u64),
    ) -> Result<(), Errno> {
        const REGIONS: usize = 64;
        let mut regions = [uapi::page_region {
            start: 0,
            end: 0,
            categories: 0,
        }; REGIONS];
        let end = (addr + len) as u64;
        let mut start = addr as u64;
        while start < end {
            let mut argument = uapi::pm_scan_arg {
                size: size_of::<uapi::pm_scan_arg>() as u64,
                flags: want.flags,
                start,
                end,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: want.required,
                category_anyof_mask: want.any_of,
                return_mask: want.shown,
            };
            // SAFETY: the kernel writes at most `REGIONS` regions.
            let found =
                unsafe { uapi::call::<{ uapi::PAGEMAP_SCAN }, _>(self.fd.as_fd(), &mut argument) }?;
            for region in &regions[..found] {
                each(
                    region.start as usize..region.end as usize,
                    region.categories,
                );
            }
            start = argument.walk_end;
        }
        Ok(())
    }
}

/// Categories of a scan, as in `struct pm_scan_arg`.
struct Scan {
    required: u64,
    any_of: u64,
    shown: u64,
    flags: u64,
}

/// Maximal runs of words that satisfy `kind`, by index.
pub(crate) fn runs(
    words: &[u64],
    kind: impl Fn(u64) -> bool,
) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < words.len() && !kind(words[at]) {
            at += 1;
        }
        let start = at;
        while at < words.len() && kind(words[at]) {
            at += 1;
        }
        (start < at).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_maximal_and_in_order() {
        let words = [0, 1, 1, 0, 0, 1];
        assert_eq!(runs(&words, |w| w == 1).collect::<Vec<_>>(), [1..3, 5..6]);
        assert_eq!(runs(&[], |_| true).count(), 0);
        assert_eq!(
            runs(&[1], |w| w == 1).collect::<Vec<_>>(),
            vec![Range { start: 0, end: 1 }]
        );
    }
}
