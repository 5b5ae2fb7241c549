//! One memory object: a memfd, and where the contents of each of its pages are.

use super::clients::ClientId;
use crate::page_table::{PageState, UNIT};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{self, Errno};
use std::ops::Range;
use wired::PAGE;

/// An object.
#[derive(Debug)]
pub struct Object {
    memory: OwnedFd,
    words: Vec<u32>,
    /// Resident pages of each unit.
    residents: Vec<u8>,
    /// Processes that may map it.
    pub users: Vec<ClientId>,
}

impl Object {
    /// An object of zeros, for a memfd of that many pages.
    pub fn new(memory: OwnedFd, pages: usize) -> Self {
        Self {
            memory,
            words: vec![PageState::Zero.pack(); pages],
            residents: vec![0; pages.div_ceil(UNIT)],
            users: Vec::new(),
        }
    }

    /// Its pages.
    pub fn pages(&self) -> usize {
        self.words.len()
    }

    /// The pages of a unit.
    pub fn unit(&self, unit: usize) -> Range<usize> {
        unit * UNIT..((unit + 1) * UNIT).min(self.pages())
    }

    /// Resident pages of a unit; none of one that the object does not have.
    pub fn residents(&self, unit: usize) -> u32 {
        self.residents.get(unit).copied().unwrap_or(0).into()
    }

    /// The state of a page.
    pub fn get(&self, page: usize) -> PageState {
        PageState::unpack(self.words[page])
    }

    /// Sets the state of a page, and returns the former.
    pub fn set(&mut self, page: usize, state: PageState) -> PageState {
        let was = self.get(page);
        self.words[page] = state.pack();
        let residents = &mut self.residents[page / UNIT];
        *residents += u8::from(state.is_resident());
        *residents -= u8::from(was.is_resident());
        was
    }

    /// Runs of resident pages within a unit.
    pub fn resident_runs(&self, pages: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = pages.start;
        std::iter::from_fn(move || {
            let resident = |page: &usize| self.get(*page).is_resident();
            let start = (at..pages.end).find(resident)?;
            let end = (start..pages.end)
                .find(|page| !resident(page))
                .unwrap_or(pages.end);
            at = end;
            Some(start..end)
        })
    }

    /// Reads resident pages.
    pub fn read(&self, first: usize, into: &mut [u8]) -> io::Result<()> {
        match io::pread(&self.memory, &mut *into, (first * PAGE) as u64)? {
            len if len == into.len() => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    /// Takes pages out of the page cache, and out of every process's reach.
    pub fn punch(&self, pages: &Range<usize>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (offset, len) = ((pages.start * PAGE) as u64, (pages.len() * PAGE) as u64);
        fallocate(&self.memory, flags, offset, len)
    }
}
