//! A signal handler that touches a stretch, at any moment of the library's own calls.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{DirectIo, Domain, Paged};
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// Signals that must have come.
const SIGNALS: usize = 300;

static BASE: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn touch(_: i32) {
    let count = HANDLED.fetch_add(1, Ordering::Relaxed);
    let base: *mut u8 = std::ptr::with_exposed_provenance_mut(BASE.load(Ordering::Relaxed));
    unsafe { base.add(count % PAGES * PAGE).write_volatile(1) };
}

/// Sends the process a signal each 200 microseconds of its processor time.
fn start_signals() {
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = touch as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()),
            0
        );
        let each = libc::timeval {
            tv_sec: 0,
            tv_usec: 200,
        };
        let timer = libc::itimerval {
            it_interval: each,
            it_value: each,
        };
        assert_eq!(
            libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()),
            0
        );
    }
}

/// The process's one thread, so that each signal comes to it.
fn work() {
    let domain = Domain::builder()
        .frames(32)
        .store("ram:4M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    BASE.store(stretch.base(), Ordering::Relaxed);
    start_signals();
    while HANDLED.load(Ordering::Relaxed) < SIGNALS {
        drop(stretch.pin(0..4 * PAGE).unwrap());
        stretch.populate(4 * PAGE..12 * PAGE).unwrap();
        stretch.unmap(0..16).unwrap();
        stretch.discard(0..PAGES).unwrap();
        domain.relinquish(8);
        drop(domain.allocate(PAGE).unwrap());
    }
}

#[test]
fn a_signal_handler_may_touch_a_stretch() {
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        unsafe { libc::alarm(60) };
        work();
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
}
