//! Operations on the swap file: each a run of adjacent bloks.

use crate::io::IoVec;
use crate::location::Location;
use std::sync::atomic::AtomicU64;
use wired::PAGE;

/// Maximum pages of one operation: 128 KiB. Read in order by O_DIRECT in windows of 1 MiB, one
/// window or two in flight, 16 operations of 64 KiB a window made 930 or 1190 MB/s here, 8 of 128
/// KiB 1130 or 1240, 4 of 256 KiB 1010 or 1220, one of 1 MiB 1000 or 1140 (medians of 7 interleaved
/// rounds): several shorter ones keep the device busy.
pub(crate) const RUN: usize = 32;

/// The purpose of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IoKind {
    /// Reads pages for the pager.
    Read,
    /// Reads pages speculatively, without verification.
    Ahead,
    /// Writes pages of the pager.
    Write,
    /// Writes demoted pages of RAM; the half of the bounce buffer that holds them.
    Demote(usize),
}

/// One page of an operation.
#[derive(Clone, Copy)]
pub(crate) struct PageSlot {
    pub handle: u32,
    pub memory: *mut u8,
    /// Of the pager's pages: returned with the completion.
    pub token: u64,
    /// Of a demoted page: its location in RAM, and the intent of its move.
    pub from: Location,
    pub note: Option<&'static AtomicU64>,
}

impl PageSlot {
    pub const NONE: Self = Self {
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
    /// Bytes moved of the pages from `reported` on.
    moved: usize,
    /// A run failed: now each page on its own, to find the failing one.
    one_by_one: bool,
}

impl IoOp {
    pub fn empty() -> Self {
        Self {
            kind: IoKind::Read,
            first: 0,
            count: 0,
            slots: [PageSlot::NONE; RUN],
            pieces: [IoVec::EMPTY; RUN],
            reported: 0,
            moved: 0,
            one_by_one: false,
        }
    }

    /// Restarts as an operation on `slots`, in bloks from `first`.
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

    /// The remaining pieces, and their offset in the file.
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
            *piece = IoVec::page(slot.memory);
        }
        self.pieces[0].start = self.pieces[0].start.wrapping_add(within);
        self.pieces[0].len -= within;
        let offset = (u64::from(self.first) + first as u64) * PAGE as u64 + within as u64;
        (&mut self.pieces[..end - first], offset)
    }

    /// Advances by a result and returns the next step.
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
        if errno == Errno::TIMEDOUT.raw_os_error() {
            // None of them has come, and each would be waited for as long.
            return IoStep::Finished {
                count: want,
                error: Some(errno),
            };
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

    /// Reports pages `reported..reported + count` with their bloks; returns true after the last.
    pub fn report(&mut self, count: usize, mut to: impl FnMut(PageSlot, u32)) -> bool {
        for at in self.reported..self.reported + count {
            to(self.slots[at], self.first + at as u32);
        }
        self.reported += count;
        self.moved = 0;
        self.reported == self.count
    }
}

/// The next step of an operation after a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IoStep {
    /// Submit the rest.
    GoOn,
    /// The next pages are finished, without or with this error number.
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
    fn a_short_write_continues_where_it_stopped() {
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
    fn an_answer_that_never_came_is_an_error_of_all_pages_at_once() {
        use rustix::io::Errno;
        let mut op = op(3);
        let late = Errno::TIMEDOUT.raw_os_error();
        assert_eq!(
            op.advance(-late),
            IoStep::Finished {
                count: 3,
                error: Some(late)
            }
        );
        assert!(op.report(3, |_, _| {}), "nothing is submitted again");
    }

    #[test]
    fn a_page_on_its_own_that_never_came_takes_no_other_with_it() {
        use rustix::io::Errno;
        let mut op = op(3);
        let late = Errno::TIMEDOUT.raw_os_error();
        assert_eq!(op.advance(-Errno::IO.raw_os_error()), IoStep::GoOn);
        op.advance(PAGE as i32);
        assert!(!op.report(1, |_, _| {}));
        assert_eq!(
            op.advance(-late),
            IoStep::Finished {
                count: 1,
                error: Some(late)
            }
        );
        assert!(!op.report(1, |_, _| {}));
        assert_eq!(
            op.advance(PAGE as i32),
            IoStep::Finished {
                count: 1,
                error: None
            }
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
