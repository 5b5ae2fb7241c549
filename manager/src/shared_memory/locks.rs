//! Pages of objects that processes have locked: no eviction takes them.

use super::clients::ClientId;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Locked pages of all objects, counted as locks change: each turn of the pager looks at them, and a tree may have thousands of
/// objects.
#[derive(Clone, Debug, Default)]
pub struct LockedPages(Arc<AtomicUsize>);

impl LockedPages {
    /// How many; those that two processes lock count twice.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The locks of one object. Locks of a process do not nest.
#[derive(Debug)]
pub(super) struct Locks {
    ranges: Vec<(ClientId, Range<usize>)>,
    all: LockedPages,
}

impl Locks {
    pub fn new(all: LockedPages) -> Self {
        let ranges = Vec::new();
        Self { ranges, all }
    }

    fn pages(&self) -> usize {
        self.ranges.iter().map(|(_, pages)| pages.len()).sum()
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<(ClientId, Range<usize>)>)) {
        let before = self.pages();
        change(&mut self.ranges);
        self.all.0.fetch_add(self.pages(), Ordering::Relaxed);
        self.all.0.fetch_sub(before, Ordering::Relaxed);
    }

    /// A process locks pages.
    pub fn lock(&mut self, client: ClientId, pages: Range<usize>) {
        self.unlock(client, &pages);
        self.change(|ranges| ranges.push((client, pages)));
    }

    /// A process's locks on these pages end.
    pub fn unlock(&mut self, client: ClientId, pages: &Range<usize>) {
        self.change(|ranges| {
            let mut rest = Vec::new();
            ranges.retain(|(of, locked)| {
                let overlaps = locked.start < pages.end && pages.start < locked.end;
                if *of != client || !overlaps {
                    return true;
                }
                rest.push((client, locked.start..pages.start.max(locked.start)));
                rest.push((client, pages.end.min(locked.end)..locked.end));
                false
            });
            ranges.extend(rest.into_iter().filter(|(_, pages)| !pages.is_empty()));
        });
    }

    /// The locks of all other processes end.
    pub fn keep(&mut self, users: &[ClientId]) {
        self.change(|ranges| ranges.retain(|(of, _)| users.contains(of)));
    }

    /// Returns true if one of these pages is locked.
    pub fn has(&self, pages: &Range<usize>) -> bool {
        let mut ranges = self.ranges.iter();
        ranges.any(|(_, locked)| locked.start < pages.end && pages.start < locked.end)
    }

    /// Of these pages, those that a process has locked.
    pub fn of(&self, client: ClientId, pages: &Range<usize>) -> usize {
        let own = self.ranges.iter().filter(|(of, _)| *of == client);
        let common =
            own.map(|(_, locked)| locked.start.max(pages.start)..locked.end.min(pages.end));
        common.map(|pages| pages.len()).sum()
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.change(Vec::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_of_processes_and_end_page_by_page_and_with_their_object() {
        let all = LockedPages::default();
        let [mut locks, mut other] = [0; 2].map(|_| Locks::new(all.clone()));
        locks.lock(1, 0..48);
        locks.lock(2, 16..17);
        locks.unlock(1, &(10..32));
        let units = |locks: &Locks| {
            (0..4)
                .filter(|it| locks.has(&(16 * it..16 * it + 16)))
                .collect()
        };
        let (locked, none): (Vec<_>, Vec<usize>) = (units(&locks), Vec::new());
        assert_eq!((locked, all.get()), (vec![0, 1, 2], 10 + 16 + 1));
        assert_eq!((locks.of(1, &(8..35)), locks.of(2, &(0..16))), (2 + 3, 0));
        other.lock(3, 5..7);
        other.lock(3, 5..8);
        assert_eq!(all.get(), 27 + 3);
        locks.keep(&[1]);
        assert_eq!(all.get(), 26 + 3);
        locks.unlock(1, &(0..64));
        assert_eq!((units(&locks), all.get()), (none, 3));
        drop(other);
        assert_eq!(all.get(), 0);
    }
}
