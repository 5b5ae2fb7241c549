//! Which pages of the arenas the program has mapped, for a thread that resolves faults.
//!
//! A fault on an arena's free addresses is the program's error and must be a SIGSEGV.
//! The thread that handles it must not wait for the map's lock: the lock's holder may
//! itself be waiting for a fault. So the answer is here, in words read without a lock.
//!
//! Per 2 MiB there is one byte, none, all or mixed, and bits only for the mixed: a
//! reservation of a terabyte costs half a megabyte, not thirty-two.

use crate::address_space;
use crate::madvise::{GUARD_INSTALL, GUARD_REMOVE};
use crate::raw_syscall::{is_error, syscall3};
use crate::vma_map::AddrRange;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use wired::{HUGE_RANGE, HUGE_RANGE_PAGES, PAGE, WiredMemory};

/// Arenas of one table: few programs have more.
const ARENAS: usize = 256;

const NONE: u8 = 0;
const ALL: u8 = 1;
const MIXED: u8 = 2;

/// Words of bits for one range.
const WORDS: usize = HUGE_RANGE_PAGES / 64;

/// Readers find an arena here by its addresses. Entries and tables are only added, and the first empty entry ends
/// them.
struct Table {
    arenas: [AtomicPtr<MappedBitmap>; ARENAS],
    next: AtomicPtr<Table>,
}

static FIRST: Table = Table::new();

impl Table {
    const fn new() -> Self {
        Self {
            arenas: [const { AtomicPtr::new(std::ptr::null_mut()) }; ARENAS],
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }
}

fn tables() -> impl Iterator<Item = &'static Table> {
    // SAFETY: a table points to a leaked one.
    std::iter::successors(Some(&FIRST), |table| unsafe {
        table.next.load(Ordering::Acquire).as_ref()
    })
}

/// Threads that are closing a page now.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// One arena's marks.
struct MappedBitmap {
    span: AddrRange,
    coarse: WiredMemory,
    mapped: WiredMemory,
    closed: WiredMemory,
    any_closed: AtomicBool,
}

impl MappedBitmap {
    fn ranges(&self) -> usize {
        self.span.len().div_ceil(HUGE_RANGE)
    }

    fn coarse(&self) -> &[AtomicU8] {
        self.coarse.slice(0, self.ranges())
    }

    fn mapped(&self) -> &[AtomicU64] {
        self.mapped.slice(0, self.ranges() * WORDS)
    }

    fn closed(&self) -> &[AtomicU64] {
        self.closed.slice(0, self.ranges() * WORDS)
    }

    fn page(&self, addr: usize) -> usize {
        (addr - self.span.start) / PAGE
    }

    fn is_mapped(&self, page: usize) -> bool {
        match self.coarse()[page / HUGE_RANGE_PAGES].load(Ordering::Acquire) {
            NONE => false,
            MIXED => self.mapped()[page / 64].load(Ordering::Acquire) & 1 << (page % 64) != 0,
            _ => true,
        }
    }

    fn mark(&self, span: &AddrRange, mapped: bool) {
        let (first, end) = (self.page(span.start), self.page(span.end - 1) + 1);
        let mut page = first;
        while page < end {
            let range = page / HUGE_RANGE_PAGES;
            let stop = ((range + 1) * HUGE_RANGE_PAGES).min(end);
            let coarse = &self.coarse()[range];
            if stop - page == HUGE_RANGE_PAGES {
                coarse.store(if mapped { ALL } else { NONE }, Ordering::Release);
            } else {
                self.expand(range);
                for page in page..stop {
                    let (word, bit) = (&self.mapped()[page / 64], 1u64 << (page % 64));
                    match mapped {
                        true => word.fetch_or(bit, Ordering::AcqRel),
                        false => word.fetch_and(!bit, Ordering::AcqRel),
                    };
                }
            }
            page = stop;
        }
    }

    /// Gives a range bits of its own, set as its byte was.
    fn expand(&self, range: usize) {
        let coarse = &self.coarse()[range];
        let bits = match coarse.load(Ordering::Acquire) {
            MIXED => return,
            ALL => !0,
            _ => 0,
        };
        for word in &self.mapped()[range * WORDS..][..WORDS] {
            word.store(bits, Ordering::Release);
        }
        coarse.store(MIXED, Ordering::Release);
    }
}

