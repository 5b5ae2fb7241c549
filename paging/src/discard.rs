//! Contents dropped, moved, kept in place: what a program's own calls do to its stretches.

use crate::page::{Busy, State};
use crate::pager::Pager;
use crate::stretch::Inner;
use frames::Frame;
use std::ops::Range;
use wired::PAGE;

/// What pages are once their contents are given up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Afterwards {
    /// The domain's, and zeros.
    Empty,
    /// The program's to map something else over.
    Foreign,
}

impl Pager {
    /// Drops the contents of `range`: its pages are zeros again, their frames unused, their
    /// stored copies gone. What `munmap` and `madvise(MADV_DONTNEED)` do to a program.
    /// The caller is inside the domain's gate, and has nothing in `Filling`.
    pub(crate) fn discard(&self, range: Range<usize>) {
        self.for_each_unit(range, &mut |stretch, unit, pages| {
            if stretch.table().touched(unit) {
                self.give_up_unit(stretch, unit, pages, Afterwards::Empty);
            }
        });
    }

    /// Something else will be mapped over `range`: as [`Pager::discard`], and its pages are
    /// no longer the domain's.
    pub(crate) fn surrender(&self, range: Range<usize>) {
        self.for_each_unit(range, &mut |stretch, unit, pages| {
            self.give_up_unit(stretch, unit, pages, Afterwards::Foreign);
        });
    }

    /// What was mapped over `range` is gone, and anonymous memory is registered there
    /// again.
    pub(crate) fn reclaim_foreign(&self, range: Range<usize>) {
        self.for_each_unit(range, &mut |stretch, unit, pages| {
            let table = stretch.table();
            let gate = table.gate(unit);
            gate.close();
            let back = pages.filter(|index| table.word(*index).reclaim()).count();
            table.reclaimed(back);
            gate.open();
        });
    }

    fn give_up_unit(
        &self,
        stretch: &Inner,
        unit: usize,
        pages: Range<usize>,
        afterwards: Afterwards,
    ) {
        let table = stretch.table();
        let gate = table.gate(unit);
        let mut from = pages.start;
        while from < pages.end {
            gate.close();
            let mut frames = FrameList::new();
            let mut at = from;
            let mut in_transit = None;
            let (mut surrendered, mut nailed) = (0, false);
            while at < pages.end && !frames.full() {
                let word = table.word(at);
                let ours = word.load().state() != State::Foreign;
                let given_up = match afterwards {
                    Afterwards::Empty => word.discard(),
                    Afterwards::Foreign => word.become_foreign(),
                };
                match given_up {
                    Ok(dropped) => {
                        // A staged page's frame goes with its slot.
                        if let Some(frame) = dropped.frame {
                            frames.push(frame);
                            table.went(unit, 1);
                        }
                        if let Some(handle) = dropped.handle {
                            self.forget(handle);
                        }
                        surrendered += usize::from(ours);
                        nailed |= dropped.nailed;
                        at += 1;
                    }
                    Err(Busy) => {
                        in_transit = Some(at);
                        break;
                    }
                }
            }
            if at > from {
                if nailed {
                    self.forget_held(&(table.address(from)..table.address(at)));
                }
                if afterwards == Afterwards::Foreign {
                    table.surrendered(unit, surrendered);
                }
                // SAFETY: the program gave the contents up.
                let _ = unsafe { translation::discard(table.address(from), (at - from) * PAGE) };
                frames.put(self);
            }
            gate.open();
            from = at;
            if let Some(page) = in_transit {
                table.word(page).wait_settled();
            }
        }
    }

