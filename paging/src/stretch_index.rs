//! From an address to its stretch, in a signal handler, without a lock.
//!
//! A sorted array under a sequence count: readers search, and search again if a writer changed
//! it meanwhile. Writers hold the domain's lock and never touch a stretch, so a reader in a
//! signal handler never interrupts the writer it waits for.

use crate::stretch::StretchState;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use wired::WiredMemory;

/// Stretches a domain can have at once.
pub const MOST_STRETCHES: usize = 1 << 16;

/// All live stretches, by address.
pub(crate) struct StretchIndex {
    sequence: AtomicU32,
    count: AtomicUsize,
    bases: WiredMemory,
    inners: WiredMemory,
    /// By id, modulo the table's size.
    by_id: WiredMemory,
    /// Live stretches whose place by id is taken by a stretch that is a multiple of the
    /// table's size younger or older.
    displaced: AtomicUsize,
}

impl StretchIndex {
    /// No stretches yet.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            sequence: AtomicU32::new(0),
            count: AtomicUsize::new(0),
            bases: WiredMemory::private(MOST_STRETCHES * 8)?,
            inners: WiredMemory::private(MOST_STRETCHES * 8)?,
            by_id: WiredMemory::private(MOST_STRETCHES * 8)?,
            displaced: AtomicUsize::new(0),
        })
    }

    fn bases(&self) -> &[AtomicU64] {
        self.bases.slice(0, MOST_STRETCHES)
    }

    fn inners(&self) -> &[AtomicPtr<StretchState>] {
        // SAFETY: zero bytes are null pointers; the array is as long as the region.
        unsafe { std::slice::from_raw_parts(self.inners.as_ptr().cast(), MOST_STRETCHES) }
    }

    fn place(&self, id: u32) -> &AtomicPtr<StretchState> {
        // SAFETY: as above.
        unsafe {
            &*self
                .by_id
                .as_ptr()
                .cast::<AtomicPtr<StretchState>>()
                .add(id as usize % MOST_STRETCHES)
        }
    }

    /// The stretch with this id, for the evictor: evictions are quiesced before a stretch is
    /// removed.
    pub(crate) fn by_id(&self, id: u32) -> Option<&StretchState> {
        // SAFETY: a pointer there is to a live stretch, and the caller keeps it alive.
        let there = unsafe { self.place(id).load(Ordering::Acquire).as_ref() };
        match there.filter(|inner| inner.id() == id) {
            None if self.displaced.load(Ordering::Acquire) > 0 => (0..self.len())
                .filter_map(|n| self.nth(n))
                .find(|inner| inner.id() == id),
            found => found,
        }
    }

    /// The number of stretches.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The stretch that holds `addr`. The caller is inside the domain's gate, which must close
    /// before a stretch is removed.
    pub(crate) fn find(&self, addr: usize) -> Option<&StretchState> {
        let (below, _) = self.around(addr);
        below.filter(|inner| addr < inner.table().end())
    }

    /// The base of the first stretch above `addr`, for the same caller.
    pub(crate) fn next_base(&self, addr: usize) -> Option<usize> {
        self.around(addr).1
    }

    /// The last stretch that begins at `addr` or below, and the base of the next.
    fn around(&self, addr: usize) -> (Option<&StretchState>, Option<usize>) {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if !before.is_multiple_of(2) {
                std::hint::spin_loop();
                continue;
            }
            let count = self.count.load(Ordering::Relaxed).min(MOST_STRETCHES);
            let bases = &self.bases()[..count];
            let mut low = 0;
            let mut high = count;
            while low < high {
                let middle = (low + high) / 2;
                if bases[middle].load(Ordering::Relaxed) as usize <= addr {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            let found = match low {
                0 => null_mut(),
                n => self.inners()[n - 1].load(Ordering::Relaxed),
            };
            let next = bases
                .get(low)
                .map(|base| base.load(Ordering::Relaxed) as usize);
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) != before {
                continue;
            }
            // SAFETY: a pointer read under an unchanged sequence is to a live stretch,
            // and the gate the caller is in keeps it alive.
            return (unsafe { found.as_ref() }, next);
        }
    }

    /// The `n`th stretch by address, for walks; the caller holds the domain's lock.
    pub(crate) fn nth(&self, n: usize) -> Option<&StretchState> {
        if n >= self.len() {
            return None;
        }
        // SAFETY: pointers below the count are live while the domain's lock is held.
        unsafe { self.inners()[n].load(Ordering::Acquire).as_ref() }
    }

    /// The first stretch that ends after `addr`: the one that holds it, or the next. The
    /// caller holds the domain's lock.
    pub(crate) fn first_after(&self, addr: usize) -> Option<&StretchState> {
        let bases = &self.bases()[..self.len()];
        let next = bases.partition_point(|base| base.load(Ordering::Relaxed) as usize <= addr);
        let holder = next.checked_sub(1).and_then(|n| self.nth(n));
        holder
            .filter(|inner| addr < inner.table().end())
            .or_else(|| self.nth(next))
    }

    /// Inserts a stretch. Returns false if the index is full. The caller holds the
    /// domain's lock.
    pub(crate) fn insert(&self, inner: &'static StretchState) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        if count == MOST_STRETCHES {
            return false;
        }
        let base = inner.table().base() as u64;
        let at = self.bases()[..count].partition_point(|b| b.load(Ordering::Relaxed) < base);
        self.change(|bases, inners| {
            for i in (at..count).rev() {
                bases[i + 1].store(bases[i].load(Ordering::Relaxed), Ordering::Relaxed);
                inners[i + 1].store(inners[i].load(Ordering::Relaxed), Ordering::Relaxed);
            }
            bases[at].store(base, Ordering::Relaxed);
            inners[at].store(std::ptr::from_ref(inner).cast_mut(), Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Relaxed);
        });
        let mine = std::ptr::from_ref(inner).cast_mut();
        let placed = self.place(inner.id()).compare_exchange(
            null_mut(),
            mine,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if placed.is_err() {
            self.displaced.fetch_add(1, Ordering::AcqRel);
        }
        true
    }

    /// Removes a stretch. The caller holds the domain's lock.
    pub(crate) fn remove(&self, inner: &StretchState) {
        let count = self.count.load(Ordering::Relaxed);
        let bases = &self.bases()[..count];
        let base = inner.table().base();
        let at = bases.partition_point(|it| (it.load(Ordering::Relaxed) as usize) < base);
        let found = self.inners()[..count].get(at);
        if !found.is_some_and(|it| std::ptr::eq(it.load(Ordering::Relaxed), inner)) {
            return;
        }
        self.change(|bases, inners| {
            for i in at..count - 1 {
                bases[i].store(bases[i + 1].load(Ordering::Relaxed), Ordering::Relaxed);
                inners[i].store(inners[i + 1].load(Ordering::Relaxed), Ordering::Relaxed);
            }
            self.count.store(count - 1, Ordering::Relaxed);
        });
        let mine = std::ptr::from_ref(inner).cast_mut();
        let placed = self.place(inner.id()).compare_exchange(
            mine,
            null_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if placed.is_err() {
            self.displaced.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn change(&self, edit: impl FnOnce(&[AtomicU64], &[AtomicPtr<StretchState>])) {
        self.sequence.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::Release);
        edit(self.bases(), self.inners());
        self.sequence.fetch_add(1, Ordering::Release);
    }
}
