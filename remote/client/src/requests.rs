//! Requests of pages that are under way: parts of the disk's thread, and what they ask of servers.
//!
//! A *part* is what the disk's thread started. It is cut into *segments* where an object ends. A
//! segment of a read is sent to one server, that of a write to all that have a copy which receives
//! writes. It names its frames by its slot and a count of the slot's uses, so a late reply of an
//! earlier use is recognized.
//!
//! Rule: both tables have a fixed size, made once. The disk's thread has no more parts in flight than
//! its window and waiting reads, each of two segments at most.

use crate::objects::{ServerSet, bit};
use disk::time::Time;
use disk::usd::{PartId, result_of_part};
use iochannel::{IoVec, Op};
use remote_policy::identity::{Generation, Version};
use std::ops::Range;
use wired::PAGE;

/// Most parts in flight: more than a client of the disk's thread has, with the reads that wait for servers.
const PARTS: usize = 1024;
/// Most segments: two for each part, and those of copies.
pub const SEGMENTS: usize = 2560;

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A part's own, which has this index.
    Part(usize),
    /// Reads pages of an object to be copied to a server, for its copy of that generation: the reply
    /// may come when that copy is gone and another is made.
    CopyRead { to: usize, generation: Generation },
    /// Reads pages of a stripe's part for a degraded read, which has this place.
    DegradedRead { at: usize },
    /// Writes such pages.
    CopyWrite,
    /// Reads pages of a stripe's part.
    StripeRead,
    /// Writes a page of a stripe's part.
    StripeWrite,
}

/// Pages of one object that are read or written.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub purpose: Purpose,
    pub op: Op,
    pub object: usize,
    /// First page within the object, and their number.
    pub page: u64,
    pub count: usize,
    /// First page within the part.
    pub at: usize,
    pub version: Version,
    /// Servers that have not replied, and those among them that it is not sent to yet.
    pub awaited: ServerSet,
    pub unsent: ServerSet,
    /// Servers that replied to a write.
    pub written: ServerSet,
    /// Servers that could not serve a read.
    pub failed: ServerSet,
    pub begun: Time,
    pub sent: Time,
    /// It is routed no sooner.
    pub not_before: Time,
    /// A write that the only copy had no room for.
    pub is_short: bool,
    /// When a read is late, and the servers that were late with it.
    pub late_at: Time,
    pub late: ServerSet,
    /// Its pages are being reconstructed from the other parts of its stripe.
    pub is_reconstructed: bool,
    /// Servers that could not serve a read of another part for it: once, and twice.
    pub failed_sources: [ServerSet; 2],
}

impl Segment {
    /// A segment that goes to no server yet.
    pub fn new(purpose: Purpose, op: Op, object: usize, pages: Range<u64>, begun: Time) -> Self {
        Self {
            purpose,
            op,
            object,
            page: pages.start,
            count: (pages.end - pages.start) as usize,
            at: 0,
            version: Version(0),
            awaited: 0,
            unsent: 0,
            written: 0,
            failed: 0,
            begun,
            sent: begun,
            not_before: Time(0),
            is_short: false,
            late_at: Time::NEVER,
            late: 0,
            is_reconstructed: false,
            failed_sources: [0; 2],
        }
    }

    /// Returns true if it is of the tree's processes.
    pub fn is_own(&self) -> bool {
        matches!(self.purpose, Purpose::Part(_))
    }

    /// Returns true if it is to be routed: no server is asked for it.
    pub fn awaits_route(&self, now: Time) -> bool {
        self.awaited == 0 && !self.is_reconstructed && now >= self.not_before
    }

    /// Returns true if a process waits for it.
    pub fn is_awaited(&self) -> bool {
        self.is_own() || matches!(self.purpose, Purpose::DegradedRead { .. })
    }

    /// Returns true if it is a read that a process waits for, and its server is late.
    pub fn is_late(&self, now: Time) -> bool {
        self.op == Op::Read && self.is_awaited() && self.awaited != 0 && now >= self.late_at
    }

