//! A part of a transaction that is in flight: its pages, and what they wait for.

use super::places::SlotId;
use crate::time::Time;
use crate::usd::transport::{PartId, result_of_part};
use iochannel::{IoVec, MAX_RUN, Op};
use rustix::io::Errno;
use wired::PAGE;

/// A part. It does not move while it is in flight: the inner transport has its pages' addresses.
pub(super) struct Part {
    pub id: PartId,
    pub op: Op,
    /// The first page's blok.
    pub blok: usize,
    pub count: usize,
    pub pages: [IoVec; MAX_RUN],
    /// Where pages are written in the file.
    pub slots: [SlotId; MAX_RUN],
    /// Pages of the inner transport's run that begins at a page.
    pub runs: [u8; MAX_RUN],
    /// Runs and pages under way.
    pub left: usize,
    pub error: Option<Errno>,
    /// Some of its pages have been read.
    pub has_some: bool,
    /// Bloks that its write brings to the inner transport.
    pub new_at_inner: u32,
    /// When it is late at the inner transport; `NEVER` where it does not wait there, or is.
    pub until: Time,
    /// It is a read that is late, of which the scheduler was not told.
    pub is_late: bool,
    /// It has slots in the file, and waits for the end of its write at the inner transport.
    pub is_given_up: bool,
}

impl Part {
    /// A part with nothing under way; `None` where its pieces are no pages, or too many.
    pub fn new(id: PartId, op: Op, pieces: &[IoVec], at: u64) -> Option<Self> {
        let mut part = Self {
            id,
            op,
            blok: (at / PAGE as u64) as usize,
            count: 0,
            pages: [IoVec::EMPTY; MAX_RUN],
            slots: [SlotId(0); MAX_RUN],
            runs: [0; MAX_RUN],
            left: 0,
            error: None,
            has_some: false,
            new_at_inner: 0,
            until: Time::NEVER,
            is_late: false,
            is_given_up: false,
        };
        for piece in pieces {
            for page in 0..piece.len / PAGE {
                *part.pages.get_mut(part.count)? =
                    IoVec::page(piece.start.wrapping_add(page * PAGE));
                part.count += 1;
            }
        }
        (part.count > 0).then_some(part)
    }

    /// A run of its pages has ended at the inner transport. Returns how many they were.
    pub fn end_run(&mut self, first: usize) -> usize {
        let count = std::mem::take(&mut self.runs[first]);
        self.left -= 1;
        if self.runs.iter().all(|run| *run == 0) {
            self.until = Time::NEVER;
        }
        count.into()
    }

    /// Bytes moved, or a negative error number.
    pub fn result(&self) -> i32 {
        match self.error {
            None => (self.count * PAGE) as i32,
            Some(errno) => result_of_part(-errno.raw_os_error(), self.has_some),
        }
    }
}
