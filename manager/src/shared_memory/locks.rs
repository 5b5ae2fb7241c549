//! Pages of objects that processes have locked: no eviction takes them.

use super::clients::ClientId;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Locked pages of all objects, counted as locks change: each turn of the pager looks at them, and a tree may have thousands of
/// objects.
#[derive(Clone, Debug, Default)]
pub struct LockedPages(Arc<LockCounts>);

#[derive(Debug, Default)]
struct LockCounts {
    pages: AtomicUsize,
    have_ended: AtomicBool,
}

impl LockedPages {
    /// How many; those that two processes lock count twice.
    pub fn get(&self) -> usize {
        self.0.pages.load(Ordering::Relaxed)
    }

    /// Returns true if locks have ended since this was last asked.
    pub fn take_ended(&self) -> bool {
        self.0.have_ended.swap(false, Ordering::Relaxed)
    }
}

/// The locks of one object.
#[derive(Debug)]
pub(super) struct Locks {
    ranges: Vec<(ClientId, Range<usize>)>,
    all: LockedPages,
    have_ended: bool,
}

impl Locks {
    pub fn new(all: LockedPages) -> Self {
        Self {
            ranges: Vec::new(),
            all,
            have_ended: false,
        }
    }

    fn pages(&self) -> usize {
        self.ranges.iter().map(|(_, pages)| pages.len()).sum()
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<(ClientId, Range<usize>)>)) {
        let before = self.pages();
        change(&mut self.ranges);
        let all = &self.all.0;
        all.pages.fetch_add(self.pages(), Ordering::Relaxed);
        all.pages.fetch_sub(before, Ordering::Relaxed);
        // Or others have taken their place.
        if before > 0 {
            self.have_ended = true;
            all.have_ended.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if some of the locks have ended since this was last asked.
    pub fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.have_ended)
    }

    /// The pages that a process has locked from now on, none of them twice.
    pub fn set(&mut self, client: ClientId, pages: Vec<Range<usize>>) {
        self.change(|ranges| {
            ranges.retain(|(of, _)| *of != client);
            ranges.extend(pages.into_iter().map(|pages| (client, pages)));
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
    fn locks_are_of_processes_and_end_with_their_object() {
        let all = LockedPages::default();
        let [mut locks, mut other] = [0; 2].map(|_| Locks::new(all.clone()));
        locks.set(1, vec![0..9, 9..48]);
        locks.set(2, vec![16..17, 40..40]);
        locks.set(1, vec![0..10, 32..48]);
        let units = |locks: &Locks| {
            (0..4)
                .filter(|it| locks.has(&(16 * it..16 * it + 16)))
                .collect()
        };
        let (locked, none): (Vec<_>, Vec<usize>) = (units(&locks), Vec::new());
        assert_eq!((locked, all.get()), (vec![0, 1, 2], 10 + 16 + 1));
        assert_eq!((locks.of(1, &(8..35)), locks.of(2, &(0..16))), (2 + 3, 0));
        other.set(3, vec![5..7, 7..8]);
        assert_eq!(all.get(), 27 + 3);
        locks.keep(&[1]);
        assert_eq!(all.get(), 26 + 3);
        assert!(locks.take_ended() && all.take_ended() && !locks.take_ended());
        locks.set(1, Vec::new());
        assert!(locks.take_ended() && all.take_ended() && !all.take_ended());
        assert_eq!((units(&locks), all.get()), (none, 3));
        drop(other);
        assert_eq!(all.get(), 0);
    }
}
