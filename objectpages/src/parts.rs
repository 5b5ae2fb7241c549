//! Reads of the disk's thread that are under way.

use disk::usd::{PartId, result_of_part};
use iochannel::IoVec;
use wired::PAGE;

/// A read.
#[derive(Clone, Copy, Debug)]
struct ReadPart {
    id: PartId,
    pieces: *const IoVec,
    count: usize,
    /// Runs under way.
    left: usize,
    /// Bytes of the part, or the first error.
    result: i32,
    /// Some of its pages have been read.
    has_some: bool,
}

// SAFETY: the pieces are the disk's thread's, which owns the transport that has this.
unsafe impl Send for ReadPart {}

/// Reads by their index.
#[derive(Debug, Default)]
pub struct Parts {
    all: Vec<Option<ReadPart>>,
}

impl Parts {
    /// Enters a read.
    ///
    /// # Safety
    /// The pieces and their memory, whole pages, stay until [`Parts::end_run`] has returned the part.
    pub unsafe fn add(&mut self, id: PartId, pieces: &[IoVec]) -> usize {
        let bytes: usize = pieces.iter().map(|piece| piece.len).sum();
        let part = ReadPart {
            id,
            pieces: pieces.as_ptr(),
            count: pieces.len(),
            // The caller's own, until all runs are begun.
            left: 1,
            result: bytes as i32,
            has_some: false,
        };
        let free = self.all.iter().position(Option::is_none);
        let at = free.unwrap_or(self.all.len());
        match free {
            Some(at) => self.all[at] = Some(part),
            None => self.all.push(Some(part)),
        }
        at
    }

    /// A run of a part begins.
    pub fn begin_run(&mut self, part: usize) {
        if let Some(part) = &mut self.all[part] {
            part.left += 1;
        }
    }

    /// A run of a part ends. Returns the part's result, if it was its last one.
    pub fn end_run(&mut self, at: usize, error: Option<i32>) -> Option<(PartId, i32)> {
        let part = self.all[at].as_mut()?;
        part.left -= 1;
        if let Some(error) = error.filter(|_| part.result >= 0) {
            part.result = -error;
        }
        let ended = (part.id, result_of_part(part.result, part.has_some));
        if part.left > 0 {
            return None;
        }
        self.all[at] = None;
        Some(ended)
    }

    /// Places what was read of a page of a part.
    pub fn fill(&mut self, at: usize, page: usize, contents: &[u8; PAGE]) {
        let Some(part) = &mut self.all[at] else {
            return;
        };
        part.has_some = true;
        // SAFETY: they stay, by the contract of `add`.
        let pieces = unsafe { std::slice::from_raw_parts(part.pieces, part.count) };
        let mut left = page * PAGE;
        for piece in pieces {
            if left < piece.len {
                let to = piece.start.wrapping_add(left);
                // SAFETY: a whole page of the piece, which is writable memory by the contract of `add`.
                unsafe { std::ptr::copy_nonoverlapping(contents.as_ptr(), to, PAGE) };
                return;
            }
            left -= piece.len;
        }
    }
}
