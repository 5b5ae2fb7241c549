//! A swap file that grows ahead of need, and shrinks when its end is empty.
//!
//! The tables are sized for the maximum. Only the file's first part is allocated; bloks beyond that
//! are marked as taken, without an owner. One thread, in the process that made the store, allocates
//! the next extent while bloks are still free, and opens its bloks then. So no eviction waits for
//! the file system, and this thread finds out that a disk has become full: the file stays as it is,
//! and the store gets full.
//!
//! Rule: a blok is open only while it is allocated. The last extent is freed when all its bloks are
//! free and enough others are: it is closed first, word by word, then its owner words, which are the truth, are taken,
//! and all is undone if that fails in the middle.

use crate::blok::BlokAllocator;
use crate::inner::StoreInner;
use crate::swap_file;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use wired::PAGE;

/// Bytes of an extent. A fast disk writes 1.5 GB/s, and this is allocated in milliseconds.
pub(crate) const EXTENT: u64 = 256 << 20;

/// Bloks of an extent, and free bloks to keep ahead of need.
const BLOKS: u64 = EXTENT / PAGE as u64;

/// Interval of the thread: in that time a fast disk fills a third of an extent.
const GROW_INTERVAL: Duration = Duration::from_millis(50);

/// Pause after an extent that the file system refused. Each attempt may write as far as there is room.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// Fraction of its file system that growing leaves free to others, as a divisor.
const LEFT_FREE: u64 = 20;

/// The swap file with its allocation.
pub(crate) struct Growth {
    file: OwnedFd,
    /// Allocated bloks, from the first on.
    allocated: u64,
    /// All bloks.
    most: u64,
    /// When the extent that the file system refused is requested again.
    retry_at: Option<Instant>,
}

impl Growth {
    /// A file of `most` bloks whose first extent is allocated: closes the others.
    pub fn new(file: OwnedFd, most: u64, bloks: &BlokAllocator) -> Self {
        let allocated = BLOKS.min(most);
        if allocated < most {
            bloks.close(allocated..most.next_multiple_of(64));
        }
        bloks.set_end(allocated);
        Self {
            file,
            allocated,
            most,
            retry_at: None,
        }
    }

    /// The file of a process that was killed, perhaps in the middle of a change: it is allocated up to the last extent
    /// of which a blok is open or has an owner, and bloks below that are taken by pages alone.
    pub fn resume(file: OwnedFd, most: u64, bloks: &BlokAllocator) -> Self {
        bloks.permit(0..most);
        let mut allocated = BLOKS.min(most);
        for start in (0..most).step_by(BLOKS as usize) {
            let end = (start + BLOKS).min(most);
            if bloks.is_open(start..end) {
                allocated = end;
            }
        }
        bloks.open_unowned(0..allocated);
        bloks.set_end(allocated);
        Self {
            file,
            allocated,
            most,
            retry_at: None,
        }
    }

    /// Allocates the next extent if too few bloks are free, or frees the last one.
    pub fn adjust(&mut self, bloks: &BlokAllocator) {
        let free = bloks.free_below(self.allocated);
        if free < BLOKS && self.allocated < self.most {
            if self.retry_at.is_none_or(|then| Instant::now() >= then) {
                self.grow(bloks);
            }
        } else if free > 3 * BLOKS {
            self.shrink(bloks);
        }
    }

    fn grow(&mut self, bloks: &BlokAllocator) {
        let end = (self.allocated + BLOKS).min(self.most);
        let bytes = (end - self.allocated) * PAGE as u64;
        let room = swap_file::room(&self.file)
            .is_some_and(|room| room.free.saturating_sub(bytes) >= room.total / LEFT_FREE);
        if !room {
            return;
        }
        let (start, extent) = (self.allocated * PAGE as u64, self.allocated..end);
        // A page of a reservation from before the extent was closed: what would allocate or free blocks may overwrite it.
        if !bloks.forbid_if_unowned(extent.clone()) {
            bloks.open_unowned(extent);
            bloks.set_end(end);
            self.allocated = end;
            return;
        }
        let allocated = swap_file::allocate_extent(&self.file, start, bytes);
        if allocated.is_err() {
            // A user's quota, say, which the file system's room does not show. What it has allocated of the
            // extent is of no use here. Where it cannot be freed, the file grows into it.
            let _: Result<(), Errno> = swap_file::punch_hole(&self.file, start, bytes);
        }
        bloks.permit(extent);
        match allocated {
            Ok(()) => {
                // The last word's bits past the last blok stay closed.
                bloks.open(self.allocated..end);
                bloks.set_end(end);
                (self.allocated, self.retry_at) = (end, None);
            }
            Err(_) => self.retry_at = Some(Instant::now() + REFUSED_PAUSE),
        }
    }

