//! A range leaves memory with its contents, and no store of the program is lost.

mod common;
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use translation::{
    Access, Capabilities, EntryKind, Feature, IoVec, Pagemap, StageResult, Userfault, Wake,
    discard, discard_batch, set_access, stage, stage_across_mappings,
};
use wired::{Lock, PAGE};

fn upcall(capabilities: &Capabilities) -> Userfault {
    Userfault::open(EntryKind::Upcall, capabilities).unwrap()
}

#[test]
fn a_staged_range_keeps_contents_and_holes_and_the_source_stays_registered() {
    let userfault = upcall(&capabilities());
    let (area, slot) = (Area::new(8), Slot::new(8));
    userfault
        .register(area.at(0), area.len(), true, false)
        .unwrap();
    userfault
        .copy(area.at(3), page_of(42).as_ptr(), PAGE, Wake::No)
        .unwrap();
    // SAFETY: both are the test's.
    unsafe { stage(area.at(0), area.len(), slot.at(0)) }.unwrap();
    assert_eq!((load(slot.at(3)), load(slot.at(2))), (42, 0));
    for page in 0..8 {
        assert!(!kernel_reads(area.at(page)));
    }
    userfault
        .copy(area.at(3), slot.at(3) as *const u8, PAGE, Wake::No)
        .unwrap();
    assert_eq!(load(area.at(3)), 42);
}

#[test]
fn an_odd_number_of_pages_halves_too() {
    let (area, slot) = (Area::new(7), Slot::new(7));
    (0..7).for_each(|page| store(area.at(page), 1));
    // SAFETY: the test's memory.
    unsafe { set_access(area.at(6), PAGE, Access::READ) }.unwrap();
    let mut covered = 0;
    // SAFETY: both are the test's.
    unsafe {
        stage_across_mappings(area.at(0), area.len(), slot.at(0), |piece| {
            assert_eq!((piece.offset, piece.outcome), (covered, StageResult::Moved));
            covered += piece.len;
        });
    }
    assert_eq!(covered, area.len());
    assert!((0..7).all(|page| load(slot.at(page)) == 1));
}

#[test]
fn a_batch_discards_its_ranges_only_with_and_without_the_feature() {
    let capabilities = capabilities();
    for capabilities in [capabilities, capabilities.without(Feature::BatchDiscard)] {
        let area = Area::new(2200);
        (0..2200).for_each(|page| store(area.at(page), 1));
        // More pieces than one call takes.
        let pieces: Vec<_> = (0..2200)
            .filter(|page| page % 2 == 0)
            .map(|page| IoVec {
                addr: area.at(page),
                len: PAGE,
            })
            .collect();
        // SAFETY: the test's memory.
        unsafe { discard_batch(&pieces, &capabilities) }.unwrap();
        for page in 0..2200 {
            assert_eq!(load(area.at(page)), (page % 2) as u8);
        }
    }
}

#[test]
fn a_batch_returns_the_error_of_its_failing_range() {
    let capabilities = capabilities();
    for capabilities in [capabilities, capabilities.without(Feature::BatchDiscard)] {
        let area = Area::new(2);
        store(area.at(0), 1);
        let pieces = [
            IoVec {
                addr: area.at(0),
                len: PAGE,
            },
            IoVec {
                addr: NOWHERE,
                len: PAGE,
            },
            IoVec {
                addr: area.at(1),
                len: PAGE,
            },
        ];
        // SAFETY: the test's memory.
        let result = unsafe { discard_batch(&pieces, &capabilities) };
        assert_eq!(result, Err(translation::Errno::NOMEM));
        assert_eq!(load(area.at(0)), 0);
    }
}

/// A toy pager: `backing` holds the contents of staged pages.
struct Pager {
    userfault: Userfault,
    pagemap: Pagemap,
    base: usize,
    slot: usize,
    /// Held while pages leave and while a page returns.
    backing: Lock<Vec<u8>>,
    evictions: AtomicU64,
}

const PAGES: usize = 128;

