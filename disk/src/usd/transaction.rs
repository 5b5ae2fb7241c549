//! One request: its parts on the device, and which of them are in flight.

use super::{ChannelId, IoTarget};
use crate::atropos::InFlightId;
use crate::cost_model;
use crate::swapfs::ExtentSlice;
use crate::time::Time;
use iochannel::{IoVec, MAX_RUN, Op, Request};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use rustix::io::Errno;
use wired::PAGE;

/// A part of a transaction that is contiguous on the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DevicePart {
    /// Pieces of memory, as a range of the transaction's list.
    pub first: usize,
    pub count: usize,
    /// Offset on the device, or in the file.
    pub at: u64,
}

/// A request, from leaving its channel until its completion. Its channel exists at least as long as
/// any part of it is in flight.
#[derive(Debug)]
pub(super) struct Transaction {
    pub channel: ChannelId,
    pub slot: u16,
    pub op: Op,
    pub taken: Time,
    pub started: Time,
    pub ticket: InFlightId,
    /// Parts in flight on the device.
    pub in_flight: usize,
    /// Bytes moved, or the first error.
    pub result: i32,
    /// Its channel is closed: parts that are not started never will be.
    pub orphan: bool,
    /// It waits for the other end of a transport, and has completed for the scheduler.
    pub is_waiting: bool,
    len: usize,
    offset: u64,
    /// Memory pieces, cut where a device extent ends. Every piece is at least a page.
    pieces: [IoVec; MAX_RUN],
    count: usize,
}

impl Transaction {
    /// An empty slot.
    pub fn none() -> Self {
        Self {
            channel: ChannelId(u64::MAX),
            slot: 0,
            op: Op::Read,
            taken: Time(0),
            started: Time(0),
            ticket: InFlightId(0),
            in_flight: 0,
            result: 0,
            orphan: true,
            is_waiting: false,
            len: 0,
            offset: 0,
            pieces: [IoVec::EMPTY; MAX_RUN],
            count: 0,
        }
    }

    /// Fills the slot with a request.
    pub fn set(&mut self, channel: ChannelId, request: &Request, now: Time) {
        let pieces = request.pieces();
        self.channel = channel;
        self.slot = request.slot;
        self.op = request.op;
        self.taken = now;
        self.in_flight = 0;
        self.result = 0;
        self.orphan = false;
        self.is_waiting = false;
        self.len = request.len();
        self.offset = request.offset;
        self.pieces[..pieces.len()].copy_from_slice(pieces);
        self.count = pieces.len();
    }

    pub fn bytes(&self) -> u32 {
        self.len as u32
    }

    pub fn model_op(&self) -> cost_model::Op {
        match self.op {
            Op::Read => cost_model::Op::Read,
            Op::Write => cost_model::Op::Write,
        }
    }

    /// Returns an error if the request must not be done.
    pub fn check(&self, target: &IoTarget) -> Result<(), Errno> {
        let end = self.offset.saturating_add(self.len as u64);
        match target {
            IoTarget::Swap(extents) if end <= extents.size() => Ok(()),
            IoTarget::Swap(_) => Err(Errno::INVAL),
            IoTarget::File { size, writable, .. } => match self.op {
                // A read past the end of a file is short, as usual.
                Op::Read => Ok(()),
                Op::Write if !writable => Err(Errno::BADF),
                Op::Write if end > *size => Err(Errno::FBIG),
                Op::Write => Ok(()),
            },
            IoTarget::Space { size, .. } if end <= *size => Ok(()),
            IoTarget::Space { .. } => Err(Errno::INVAL),
        }
    }

    /// Computes the parts and returns their number. The target may have changed since the check,
    /// but never shrinks.
    pub fn parts(
        &mut self,
        target: &IoTarget,
        parts: &mut [DevicePart; MAX_RUN],
    ) -> Result<usize, Errno> {
        let whole = |at| DevicePart {
            first: 0,
            count: self.count,
            at,
        };
        let IoTarget::Swap(extents) = target else {
            parts[0] = whole(self.offset);
            return Ok(1);
        };
        let places = extents.translate(self.offset, self.len as u64);
        self.split(places.map_err(|_| Errno::INVAL)?, parts)
    }

    /// Cuts the memory where device slices end.
    fn split(
        &mut self,
        places: impl Iterator<Item = ExtentSlice>,
        parts: &mut [DevicePart; MAX_RUN],
    ) -> Result<usize, Errno> {
        let (mut made, mut first) = (0, 0);
        for place in places {
            let (mut to, mut left) = (first, place.len);
            while left > 0 && to < self.count {
                if self.pieces[to].len as u64 > left {
                    self.cut(to, left as usize)?;
                }
                left -= self.pieces[to].len as u64;
                to += 1;
            }
            let part = parts.get_mut(made).ok_or(Errno::INVAL)?;
            *part = DevicePart {
                first,
                count: to - first,
                at: place.device,
            };
            (made, first) = (made + 1, to);
        }
        Ok(made)
    }