    fn shrink(&mut self, bloks: &BlokAllocator) {
        let start = (self.allocated - 1) / BLOKS * BLOKS;
        if start == 0 {
            return;
        }
        // Before they are closed: closed bloks are never counted.
        bloks.set_end(start);
        if !bloks.close_if_free(start..self.allocated) {
            return bloks.set_end(self.allocated);
        }
        let bytes = (self.allocated - start) * PAGE as u64;
        // Where the file system cannot, the file keeps its blocks and grows into them.
        let _: Result<(), Errno> = swap_file::punch_hole(&self.file, start * PAGE as u64, bytes);
        bloks.permit(start..self.allocated);
        self.allocated = start;
    }
}

/// Starts the thread, which ends with the store.
pub(crate) fn start(inner: &Arc<StoreInner>, mut growth: Growth) -> std::io::Result<()> {
    let inner: Weak<StoreInner> = Arc::downgrade(inner);
    let name = "selfpage-extent".to_owned();
    let thread = move || {
        while let Some(inner) = inner.upgrade() {
            if let Some(bloks) = &inner.bloks {
                growth.adjust(bloks);
            }
            drop(inner);
            std::thread::sleep(GROW_INTERVAL);
        }
    };
    std::thread::Builder::new()
        .name(name)
        .spawn(thread)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blok::BlokRun;
    use crate::intent_log::IntentLog;
    use crate::layout::INTENTS;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    fn leak<T: Default>(count: usize) -> &'static [T] {
        Vec::leak((0..count).map(|_| T::default()).collect())
    }

    /// A sparse file of four extents, its bloks, and its growth.
    fn four_extents() -> (std::fs::File, BlokAllocator, Growth) {
        let most = 4 * BLOKS;
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(most * PAGE as u64).unwrap();
        let [hint, closed] = [&leak(1)[0], &leak(1)[0]];
        let most_bloks = leak(most as usize);
        let bloks = BlokAllocator::new(leak(most as usize / 64), most_bloks, hint, closed);
        swap_file::allocate_extent(&file, 0, EXTENT).unwrap();
        let growth = Growth::new(file.try_clone().unwrap().into(), most, &bloks);
        (file, bloks, growth)
    }

    fn allocated(file: &std::fs::File) -> u64 {
        // The file system's own metadata blocks may count, too.
        (file.metadata().unwrap().blocks() * 512) / EXTENT
    }

    fn take(bloks: &BlokAllocator, count: u64) -> u64 {
        let note = IntentLog::new(leak(INTENTS)).begin(0, 0);
        let mut taken = 0;
        while taken < count {
            let Some(run) = bloks.reserve((count - taken).min(64) as u32, None, &note) else {
                break;
            };
            (run.first..run.first + run.count).for_each(|blok| assert!(bloks.try_assign(blok, 1)));
            taken += u64::from(run.count);
        }
        taken
    }

    #[test]
    fn a_file_grows_ahead_of_need_and_shrinks_when_its_end_is_free() {
        let (file, bloks, mut growth) = four_extents();
        if swap_file::room(&file).is_none_or(|room| room.free < room.total / LEFT_FREE + 5 * EXTENT)
        {
            return println!("SKIPPED: /var/tmp is almost full");
        }
        growth.adjust(&bloks);
        assert_eq!(allocated(&file), 1, "nothing is taken yet");
        assert_eq!(take(&bloks, BLOKS + 64), BLOKS, "no more than is allocated");
        for extents in 2..=4 {
            growth.adjust(&bloks);
            assert_eq!(allocated(&file), extents);
            assert_eq!(take(&bloks, BLOKS), BLOKS);
        }
        growth.adjust(&bloks);
        assert_eq!(
            (allocated(&file), take(&bloks, 1)),
            (4, 0),
            "never past its size"
        );
        // One page in the last extent holds that, not the others.
        let last = 4 * BLOKS as u32 - 1;
        (0..last).for_each(|blok| bloks.free(blok, 1));
        growth.adjust(&bloks);
        assert_eq!(allocated(&file), 4);
        bloks.free(last, 1);
        growth.adjust(&bloks);
        assert_eq!(allocated(&file), 3);
        assert_eq!(bloks.used(), 0);
        assert_eq!(
            take(&bloks, 4 * BLOKS),
            3 * BLOKS,
            "what is given back is closed"
        );
    }

    #[test]
    fn an_extent_that_the_file_system_refuses_is_not_asked_for_again_at_once() {
        let (file, bloks, mut growth) = four_extents();
        if swap_file::room(&file).is_none_or(|room| room.free < room.total / LEFT_FREE + 5 * EXTENT)
        {
            return println!("SKIPPED: /var/tmp is almost full");
        }
        take(&bloks, BLOKS);
        let own = std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        // It may not write.
        let writable = std::mem::replace(&mut growth.file, own.into());
        growth.adjust(&bloks);
        assert_eq!(growth.allocated, BLOKS);
        growth.file = writable;
        growth.adjust(&bloks);
        assert_eq!(growth.allocated, BLOKS);
        growth.retry_at = Some(Instant::now());
        growth.adjust(&bloks);
        assert_eq!(growth.allocated, 2 * BLOKS);
        assert_eq!(take(&bloks, 1), 1);
    }

    #[test]
    fn a_file_goes_on_after_a_change_that_was_interrupted() {
        let (file, bloks, _) = four_extents();
        // Killed while it opened the second extent, with bloks reserved, and one taken.
        bloks.open(BLOKS..BLOKS + 640);
        take(&bloks, 100);
        bloks.close(0..64);
        let most = 4 * BLOKS;
        let growth = Growth::resume(file.into(), most, &bloks);
        assert_eq!(growth.allocated, 2 * BLOKS);
        assert_eq!(bloks.used(), 100);
        assert_eq!(bloks.free_below(most), 2 * BLOKS - 100);
    }

    #[test]
    fn an_extent_in_which_a_run_is_reserved_meanwhile_is_opened_again() {
        let (_file, bloks, _) = four_extents();
        bloks.open(0..4 * BLOKS);
        let note = IntentLog::new(leak(INTENTS)).begin(0, 0);
        let near = 2 * BLOKS as u32 + 640;
        let run = bloks.reserve(8, Some(near), &note).unwrap();
        assert_eq!(
            run,
            BlokRun {
                first: near,
                count: 8
            }
        );
        assert!(!bloks.close_if_free(2 * BLOKS..3 * BLOKS));
        bloks.unreserve(run);
        assert_eq!(bloks.free_below(4 * BLOKS), 4 * BLOKS);
    }

    #[test]
    fn an_extent_with_a_page_whose_mark_was_cleared_is_not_freed() {
        let (file, bloks, mut growth) = four_extents();
        bloks.open(BLOKS..4 * BLOKS);
        growth.allocated = 4 * BLOKS;
        let note = IntentLog::new(leak(INTENTS)).begin(0, 0);
        let near = 3 * BLOKS as u32 + 640;
        // Another process died as it was about to mark the same run.
        let run = bloks.reserve(8, Some(near), &note).unwrap();
        bloks.repair(run);
        assert!(bloks.try_assign(near, 1));
        growth.adjust(&bloks);
        assert_eq!(growth.allocated, 4 * BLOKS);
        assert!(bloks.is_owned(near, 1));
        assert_eq!(bloks.free_below(4 * BLOKS), 4 * BLOKS - 1);
        bloks.free(near, 1);
        growth.adjust(&bloks);
        assert_eq!(growth.allocated, 3 * BLOKS);
        // It was about to assign its second blok.
        assert!(bloks.try_assign(near + 1, 1));
        // The file grows there again, without a call that would write or free its blocks.
        let page = [7u8; PAGE];
        let at = u64::from(near + 1) * PAGE as u64;
        file.write_all_at(&page, at).unwrap();
        take(&bloks, 3 * BLOKS);
        growth.adjust(&bloks);
        assert_eq!(growth.allocated, 4 * BLOKS);
        assert_eq!(allocated(&file), 1);
        let mut found = [0; PAGE];
        file.read_exact_at(&mut found, at).unwrap();
        assert!(found == page);
        assert!(bloks.is_owned(near + 1, 1));
        assert_eq!(take(&bloks, BLOKS), BLOKS - 1);
    }
}