fn find(addr: usize) -> Option<&'static MappedBitmap> {
    tables()
        .flat_map(|table| &table.arenas)
        // SAFETY: entries point to leaked values.
        .map_while(|entry| unsafe { entry.load(Ordering::Acquire).as_ref() })
        .find(|marks| marks.span.contains(&addr))
}

/// A new arena, nothing in it mapped. The caller holds the map's lock.
pub fn add(span: &AddrRange) -> rustix::io::Result<()> {
    let ranges = span.len().div_ceil(HUGE_RANGE);
    let marks = Box::new(MappedBitmap {
        span: span.clone(),
        coarse: WiredMemory::private(ranges)?,
        mapped: WiredMemory::private(ranges * WORDS * 8)?,
        closed: WiredMemory::private(ranges * WORDS * 8)?,
        any_closed: AtomicBool::new(false),
    });
    let last = tables().last().unwrap_or(&FIRST);
    let is_empty = |entry: &&AtomicPtr<MappedBitmap>| entry.load(Ordering::Relaxed).is_null();
    let entry = match last.arenas.iter().find(is_empty) {
        Some(entry) => entry,
        None => {
            let next = Box::leak(Box::new(Table::new()));
            last.next.store(next, Ordering::Release);
            &next.arenas[0]
        }
    };
    entry.store(Box::leak(marks), Ordering::Release);
    Ok(())
}

/// Parts of a span, each in one arena, with the arena's marks, up to the first without marks.
fn parts(span: &AddrRange) -> impl Iterator<Item = (&'static MappedBitmap, AddrRange)> {
    let (mut at, end) = (span.start, span.end);
    std::iter::from_fn(move || {
        let start = at;
        let marks = find(start).filter(|_| start < end)?;
        at = marks.span.end.min(end);
        Some((marks, start..at))
    })
}

/// Pages became mapped or free. The caller holds the map's lock.
pub fn mark(span: &AddrRange, mapped: bool) {
    for (marks, part) in parts(span) {
        marks.mark(&part, mapped);
    }
}

/// Returns true if the program has mapped the page at `addr`. For the threads that resolve
/// faults: no lock, no allocation, wired memory only.
pub fn is_mapped(addr: usize) -> bool {
    find(addr).is_none_or(|marks| marks.is_mapped(marks.page(addr)))
}

/// Closes the free page at `addr`, on which a thread handled a fault, so that the program gets
/// the SIGSEGV of an unmapped address. The address stays taken: any other mapping that the
/// kernel put there would be lost when the page is mapped again.
pub fn close(addr: usize) {
    let Some(marks) = find(addr) else { return };
    let page = marks.page(addr);
    CLOSING.fetch_add(1, Ordering::SeqCst);
    if !marks.is_mapped(page) {
        let start = marks.span.start + page * PAGE;
        close_page(start);
        marks.closed()[page / 64].fetch_or(1 << (page % 64), Ordering::SeqCst);
        marks.any_closed.store(true, Ordering::SeqCst);
    }
    CLOSING.fetch_sub(1, Ordering::SeqCst);
}

fn advise_page(page: usize, advice: c_int) -> bool {
    // SAFETY: a free page of an arena: it has no contents.
    !is_error(unsafe { syscall3(libc::SYS_madvise, page, PAGE, advice as usize) })
}

/// True once a page was closed by its access rights, since the kernel refused to mark it.
static PROTECTED: AtomicBool = AtomicBool::new(false);

fn close_page(page: usize) {
    if !advise_page(page, GUARD_INSTALL) {
        PROTECTED.store(true, Ordering::SeqCst);
        address_space::protect(&(page..page + PAGE), libc::PROT_NONE);
    }
}

fn open_page(page: usize) {
    advise_page(page, GUARD_REMOVE);
    if PROTECTED.load(Ordering::SeqCst) {
        address_space::protect(&(page..page + PAGE), address_space::RW);
    }
}

/// Opens every page of `span` that was closed. The caller has marked them mapped.
pub fn reopen(span: &AddrRange) {
    for (marks, part) in parts(span) {
        reopen_in(marks, &part);
    }
}

