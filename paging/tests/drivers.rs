//! Stretches and their drivers, rights, and faults that a program answers itself.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{
    Activation, CleanOutcome, Counter, DirectIo, Domain, FaultKind, FillOutcome, Handled, Nailed,
    Paged, Physical, Rights, StoreError, StretchDriver, StretchError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

fn domain(frames: u32) -> Domain {
    Domain::builder()
        .frames(frames)
        .store("ram:16M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap()
}

fn touch(addr: usize) {
    unsafe { (addr as *mut u8).write_volatile(7) };
}

#[test]
fn a_thousand_and_more_stretches_each_keep_their_own() {
    let domain = domain(64);
    let stretches: Vec<_> = (0..1500)
        .map(|i| {
            let stretch = domain.allocate(PAGE * (1 + i % 3)).unwrap();
            stretch.bind(Paged).unwrap();
            unsafe { stretch.bytes_mut() }.fill(i as u8);
            stretch
        })
        .collect();
    for (i, stretch) in stretches.iter().enumerate() {
        assert!(
            unsafe { stretch.bytes() }.iter().all(|b| *b == i as u8),
            "stretch {i}"
        );
        assert_eq!(
            domain.lookup(stretch.base() + 5),
            Some(stretch.base()..stretch.base() + stretch.len())
        );
    }
    drop(stretches);
    assert_eq!(domain.in_use(), 0);
    assert_eq!(domain.store_usage().unwrap().holds, 0);
}

#[test]
fn a_stretch_begins_where_it_was_asked_to_and_never_over_another() {
    let domain = domain(64);
    let at = 0x4100_0000_0000;
    let stretch = domain.allocate_at(Some(at), 10 * PAGE + 1).unwrap();
    assert_eq!((stretch.base(), stretch.len()), (at, 11 * PAGE));
    let refused = domain.allocate_at(Some(at + PAGE), PAGE);
    assert!(matches!(refused, Err(StretchError::Reserve(_))));
    assert!(matches!(domain.allocate(0), Err(StretchError::Empty)));
}

#[test]
fn a_nailed_stretch_has_its_frames_when_it_is_bound_and_never_faults() {
    let domain = domain(64);
    let stretch = domain.allocate(20 * PAGE).unwrap();
    stretch.bind(Nailed).unwrap();
    assert_eq!(domain.in_use(), 20);
    let before = domain.counters().get(Counter::Faults);
    unsafe { stretch.bytes_mut() }.fill(3);
    let paged = domain.allocate(500 * PAGE).unwrap();
    paged.bind(Paged).unwrap();
    unsafe { paged.bytes_mut() }.fill(9);
    let between = domain.counters().get(Counter::Faults);
    assert!(unsafe { stretch.bytes() }.iter().all(|b| *b == 3));
    assert_eq!(domain.counters().get(Counter::Faults), between);
    assert_eq!(between - before, 500);
    assert!(domain.n() <= 64);
}

#[test]
fn more_nailed_pages_than_frames_are_refused_and_nothing_is_kept() {
    let domain = domain(16);
    let stretch = domain.allocate(100 * PAGE).unwrap();
    let refused = stretch.bind(Nailed);
    assert!(
        matches!(
            refused,
            Err(StretchError::Frames {
                pages: 100,
                limit: 16,
                ..
            })
        ),
        "{refused:?}"
    );
}

#[test]
fn a_physical_stretch_is_zeros_until_written() {
    let domain = domain(64);
    let stretch = domain.allocate(30 * PAGE).unwrap();
    stretch.bind(Physical).unwrap();
    assert!(unsafe { stretch.bytes() }.iter().all(|b| *b == 0));
    unsafe { stretch.bytes_mut()[5 * PAGE] = 1 };
    assert_eq!(domain.in_use(), 30);
    assert!(matches!(stretch.bind(Paged), Err(StretchError::Bound)));
}

#[test]
fn unmapped_pages_keep_their_contents_and_a_frame_of_ones_own_maps_them_again() {
    let domain = domain(64);
    let stretch = domain.allocate(8 * PAGE).unwrap();
    stretch.bind(Physical).unwrap();
    for page in 0..8 {
        unsafe { stretch.bytes_mut()[page * PAGE] = page as u8 + 1 };
    }
    assert!(stretch.trans(3).unwrap().frame.is_some());
    stretch.unmap(0..8).unwrap();
    assert!(stretch.trans(3).unwrap().frame.is_none());
    let frame = domain.take_frame().unwrap();
    stretch.map(3, frame).unwrap();
    assert_eq!(stretch.trans(3).unwrap().frame, Some(frame));
    assert!(matches!(
        stretch.map(3, frame),
        Err(StretchError::State { .. } | StretchError::NotYourFrame(_))
    ));
    for page in 0..8 {
        assert_eq!(unsafe { stretch.bytes() }[page * PAGE], page as u8 + 1);
    }
}

/// Never has the page at once.
struct InOthersHands(FillOutcome);

impl StretchDriver for InOthersHands {
    fn name(&self) -> &'static str {
        "in others' hands"
    }
    fn fault(&self, _: &mut Activation<'_>) -> FillOutcome {
        match self.0 {
            FillOutcome::Busy => FillOutcome::Busy,
            _ => FillOutcome::Retry,
        }
    }
}

