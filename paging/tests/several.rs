//! Several domains in one process: a domain that waits does not delay the others.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{
    Activation, Domain, EntryKind, Fault, FaultError, FaultKind, FillOutcome, Handled, Physical,
    Rights, StoreError, Stretch, StretchDriver,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// Longer than anything here takes.
const WATCHDOG: Duration = Duration::from_secs(30);

fn domain(entry: EntryKind) -> Domain {
    Domain::builder().frames(16).entry(entry).build().unwrap()
}

fn physical(domain: &Domain) -> Stretch {
    let stretch = domain.allocate(PAGE).unwrap();
    stretch.bind(Physical).unwrap();
    stretch
}

fn touch(addr: usize) {
    unsafe { (addr as *mut u8).write_volatile(7) };
}

/// Keeps its first fault until it is released.
struct Slow {
    begun: Arc<AtomicBool>,
    go: Arc<AtomicBool>,
}

impl StretchDriver for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        self.begun.store(true, Ordering::Release);
        while !self.go.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        Physical.fault(fault)
    }
}

#[test]
fn a_fault_that_waits_in_one_domain_keeps_no_other_from_coming_and_going() {
    let waiting = domain(EntryKind::Upcall);
    let stretch = waiting.allocate(PAGE).unwrap();
    let (begun, go) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let slow = Slow {
        begun: begun.clone(),
        go: go.clone(),
    };
    stretch.bind(slow).unwrap();
    let at = stretch.base();
    let faulter = std::thread::spawn(move || touch(at));
    while !begun.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let others: Vec<_> = (0..3).map(|_| domain(EntryKind::Upcall)).collect();
        for other in others {
            let stretch = physical(&other);
            touch(stretch.base());
            drop((stretch, other));
        }
        let last = domain(EntryKind::Upcall);
        touch(physical(&last).base());
        let _ = tell.send(());
    });
    let came = told.recv_timeout(WATCHDOG);
    go.store(true, Ordering::Release);
    faulter.join().unwrap();
    assert_eq!(came, Ok(()), "others waited for the fault");
}

/// Fails its first faults, then gives zeros.
struct Failing(AtomicU32);

impl StretchDriver for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }
    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        let left = |left: u32| left.checked_sub(1);
        match self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, left)
        {
            Ok(_) => FillOutcome::Failure(FaultError::Unreadable(StoreError::Busy)),
            Err(_) => Physical.fault(fault),
        }
    }
}

#[test]
fn a_page_that_could_not_be_read_once_is_tried_again_at_a_later_access() {
    let domain = domain(EntryKind::Thread);
    let stretch = domain.allocate(4 * PAGE).unwrap();
    stretch.bind(Failing(AtomicU32::new(1))).unwrap();
    // By system calls, which return as an error what a load would get as a SIGBUS.
    let (_reader, writer) = std::io::pipe().unwrap();
    let access = || unsafe {
        libc::write(
            std::os::fd::AsRawFd::as_raw_fd(&writer),
            (stretch.base() + PAGE) as *const _,
            1,
        )
    };
    assert_eq!(access(), -1, "the first access is told");
    let begun = Instant::now();
    while access() != 1 {
        assert!(begun.elapsed() < WATCHDOG, "the page is lost for good");
        std::thread::sleep(Duration::from_millis(5));
    }
    touch(stretch.base() + PAGE);
}

#[test]
fn each_domain_handles_the_faults_of_its_own_stretches() {
    let (first, second) = (domain(EntryKind::Upcall), domain(EntryKind::Upcall));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    first.on_unallocated(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Handled::Default
    });
    let stretch = second.allocate(PAGE).unwrap();
    stretch.bind(Physical).unwrap();
    stretch.protect(Rights::READ | Rights::META).unwrap();
    let (base, len) = (stretch.base(), stretch.len());
    let opens = move |_: &Fault| {
        let at = std::ptr::with_exposed_provenance_mut(base);
        match unsafe { libc::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE) } {
            0 => Handled::Resume,
            _ => Handled::Default,
        }
    };
    stretch.override_fault(FaultKind::Protection, Some(Box::new(opens)));
    unsafe { stretch.as_ptr().write_volatile(1) };
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    // An address of neither: the second is called after the first has declined.
    let guarded = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(guarded, libc::MAP_FAILED);
    let addr = guarded.expose_provenance();
    second.on_unallocated(move |fault| {
        let at = std::ptr::with_exposed_provenance_mut(addr);
        let opened = fault.addr == addr
            && unsafe { libc::mprotect(at, PAGE, libc::PROT_READ | libc::PROT_WRITE) } == 0;
        match opened {
            true => Handled::Resume,
            false => Handled::Default,
        }
    });
    unsafe { guarded.cast::<u8>().write_volatile(1) };
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(unsafe { libc::munmap(guarded, PAGE) }, 0);
}
