//! What the operations of a space and its faults share: the tree and the VTLB, each behind its lock.
//!
//! Locking follows 3.2.2. The mutex of operations is the space's own; the fault path does not take
//! it. The lock of the tree is held for one lookup or one mutation, which allocates nothing. The
//! lock of the VTLB is held while entries are mapped and hidden. A miss holds the VTLB's lock and
//! looks the region up inside it, and an operation changes the tree before it removes entries: so
//! no entry outlives its region. Order: operations, VTLB, tree.

use crate::error::SpaceError;
use crate::held_times::{HeldTimes, SectionTimes};
use crate::recycling_turn;
use crate::region::{Kind, Region};
use crate::registry::{self, FaultResolver};
use crate::tree::{Node, RegionTree};
use crate::vtlb::{MissOutcome, Vtlb};
use selfpage::{Handled, RegionFault};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use translation::{Capabilities, Pagemap, TranslationError};
use wired::{ForkGuard, Lock, PiLock, clock};

/// How long the exclusive sections of a space were held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockTimes {
    /// Mutations of the tree (in the paper: AS-mutation functions).
    pub mutations: SectionTimes,
    /// Misses and removals of VTLB entries (in the paper: VTLB functions).
    pub vtlb: SectionTimes,
}

pub(crate) struct Core {
    /// The number of the process that has the space, and a mark that its children lack. A child of a
    /// fork has some of its mappings and must not enter others: files of copies are the parent's, and
    /// a thread of the parent's may have had a lock at the fork.
    owner: u32,
    fork_guard: ForkGuard,
    tree: Lock<RegionTree>,
    vtlb: PiLock<Vtlb>,
    mutations: HeldTimes,
    vtlb_sections: HeldTimes,
    /// A line says why an access was not served.
    reported: AtomicBool,
}

impl Core {
    pub(crate) fn new(vtlb: Vtlb) -> Result<Self, SpaceError> {
        let fork_guard =
            ForkGuard::new().map_err(SpaceError::system("mapping memory that a fork wipes"))?;
        Ok(Self {
            owner: std::process::id(),
            fork_guard,
            tree: Lock::new(RegionTree::default()),
            vtlb: PiLock::new(vtlb),
            mutations: HeldTimes::default(),
            vtlb_sections: HeldTimes::default(),
            reported: AtomicBool::new(false),
        })
    }

    /// The process that made the space, if that is not the caller's.
    pub(crate) fn other_owner(&self) -> Option<u32> {
        (!self.fork_guard.is_same_process()).then_some(self.owner)
    }

    pub(crate) fn times(&self) -> LockTimes {
        LockTimes {
            mutations: self.mutations.summary(),
            vtlb: self.vtlb_sections.summary(),
        }
    }

    /// The region that holds `addr`.
    pub(crate) fn find(&self, addr: usize) -> Option<Region> {
        self.tree.lock().find(addr)
    }

    /// The first region that ends after `addr`.
    pub(crate) fn first_after(&self, addr: usize) -> Option<Region> {
        self.tree.lock().first_after(addr)
    }

    fn mutate<T>(&self, mutation: impl FnOnce(&mut RegionTree) -> T) -> T {
        let mut tree = self.tree.lock();
        let begin = clock::now();
        let result = mutation(&mut tree);
        drop(tree);
        self.mutations.end(begin);
        result
    }

    /// Inserts a region that overlaps none.
    pub(crate) fn insert(&self, region: Region) {
        let node = Node::new(region);
        self.mutate(|tree| tree.insert(node));
    }

    /// Replaces the part of `old` in `range` by the same part of `new`, or removes it.
    pub(crate) fn replace(&self, old: &Region, range: &Range<usize>, new: Option<Region>) {
        let node = || Some(Node::new(*old));
        let mut spare = [node(), node(), node(), None];
        let part = old.part(range).range();
        self.mutate(|tree| tree.replace(old, &part, new, &mut spare));
        self.merge_seams(&part);
    }

    /// Undoes the removal of a region or of a part of one.
    pub(crate) fn restore(&self, part: Region) {
        self.insert(part);
        self.merge_seams(&part.range());
    }

    fn merge_seams(&self, range: &Range<usize>) {
        for seam in [range.start, range.end] {
            // Dropped outside the lock.
            let _left_over = self.mutate(|tree| tree.merge(seam));
        }
    }

    /// Runs a function of the VTLB in its exclusive section.
    pub(crate) fn with_vtlb<T>(&self, function: impl FnOnce(&mut Vtlb) -> T) -> T {
        let mut vtlb = self.vtlb.lock();
        let begin = clock::now();
        let result = function(&mut vtlb);
        drop(vtlb);
        self.vtlb_sections.end(begin);
        result
    }

    /// Opens what copies are found by. Outside the VTLB's lock, in which nothing allocates; operations
    /// take turns.
    pub(crate) fn open_pagemap(&self) -> Result<(), SpaceError> {
        if self.with_vtlb(|vtlb| vtlb.pagemap().is_some()) {
            return Ok(());
        }
        let pagemap = Pagemap::open(&Capabilities::probe_fast()).map_err(SpaceError::system(
            "opening /proc/self/pagemap for a copy-on-write mapping (a process that changed its user needs PR_SET_DUMPABLE)",
        ))?;
        self.with_vtlb(|vtlb| *vtlb.pagemap() = Some(pagemap));
        Ok(())
    }

    fn miss(&self, fault: &RegionFault) -> Result<Handled, TranslationError> {
        let missed = self.with_vtlb(|vtlb| {
            let Some(region) = self.find(fault.addr) else {
                return Ok(None);
            };
            let Kind::Mapped(mapping) = region.kind else {
                return Ok(None);
            };
            if mapping.paged || !region.allows(fault.write, fault.execute) {
                return Ok(None);
            }
            match (fault.no_page, mapping.no_exception) {
                (false, _) => vtlb.miss(&region, fault.addr).map(Some),
                (true, None) => Ok(None),
                (true, Some(record)) => {
                    let missed = vtlb.give_scratch(&region, fault.addr)?;
                    if let MissOutcome::Entered(_) = missed {
                        // SAFETY: the record outlives the region, which exists while the lock is held.
                        unsafe { record.as_ref() }.note(fault.addr);
                    }
                    Ok(Some(missed))
                }
            }
        })?;
        Ok(match missed {
            None => Handled::Default,
            Some(MissOutcome::Entered(_)) => Handled::Resume,
            Some(MissOutcome::AwaitTurn) => {
                recycling_turn::pause();
                Handled::Resume
            }
        })
    }
}

impl FaultResolver for Core {
    fn resolve(&self, fault: &RegionFault) -> Option<Handled> {
        if self.other_owner().is_some() {
            return None;
        }
        self.find(fault.addr)?;
        Some(self.miss(fault).unwrap_or_else(|why| {
            // An exception to the program, as a page that cannot be read is.
            // Once: the program may handle that, and go on.
            if !self.reported.swap(true, Ordering::Relaxed) {
                let addr = fault.addr;
                registry::report(format_args!("selfpage: an access at {addr:#x}: {why}\n"));
            }
            Handled::Default
        }))
    }
}
