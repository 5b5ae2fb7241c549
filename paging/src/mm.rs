//! The memory that a pager manages: its stretches, and the kernel's view of them.

use crate::fork_cell::ForkCell;
use crate::freeze_gate::FreezeGate;
use crate::page::State;
use crate::page_table::PageTable;
use crate::stretch::StretchState;
use crate::stretch_index::StretchIndex;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use translation::{Access, AccessMap, Capabilities, Pagemap, TranslationError, Userfault};
use wired::{PAGE, PiLock};

/// The stretches of a domain, and what translates their addresses.
pub(crate) struct Mm {
    pub(crate) capabilities: Capabilities,
    userfault: ForkCell<Userfault>,
    pagemap: ForkCell<Option<Pagemap>>,
    access_map: ForkCell<Option<AccessMap>>,
    /// Not zero once a device may read or write the program's memory behind the
    /// processor's back: eviction then looks for pinned pages.
    pub(crate) careful: &'static AtomicU32,
    pub(crate) index: StretchIndex,
    /// Every fault is inside; a fork and the end of a stretch close it.
    pub(crate) gate: FreezeGate,
    /// Serialises changes of the set of stretches, and forks.
    pub(crate) control: PiLock<()>,
    /// Pages of a unit.
    pub(crate) unit_pages: usize,
}

impl Mm {
    pub(crate) fn new(
        capabilities: Capabilities,
        userfault: Userfault,
        careful: &'static AtomicU32,
        unit_pages: usize,
    ) -> rustix::io::Result<Self> {
        Ok(Self {
            userfault: ForkCell::new(userfault),
            pagemap: ForkCell::new(Pagemap::open(&capabilities).ok()),
            access_map: ForkCell::new(AccessMap::open().ok()),
            capabilities,
            careful,
            index: StretchIndex::new()?,
            gate: FreezeGate::default(),
            control: PiLock::new(()),
            unit_pages,
        })
    }

    pub(crate) fn userfault(&self) -> &Userfault {
        self.userfault.get()
    }

    /// The kernel's page table as this process may read it.
    pub(crate) fn pagemap(&self) -> Option<&Pagemap> {
        self.pagemap.get().as_ref()
    }

    /// The rights that the program has at an address; None where they cannot be read.
    pub(crate) fn access(&self, addr: usize) -> Option<Access> {
        self.access_map.get().as_ref()?.access(addr).ok()?
    }

    /// Switches to the child process: its userfaultfd. The parent's pagemap and mappings describe
    /// the parent's memory.
    ///
    /// # Safety
    /// For the only thread of a fork's child.
    pub(crate) unsafe fn become_child(&self, userfault: Userfault) {
        // SAFETY: the caller's promise.
        unsafe {
            self.userfault.replace(userfault);
            self.pagemap.replace(Pagemap::open(&self.capabilities).ok());
            self.access_map.replace(AccessMap::open().ok());
        }
    }

    /// Returns true if writes to pages marked clean are tracked.
    pub(crate) fn tracks_dirty(&self) -> bool {
        self.userfault().options().async_write_protect
    }

    /// Returns true if a device may be reading or writing the program's memory.
    pub(crate) fn is_careful(&self) -> bool {
        self.careful.load(Ordering::Acquire) != 0
    }

    /// Returns true if pages can be taken without losing a device's writes to them.
    pub(crate) fn may_evict(&self) -> bool {
        self.capabilities.may_evict(self.is_careful())
    }

    /// Calls `visit` for each part of `range` that lies in one unit of one stretch.
    /// The caller keeps the stretches alive.
    pub(crate) fn for_each_unit(
        &self,
        range: Range<usize>,
        visit: &mut dyn FnMut(&StretchState, usize, Range<usize>),
    ) {
        self.for_each_stretch(range.clone(), &mut |stretch| {
            let table = stretch.table();
            let mut addr = range.start.max(table.base());
            let to = range.end.min(table.end());
            while addr < to {
                let unit = table.unit_of(table.index(addr));
                let pages = table.unit_pages(unit);
                let end = table.address(pages.end).min(to);
                let last = (end - table.base()).div_ceil(PAGE);
                visit(stretch, unit, table.index(addr)..last);
                addr = end;
            }
        });
    }

    /// Calls `visit` for each stretch that has a part of the range.
    pub(crate) fn for_each_stretch(
        &self,
        range: Range<usize>,
        visit: &mut dyn FnMut(&StretchState),
    ) {
        let mut addr = range.start;
        while addr < range.end {
            addr = match self.index.find(addr) {
                Some(stretch) => {
                    visit(stretch);
                    stretch.table().end()
                }
                None => match self.index.next_base(addr) {
                    Some(next) => next,
                    None => return,
                },
            };
        }
    }

    /// Registers memory of a stretch.
    pub(crate) fn register(&self, addr: usize, len: usize) -> Result<(), TranslationError> {
        self.userfault()
            .register(addr, len, true, self.tracks_dirty())
    }

    /// Registers what is left of a stretch in the child of a fork. Surrendered parts are left
    /// out (memory shared with others could be registered, and its faults would go to the
    /// pager); parts that a fork does not copy are skipped.
    pub(crate) fn register_mapped(&self, stretch: &StretchState) -> Result<(), TranslationError> {
        let table = stretch.table();
        table.try_for_each_own_run(|run| {
            let (addr, len) = (table.address(run.start), run.len() * PAGE);
            match self.register(addr, len) {
                Ok(()) => Ok(()),
                Err(_) => self.register_pieces(addr, len, table),
            }
        })
    }

    fn register_pieces(
        &self,
        addr: usize,
        len: usize,
        table: &PageTable,
    ) -> Result<(), TranslationError> {
        match self.register(addr, len) {
            Ok(()) => Ok(()),
            Err(_) if len > PAGE => {
                let half = (len / 2).next_multiple_of(PAGE);
                self.register_pieces(addr, half, table)?;
                self.register_pieces(addr + half, len - half, table)
            }
            Err(error) => match table.word(table.index(addr)).load().state() {
                State::Empty => Ok(()),
                _ => Err(error),
            },
        }
    }
}