    /// Returns true if the time since it was sent measures the server. Runs of copies are longer, and the send time of a
    /// read that was hedged is that of its second server.
    pub fn is_measured(&self, server: usize) -> bool {
        self.is_awaited() && self.late & bit(server) == 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    uses: u16,
    segment: Option<Segment>,
}

/// A part of a transaction of the disk's thread.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub id: PartId,
    pieces: *const IoVec,
    count: usize,
    /// Segments under way.
    left: usize,
    /// Bytes moved, or the first error.
    result: i32,
    /// Some of its segments have ended well.
    has_some: bool,
    waiting: Waiting,
}

/// Whether a part waits for servers that do not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    No,
    /// The scheduler does not know.
    Unreported,
    Reported,
}

// SAFETY: the pieces are the disk's thread's, which owns the transport that has this.
unsafe impl Send for Part {}

/// Parts and segments under way.
pub struct RequestTable {
    parts: Box<[Option<Part>]>,
    slots: Box<[Slot]>,
    /// Segments in use are below it.
    high: usize,
    parts_in_use: usize,
    /// Parts that wait and that the scheduler does not know of.
    unreported: usize,
}

impl RequestTable {
    pub fn new() -> Self {
        let free = Slot {
            uses: 0,
            segment: None,
        };
        Self {
            parts: vec![None; PARTS].into_boxed_slice(),
            slots: vec![free; SEGMENTS].into_boxed_slice(),
            high: 0,
            parts_in_use: 0,
            unreported: 0,
        }
    }

    /// Parts under way.
    pub fn parts_in_use(&self) -> usize {
        self.parts_in_use
    }

    /// Enters a part of so many segments. `None` if there are too many.
    pub fn add_part(&mut self, id: PartId, pieces: &[IoVec], segments: usize) -> Option<usize> {
        let at = self.parts.iter().position(Option::is_none)?;
        self.parts[at] = Some(Part {
            id,
            pieces: pieces.as_ptr(),
            count: pieces.len(),
            left: segments,
            result: 0,
            has_some: false,
            waiting: Waiting::No,
        });
        self.parts_in_use += 1;
        Some(at)
    }

    /// Enters a segment; `None` if there are too many.
    pub fn add(&mut self, segment: Segment) -> Option<usize> {
        let at = self.slots.iter().position(|slot| slot.segment.is_none())?;
        let slot = &mut self.slots[at];
        slot.uses = slot.uses.wrapping_add(1) & 0x7fff;
        slot.segment = Some(segment);
        self.high = self.high.max(at + 1);
        Some(at)
    }

    /// The segment in a slot.
    pub fn get(&mut self, slot: usize) -> Option<&mut Segment> {
        self.slots.get_mut(slot)?.segment.as_mut()
    }

    /// The requests of the tree's processes that are sent to no server.
    pub fn waiting(&self) -> impl Iterator<Item = Segment> {
        let slots = self.slots[..self.high].iter();
        let segments = slots.filter_map(|slot| slot.segment);
        segments
            .filter(|segment| segment.is_own() && segment.awaited == 0 && !segment.is_reconstructed)
    }

    /// Returns true if a write of an object is under way.
    pub fn has_write(&self, object: usize) -> bool {
        let slots = self.slots[..self.high].iter();
        let mut segments = slots.filter_map(|slot| slot.segment);
        segments.any(|segment| segment.object == object && segment.op == Op::Write)
    }

    /// The part that a segment is of, if it is a part's own.
    pub fn part_of(&self, segment: &Segment) -> Option<PartId> {
        let Purpose::Part(at) = segment.purpose else {
            return None;
        };
        self.parts[at].as_ref().map(|part| part.id)
    }

    /// The part of a segment waits for servers that do not answer.
    pub fn set_waiting(&mut self, slot: usize) {
        if let Some(Purpose::Part(at)) = self.get(slot).map(|segment| segment.purpose)
            && let Some(part) = &mut self.parts[at]
            && part.waiting == Waiting::No
        {
            part.waiting = Waiting::Unreported;
            self.unreported += 1;
        }
    }

    /// The next such part that the scheduler does not know of.
    pub fn next_waiting(&mut self) -> Option<PartId> {
        if self.unreported == 0 {
            return None;
        }
        let mut parts = self.parts.iter_mut().flatten();
        let part = parts.find(|part| part.waiting == Waiting::Unreported)?;
        part.waiting = Waiting::Reported;
        self.unreported -= 1;
        Some(part.id)
    }