impl Pager {
    fn page_in(&self, page: usize) {
        let backing = self.backing.lock();
        let source = backing[page - self.base..].as_ptr();
        // Another thread's fault may have mapped the page first.
        let _ = self.userfault.copy(page, source, PAGE, Wake::Yes);
    }

    /// Evicts the whole area and keeps its contents.
    fn evict(&self) {
        let mut backing = self.backing.lock();
        let len = PAGES * PAGE;
        let mut bitmap = [0; PAGES / 64];
        // SAFETY: the slot is the pager's; faults wait for the lock.
        unsafe {
            stage(self.base, len, self.slot).unwrap();
        }
        self.pagemap
            .present_pages(self.slot, len, &mut bitmap)
            .unwrap();
        for page in (0..PAGES).filter(|page| bitmap[page / 64] >> (page % 64) & 1 == 1) {
            // SAFETY: the slot's page is present and no other thread uses it.
            let contents =
                unsafe { std::slice::from_raw_parts((self.slot + page * PAGE) as *const u8, PAGE) };
            backing[page * PAGE..][..PAGE].copy_from_slice(contents);
        }
        // SAFETY: kept above.
        unsafe { discard(self.slot, len) }.unwrap();
        self.evictions.fetch_add(1, Ordering::Relaxed);
    }
}

const WRITERS: usize = 3;
const EVICTIONS: u64 = 300;

/// Counts in a word of its own in every page and expects its last count there, until the area has
/// been evicted often enough.
fn write(writer: usize, area: &Area, pager: &Pager) {
    let mut rounds = 0..;
    while pager.evictions.load(Ordering::Relaxed) < EVICTIONS {
        let round = rounds.next().unwrap();
        for page in 0..PAGES {
            // Each writer visits the pages in its own order.
            let page = (page * (2 * writer + 3)) % PAGES;
            let word = (area.at(page) + writer * 8) as *mut u64;
            // SAFETY: the writer's own word.
            unsafe {
                assert_eq!(word.read_volatile(), round, "page {page}, writer {writer}");
                word.write_volatile(round + 1);
            }
        }
    }
}

/// Writers find every store while the area is evicted again and again.
fn no_store_is_lost(kind: EntryKind) {
    let capabilities = capabilities();
    let userfault = match Userfault::open(kind, &capabilities) {
        Ok(userfault) => userfault,
        Err(refused) => return skipped(&refused.to_string()),
    };
    let area: &'static Area = Box::leak(Box::new(Area::new(PAGES)));
    let slot: &'static Slot = Box::leak(Box::new(Slot::new(PAGES)));
    userfault
        .register(area.at(0), area.len(), true, false)
        .unwrap();
    let pager: &'static Pager = Box::leak(Box::new(Pager {
        userfault,
        pagemap: Pagemap::open(&capabilities).unwrap(),
        base: area.at(0),
        slot: slot.at(0),
        backing: Lock::new(vec![0; PAGES * PAGE]),
        evictions: AtomicU64::new(0),
    }));
    let _entry = match kind {
        EntryKind::Upcall => {
            on_upcall(area.at(0), area.len(), |page| pager.page_in(page));
            None
        }
        EntryKind::Thread => {
            // The handler thread reads a duplicate of the descriptor.
            let fd = rustix::io::dup(&pager.userfault).unwrap();
            let reader = Userfault::from_owned(fd, kind, &capabilities, pager.userfault.options());
            Some(Entry::new(Arc::new(reader), |_, fault| {
                pager.page_in(fault.addr);
            }))
        }
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write(writer, area, pager)))
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                pager.evict();
                // Gives the writers time to run.
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        let ended: Vec<_> = writers
            .into_iter()
            .map(|writer| writer.join().is_ok())
            .collect();
        done.store(true, Ordering::Relaxed);
        assert_eq!(ended, [true; WRITERS]);
    });
}

#[test]
fn no_store_is_lost_when_ranges_are_staged_under_upcalls() {
    no_store_is_lost(EntryKind::Upcall);
}

#[test]
fn no_store_is_lost_when_ranges_are_staged_under_handler_threads() {
    no_store_is_lost(EntryKind::Thread);
}
