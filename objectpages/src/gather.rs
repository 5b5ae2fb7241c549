//! Writes that become one segment.

use crate::page_table::hash;
use crate::segments::SEGMENT_PAGES;
use disk::usd::PartId;
use iochannel::IoVec;
use std::collections::VecDeque;
use std::ops::Range;
use wired::PAGE;

/// In place of a page whose part was given up: it is written, and dead.
const GIVEN_UP: u32 = u32::MAX;

/// A write that waits for a segment.
#[derive(Debug)]
pub struct WritePart {
    pub id: PartId,
    /// Its pages, by their indices in the segment.
    pages: Range<usize>,
}

impl WritePart {
    /// Its result where all is written.
    pub fn bytes(&self) -> i32 {
        (self.pages.len() * PAGE) as i32
    }
}

/// Pages that are written together.
#[derive(Debug, Default)]
pub struct Gather {
    /// The parts that wait for it, none where pages are moved by cleaning.
    pub parts: Vec<WritePart>,
    pages: Vec<u32>,
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

    /// All places of the segment, with the pages that they are written with.
    pub fn places(&self) -> &[u32] {
        &self.pages
    }

    /// The pages whose parts were not given up, with their indices.
    pub fn pages(&self) -> impl Iterator<Item = (usize, u32)> {
        let pages = self.pages.iter().copied().enumerate();
        pages.filter(|(_, page)| *page != GIVEN_UP)
    }

    /// Gives up a part, if it waits for this segment. Returns its pages.
    pub fn give_up(&mut self, id: PartId) -> Option<Vec<u32>> {
        let at = self.parts.iter().position(|part| part.id == id)?;
        let part = self.parts.swap_remove(at);
        let pages = &mut self.pages[part.pages];
        let given_up = pages.to_vec();
        pages.fill(GIVEN_UP);
        Some(given_up)
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
        let begin = gather.pages.len();
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
        let pages = begin..gather.pages.len();
        gather.parts.push(WritePart { id, pages });
    }

    /// Gives up a part, if it waits here. Returns true if it did.
    pub fn give_up(&mut self, id: PartId) -> bool {
        let mut gathers = self.queue.iter_mut();
        let is_here = gathers.any(|gather| gather.give_up(id).is_some());
        self.queue.retain(|gather| !gather.parts.is_empty());
        is_here
    }

    /// Takes the writes of the next segment.
    pub fn pop(&mut self) -> Option<Gather> {
        self.queue.pop_front()
    }
}
