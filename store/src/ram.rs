//! A channel's compressed RAM: pages appended to its open segment, room made when there is
//! none.
//!
//! A segment is opened while free ones are left and few bytes are holes; one stays in
//! reserve, as the place that the first compaction moves to. Compaction empties the segment
//! with the least alive, and what it left empty is the next reserve.

use crate::Checksum;
use crate::channel::Mover;
use crate::lockword::Patience;
use crate::parts::Count;
use crate::place::Spot;
use crate::segment::{Open, room_for};
use crate::survey::{HOLEY, Survey};
use wired::PAGE;

/// Free segments that only compaction opens.
const RESERVE: u32 = 1;

/// With a disk below, segments are compacted while at most this part of them is alive, in
/// 32nds; otherwise the oldest moves down: it is not worth copying what was not used.
const TIER_COMPACT: u32 = 16;
/// Without, or when the disk is full: whenever anything worth a few pages can be gained.
const FULL_COMPACT: u32 = 31;

/// Segments compacted at once at most: a store whose pages died in great number gets denser
/// while it is written to, without one write waiting for all of it.
const TOGETHER: usize = 4;

/// When a segment is worth compacting.
#[derive(Clone, Copy)]
struct Compact {
    /// Bytes of room that must come of it.
    need: u32,
    /// At most this part of it alive, in 32nds.
    part: u32,
}

impl Mover {
    /// Appends a page, compressed (its `packed` length in the codec's buffer) or as it is,
    /// and publishes it. False if there is no room for it.
    pub(crate) fn put_in_ram(
        &mut self,
        handle: u32,
        contents: &[u8; PAGE],
        packed: Option<usize>,
        sum: Checksum,
    ) -> bool {
        loop {
            if let Some(open) = &mut self.open {
                let bytes = match packed {
                    Some(len) => self.codec.packed(len),
                    None => contents,
                };
                let bytes_taken = room_for(bytes.len()) as u64;
                if let Some(spot) = self.parts.segments.append(open, handle, bytes) {
                    self.parts.catalogue.aim(handle, spot, sum);
                    self.parts.catalogue.publish(handle);
                    self.count(Count::ToRam, 1);
                    self.count(Count::ToRamBytes, bytes_taken);
                    return true;
                }
            }
            let need = room_for(packed.unwrap_or(PAGE)) as u32;
            if !self.make_room(need) {
                return false;
            }
        }
    }

    /// Unpacks what lies there in RAM; false if that is no page (any more).
    pub(crate) fn get_from_ram(&mut self, spot: Spot, to: &mut [u8; PAGE]) -> bool {
        let len = self.parts.segments.read(spot, self.codec.unpack_buffer());
        len.is_some_and(|len| self.codec.decompress(len, to))
    }

    /// Free segments below which the oldest begin to move to disk.
    fn low_water(&self) -> u32 {
        (self.parts.segments.count() as u32 / 16).clamp(RESERVE + 2, 64)
    }

    /// Gets the channel another open segment, with `need` bytes of room in it.
    fn make_room(&mut self, need: u32) -> bool {
        let tiered = self.parts.bloks.is_some();
        let mut compact = Compact {
            need,
            part: if tiered { TIER_COMPACT } else { FULL_COMPACT },
        };
        let mut patience = Patience::default();
        loop {
            if let Some(open) = self.open.take() {
                self.parts.segments.seal(open);
            }
            let survey = Survey::of(&self.parts.segments);
            if tiered && survey.free <= self.low_water() {
                self.begin_demotion(survey.oldest);
            }
            if survey.is_holey() && self.close_holes(&survey, need) {
                return true;
            }
            if survey.free > RESERVE && self.open_free(&survey) {
                return true;
            }
            if self.reopen_roomy(&survey, need) || self.compact(&survey, compact) {
                return true;
            }
            if tiered && self.wait_for_demotion() {
                continue;
            }
            if tiered && compact.part < FULL_COMPACT {
                compact.part = FULL_COMPACT;
                continue;
            }
            // Others may be about to free a segment; they do not take long.
            if patience.is_over() || !self.others_make_room(&survey, compact) {
                return false;
            }
            patience.wait();
        }
    }

