//! Demotion: the oldest segments' pages move from RAM to disk while newer ones are written.
//!
//! A channel that opens one of the last free segments claims the oldest sealed one, unpacks its
//! live pages into a bounce buffer, and writes that in runs through its own ring: no other process
//! pays. A page's location changes only after its blok is written, by one compare-and-swap, so that
//! its handle stays the same and a reader finds it in either place. A page that cannot be written
//! stays where it is, and nothing is lost.

use crate::channel::StoreChannel;
use crate::inner::StoreCounter;
use crate::intent_log::{Intent, end};
use crate::io::op::{IoKind, PageSlot, RUN};
use crate::location::Location;
use wired::PAGE;

/// Operations of a channel for demotion, beside its depth.
pub(crate) const DEMOTE_OPS: usize = 8;
/// Parts of the bounce buffer: one fills while the other is written.
pub(crate) const HALVES: usize = 2;

/// A segment being emptied to disk.
#[derive(Debug)]
pub(crate) struct Demotion {
    segment: u32,
    /// Offset of the next object in it; `None` at its end, or when continuing is pointless.
    next: Option<u32>,
    /// Pages of each half that are being written.
    outstanding: [usize; HALVES],
    failed: bool,
}

impl StoreChannel {
    /// Starts to empty this segment, if no other is being emptied and the disk has room.
    pub(crate) fn begin_demotion(&mut self, oldest: Option<u32>) {
        let Some(segment) = oldest else { return };
        if self.demotion.is_some() || !self.disk_has_room() {
            return;
        }
        if self.inner.segments.claim(segment, self.holder) {
            self.demotion = Some(Demotion {
                segment,
                next: Some(0),
                outstanding: [0; HALVES],
                failed: false,
            });
            self.step_demotion();
            self.submit_ops();
        }
    }

    fn disk_has_room(&self) -> bool {
        self.inner
            .bloks
            .as_ref()
            .is_some_and(|bloks| bloks.has_room())
    }

    /// Continues the demotion as far as possible without waiting.
    pub(crate) fn step_demotion(&mut self) {
        for half in 0..HALVES {
            let Some(demotion) = &self.demotion else {
                return;
            };
            if demotion.outstanding[half] == 0 && demotion.next.is_some() {
                self.fill_half(half);
            }
        }
        let Some(demotion) = &self.demotion else {
            return;
        };
        if demotion.next.is_none() && demotion.outstanding == [0; HALVES] {
            let segment = demotion.segment;
            self.demotion = None;
            let live = self.inner.segments.live_in(segment, self.inner.is_live());
            self.inner.segments.release(segment, live);
        }
    }

    /// Waits until the segment is emptied, or the demotion failed. Returns false if there was none,
    /// or it failed: waiting again would not help.
    pub(crate) fn wait_for_demotion(&mut self) -> bool {
        let mut failed = true;
        while let Some(demotion) = &self.demotion {
            failed = demotion.failed;
            if demotion.outstanding != [0; HALVES] {
                self.submit_ops();
                self.reap(true);
            }
            failed |= self
                .demotion
                .as_ref()
                .is_some_and(|demotion| demotion.failed);
            self.step_demotion();
        }
        !failed
    }

    /// Ends the demotion with the channel.
    pub(crate) fn end_demotion(&mut self) {
        if let Some(demotion) = &mut self.demotion {
            demotion.next = None;
            self.wait_for_demotion();
        }
    }

    /// Unpacks the next pages of the segment into a half of the buffer and writes them.
    fn fill_half(&mut self, half: usize) {
        let mut slots = [PageSlot::new(0, std::ptr::null_mut(), 0); RUN];
        let mut len = 0;
        while len < RUN {
            let Some(slot) = self.next_to_demote() else {
                break;
            };
            let at = half * RUN + len;
            slots[len] = slot;
            slots[len].memory = self.unpack_to_bounce(at, slot.from);
            len += 1;
        }
        let mut done = 0;
        while done < len {
            let taken = self.take_demotion_bloks(&mut slots[done..len]);
            let Some((first, taken)) = taken else {
                self.demotion_fails();
                return;
            };
            if let Some(demotion) = &mut self.demotion {
                demotion.outstanding[half] += taken;
            }
            self.start(IoKind::Demote(half), first, &slots[done..done + taken]);
            done += taken;
        }
    }

