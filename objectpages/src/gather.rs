//! Writes that become one segment.

use crate::page_table::hash;
use crate::segments::SEGMENT_PAGES;
use disk::usd::PartId;
use iochannel::IoVec;
use std::collections::VecDeque;
use wired::PAGE;

/// Pages that are written together.
#[derive(Debug, Default)]
pub struct Gather {
    /// The parts that wait for it, none where pages are moved by cleaning.
    pub parts: Vec<(PartId, i32)>,
    pub pages: Vec<u32>,
    pub hashes: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Gather {
    /// Adds a page's contents.
    pub fn push(&mut self, page: u32, contents: &[u8]) {
        self.pages.push(page);
        self.hashes.push(hash(page, contents));
        self.bytes.extend_from_slice(contents);
    }
}

/// Writes that no segment has yet, in the order of their arrival.
#[derive(Debug, Default)]
pub struct GatherQueue {
    queue: VecDeque<Gather>,
}

impl GatherQueue {
    /// Adds the write of a part, from a page on.
    ///
    /// # Safety
    /// The pieces are readable memory, whole pages. Another process may change it at any time.
    pub unsafe fn push(&mut self, id: PartId, first: u32, pieces: &[IoVec]) {
        let count: usize = pieces.iter().map(|piece| piece.len / PAGE).sum();
        let last = self.queue.back();
        if last.is_none_or(|last| last.pages.len() + count > SEGMENT_PAGES) {
            self.queue.push_back(Gather::default());
        }
        let Some(gather) = self.queue.back_mut() else {
            return;
        };
        let mut page = first;
        for piece in pieces {
            for offset in (0..piece.len).step_by(PAGE) {
                let mut contents = [0; PAGE];
                let from = piece.start.wrapping_add(offset);
                // SAFETY: by the contract of this function. What is hashed and written is the copy.
                unsafe { std::ptr::copy_nonoverlapping(from, contents.as_mut_ptr(), PAGE) };
                gather.push(page, &contents);
                page += 1;
            }
        }
        gather.parts.push((id, (count * PAGE) as i32));
    }

    /// Takes the writes of the next segment.
    pub fn pop(&mut self) -> Option<Gather> {
        self.queue.pop_front()
    }
}
