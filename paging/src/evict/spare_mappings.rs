//! Kernel mappings that eviction keeps in reserve.
//!
//! A process has at most `vm.max_map_count` mappings, and a program may use them all: it can
//! still touch its memory then, so its pages must still be paged in and out. Staging a unit
//! and putting a page back each need a few mappings for a moment. So some are made in advance
//! that hold nothing, and are merged into one if the kernel refuses another.
//!
//! Rule: a page that is in a slot and may not stay there waits for a mapping as long as it
//! takes. Only threads of the program that go on mapping can make it wait.

use crate::standby::MOST_SLOTS;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use translation::{Access, Reservation, TranslationError};
use wired::PAGE;

/// Mappings in reserve. A page that is put back needs two and their registration, the kernel
/// refuses `mremap` from five below the limit on, slots that are used for the first time have one
/// each, and a channel has up to five. Made at a process's first eviction, or once it has
/// mapped and protected memory many times: a process that does neither has none.
const SPARE: usize = 64;

/// Addresses of the reserve: with those of [`SpareMappings::keep_for`], for as many slots as there may be.
const LEN: usize = (SPARE + 2 * MOST_SLOTS) * PAGE;

#[derive(Default)]
pub(crate) struct SpareMappings {
    base: OnceLock<usize>,
    /// Mappings in reserve beside [`SPARE`].
    more: AtomicUsize,
    /// Pages that were made a mapping of their own: each is one more between two others.
    split: AtomicUsize,
}

impl SpareMappings {
    /// Makes those that are missing, as far as the kernel has mappings left. Under the stager's lock.
    pub(super) fn keep(&self) {
        let split = self.split.load(Ordering::Relaxed);
        let wanted = (SPARE + self.more.load(Ordering::Relaxed)) / 2;
        if split >= wanted {
            return;
        }
        let base = match self.base.get() {
            Some(base) => *base,
            None => match translation::reserve_apart(LEN, false) {
                Ok(area) => *self.base.get_or_init(|| area.addr),
                Err(_) => return,
            },
        };
        // Neighbours with the same rights would be one mapping.
        let is_made = |at: &usize| set(base + (2 * at + 1) * PAGE, PAGE, Access::READ).is_ok();
        let more = (split..wanted).take_while(is_made).count();
        self.split.store(split + more, Ordering::Release);
    }

    /// The same, with those that slots take which were never used: one each, and another where the unit was.
    pub(crate) fn keep_for(&self, slots: usize) {
        self.more
            .store(2 * slots.min(MOST_SLOTS), Ordering::Relaxed);
        self.keep();
    }

    /// Releases the reserve after the kernel refused a mapping. Returns false if there is
    /// none.
    pub(crate) fn release(&self) -> bool {
        let held = self.split.swap(0, Ordering::AcqRel) > 0;
        if held && let Some(base) = self.base.get() {
            merge(*base);
        }
        held
    }

    /// Releases the reserve when the pager ends.
    pub(crate) fn unmap(&mut self) {
        let len = LEN;
        if let Some(addr) = self.base.take() {
            // SAFETY: the reserve's own.
            let _ = unsafe { translation::unmap_reservation(Reservation { addr, len }) };
        }
    }
}

fn merge(base: usize) {
    let _ = set(base, LEN, Access::NONE);
}

fn set(addr: usize, len: usize, access: Access) -> Result<(), TranslationError> {
    // SAFETY: the reserve's own; nothing is in it.
    unsafe { translation::set_access(addr, len, access) }
}