    fn demotion_fails(&mut self) {
        if let Some(demotion) = &mut self.demotion {
            demotion.failed = true;
            demotion.next = None;
        }
    }

    /// The next live page of the segment.
    fn next_to_demote(&mut self) -> Option<PageSlot> {
        let demotion = self.demotion.as_mut()?;
        loop {
            let offset = demotion.next?;
            let Some((handle, location, next)) =
                self.inner.segments.object(demotion.segment, offset)
            else {
                demotion.next = None;
                return None;
            };
            demotion.next = Some(next);
            if self.inner.page_index.is_at(handle, location) {
                let mut slot = PageSlot::new(handle, std::ptr::null_mut(), 0);
                slot.from = location;
                return Some(slot);
            }
        }
    }

    /// Writes the page even if unpacking fails: a corrupt page is detected when it is read.
    fn unpack_to_bounce(&mut self, at: usize, location: Location) -> *mut u8 {
        let Some(bounce) = &self.bounce else {
            return std::ptr::null_mut();
        };
        let memory = bounce.as_ptr().wrapping_add(at * PAGE);
        // SAFETY: a page of the buffer, in a half that no operation is writing.
        let page = unsafe { &mut *memory.cast::<[u8; PAGE]>() };
        if let Some(len) = self
            .inner
            .segments
            .read(location, self.codec.unpack_buffer())
        {
            let _ = self.codec.decompress(len, page);
        }
        memory
    }

    /// Assigns a run of bloks, each recorded as the destination of its page.
    fn take_demotion_bloks(&mut self, slots: &mut [PageSlot]) -> Option<(u32, usize)> {
        let Some(bloks) = &self.inner.bloks else {
            return None;
        };
        let intents = &self.inner.page_index.intents;
        let note = intents.begin(self.holder, self.shard.near());
        loop {
            let run = bloks.reserve(slots.len() as u32, self.near, &note)?;
            let (mut taken, mut skip) = (0, 0);
            for (blok, slot) in (run.first..run.first + run.count).zip(slots.iter_mut()) {
                let intent = Intent::Demote(slot.handle, blok);
                let Some(word) = intents.begin_long(self.holder, intent) else {
                    break;
                };
                if !bloks.try_assign(blok, slot.handle) {
                    end(word);
                    skip = 1;
                    break;
                }
                slot.note = Some(word);
                taken += 1;
            }
            let rest = run.first + taken + skip;
            bloks.unreserve(crate::blok::BlokRun {
                first: rest,
                count: run.first + run.count - rest,
            });
            note.set(Intent::Idle);
            if taken > 0 {
                self.near = Some(run.first + taken);
                return Some((run.first, taken as usize));
            }
            if skip == 0 {
                return None;
            }
        }
    }

    /// Completes a page's write: on success its location changes.
    pub(crate) fn was_demoted(
        &mut self,
        half: usize,
        slot: PageSlot,
        blok: u32,
        error: Option<i32>,
    ) {
        let moved = error.is_none()
            && self
                .inner
                .page_index
                .relocate(slot.handle, slot.from, Location::Disk { blok });
        if moved {
            self.count(StoreCounter::Demoted, 1);
            if let Location::Ram { segment, len, .. } = slot.from {
                self.inner.segments.mark_dead(segment, len);
            }
        } else if let Some(bloks) = &self.inner.bloks {
            bloks.free(blok, slot.handle);
        }
        if let Some(word) = slot.note {
            end(word);
        }
        if let Some(demotion) = &mut self.demotion {
            demotion.outstanding[half] -= 1;
        }
        if error.is_some() {
            self.demotion_fails();
        }
    }
}
