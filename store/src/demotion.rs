//! Demotion: the oldest segments' pages move from RAM to disk while newer ones are written.
//!
//! A channel that opens one of the last free segments claims the oldest sealed one, unpacks its
//! live pages into a bounce buffer, and writes that in runs through its own ring: no other process
//! pays. A page's location changes only after its blok is written, by one compare-and-swap, so that
//! its handle stays the same and a reader finds it in either place. A page that cannot be written
//! stays where it is, and nothing is lost.

use crate::Checksum;
use crate::backoff::Backoff;
use crate::channel::StoreChannel;
use crate::compressed_ram::CompactionPolicy;
use crate::inner::StoreCounter;
use crate::intent_log::end;
use crate::io::op::{IoKind, PageSlot, RUN};
use crate::location::Location;
use crate::segment::room_for;
use crate::segment_stats::SegmentStats;
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
    /// Puts a page into compressed RAM, compressed (its `packed` length in the codec's buffer) or
    /// as it is. Returns false if there is no room.
    pub(crate) fn put_in_ram(
        &mut self,
        handle: u32,
        contents: &[u8; PAGE],
        packed: Option<usize>,
        sum: Checksum,
    ) -> bool {
        let need = room_for(packed.unwrap_or(PAGE)) as u32;
        while !self.ram.append(handle, contents, packed, sum) {
            if !self.make_room(need) {
                return false;
            }
        }
        true
    }

    /// Opens another segment for the channel, with `need` bytes of room in it. Returns true if
    /// it found one.
    fn make_room(&mut self, need: u32) -> bool {
        let tiered = self.disk.is_some();
        let mut policy = CompactionPolicy::new(need, tiered);
        let mut backoff = Backoff::default();
        loop {
            self.ram.seal();
            let stats = SegmentStats::of(&self.store.segments);
            if tiered && self.ram.is_low(&stats) && !policy.tighten(&stats) {
                self.begin_demotion(stats.oldest);
            }
            if self.ram.open_segment(&stats, policy) {
                return true;
            }
            if tiered && (self.wait_for_demotion() || policy.relax()) {
                continue;
            }
            // Other channels may be about to free a segment, which does not take long. Where the disk
            // takes the page, it need not be waited for: with more channels than segments, each
            // page would wait in vain.
            let waited = match tiered && self.disk_has_room() {
                true => backoff.has_spun(),
                false => backoff.is_exhausted(),
            };
            if waited || !self.ram.others_make_room(&stats, policy) {
                return false;
            }
            backoff.wait();
        }
    }

    /// Starts to empty this segment, if no other is being emptied and the disk has room.
    pub(crate) fn begin_demotion(&mut self, oldest: Option<u32>) {
        let Some(segment) = oldest else { return };
        if self.demotion.is_some() || !self.disk_has_room() {
            return;
        }
        if self.store.segments.claim(segment, self.store.holder) {
            self.demote_claimed(segment);
        }
    }

    /// Starts to empty a segment that this channel has claimed.
    pub(crate) fn demote_claimed(&mut self, segment: u32) {
        self.demotion = Some(Demotion {
            segment,
            next: Some(0),
            outstanding: [0; HALVES],
            failed: false,
        });
        self.step_demotion();
        self.submit_io();
    }

    fn disk_has_room(&self) -> bool {
        self.store
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
            let live = self.store.segments.live_in(segment, self.store.is_live());
            self.store.segments.release(segment, live);
        }
    }

    /// Waits until the segment is emptied, or the demotion failed. Returns false if there was none,
    /// or it failed: waiting again would not help.
    pub(crate) fn wait_for_demotion(&mut self) -> bool {
        let mut failed = true;
        while let Some(demotion) = &self.demotion {
            failed = demotion.failed;
            if demotion.outstanding != [0; HALVES] {
                self.submit_io();
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
        let mut slots = [PageSlot::NONE; RUN];
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
            let disk = self.disk.as_mut();
            let taken = disk.and_then(|disk| disk.take_demotion_bloks(&mut slots[done..len]));
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
                self.store.segments.object(demotion.segment, offset)
            else {
                demotion.next = None;
                return None;
            };
            demotion.next = Some(next);
            if self.store.page_index.is_at(handle, location) {
                return Some(PageSlot {
                    handle,
                    from: location,
                    ..PageSlot::NONE
                });
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
        let _ = self.ram.unpack(location, page);
        memory
    }

    /// Completes a page's write: on success its location changes.
    pub(crate) fn on_demoted(
        &mut self,
        half: usize,
        slot: PageSlot,
        blok: u32,
        error: Option<i32>,
    ) {
        let moved = error.is_none()
            && self
                .store
                .page_index
                .relocate(slot.handle, slot.from, Location::Disk { blok });
        if moved {
            self.store.count(StoreCounter::Demoted, 1);
            if let Location::Ram { segment, len, .. } = slot.from {
                self.store.segments.mark_dead(segment, len);
            }
        } else if let Some(bloks) = &self.store.bloks {
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

    /// Empties the segments from the limit on, as far as possible.
    pub(crate) fn fit_below_limit(&mut self) {
        let limit = self.store.segments.limit();
        while self.store.segments.in_use() > limit && self.demote_oldest() {}
        for at in (limit..self.store.segments.end()).rev() {
            if self.store.segments.seize(at, self.store.holder) && !self.ram.move_below_limit(at) {
                let live = self.store.segments.live_in(at, self.store.is_live());
                self.store.segments.release(at, live);
            }
        }
    }

    /// Empties the oldest segment to disk, or one that an idle channel has open. Returns true if
    /// one became free.
    fn demote_oldest(&mut self) -> bool {
        let before = self.store.segments.in_use();
        let oldest = SegmentStats::of_all(&self.store.segments).oldest;
        let high = self.store.segments.high();
        let mut candidates = oldest.into_iter().chain((0..high).rev());
        let seized = candidates.find(|&at| self.store.segments.seize(at, self.store.holder));
        let Some(segment) = seized else { return false };
        self.demote_claimed(segment);
        self.wait_for_demotion();
        self.store.segments.in_use() < before
    }
}