fn reopen_in(marks: &MappedBitmap, span: &AddrRange) {
    // A thread that closes pages does not wait for this one.
    while CLOSING.load(Ordering::SeqCst) != 0 {
        std::hint::spin_loop();
    }
    if !marks.any_closed.load(Ordering::SeqCst) {
        return;
    }
    for page in marks.page(span.start)..=marks.page(span.end - 1) {
        let (word, bit) = (&marks.closed()[page / 64], 1u64 << (page % 64));
        if word.load(Ordering::SeqCst) & bit != 0 {
            open_page(marks.span.start + page * PAGE);
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw_syscall::error;
    use std::sync::{Mutex, PoisonError};

    /// Stands for the map's lock, which a thread that adds an arena holds.
    static MAP: Mutex<()> = Mutex::new(());

    fn add_one(span: &AddrRange) {
        let _alone = MAP.lock().unwrap_or_else(PoisonError::into_inner);
        add(span).unwrap();
    }

    #[test]
    fn a_page_counts_as_mapped_exactly_while_it_is_marked() {
        let base = 0x5000_0000_0000;
        add_one(&(base..base + 4 * HUGE_RANGE));
        let page = |n: usize| base + n * PAGE;
        assert!(!is_mapped(page(0)) && is_mapped(base - PAGE));
        mark(&(page(3)..page(700)), true);
        assert!(
            !is_mapped(page(2))
                && is_mapped(page(3))
                && is_mapped(page(699))
                && !is_mapped(page(700))
        );
        mark(&(page(0)..page(512)), false);
        assert!(!is_mapped(page(511)) && is_mapped(page(512)));
        mark(&(page(512)..page(2048)), true);
        assert!(is_mapped(page(2047)));
        mark(&(page(513)..page(514)), false);
        assert!(is_mapped(page(512)) && !is_mapped(page(513)) && is_mapped(page(514)));
    }

    /// Returns true if the kernel lets a page be accessed.
    fn usable(page: usize) -> bool {
        advise_page(page, libc::MADV_POPULATE_READ)
    }

    #[test]
    fn a_closed_page_keeps_its_place_until_it_is_mapped_again() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = address_space::map(0, HUGE_RANGE, address_space::RW, flags, -1, 0) as usize;
        let span = base..base + HUGE_RANGE;
        add_one(&span);
        close(base + PAGE + 8);
        assert!(usable(base) && !usable(base + PAGE) && usable(base + 2 * PAGE));
        let fixed = flags | libc::MAP_FIXED_NOREPLACE;
        let there = address_space::map(base + PAGE, PAGE, address_space::RW, fixed, -1, 0);
        assert_eq!(there, error(libc::EEXIST));
        mark(&span, true);
        reopen(&span);
        assert!(usable(base + PAGE));
        close(base);
        assert!(usable(base), "a mapped page is not closed");
        address_space::unmap(&span);
    }

    #[test]
    fn a_kernel_without_guards_closes_pages_by_their_access() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_LOCKED;
        // Guards are refused where memory is locked.
        let page = address_space::map(0, PAGE, address_space::RW, flags, -1, 0) as usize;
        assert!(!advise_page(page, GUARD_INSTALL));
        close_page(page);
        assert!(!usable(page));
        open_page(page);
        assert!(usable(page));
        address_space::unmap(&(page..page + PAGE));
    }

    #[test]
    fn an_arena_beyond_the_first_table_has_marks() {
        let base = 0x5400_0000_0000;
        for n in 0..2 * ARENAS + 1 {
            let start = base + n * HUGE_RANGE;
            add_one(&(start..start + HUGE_RANGE));
            assert!(!is_mapped(start), "arena {n}");
            mark(&(start..start + PAGE), true);
        }
        assert!((0..2 * ARENAS + 1).all(|n| is_mapped(base + n * HUGE_RANGE)));
    }

    #[test]
    fn a_span_over_two_arenas_is_marked_in_both() {
        let base = 0x5200_0000_0000;
        add_one(&(base..base + HUGE_RANGE));
        add_one(&(base + HUGE_RANGE..base + 2 * HUGE_RANGE));
        mark(&(base + PAGE..base + 2 * HUGE_RANGE - PAGE), true);
        assert!(
            !is_mapped(base) && is_mapped(base + HUGE_RANGE - PAGE) && is_mapped(base + HUGE_RANGE)
        );
        assert!(!is_mapped(base + 2 * HUGE_RANGE - PAGE));
    }
}
