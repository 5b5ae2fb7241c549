//! Saves of a mapped stretch that overlap evictions, faults and one another.

use super::*;
use crate::{DirectIo, Domain};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// A mapped driver that, on a staged page, looks again only when the page has been evicted.
struct Late {
    mapped: Mapped,
    waits: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
}

impl StretchDriver for Late {
    fn name(&self) -> &'static str {
        "late"
    }
    fn evictable(&self) -> bool {
        true
    }
    fn zero_is_empty(&self) -> bool {
        false
    }
    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if fault.state().state() != State::Staged {
            return self.mapped.fault(fault);
        }
        self.waits.store(true, Ordering::Release);
        while fault.state().state() == State::Staged {
            std::thread::yield_now();
        }
        fault.fill()
    }
    fn clean(&self, page: usize, contents: &[u8; PAGE]) -> CleanOutcome {
        self.mapped.clean(page, contents)
    }
}

#[test]
fn a_page_that_is_evicted_while_it_faults_is_read_from_the_file() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; PAGE]).unwrap();
    let file: OwnedFd = file.into();
    let domain = Domain::builder()
        .frames(16)
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    let (waits, calls) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
    let stretch = domain.allocate(PAGE).unwrap();
    let driver = Late {
        mapped: Mapped::new(&file, 0, 1, true).unwrap(),
        waits: waits.clone(),
        calls: calls.clone(),
    };
    stretch.bind(driver).unwrap();
    let read = || {
        // SAFETY: the stretch's one page, which nothing writes.
        unsafe { stretch.as_ptr().read_volatile() }
    };
    assert_eq!(read(), 7);
    stretch.unmap(0..1).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(read);
        while !waits.load(Ordering::Acquire) && !reader.is_finished() {
            std::thread::yield_now();
        }
        while !reader.is_finished() {
            domain.relinquish(16);
        }
        assert_eq!(reader.join().unwrap(), 7);
    });
    assert!(
        calls.load(Ordering::Relaxed) >= 3,
        "the driver is called again"
    );
}

/// A mapped driver whose first save is held until it is released.
struct Held {
    mapped: Mapped,
    inside: Arc<AtomicBool>,
    released: Arc<AtomicBool>,
    calls: AtomicU32,
}

impl StretchDriver for Held {
    fn name(&self) -> &'static str {
        "held"
    }
    fn evictable(&self) -> bool {
        true
    }
    fn zero_is_empty(&self) -> bool {
        false
    }
    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        self.mapped.fault(fault)
    }
    fn clean(&self, page: usize, contents: &[u8; PAGE]) -> CleanOutcome {
        if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
            self.inside.store(true, Ordering::Release);
            while !self.released.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        self.mapped.clean(page, contents)
    }
}

/// A domain with a page of a file, whose first save is held.
fn held_page(file: &OwnedFd) -> (Domain, crate::Stretch, Arc<AtomicBool>, Arc<AtomicBool>) {
    let domain = Domain::builder()
        .frames(16)
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    let (inside, released) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let stretch = domain.allocate(PAGE).unwrap();
    let driver = Held {
        mapped: Mapped::new(file, 0, 1, true).unwrap(),
        inside: inside.clone(),
        released: released.clone(),
        calls: AtomicU32::new(0),
    };
    stretch.bind(driver).unwrap();
    (domain, stretch, inside, released)
}

fn file_of_zeros() -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[0; PAGE]).unwrap();
    file.into()
}

fn write(stretch: &crate::Stretch, value: u8) {
    // SAFETY: the stretch's one page; one thread at a time writes.
    unsafe { stretch.as_ptr().write_volatile(value) };
}

fn byte_in(file: &OwnedFd) -> u8 {
    let mut byte = [0];
    rustix::io::pread(file, &mut byte, 0).unwrap();
    byte[0]
}

fn await_true(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

#[test]
fn a_save_that_is_held_up_does_not_replace_a_newer_one() {
    let file = file_of_zeros();
    let (domain, stretch, inside, released) = held_page(&file);
    write(&stretch, 1);
    stretch.unmap(0..1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| domain.relinquish(16));
        await_true(&inside);
        let word = domain.pager().mm.index.nth(0).unwrap().table().word(0);
        let is_claimed = word.load().state() == State::Filling;
        let writer = scope.spawn(|| {
            write(&stretch, 2);
            stretch.unmap(0..1).unwrap();
            domain.relinquish(16);
        });
        while !is_claimed && !writer.is_finished() {
            std::thread::yield_now();
        }
        released.store(true, Ordering::Release);
    });
    stretch.unmap(0..1).unwrap();
    domain.relinquish(16);
    // SAFETY: the stretch's one page, which nothing writes.
    assert_eq!(unsafe { stretch.as_ptr().read_volatile() }, 2);
    drop(stretch);
    assert_eq!(byte_in(&file), 2);
}

#[test]
fn a_flush_that_has_returned_is_not_undone_by_one_that_began_before_it() {
    let file = file_of_zeros();
    let (domain, stretch, inside, released) = held_page(&file);
    write(&stretch, 1);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| stretch.flush());
        await_true(&inside);
        write(&stretch, 2);
        let second = scope.spawn(|| stretch.flush());
        let flushing = &domain.pager().mm.index.nth(0).unwrap().flushing;
        while flushing.try_lock().is_some() && !second.is_finished() {
            std::thread::yield_now();
        }
        released.store(true, Ordering::Release);
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
        assert_eq!(byte_in(&file), 2);
    });
}
