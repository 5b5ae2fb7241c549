//! Domains that meet guards, other userfaultfds and failures part way.

use super::*;
use crate::driver::Paged;
use std::sync::mpsc;
use std::time::Duration;
use translation::EntryKind;

/// A guard has no contents and is in the way of `UFFDIO_MOVE`: it is staged with the pages
/// around it, and is found where pins are detected.
#[test]
fn a_guard_among_pages_keeps_none_of_them() {
    const PAGES: usize = 48;
    const GUARDED: usize = 20;
    let domain = Domain::builder()
        .frames(128)
        .store("ram:4M".parse().unwrap())
        .direct_io(DirectIo::Anytime)
        .build()
        .unwrap();
    if !domain.pager().mm.capabilities.may_evict(true) {
        println!("SKIPPED: this kernel has no UFFDIO_MOVE");
        return;
    }
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let at = |page: usize| stretch.as_ptr().wrapping_add(page * PAGE);
    for page in (0..PAGES).filter(|page| *page != GUARDED) {
        // SAFETY: this test's own stretch.
        unsafe { at(page).write_volatile(page as u8) };
    }
    // A window may have brought it.
    stretch.discard(GUARDED..GUARDED + 1).unwrap();
    /// `MADV_GUARD_INSTALL`.
    const GUARD: i32 = 102;
    // SAFETY: nothing is in the page.
    if unsafe { libc::madvise(at(GUARDED).cast(), PAGE, GUARD) } != 0 {
        println!("SKIPPED: this kernel has no guards");
        return;
    }
    stretch.unmap(0..PAGES).unwrap();
    let stays = |page: &usize| stretch.trans(*page).unwrap().frame.is_some();
    assert_eq!((0..PAGES).filter(stays).count(), 0);
    for page in (0..PAGES).filter(|page| *page != GUARDED) {
        // SAFETY: this test's own stretch.
        assert_eq!(unsafe { at(page).read_volatile() }, page as u8);
    }
}

/// A failure after a stretch has its addresses releases them once: another thread may have
/// them by then.
#[test]
fn a_stretch_that_cannot_be_registered_leaves_nothing_in_the_books() {
    let domain = Domain::builder().frames(16).build().unwrap();
    // Far from where the kernel puts what other tests map meanwhile.
    const ALONE: usize = 0x10_0000_0000;
    let reservation = translation::reserve(Some(ALONE), 4 * PAGE, true).unwrap();
    // Another userfaultfd has the memory already.
    let capabilities = translation::Capabilities::probe_fast();
    let other = translation::Userfault::open(EntryKind::Upcall, &capabilities).unwrap();
    let Reservation { addr, len } = reservation;
    other.register(addr, len, true, false).unwrap();
    let refused = domain.make_in(reservation);
    assert!(matches!(refused, Err(StretchError::Translation(_))));
    assert_eq!(domain.counters().get(Counter::StretchBytes), 0);
    assert_eq!(domain.lookup(addr), None);
    let again = translation::reserve(Some(addr), len, true).unwrap();
    // SAFETY: this test's own.
    unsafe { translation::unmap_reservation(again) }.unwrap();
}

#[test]
fn addresses_that_a_stretch_released_become_a_stretch_again() {
    let domain = Domain::builder().frames(16).build().unwrap();
    let first = domain.allocate(4 * PAGE).unwrap();
    let base = first.base();
    // SAFETY: the reservation that the stretch just released.
    let second = unsafe { domain.allocate_in(first.release()) }.unwrap();
    second.bind(crate::Physical).unwrap();
    assert_eq!(second.base(), base);
    // SAFETY: this test's own stretch.
    unsafe { second.bytes_mut() }.fill(4);
    assert_eq!(domain.in_use(), 4);
}

/// A fault may be reported before, and read after, its page is surrendered; here every
/// fault is. The mapping that replaces the page does not wake its thread.
#[test]
fn a_thread_whose_page_is_surrendered_meets_what_is_mapped_there_instead() {
    let domain = Domain::builder()
        .frames(64)
        .store("ram:4M".parse().unwrap())
        .entry(EntryKind::Thread)
        .build()
        .unwrap();
    let pager = domain.shared.pager();
    let stretch = domain.allocate(8 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let page = stretch.base() + 3 * PAGE;
    pager.surrender(page..page + PAGE);
    let (tell, told) = mpsc::channel();
    let faults = pager.log.counters().get(Counter::Faults);
    std::thread::spawn(move || {
        let byte = std::ptr::with_exposed_provenance::<u8>(page);
        // SAFETY: mapped for as long as the test runs.
        let _ = tell.send(unsafe { byte.read_volatile() });
    });
    while pager.log.counters().get(Counter::Faults) == faults {
        std::thread::yield_now();
    }
    // SAFETY: a page of the stretch, which was surrendered.
    unsafe {
        let at = rustix::mm::mmap_anonymous(
            std::ptr::with_exposed_provenance_mut(page),
            PAGE,
            rustix::mm::ProtFlags::READ,
            rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::FIXED,
        );
        assert_eq!(at.unwrap().addr(), page);
    }
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(0));
}

/// If the kernel will not move a page on, for any reason but a pin, the pages before it
/// are on the sieve and those behind it go back. The obstacle here is a page of the
/// pager's.
#[test]
fn no_page_is_lost_where_telling_pins_apart_fails_part_way() {
    const PAGES: usize = 1024;
    let domain = Domain::builder()
        .frames(256)
        .store("ram:16M".parse().unwrap())
        .direct_io(DirectIo::Anytime)
        .build()
        .unwrap();
    let pager = domain.shared.pager();
    if !pager.mm.capabilities.may_evict(true) {
        println!("SKIPPED: this kernel has no UFFDIO_MOVE");
        return;
    }
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let word = |page: usize| {
        // SAFETY: the first word of a page of the stretch, which is this test's own.
        unsafe { stretch.as_ptr().add(page * PAGE).cast::<u64>().as_mut() }.unwrap()
    };
    let (slots, mut in_the_way) = (
        pager.standby.slots.bytes() / pager.standby.slots.slot_bytes(),
        0,
    );
    let ours = [0x5au8; PAGE];
    for round in 0..10 {
        for page in 0..PAGES {
            let before = (round as u64) << 32 | page as u64;
            assert!(
                round == 0 || *word(page) == before,
                "page {page}, round {round}"
            );
            *word(page) = (round as u64 + 1) << 32 | page as u64;
            for slot in (0..slots).filter(|_| page % 64 == 0) {
                let Some(sieve) = pager.standby.slots.sieve(slot) else {
                    continue;
                };
                let to = sieve + (page / 64 + round) % pager.mm.unit_pages * PAGE;
                let wake = translation::Wake::No;
                in_the_way += usize::from(
                    (pager.mm.userfault())
                        .copy(to, ours.as_ptr(), PAGE, wake)
                        .is_ok(),
                );
            }
        }
    }
    assert!(in_the_way > 20, "{in_the_way}");
}