#[test]
fn a_page_that_another_thread_brings_in_is_not_said_to_be_mapped() {
    for outcome in [FillOutcome::Busy, FillOutcome::Retry] {
        let domain = domain(64);
        let stretch = domain.allocate(2 * PAGE).unwrap();
        stretch.bind(InOthersHands(outcome)).unwrap();
        let frame = domain.take_frame().unwrap();
        let refused = stretch.map(1, frame);
        assert!(
            matches!(refused, Err(StretchError::InOthersHands { page: 1 })),
            "{refused:?}"
        );
        assert_eq!(domain.in_use(), 0, "the frame was put back");
    }
}

#[test]
fn without_the_meta_right_nothing_is_changed() {
    let domain = domain(64);
    let stretch = domain.allocate(4 * PAGE).unwrap();
    stretch.bind(Physical).unwrap();
    stretch.protect(Rights::READ | Rights::WRITE).unwrap();
    assert!(matches!(
        stretch.protect(Rights::ALL),
        Err(StretchError::Denied(_))
    ));
    assert!(matches!(stretch.unmap(0..1), Err(StretchError::Denied(_))));
}

#[test]
fn a_program_answers_protection_faults_of_a_stretch_itself() {
    let domain = domain(64);
    let stretch = Arc::new(domain.allocate(4 * PAGE).unwrap());
    stretch.bind(Physical).unwrap();
    unsafe { stretch.bytes_mut() }.fill(1);
    let barrier_hits = Arc::new(AtomicUsize::new(0));
    let (hits, base, len) = (barrier_hits.clone(), stretch.base(), stretch.len());
    stretch.override_fault(
        FaultKind::Protection,
        Some(Box::new(move |fault| {
            assert!(fault.write && fault.addr >= base && fault.addr < base + len);
            hits.fetch_add(1, Ordering::Relaxed);
            assert_eq!(
                unsafe { libc::mprotect(base as *mut _, len, libc::PROT_READ | libc::PROT_WRITE) },
                0
            );
            Handled::Resume
        })),
    );
    stretch.protect(Rights::READ | Rights::META).unwrap();
    assert_eq!(unsafe { stretch.bytes() }[PAGE], 1);
    assert_eq!(barrier_hits.load(Ordering::Relaxed), 0);
    touch(stretch.base() + PAGE);
    assert_eq!(barrier_hits.load(Ordering::Relaxed), 1);
}

#[test]
fn a_program_sees_page_faults_before_its_driver_does() {
    let domain = domain(64);
    let stretch = domain.allocate(4 * PAGE).unwrap();
    stretch.bind(Physical).unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = seen.clone();
    stretch.override_fault(
        FaultKind::Page,
        Some(Box::new(move |fault| {
            counter.fetch_add(fault.addr / PAGE, Ordering::Relaxed);
            Handled::Default
        })),
    );
    touch(stretch.base() + 2 * PAGE + 8);
    assert_eq!(seen.load(Ordering::Relaxed), stretch.base() / PAGE + 2);
}