    /// Moves the contents of `from` to `to`, a range of the same length whose pages are
    /// all empty and which nobody touches yet. Nothing is copied: pages that are resident
    /// are staged, and the words move.
    pub(crate) fn transfer(&self, from: Range<usize>, to: usize) {
        let distance = to.wrapping_sub(from.start);
        self.for_each_unit(from, &mut |stretch, unit, pages| {
            let table = stretch.table();
            if !table.touched(unit) {
                return;
            }
            let mut at = pages.start;
            while at < pages.end {
                let mut halted = self.halt();
                if !self.make_room(&mut halted) {
                    // Nothing may be lost: until the store takes a page, or the kernel a
                    // mapping, the program's call does not return.
                    drop(halted);
                    self.await_room();
                    continue;
                }
                self.unnail_for_move(stretch, at..pages.end);
                self.stage_unit(halted.stager(), stretch, unit);
                let gate = table.gate(unit);
                gate.close();
                let stopped = self.move_words(stretch, at..pages.end, distance);
                gate.open();
                drop(halted);
                match stopped {
                    None => return,
                    Some((page, State::Filling)) => {
                        table.word(page).wait_settled();
                        at = page;
                    }
                    // Faulted back before its word could be moved: once more.
                    Some((page, _)) => at = page,
                }
            }
        });
    }

    fn unnail_for_move(&self, stretch: &Inner, pages: Range<usize>) {
        for index in pages {
            while stretch.table().word(index).unnail() {}
        }
    }

    /// Moves words until one is met that is not settled; says which.
    fn move_words(
        &self,
        stretch: &Inner,
        pages: Range<usize>,
        distance: usize,
    ) -> Option<(usize, State)> {
        for index in pages {
            let word = stretch.table().word(index);
            let seen = word.load();
            match seen.state() {
                State::Empty | State::Foreign | State::Poisoned => continue,
                State::Filling | State::Resident => return Some((index, seen.state())),
                State::Staged | State::Stored => {}
            }
            let target = stretch.table().address(index).wrapping_add(distance);
            let Some(other) = self.directory.find(target) else {
                continue;
            };
            let there = other.table().index(target);
            if seen.state() == State::Staged {
                self.places.set_home(seen.frame(), target);
            }
            if !word.take(seen) {
                return Some((index, State::Resident));
            }
            other.table().word(there).put(seen);
            other.table().touch_only(other.table().unit_of(there));
        }
        None
    }

    /// Makes the pages of `range` resident and keeps them so, or says why not. In a
    /// linked program the caller's own access has faulted them in first.
    pub(crate) fn nail(&self, range: Range<usize>) -> bool {
        let mut all = true;
        self.for_each_unit(range, &mut |stretch, unit, pages| {
            let gate = stretch.table().gate(unit);
            gate.close();
            for index in pages {
                let word = stretch.table().word(index);
                if word.nail() {
                    self.mark(word.load().frame(), frames::State::Nailed);
                } else {
                    all = false;
                }
            }
            gate.open();
        });
        all
    }

    /// Undoes one nail of a page. Under the unit's closed gate.
    pub(crate) fn unnail_page(&self, stretch: &Inner, index: usize) {
        let word = stretch.table().word(index);
        let seen = word.load();
        if word.unnail() && seen.nails() == 1 && seen.state() == State::Resident {
            self.mark(seen.frame(), frames::State::Mapped);
        }
    }

    /// Undoes [`Pager::nail`].
    pub(crate) fn unnail(&self, range: Range<usize>) {
        self.for_each_unit(range, &mut |stretch, unit, pages| {
            let gate = stretch.table().gate(unit);
            gate.close();
            for index in pages {
                self.unnail_page(stretch, index);
            }
            gate.open();
            if stretch.table().touch(unit) {
                self.note_filled(stretch, unit, true, false);
            }
        });
    }
}

/// Frames to be put back after their memory is gone.
struct FrameList {
    frames: [Frame; FrameList::ROOM],
    count: usize,
}

impl FrameList {
    const ROOM: usize = 256;

    fn new() -> Self {
        Self {
            frames: [Frame(0); Self::ROOM],
            count: 0,
        }
    }

    fn full(&self) -> bool {
        self.count == Self::ROOM
    }

    fn push(&mut self, frame: u32) {
        self.frames[self.count] = Frame(frame);
        self.count += 1;
    }

    fn put(&self, pager: &Pager) {
        pager.put_all(&self.frames[..self.count]);
    }
}