    /// Whether another channel is emptying a segment now, or took the one found.
    fn others_make_room(&self, survey: &Survey, compact: Compact) -> bool {
        let worth = survey
            .emptiest
            .is_some_and(|(_, live)| live <= self.most_alive(compact));
        let segments = self.parts.segments.count() as u32;
        worth || survey.free > RESERVE || (0..segments).any(|at| self.parts.segments.is_claimed(at))
    }

    fn most_alive(&self, compact: Compact) -> u32 {
        let size = self.parts.segments.size() as u32;
        // A place for the page must come of it, or the same would be tried for ever.
        (size / 32 * compact.part).min(size - compact.need)
    }

    fn open_free(&mut self, survey: &Survey) -> bool {
        let free = survey.first_free;
        self.open = free.and_then(|at| self.parts.segments.open(at, self.holder));
        self.open.is_some()
    }

    /// A segment sealed early, by the death of its owner or the end of its channel, has
    /// room at its end.
    fn reopen_roomy(&mut self, survey: &Survey, need: u32) -> bool {
        let enough = need.max(self.parts.segments.size() as u32 / 4);
        let roomy = survey.roomiest.filter(|&(_, room)| room >= enough);
        self.open = roomy.and_then(|(at, _)| self.parts.segments.reopen(at, self.holder));
        self.open.is_some()
    }

    /// Empties the segment with the least alive into the reserve, which is the open segment
    /// then.
    fn compact(&mut self, survey: &Survey, compact: Compact) -> bool {
        let Some((victim, live)) = survey.emptiest else {
            return false;
        };
        if live > self.most_alive(compact) || !self.parts.segments.claim(victim, self.holder) {
            return false;
        }
        let live = self.parts.segments.live_in(victim, self.parts.is_live());
        if live > self.most_alive(compact) || (live > 0 && !self.open_free(survey)) {
            self.parts.segments.release(victim, live);
            return false;
        }
        self.empty(victim);
        if self.open.is_none() {
            let survey = Survey {
                first_free: Some(victim),
                ..Survey::default()
            };
            return self.open_free(&survey);
        }
        true
    }

    /// Compacts the emptiest segment, and more of them while they fit in the same one.
    fn close_holes(&mut self, survey: &Survey, need: u32) -> bool {
        let compact = Compact { need, part: HOLEY };
        if !self.compact(survey, compact) {
            return false;
        }
        for _ in 1..TOGETHER {
            let survey = Survey::of(&self.parts.segments);
            let fits = |live| {
                self.open
                    .as_ref()
                    .is_some_and(|open| live + need <= self.parts.segments.room_in(open))
            };
            let Some((victim, _)) = survey.emptiest.filter(|&(_, live)| fits(live)) else {
                break;
            };
            if !survey.is_holey() || !self.parts.segments.claim(victim, self.holder) {
                break;
            }
            self.empty(victim);
        }
        true
    }

    /// Moves what is alive in a claimed segment to the open one, as far as it fits.
    fn empty(&mut self, victim: u32) {
        if let Some(mut open) = self.open.take() {
            self.move_all(victim, &mut open);
            self.open = Some(open);
        }
        // What was dropped or moved meanwhile is not alive; what did not fit, is.
        let left = self.parts.segments.live_in(victim, self.parts.is_live());
        self.parts.segments.release(victim, left);
    }

    fn move_all(&mut self, victim: u32, open: &mut Open) {
        let Self { parts, codec, .. } = self;
        let mut moved = 0;
        for (handle, spot) in parts.segments.objects(victim) {
            if !parts.catalogue.is_at(handle, spot) {
                continue;
            }
            let Some(len) = parts.segments.read(spot, codec.unpack_buffer()) else {
                continue;
            };
            let bytes = &codec.unpack_buffer()[..len];
            let Some(to) = parts.segments.append(open, handle, bytes) else {
                break;
            };
            if parts.catalogue.relocate(handle, spot, to) {
                moved += 1;
            } else {
                parts.segments.lost(open.segment, len as u32);
            }
        }
        self.count(Count::Compacted, moved);
    }
}