#[test]
fn a_fault_on_no_stretch_goes_to_the_domains_handler() {
    let domain = domain(64);
    // Address space that nothing maps, to be mapped by the handler.
    let hole = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    } as usize;
    domain.on_unallocated(move |fault| {
        if fault.addr != hole {
            return Handled::Default;
        }
        assert_eq!(fault.kind, FaultKind::Unallocated);
        unsafe { libc::mprotect(hole as *mut _, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        Handled::Resume
    });
    touch(hole);
    assert_eq!(domain.counters().get(Counter::UnallocatedFaults), 1);
}

#[test]
fn pinned_pages_stay_while_others_are_taken() {
    let domain = domain(32);
    let stretch = domain.allocate(400 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let pin = stretch.pin(10 * PAGE..14 * PAGE).unwrap();
    unsafe { stretch.bytes_mut() }.fill(1);
    for page in 10..14 {
        assert!(
            stretch.trans(page).unwrap().frame.is_some(),
            "page {page} was taken"
        );
    }
    // A system call can be given pinned memory, and not memory that is missing.
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    let read = |page: usize| unsafe {
        libc::read(
            std::os::fd::AsRawFd::as_raw_fd(&zeros),
            (stretch.base() + page * PAGE) as *mut _,
            PAGE,
        )
    };
    assert_eq!(read(12), PAGE as isize);
    drop(pin);
    unsafe { stretch.bytes_mut() }.fill(2);
    assert!((10..14).any(|page| stretch.trans(page).unwrap().frame.is_none()));
}

#[test]
fn relinquished_frames_are_given_back_and_nothing_is_lost() {
    let domain = domain(256);
    let stretch = domain.allocate(200 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    for page in 0..200 {
        unsafe { stretch.bytes_mut()[page * PAGE] = page as u8 + 1 };
    }
    let before = domain.n();
    let given = domain.relinquish(100);
    assert_eq!(given, 100);
    assert_eq!(domain.n(), before - 100);
    for page in 0..200 {
        assert_eq!(unsafe { stretch.bytes() }[page * PAGE], page as u8 + 1);
    }
}

#[test]
fn too_few_frames_are_refused_with_the_number_and_the_reason() {
    let refused = Domain::builder().frames(3).build();
    let text = refused.err().unwrap().to_string();
    assert!(text.contains("at least 4"), "{text}");
}

#[test]
fn a_domain_without_a_store_has_no_paged_stretches() {
    let domain = Domain::builder().frames(16).build().unwrap();
    let stretch = domain.allocate(PAGE).unwrap();
    assert!(matches!(
        stretch.bind(Paged),
        Err(StretchError::NoStore { driver: "paged" })
    ));
}

#[test]
fn a_dropped_domain_leaves_no_memory_and_no_descriptor() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let once = || {
        let domain = domain(64);
        let stretch = domain.allocate(1000 * PAGE).unwrap();
        stretch.bind(Paged).unwrap();
        unsafe { stretch.bytes_mut() }.fill(1);
    };
    once();
    let before = descriptors();
    for _ in 0..20 {
        once();
    }
    // Other tests of this process open a few meanwhile; twenty domains' would be many.
    assert!(
        descriptors() < before + 40,
        "{} then {}",
        before,
        descriptors()
    );
}

/// The access that the kernel's mapping of an address gives, as /proc shows it.
fn access_in_maps(addr: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split(' ').next().unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&addr)
    });
    line.unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn pages_that_the_store_refuses_come_back_with_the_rights_they_had() {
    let domain = Domain::builder()
        .frames(64)
        .store("ram:1M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    const PAGES: usize = 40;
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Full).unwrap();
    unsafe { stretch.bytes_mut() }.fill(5);
    stretch.protect(Rights::READ | Rights::META).unwrap();
    stretch.unmap(0..PAGES).unwrap();
    assert!(stretch.trans(3).unwrap().frame.is_none());
    assert_eq!(domain.relinquish(64), 0, "every page is refused");
    let came_back = |page: &usize| stretch.trans(*page).unwrap().frame.is_some();
    let back: Vec<_> = (0..PAGES).filter(came_back).collect();
    assert!(!back.is_empty());
    for page in back {
        let addr = stretch.base() + page * PAGE;
        assert_eq!(access_in_maps(addr), "r--p", "page {page}");
    }
    assert!(unsafe { stretch.bytes() }.iter().all(|byte| *byte == 5));
}

/// Keeps nothing.
struct Full;

impl StretchDriver for Full {
    fn name(&self) -> &'static str {
        "full"
    }
    fn evictable(&self) -> bool {
        true
    }
    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        Physical.fault(fault)
    }
    fn clean(&self, _: usize, _: &[u8; PAGE]) -> CleanOutcome {
        CleanOutcome::Refused(StoreError::Busy)
    }
}
