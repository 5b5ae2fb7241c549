//! A stretch driver that panics ends the process, also where the program would catch that.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{Activation, CleanOutcome, Domain, FillOutcome, Physical, StretchDriver};
use std::panic::{AssertUnwindSafe, catch_unwind};

const PAGE: usize = 4096;

/// Panics in the method of this name.
struct Panics(&'static str);

impl StretchDriver for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }
    fn evictable(&self) -> bool {
        true
    }
    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        assert_ne!(self.0, "fault");
        Physical.fault(fault)
    }
    fn clean(&self, _: usize, _: &[u8; PAGE]) -> CleanOutcome {
        assert_ne!(self.0, "clean");
        CleanOutcome::Kept
    }
}

/// The signal that ends a child in which the driver panics in `method`, if one does.
fn signal_by_a_panic_in(method: &'static str) -> Option<i32> {
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        unsafe { libc::alarm(30) };
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let domain = Domain::builder().frames(16).build().unwrap();
            let stretch = domain.allocate(4 * PAGE).unwrap();
            stretch.bind(Panics(method)).unwrap();
            stretch.populate(0..PAGE).unwrap();
            stretch.flush().unwrap();
        }));
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

#[test]
fn a_panic_of_a_driver_ends_the_process() {
    assert_eq!(signal_by_a_panic_in("no method"), None);
    assert_eq!(signal_by_a_panic_in("fault"), Some(libc::SIGABRT));
    assert_eq!(signal_by_a_panic_in("clean"), Some(libc::SIGABRT));
}
