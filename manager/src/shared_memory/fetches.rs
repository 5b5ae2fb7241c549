//! Pages on their way from the store, each with the faults that wait for it.

use super::clients::ClientId;
use super::mappings::ObjectId;
use rustix::io;
use std::time::Instant;
use store::PageHandle;
use wired::{PAGE, WiredMemory};

/// Reads at a time.
pub const FETCHES: usize = 64;

/// The first token of a fetch; those below are writes.
pub const TOKENS: u64 = 1 << 32;

/// A fault that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The client.
    pub client: ClientId,
    /// The page's address there.
    pub addr: usize,
}

/// A fault that is read and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedFault {
    pub at: Waiter,
    /// When it first found no frame, or no mapping.
    pub waits_since: Option<Instant>,
}

/// One fetch.
#[derive(Debug)]
pub struct Fetch {
    /// The page.
    pub object: ObjectId,
    /// Its number.
    pub page: usize,
    /// The stored copy that is read.
    pub copy: PageHandle,
    /// Its contents are not wanted any more.
    pub is_cancelled: bool,
    /// Its contents are there, and were not placed yet.
    pub has_arrived: bool,
    /// The faults that wait.
    pub waiters: Vec<Waiter>,
}

/// All fetches, with a page of memory each.
pub struct Fetches {
    memory: WiredMemory,
    fetches: [Option<Fetch>; FETCHES],
    /// Lists of waiters that are not in use.
    spare: Vec<Vec<Waiter>>,
}

impl Fetches {
    /// None yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            memory: WiredMemory::private(FETCHES * PAGE)?,
            fetches: [const { None }; FETCHES],
            spare: (0..FETCHES).map(|_| Vec::with_capacity(16)).collect(),
        })
    }

    /// Begins a fetch, for a fault or ahead of one. Returns its number; none while all are in use.
    pub fn begin(
        &mut self,
        object: ObjectId,
        page: usize,
        copy: PageHandle,
        waiter: Option<Waiter>,
    ) -> Option<usize> {
        let at = self.fetches.iter().position(Option::is_none)?;
        let mut waiters = self.spare.pop().unwrap_or_default();
        waiters.extend(waiter);
        self.fetches[at] = Some(Fetch {
            object,
            page,
            copy,
            is_cancelled: false,
            has_arrived: false,
            waiters,
        });
        Some(at)
    }

    /// Where the page is read to.
    pub fn contents(&self, at: usize) -> *mut u8 {
        // SAFETY: within the memory of `FETCHES` pages.
        unsafe { self.memory.as_ptr().add(at * PAGE) }
    }

    /// The fetch of a page, if there is one.
    pub fn of(&mut self, object: ObjectId, page: usize) -> Option<&mut Fetch> {
        let mut fetches = self.fetches.iter_mut().flatten();
        fetches.find(|it| it.object == object && it.page == page && !it.is_cancelled)
    }

    /// A fetch.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut Fetch> {
        self.fetches.get_mut(at)?.as_mut()
    }

    /// Ends a fetch.
    pub fn end(&mut self, at: usize) {
        if let Some(mut fetch) = self.fetches[at].take() {
            fetch.waiters.clear();
            self.spare.push(fetch.waiters);
        }
    }

    /// The numbers of fetches whose contents have arrived and were not placed.
    pub fn arrived(&self) -> impl Iterator<Item = usize> + use<> {
        let has_arrived = |it: &Option<Fetch>| it.as_ref().is_some_and(|it| it.has_arrived);
        let bits = self.fetches.iter().enumerate();
        let bits = bits.fold(0u64, |bits, (at, it)| {
            bits | u64::from(has_arrived(it)) << at
        });
        (0..FETCHES).filter(move |at| bits >> at & 1 != 0)
    }

    /// Fetches that are under way.
    pub fn count(&self) -> usize {
        self.fetches.iter().flatten().count()
    }

    /// The contents of an object are not wanted any more.
    pub fn cancel(&mut self, object: ObjectId) {
        for fetch in self.fetches.iter_mut().flatten() {
            fetch.is_cancelled |= fetch.object == object;
        }
    }
}
