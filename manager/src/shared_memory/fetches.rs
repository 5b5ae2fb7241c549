//! Pages on their way from the store, each with the faults that wait for it, and those that were read ahead.

use super::clients::ClientId;
use super::mappings::ObjectId;
use rustix::io;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;
use wired::{PAGE, WiredMemory};

/// Pages that are read, or were read ahead, at a time: 1 MiB.
pub const FETCHES: usize = 256;

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
    /// It has a frame, and is placed once it has arrived; else it was read ahead of a fault.
    pub has_frame: bool,
    /// It was read ahead as the other half of a [`pair`](super::pairs).
    pub is_trial: bool,
    /// Its contents are not wanted any more.
    pub is_cancelled: bool,
    /// Its contents are there, and were not placed yet.
    pub has_arrived: bool,
    /// The faults that wait.
    pub waiters: Vec<Waiter>,
}

impl Fetch {
    /// Returns true if a fault may take its memory: it was read ahead and is there.
    fn is_spare(&self) -> bool {
        self.has_arrived && !self.has_frame
    }
}

/// All fetches, with a page of memory each, used in turn.
pub struct Fetches {
    memory: WiredMemory,
    fetches: Vec<Option<Fetch>>,
    numbers: HashMap<(ObjectId, usize), usize>,
    next: usize,
    /// Lists of waiters that are not in use.
    spare: Vec<Vec<Waiter>>,
}