    /// Cuts a piece in two. The list has room if the device is contiguous by whole pages: pieces
    /// are whole pages, and there are at most as many pages as entries.
    fn cut(&mut self, at: usize, len: usize) -> Result<(), Errno> {
        if self.count == MAX_RUN {
            return Err(Errno::INVAL);
        }
        self.pieces.copy_within(at..self.count, at + 1);
        self.count += 1;
        let rest = &mut self.pieces[at + 1];
        rest.start = rest.start.wrapping_add(len);
        rest.len -= len;
        self.pieces[at].len = len;
        Ok(())
    }

    /// The memory of a part.
    pub fn memory(&self, part: &DevicePart) -> &[IoVec] {
        &self.pieces[part.first..part.first + part.count]
    }

    /// Records a part's completion: its bytes, or an error.
    pub fn complete_part(&mut self, result: i32) {
        self.in_flight -= 1;
        self.result = match (self.result, result) {
            (failed, _) if failed < 0 => failed,
            (_, failed) if failed < 0 => failed,
            (before, moved) => before.saturating_add(moved),
        };
    }

    /// The request's result, once nothing of it is in flight.
    pub fn result(&self, target: &IoTarget) -> i32 {
        match target {
            // These do not end early: a device that moved fewer bytes has failed.
            IoTarget::Swap(_) | IoTarget::Space { .. }
                if (0..self.len as i32).contains(&self.result) =>
            {
                -Errno::IO.raw_os_error()
            }
            IoTarget::File { .. } if self.op == Op::Read && self.result > 0 => self.whole_pages(),
            _ => self.result,
        }
    }

    /// A channel moves whole pages: zeroes the rest of a file's last page, like a file mapping.
    fn whole_pages(&self) -> i32 {
        let moved = self.result as usize;
        let end = moved.next_multiple_of(PAGE).min(self.len);
        let mut before = 0;
        for piece in &self.pieces[..self.count] {
            let (from, to) = (moved.max(before), end.min(before + piece.len));
            if from < to {
                // SAFETY: page buffers of the channel, which exists until this request completes;
                // only the client uses them besides.
                unsafe { piece.start.add(from - before).write_bytes(0, to - from) };
            }
            before += piece.len;
        }
        end as i32
    }
}

/// What the parts of a transaction are started on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Descriptor(RawFd),
    Space(u32),
}

/// The place of a target; an error where it needs a device and there is none.
pub(super) fn place_of(
    target: &IoTarget,
    device: Option<&(dyn AsFd + Send + Sync)>,
) -> Result<Place, Errno> {
    match (target, device) {
        (IoTarget::Swap(_), Some(device)) => Ok(Place::Descriptor(device.as_fd().as_raw_fd())),
        (IoTarget::Swap(_), None) => Err(Errno::NODEV),
        (IoTarget::File { fd, .. }, _) => Ok(Place::Descriptor(fd.as_raw_fd())),
        (IoTarget::Space { number, .. }, _) => Ok(Place::Space(*number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_request_goes_to_its_places_whole_and_in_order(
            pieces in prop::collection::vec(1usize..8, 1..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let pages: usize = pieces.iter().sum();
            prop_assume!(pages <= MAX_RUN);
            let mut transaction = Transaction::none();
            // Memory in separate pieces, never touched.
            for (at, &count) in pieces.iter().enumerate() {
                let start = std::ptr::without_provenance_mut((at + 1) << 20);
                transaction.pieces[at] = IoVec { start, len: count * PAGE };
            }
            (transaction.count, transaction.len) = (pieces.len(), pages * PAGE);
            let memory = |pieces: &[IoVec]| -> Vec<usize> {
                let pages = |p: &IoVec| (p.start.addr()..p.start.addr() + p.len).step_by(PAGE);
                pieces.iter().flat_map(pages).collect()
            };
            let whole = memory(&transaction.pieces[..pieces.len()]);
            let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(pages)).chain([0, pages]).collect();
            ends.sort_unstable();
            ends.dedup();
            let places: Vec<_> = ends.windows(2).enumerate()
                .map(|(at, ends)| ExtentSlice {
                    device: (at as u64) << 30,
                    len: ((ends[1] - ends[0]) * PAGE) as u64,
                })
                .collect();
            let mut parts = [DevicePart::default(); MAX_RUN];
            let made = transaction.split(places.iter().copied(), &mut parts).unwrap();
            prop_assert_eq!(made, places.len());
            let mut gone = Vec::new();
            for (part, place) in parts.iter().zip(&places) {
                let pieces = transaction.memory(part);
                prop_assert_eq!(part.at, place.device);
                prop_assert_eq!(pieces.iter().map(|p| p.len as u64).sum::<u64>(), place.len);
                gone.extend(memory(pieces));
            }
            prop_assert_eq!(gone, whole);
        }
    }

    #[test]
    fn the_first_error_of_its_parts_is_the_result() {
        let file = IoTarget::File {
            fd: std::fs::File::open("/dev/null").unwrap().into(),
            size: 0,
            writable: false,
        };
        let mut transaction = Transaction::none();
        (transaction.len, transaction.in_flight) = (2 * PAGE, 3);
        transaction.op = Op::Write;
        transaction.complete_part(PAGE as i32);
        transaction.complete_part(-5);
        transaction.complete_part(-7);
        assert_eq!((transaction.result(&file), transaction.in_flight), (-5, 0));
    }
}
