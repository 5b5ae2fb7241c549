//! Recovery of the page index from a holder that died within an operation.
//!
//! Rule: the holder's [`Intent`] names the entries that it was changing. Recovery finishes or undoes
//! that change, and may run again from its start if the recovering process dies too.

use super::{EntryWord, PageIndex};
use crate::blok::{BlokAllocator, BlokRun};
use crate::intent_log::Intent;
use crate::location::Location;
use crate::segment::SegmentTable;
use crate::{HolderId, PageHandle};
use std::sync::atomic::Ordering;

impl PageIndex {
    /// Finishes or undoes one operation of a dead holder, as far as the index is concerned.
    pub fn recover(
        &self,
        dead: HolderId,
        intent: Intent,
        (segments, bloks): (&SegmentTable, Option<&BlokAllocator>),
        is_kept: &dyn Fn(PageHandle) -> bool,
    ) {
        match intent {
            Intent::Claim(group) => {
                for handle in group * 64..group * 64 + 64 {
                    let word = self.word(handle);
                    if word == EntryWord::claimed_by(dead) && !self.refs.has(dead, handle) {
                        self.make_free(handle);
                    } else if word.is_free() {
                        self.repair_taken(handle);
                    }
                }
            }
            Intent::Drop(handle) => {
                let word = self.word(handle);
                // Another thread of the dead holder may have claimed the entry since, and stored a page there.
                let is_claimed = word == EntryWord::claimed_by(dead);
                let is_kept = PageHandle::new(handle).is_some_and(is_kept);
                if word.is_page() && word.is_locked_by(dead) || !is_claimed && !is_kept {
                    self.drop_anew(dead, handle, segments, bloks);
                }
                if self.word(handle).is_free() {
                    self.repair_taken(handle);
                }
            }
            Intent::Adopt(group) => {
                for handle in group * 64..group * 64 + 64 {
                    self.drop_anew(dead, handle, segments, bloks);
                }
            }
            Intent::Idle | Intent::BlokAllocator(..) | Intent::Demote(..) => {}
        }
    }

    /// Drops a hold that may be counted or not. The others are counted anew. One that adopts the page at this moment may be counted
    /// twice, and one that drops it once more: the page then stays until the end of the store.
    fn drop_anew(
        &self,
        dead: HolderId,
        handle: u32,
        segments: &SegmentTable,
        bloks: Option<&BlokAllocator>,
    ) {
        let entry = &self.entries[handle as usize];
        let word = entry.word();
        let locked = match word.is_page() && word.is_locked_by(dead) {
            true => Some(word),
            false if !self.refs.has(dead, handle) => return,
            false => entry.lock(dead, &mut || true),
        };
        self.refs.remove(dead, handle);
        // Else another process has it locked: a count too high keeps the page, one too low would lose it.
        if let Some(word) = locked {
            // The dead process may have taken the blok's owner away, and not its mark yet.
            let place = Location::decode(entry.place.load(Ordering::Acquire));
            if let (false, Location::Disk { blok }, Some(bloks)) = (word.is_filled(), place, bloks)
            {
                bloks.repair(BlokRun::one(blok));
            }
            let count = self.refs.count(handle) + 1;
            self.finish_drop(handle, word.with_count(count), segments, bloks);
        }
    }

    /// Repairs a free entry that is marked taken, because the process that freed it died in
    /// between. Another process may be claiming it now: then mark and entry agree soon, and a
    /// cleared mark costs the next search one look.
    fn repair_taken(&self, handle: u32) {
        if handle == 0 {
            return;
        }
        self.untake(handle);
        let word = self.word(handle);
        if !word.is_free() {
            self.taken[handle as usize / 64].fetch_or(1 << (handle % 64), Ordering::AcqRel);
        }
    }

    /// The location that the dead holder was writing this page to, if it was.
    pub fn claimed_location(&self, dead: HolderId, handle: u32) -> Option<Location> {
        let entry = &self.entries[handle as usize];
        let word = entry.word();
        (word == EntryWord::claimed_by(dead))
            .then(|| Location::decode(entry.place.load(Ordering::Acquire)))
    }

    /// After a crash: the dead process may have moved the hint without its second look.
    pub fn repair_hint(&self) {
        self.hint.lower(0);
    }
}