    /// The slots in use.
    pub fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.high
    }

    /// Likewise, from one on, and then those before it.
    pub fn slots_from(&self, first: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let first = first.min(self.high);
        (first..self.high).chain(0..first)
    }

    /// The number of a slot's frames. The highest bit is zero.
    pub fn number(&self, slot: usize) -> u32 {
        u32::from(self.slots[slot].uses) << 16 | slot as u32
    }

    /// The slot of a reply, if it is that of the slot's present use.
    pub fn slot_of(&self, number: u32) -> Option<usize> {
        let at = (number & 0xffff) as usize;
        let slot = self.slots.get(at)?;
        let is_present = slot.segment.is_some() && self.number(at) == number;
        is_present.then_some(at)
    }

    /// Ends a segment. Returns the part's result, if it was the part's last segment.
    pub fn end(&mut self, slot: usize, result: Result<(), i32>) -> Option<(PartId, i32)> {
        let segment = self.slots.get_mut(slot)?.segment.take()?;
        while self.high > 0 && self.slots[self.high - 1].segment.is_none() {
            self.high -= 1;
        }
        let Purpose::Part(at) = segment.purpose else {
            return None;
        };
        let part = self.parts[at].as_mut()?;
        part.left -= 1;
        part.has_some |= result.is_ok();
        part.result = match (part.result, result) {
            (failed, _) if failed < 0 => failed,
            (_, Err(error)) => error,
            (moved, Ok(())) => moved + (segment.count * PAGE) as i32,
        };
        if part.left > 0 {
            return None;
        }
        self.unreported -= usize::from(part.waiting == Waiting::Unreported);
        let ended = (part.id, result_of_part(part.result, part.has_some));
        self.parts[at] = None;
        self.parts_in_use -= 1;
        Some(ended)
    }

    /// The memory of a segment's pages, one after the other.
    pub fn pages(&self, segment: &Segment) -> impl Iterator<Item = *mut u8> + '_ {
        let part = match segment.purpose {
            Purpose::Part(at) => self.parts[at].as_ref(),
            _ => None,
        };
        // SAFETY: the pieces stay until the part is reaped, by the contract of `Transport::start`.
        let pieces = part.map_or(&[][..], |part| unsafe {
            std::slice::from_raw_parts(part.pieces, part.count)
        });
        let pages = pieces.iter().flat_map(|piece| {
            let steps = (0..piece.len).step_by(PAGE);
            steps.map(|offset| piece.start.wrapping_add(offset))
        });
        pages.skip(segment.at).take(segment.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> Segment {
        Segment::new(Purpose::CopyWrite, Op::Write, 0, 0..1, Time(0))
    }

    #[test]
    fn a_late_reply_of_an_earlier_use_finds_no_segment() {
        let mut table = RequestTable::new();
        let slot = table.add(segment()).unwrap();
        let number = table.number(slot);
        assert_eq!(table.slot_of(number), Some(slot));
        assert_eq!(table.end(slot, Ok(())), None);
        assert_eq!(table.slot_of(number), None);
        assert_eq!(table.add(segment()), Some(slot));
        assert_eq!(table.slot_of(number), None);
        assert_eq!(table.slot_of(u32::MAX), None);
    }

    #[test]
    fn a_part_that_waits_is_reported_once_and_one_that_has_ended_is_not() {
        let mut table = RequestTable::new();
        let id = |number| PartId::new(0, number);
        let slots = [1, 2].map(|number| {
            let part = table.add_part(id(number), &[], 1).unwrap();
            table
                .add(Segment::new(
                    Purpose::Part(part),
                    Op::Read,
                    0,
                    0..1,
                    Time(0),
                ))
                .unwrap()
        });
        slots.iter().for_each(|slot| table.set_waiting(*slot));
        table.end(slots[0], Ok(()));
        assert_eq!(table.next_waiting(), Some(id(2)));
        table.set_waiting(slots[1]);
        assert_eq!(table.next_waiting(), None);
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let mut table = RequestTable::new();
        (0..SEGMENTS).for_each(|_| _ = table.add(segment()).unwrap());
        assert_eq!(table.add(segment()), None);
        assert_eq!(table.slots().count(), SEGMENTS);
        (0..SEGMENTS).for_each(|slot| _ = table.end(slot, Ok(())));
        assert_eq!(table.slots().count(), 0);
    }
}