impl Fetches {
    /// None yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            memory: WiredMemory::private(FETCHES * PAGE)?,
            fetches: (0..FETCHES).map(|_| None).collect(),
            numbers: HashMap::with_capacity(2 * FETCHES),
            next: 0,
            spare: (0..FETCHES).map(|_| Vec::with_capacity(4)).collect(),
        })
    }

    /// Numbers for so many fetches, side by side, so that their pages are placed at once. What was read ahead there is to
    /// be dropped: see [`Fetches::end`]. None while too many are in use.
    pub fn reserve(&mut self, count: usize) -> Option<Range<usize>> {
        let mut first = self.next;
        for _ in 0..2 * FETCHES {
            if first + count > FETCHES {
                first = 0;
            }
            let is_used = |number: &usize| {
                let fetch = self.fetches[*number].as_ref();
                fetch.is_some_and(|fetch| !fetch.is_spare())
            };
            match (first..first + count).rev().find(is_used) {
                None => {
                    self.next = first + count;
                    return Some(first..first + count);
                }
                Some(used) => first = used + 1,
            }
        }
        None
    }

    /// Begins a fetch, by a number that was reserved and is free.
    pub fn begin(&mut self, number: usize, object: ObjectId, page: usize) {
        self.fetches[number] = Some(Fetch {
            object,
            page,
            has_frame: false,
            is_trial: false,
            is_cancelled: false,
            has_arrived: false,
            waiters: self.spare.pop().unwrap_or_default(),
        });
        self.numbers.insert((object, page), number);
    }

    /// Where the page is read to.
    pub fn contents(&self, number: usize) -> *mut u8 {
        debug_assert!(number < FETCHES);
        // SAFETY: within the memory of `FETCHES` pages.
        unsafe { self.memory.as_ptr().add(number * PAGE) }
    }

    /// The number of a page's fetch, if there is one.
    pub fn number(&self, object: ObjectId, page: usize) -> Option<usize> {
        self.numbers.get(&(object, page)).copied()
    }

    /// The fetch of a page, if there is one.
    pub fn of(&mut self, object: ObjectId, page: usize) -> Option<&mut Fetch> {
        self.get_mut(self.number(object, page)?)
    }

    /// A fetch.
    pub fn get(&self, number: usize) -> Option<&Fetch> {
        self.fetches.get(number)?.as_ref()
    }

    /// A fetch, to be changed.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Fetch> {
        self.fetches.get_mut(number)?.as_mut()
    }

    /// Ends a fetch. Returns its page, if it was there and not used.
    pub fn end(&mut self, number: usize) -> Option<(ObjectId, usize)> {
        let mut fetch = self.fetches[number].take()?;
        let page = (fetch.object, fetch.page);
        if !fetch.is_cancelled {
            self.numbers.remove(&page);
        }
        fetch.waiters.clear();
        let is_unused = fetch.is_spare() && !fetch.is_cancelled;
        self.spare.push(fetch.waiters);
        is_unused.then_some(page)
    }

    /// The contents of a page are not wanted any more. Returns the faults that wait for them.
    pub fn cancel(&mut self, object: ObjectId, page: usize) -> Vec<Waiter> {
        let number = self.numbers.remove(&(object, page));
        let fetch = number.and_then(|number| self.get_mut(number));
        fetch.map_or_else(Vec::new, |fetch| {
            fetch.is_cancelled = true;
            std::mem::take(&mut fetch.waiters)
        })
    }

    /// The contents of an object are not wanted any more. Returns the faults that wait for them.
    pub fn cancel_all(&mut self, object: ObjectId) -> Vec<Waiter> {
        let mut waiters = Vec::new();
        for fetch in self.fetches.iter_mut().flatten() {
            if fetch.object == object {
                fetch.is_cancelled = true;
                waiters.append(&mut fetch.waiters);
            }
        }
        self.numbers.retain(|(of, _), _| *of != object);
        waiters
    }

    /// The first fetch, from a number on, whose contents have arrived and are to be placed or dropped.
    pub fn arrived(&self, from: usize) -> Option<usize> {
        let is_due = |number: &usize| {
            let fetch = self.fetches[*number].as_ref();
            fetch.is_some_and(|it| it.has_arrived && (it.has_frame || it.is_cancelled))
        };
        (from..FETCHES).find(is_due)
    }

    /// Pages that faults wait for and that are not there.
    pub fn awaited(&self) -> usize {
        let fetches = self.fetches.iter().flatten();
        fetches
            .filter(|it| !it.has_arrived && !it.waiters.is_empty())
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_what_was_read_ahead_is_used_again_in_turn() {
        let mut fetches = Fetches::new().unwrap();
        for page in 0..FETCHES {
            let number = fetches.reserve(1).unwrap().start;
            fetches.begin(number, 1, page);
        }
        assert_eq!(fetches.reserve(1), None, "all are under way");
        for page in [10, 11, 12] {
            fetches.of(1, page).unwrap().has_arrived = true;
        }
        fetches.of(1, 12).unwrap().has_frame = true;
        assert_eq!(fetches.reserve(3), None, "one is to be placed");
        let both = fetches.reserve(2).unwrap();
        let ended: Vec<_> = both.map(|number| fetches.end(number)).collect();
        assert_eq!(ended, [Some((1, 10)), Some((1, 11))]);
        assert_eq!(fetches.number(1, 10), None);
    }

    #[test]
    fn a_page_whose_fetch_was_cancelled_can_be_fetched_again() {
        let mut fetches = Fetches::new().unwrap();
        let first = fetches.reserve(1).unwrap().start;
        fetches.begin(first, 1, 7);
        fetches.cancel(1, 7);
        let second = fetches.reserve(1).unwrap().start;
        fetches.begin(second, 1, 7);
        fetches.get_mut(first).unwrap().has_arrived = true;
        assert_eq!(fetches.arrived(0), Some(first));
        assert_eq!(fetches.end(first), None);
        assert_eq!(fetches.number(1, 7), Some(second));
    }

    #[test]
    fn faults_that_wait_for_an_object_that_ends_are_returned() {
        let mut fetches = Fetches::new().unwrap();
        let at = |client| Waiter { client, addr: PAGE };
        for (object, page) in [(1, 7), (2, 7), (1, 8)] {
            let number = fetches.reserve(1).unwrap().start;
            fetches.begin(number, object, page);
            let fetch = fetches.of(object, page).unwrap();
            fetch.waiters.push(at(number as u64));
        }
        let waiters = fetches.cancel_all(1);
        let clients: Vec<_> = waiters.iter().map(|waiter| waiter.client).collect();
        assert_eq!(clients, [0, 2]);
        assert_eq!(fetches.number(1, 7), None);
        assert!(fetches.number(2, 7).is_some());
    }
}
