//! Operations on the swap file that are under way: a run of neighbouring bloks each.

use crate::io::IoVec;
use crate::location::Location;
use std::sync::atomic::AtomicU64;
use wired::PAGE;

/// Pages of one operation at most: 128 KiB. Read in order by O_DIRECT in windows of 1 MiB,
/// one window or two in flight, 16 operations of 64 KiB a window made 930 or 1190 MB/s here,
/// 8 of 128 KiB 1130 or 1240, 4 of 256 KiB 1010 or 1220, one of 1 MiB 1000 or 1140 (medians
/// of 7 interleaved rounds): several shorter ones keep the device busy.
pub(crate) const RUN: usize = 32;

/// What an operation is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IoKind {
    /// Pages come back to the pager.
    Read,
    /// The same on a guess: not verified.
    Ahead,
    /// Pages of the pager leave.
    Write,
    /// Pages move from RAM to disk; which half of the bounce buffer they are in.
    Demote(usize),
}

/// One page of an operation.
#[derive(Clone, Copy)]
pub(crate) struct PageSlot {
    pub handle: u32,
    pub memory: *mut u8,
    /// Of the pager's pages: comes back with the completion.
    pub token: u64,
    /// Of a demoted page: where it lies in RAM, and the note of its move.
    pub from: Location,
    pub note: Option<&'static AtomicU64>,
}

impl PageSlot {
    const NONE: Self = Self {
        handle: 0,
        memory: std::ptr::null_mut(),
        token: 0,
        from: Location::Nowhere,
        note: None,
    };

    /// A page of the pager's.
    pub fn new(handle: u32, memory: *mut u8, token: u64) -> Self {
        Self {
            handle,
            memory,
            token,
            ..Self::NONE
        }
    }
}

/// An operation.
pub(crate) struct IoOp {
    pub kind: IoKind,
    /// Blok of the first page.
    pub first: u32,
    count: usize,
    slots: [PageSlot; RUN],
    pieces: [IoVec; RUN],
    /// Pages before this one are reported.
    reported: usize,
    /// Bytes of the pages from `reported` on that are moved.
    moved: usize,
    /// A run failed: each page on its own now, to find out which.
    one_by_one: bool,
}

impl IoOp {
    pub fn empty() -> Self {
        Self {
            kind: IoKind::Read,
            first: 0,
            count: 0,
            slots: [PageSlot::NONE; RUN],
            pieces: [IoVec {
                start: std::ptr::null_mut(),
                len: 0,
            }; RUN],
            reported: 0,
            moved: 0,
            one_by_one: false,
        }
    }

    /// Starts over as an operation on `slots`, in bloks from `first`.
    pub fn set(&mut self, kind: IoKind, first: u32, slots: &[PageSlot]) {
        self.kind = kind;
        self.first = first;
        self.count = slots.len();
        self.slots[..slots.len()].copy_from_slice(slots);
        self.reported = 0;
        self.moved = 0;
        self.one_by_one = false;
    }

    pub fn is_write(&self) -> bool {
        matches!(self.kind, IoKind::Write | IoKind::Demote(_))
    }

    /// The pieces still to be moved, and the offset in the file where they begin.
    pub fn remaining(&mut self) -> (&mut [IoVec], u64) {
        let skip = self.moved / PAGE;
        let within = self.moved % PAGE;
        let first = self.reported + skip;
        let end = if self.one_by_one {
            first + 1
        } else {
            self.count
        };
        for (piece, slot) in self.pieces.iter_mut().zip(&self.slots[first..end]) {
            *piece = IoVec {
                start: slot.memory,
                len: PAGE,
            };
        }
        self.pieces[0].start = self.pieces[0].start.wrapping_add(within);
        self.pieces[0].len -= within;
        let offset = (u64::from(self.first) + first as u64) * PAGE as u64 + within as u64;
        (&mut self.pieces[..end - first], offset)
    }

    /// What follows from the system's answer.
    pub fn advance(&mut self, result: i32) -> IoStep {
        use rustix::io::Errno;
        let want = if self.one_by_one {
            1
        } else {
            self.count - self.reported
        };
        let errno = match result {
            // Nothing moved and no error: the file is shorter than it was made.
            0 => Errno::IO.raw_os_error(),
            1.. => {
                self.moved += result as usize;
                if self.moved < want * PAGE {
                    return IoStep::GoOn;
                }
                return IoStep::Finished {
                    count: want,
                    error: None,
                };
            }
            _ => -result,
        };
        if errno == Errno::INTR.raw_os_error() || errno == Errno::AGAIN.raw_os_error() {
            return IoStep::GoOn;
        }
        if want > 1 {
            self.one_by_one = true;
            self.moved = 0;
            return IoStep::GoOn;
        }
        IoStep::Finished {
            count: 1,
            error: Some(errno),
        }
    }

    /// Pages `reported..reported + count` with their bloks, as they are reported; true when all are.
    pub fn report(&mut self, count: usize, mut to: impl FnMut(PageSlot, u32)) -> bool {
        for at in self.reported..self.reported + count {
            to(self.slots[at], self.first + at as u32);
        }
        self.reported += count;
        self.moved = 0;
        self.reported == self.count
    }

    /// Memory of the first page that is not reported.
    pub fn memory(&self) -> *mut u8 {
        self.slots[self.reported].memory
    }
}

/// What to do with an operation after the system's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IoStep {
    /// Submit the rest.
    GoOn,
    /// The next pages are over, well or with this error number.
    Finished { count: usize, error: Option<i32> },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(pages: usize) -> IoOp {
        let mut op = IoOp::empty();
        let slots: Vec<PageSlot> = (0..pages)
            .map(|at| PageSlot::new(at as u32 + 1, (at * PAGE) as *mut u8, 0))
            .collect();
        op.set(IoKind::Write, 100, &slots);
        op
    }

    #[test]
    fn a_short_write_goes_on_where_it_stopped() {
        let mut op = op(3);
        assert_eq!(op.advance(PAGE as i32 + 512), IoStep::GoOn);
        let (pieces, offset) = op.remaining();
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[0].start as usize, PAGE + 512);
        assert_eq!(pieces[0].len, PAGE - 512);
        assert_eq!(offset, 101 * PAGE as u64 + 512);
        assert_eq!(
            op.advance(2 * PAGE as i32 - 512),
            IoStep::Finished {
                count: 3,
                error: None
            }
        );
    }

    #[test]
    fn one_bad_page_does_not_take_its_neighbours_with_it() {
        let mut op = op(3);
        let mut reported = Vec::new();
        assert_eq!(op.advance(-5), IoStep::GoOn);
        for result in [PAGE as i32, -5, PAGE as i32] {
            assert_eq!(op.remaining().0.len(), 1);
            let IoStep::Finished { count, error } = op.advance(result) else {
                panic!()
            };
            op.report(count, |slot, blok| {
                reported.push((slot.handle, blok, error))
            });
        }
        assert_eq!(
            reported,
            [(1, 100, None), (2, 101, Some(5)), (3, 102, None)]
        );
    }

    #[test]
    fn nothing_moved_is_an_error() {
        assert_eq!(
            op(1).advance(0),
            IoStep::Finished {
                count: 1,
                error: Some(5)
            }
        );
    }
}
