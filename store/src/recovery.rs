//! Recovery of a dead holder, perhaps killed at any instruction: releases what it held.
//!
//! Its intents show the interrupted operations: each is finished or undone. Its bitmap shows its
//! holds: each is dropped as it would have done. Bloks that it was writing are reused only when no
//! I/O on the file is in flight any more, because the kernel may finish a dead process's writes
//! later.

use crate::HolderId;
use crate::PageHandle;
use crate::blok::BlokRun;
use crate::inner::StoreInner;
use crate::intent_log::{Intent, NOTES_IN_LINE};
use crate::location::Location;
use crate::page_index::ReleaseError;
use crate::ref_bitmap::ones;
use std::cell::Cell;

impl StoreInner {
    /// A thread's position among the intent words: its stack address identifies the thread without
    /// a system call.
    fn near() -> usize {
        let here = 0u8;
        // Stacks lie at large powers of two from each other: mixed, to reach all cache lines.
        let mixed = ((&raw const here).addr() as u64 >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize * NOTES_IN_LINE
    }

    /// Drops these holds of `holder`.
    pub fn discard(&self, holder: HolderId, handles: &[PageHandle]) {
        let note = self.page_index.intents.begin(holder, Self::near());
        let tiers = (&self.segments, self.bloks.as_ref());
        for handle in handles {
            let _ = self
                .page_index
                .drop_hold(holder, handle.get(), tiers, &note, || false);
        }
    }

    /// Releases everything of `dead`; returns false if another process has an entry locked. `is_quiet`: none of its I/O
    /// is in flight.
    pub fn retire(&self, dead: HolderId, is_quiet: bool) -> bool {
        let all = self.release(dead, &|_| false, is_quiet);
        if all {
            self.page_index.refs.reset(dead);
            self.set_active(dead, false);
        }
        all
    }

    /// Releases what `dead` held without `is_kept`: the pages that another process goes on with under its number. A
    /// process that is killed here as well has done a part, and the next begins again. Returns false if another
    /// process has an entry locked.
    pub fn release_all_but(&self, dead: HolderId, is_kept: &dyn Fn(PageHandle) -> bool) -> bool {
        self.release(dead, is_kept, false)
    }

    fn release(
        &self,
        dead: HolderId,
        is_kept: &dyn Fn(PageHandle) -> bool,
        is_quiet: bool,
    ) -> bool {
        let in_flight = InFlight {
            inner: self,
            is_over: Cell::new(is_quiet),
        };
        for intent in self.page_index.intents.left_by(dead) {
            self.recover(dead, intent, &in_flight, is_kept);
        }
        self.page_index.intents.clear(dead);
        self.page_index.repair_hint();
        if let Some(bloks) = &self.bloks {
            bloks.repair_hint();
        }
        let all = self.drop_all_but(dead, is_kept, &in_flight);
        self.segments.abandon(dead, self.is_live());
        self.segments.sweep(dead, self.is_live());
        all
    }

    fn recover(
        &self,
        dead: HolderId,
        intent: Intent,
        in_flight: &InFlight<'_>,
        is_kept: &dyn Fn(PageHandle) -> bool,
    ) {
        match (intent, &self.bloks) {
            (Intent::BlokAllocator(first, count), Some(bloks)) => {
                bloks.repair(BlokRun { first, count });
            }
            (Intent::Demote(handle, blok), Some(bloks)) => {
                let location = Location::Disk { blok };
                let mut others = self.active().filter(|&holder| holder != dead);
                // Moved, never begun, or begun again by another process since.
                let over = self.page_index.is_at(handle, location)
                    || !bloks.is_owned(blok, handle)
                    || self
                        .page_index
                        .intents
                        .any_demotes(&mut others, handle, blok)
                    || self.page_index.is_at(handle, location);
                if !over {
                    in_flight.wait();
                    bloks.free(blok, handle);
                }
            }
            _ => {
                let tiers = (&self.segments, self.bloks.as_ref());
                self.page_index.recover(dead, intent, tiers, is_kept);
            }
        }
    }

    /// Drops the other holds of a dead holder. Returns false if another process has an entry locked.
    fn drop_all_but(
        &self,
        dead: HolderId,
        is_kept: &dyn Fn(PageHandle) -> bool,
        in_flight: &InFlight<'_>,
    ) -> bool {
        let note = self.page_index.intents.begin(dead, 0);
        let tiers = (&self.segments, self.bloks.as_ref());
        let mut all = true;
        for (group, mask) in self.page_index.refs.each(dead) {
            for handle in ones(mask).map(|bit| group as u32 * 64 + bit) {
                if let Some(location) = self.page_index.claimed_location(dead, handle) {
                    match (location, &self.bloks) {
                        (Location::Disk { blok }, Some(bloks)) if bloks.is_owned(blok, handle) => {
                            in_flight.wait();
                            bloks.free(blok, handle);
                        }
                        // Freed after a write that failed, but for its mark, or not assigned yet.
                        (Location::Disk { blok }, Some(bloks)) => bloks.repair(BlokRun::one(blok)),
                        _ => {}
                    }
                    self.page_index.release_claimed(dead, 0, handle);
                } else if PageHandle::new(handle).is_some_and(is_kept) {
                    // Its page is stored, and stays.
                } else if let Err(ReleaseError::InOthersHands) =
                    self.page_index
                        .drop_hold(dead, handle, tiers, &note, || true)
                {
                    all = false;
                }
            }
        }
        all
    }
}

/// Waits once, before the first blok with an interrupted write is reused, unless the I/O is known to be over.
struct InFlight<'a> {
    inner: &'a StoreInner,
    is_over: Cell<bool>,
}

impl InFlight<'_> {
    fn wait(&self) {
        if self.is_over.replace(true) {
            return;
        }
        self.inner.backing.wait_for_io();
    }
}
