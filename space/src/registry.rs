//! The spaces and stack pools of this process, as the fault handler finds them.
//!
//! A child of a fork has its parent's registrations: an address of theirs is not another resolver's.
//! It does not have the handlers that were inside them.

use crate::error::SpaceError;
use selfpage::{Handled, RegionFault};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use wired::WiredMemory;

/// Spaces and stack pools that one process can have at once.
pub(crate) const MOST: usize = 128;

/// Has addresses whose faults it resolves. Runs in the signal handler: see [`selfpage::RegionHandler`].
pub(crate) trait FaultResolver: Send + Sync {
    /// None if the address is not its own, or the resolver is another process's.
    fn resolve(&self, fault: &RegionFault) -> Option<Handled>;
}

static SLOTS: [AtomicPtr<Arc<dyn FaultResolver>>; MOST] =
    [const { AtomicPtr::new(null_mut()) }; MOST];

/// Handlers that use the resolver of each slot, or are about to look. Wiped in the child of a fork,
/// whose handlers have not begun.
static INSIDE: OnceLock<WiredMemory> = OnceLock::new();

fn inside(counts: &WiredMemory) -> &[AtomicU32] {
    counts.slice(0, MOST)
}

/// A place among them. Dropping it waits for the handlers that are inside.
pub(crate) struct Registration {
    slot: usize,
}

/// Registers a resolver, and installs the handler with the first one.
pub(crate) fn register(resolver: Arc<dyn FaultResolver>) -> Result<Registration, SpaceError> {
    if INSIDE.get().is_none() {
        let counts = WiredMemory::wiped_in_children(MOST * size_of::<AtomicU32>())
            .map_err(SpaceError::system("mapping memory that a fork wipes"))?;
        // Of two threads the first one's is used.
        let _ = INSIDE.set(counts);
    }
    if !selfpage::set_region_handler(resolve)? {
        return Err(SpaceError::HandlerTaken);
    }
    let boxed = Box::into_raw(Box::new(resolver));
    let free = SLOTS.iter().position(|slot| {
        slot.compare_exchange(null_mut(), boxed, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    });
    if let Some(slot) = free {
        return Ok(Registration { slot });
    }
    // SAFETY: just made, and in no slot.
    drop(unsafe { Box::from_raw(boxed) });
    Err(SpaceError::TooMany(MOST))
}

impl Drop for Registration {
    fn drop(&mut self) {
        let boxed = SLOTS[self.slot].swap(null_mut(), Ordering::SeqCst);
        let count = INSIDE.get().map(|counts| &inside(counts)[self.slot]);
        while count.is_some_and(|count| count.load(Ordering::SeqCst) != 0) {
            std::thread::yield_now();
        }
        // SAFETY: out of its slot, and every handler that saw it there has left.
        drop(unsafe { Box::from_raw(boxed) });
    }
}

fn resolve(fault: &RegionFault) -> Handled {
    let Some(counts) = INSIDE.get() else {
        return Handled::Default;
    };
    for (slot, count) in SLOTS.iter().zip(inside(counts)) {
        if slot.load(Ordering::Relaxed).is_null() {
            continue;
        }
        count.fetch_add(1, Ordering::SeqCst);
        // SAFETY: a registration is freed only when no handler is inside.
        let resolver = unsafe { slot.load(Ordering::SeqCst).as_ref() };
        let resolved = resolver.and_then(|r| r.resolve(fault));
        count.fetch_sub(1, Ordering::SeqCst);
        if let Some(handled) = resolved {
            return handled;
        }
    }
    Handled::Default
}

/// Writes a line to standard error without allocating: a resolver runs in a signal handler, on the thread that
/// faulted.
pub(crate) fn report(text: std::fmt::Arguments<'_>) {
    let line = wired::LogLine::new(text);
    // SAFETY: standard error, wherever it leads.
    let stderr = unsafe { BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, line.as_str().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Resolves a fault for as long as the test lets it.
    #[derive(Default)]
    struct SlowResolver {
        is_inside: AtomicBool,
        may_leave: AtomicBool,
    }

    impl FaultResolver for SlowResolver {
        fn resolve(&self, _: &RegionFault) -> Option<Handled> {
            self.is_inside.store(true, Ordering::SeqCst);
            while !self.may_leave.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Some(Handled::Default)
        }
    }

    #[test]
    fn a_child_that_drops_a_registration_does_not_wait_for_a_handler_of_its_parents() {
        let resolver = Arc::new(SlowResolver::default());
        let registration = register(resolver.clone()).unwrap();
        let fault = RegionFault {
            addr: 0,
            write: false,
            execute: false,
            no_page: false,
        };
        let handler = std::thread::spawn(move || resolve(&fault));
        while !resolver.is_inside.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // SAFETY: the child drops the registration alone, and ends; the alarm ends one that hangs.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::alarm(20) };
            drop(registration);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: a child of this process and a local word.
        unsafe { libc::waitpid(child, &mut status, 0) };
        resolver.may_leave.store(true, Ordering::SeqCst);
        handler.join().unwrap();
        drop(registration);
        assert_eq!(status, 0);
    }
}
