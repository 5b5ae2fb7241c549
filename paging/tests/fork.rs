//! The child of a fork that the library did not make has no part in its parent's domains.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{DirectIo, Domain, Paged, Stretch};
use std::panic::{AssertUnwindSafe, catch_unwind};

const PAGE: usize = 4096;
const PAGES: usize = 256;

/// Seconds after which a child that hangs ends.
const PATIENCE: u32 = 60;

fn domain() -> Domain {
    Domain::builder()
        .frames(64)
        .store("ram:4M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap()
}

fn filled(domain: &Domain) -> Stretch {
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    for page in 0..PAGES {
        unsafe { stretch.as_ptr().add(page * PAGE).write_volatile(page as u8) };
    }
    stretch
}

fn is_whole(stretch: &Stretch) -> bool {
    let read = |page: usize| unsafe { stretch.as_ptr().add(page * PAGE).read_volatile() };
    (0..PAGES).all(|page| read(page) == page as u8)
}

/// Returns true if `work` returns true in a child of a fork.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        unsafe { libc::alarm(PATIENCE) };
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_child_that_drops_its_copies_takes_nothing_from_its_parent() {
    let domain = domain();
    let stretch = filled(&domain);
    let pin = stretch.pin(0..PAGE).unwrap();
    let held = domain.store_usage().unwrap().holds;
    let dropped = in_child(|| {
        drop(unsafe { std::ptr::read(&raw const pin) });
        drop(unsafe { std::ptr::read(&raw const stretch) });
        drop(unsafe { std::ptr::read(&raw const domain) });
        true
    });
    assert!(dropped);
    assert_eq!(domain.store_usage().unwrap().holds, held);
    assert!(is_whole(&stretch));
    drop(pin);
}

#[test]
fn operations_of_a_child_on_its_parents_stretches_are_refused() {
    let domain = domain();
    let stretch = filled(&domain);
    let refused = in_child(|| {
        domain.relinquish(64) == 0
            && domain.take_frame().is_none()
            && domain.allocate(PAGE).is_err()
            && domain.lookup(stretch.base()).is_none()
            && stretch.populate(0..PAGE).is_err()
            && stretch.pin(0..PAGE).is_err()
            && stretch.unmap(0..1).is_err()
            && stretch.discard(0..1).is_err()
            && stretch.flush().is_err()
            && stretch.prefetch(0..PAGE).is_err()
    });
    assert!(refused);
    assert!(is_whole(&stretch));
}

#[test]
fn a_child_has_domains_of_its_own() {
    let domain = domain();
    let stretch = filled(&domain);
    assert!(in_child(|| {
        // At the addresses of the parent's, if the kernel puts it there.
        let own = self::domain();
        let stretch = filled(&own);
        is_whole(&stretch)
    }));
    assert!(is_whole(&stretch));
}
