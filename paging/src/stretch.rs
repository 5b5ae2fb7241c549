//! Stretches: ranges of virtual addresses with a certain accessibility.
//!
//! Nemesis, sections 6.1 and 6.6. A stretch owns no memory. It is *bound* to a stretch
//! driver, which answers its faults; it is protected as a whole, by what a protection
//! domain's rights say; its owner is the domain that allocated it.

use crate::driver::{StretchDriver, call_driver};
use crate::fault_outcome::FillOutcome;
use crate::page_in::Activation;
use crate::page_table::PageTable;
use crate::prefetch::AccessLogSlot;
use crate::rights::Rights;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use wired::Lock;

/// The faults that a program may handle itself, stretch by stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The page is missing.
    Page,
    /// The page is present, or may be, but its protection forbids the access.
    Protection,
    /// The address is in no stretch, or in none that is bound.
    Unallocated,
}

/// A fault as the program's own handler sees it.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// What kind of fault it is.
    pub kind: FaultKind,
    /// The address of the access.
    pub addr: usize,
    /// Whether the access was a write.
    pub write: bool,
}

/// Result of a program's own handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The access can be repeated.
    Resume,
    /// Continue as if there were no handler.
    Default,
}

/// A handler of the program's own, run on the faulting thread in its activation (a
/// signal handler: only what is async-signal-safe, and calls of this library that say
/// they are). Handlers of page faults have the thread's own stack; those of protection and
/// unallocated faults have what the pager leaves of its alternate signal stack, since the fault may
/// be that of a stack at its end: 4 KiB of the 8 KiB that Rust gives a thread. One that needs more
/// gives its threads larger ones by `sigaltstack`. A handler that was set is never freed.
pub type Handler = dyn Fn(&Fault) -> Handled + Send + Sync;

/// A fault at an address that is in no stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionFault {
    /// The address of the access.
    pub addr: usize,
    /// Whether the access was a write.
    pub write: bool,
    /// Whether the access was an instruction fetch.
    pub execute: bool,
    /// True if the mapping has no page there (SIGBUS), false if it forbids the access or there is
    /// none (SIGSEGV).
    pub no_page: bool,
}

/// Resolves faults at addresses that are in no stretch: mappings of memory objects. It runs on the
/// faulting thread, in the signal handler, with all signals blocked but SIGBUS and SIGSEGV: it
/// allocates nothing and touches none of the memory whose faults it resolves.
pub type RegionHandler = fn(&RegionFault) -> Handled;

/// The domain's record of a stretch.
pub(crate) struct StretchState {
    id: u32,
    table: PageTable,
    driver: OnceLock<Box<dyn StretchDriver>>,
    /// Set if any part was given a protection other than read and write.
    odd_access: AtomicBool,
    huge: AtomicBool,
    /// Set while the stretch is being removed.
    closing: AtomicBool,
    /// What the process's one protection domain may do with it.
    rights: AtomicU8,
    log: AccessLogSlot,
    page_handler: AtomicPtr<Box<Handler>>,
    protection_handler: AtomicPtr<Box<Handler>>,
    /// Held while resident pages are copied and saved: the copy that a flush made first is not the last to be saved.
    pub(crate) flushing: Lock<()>,
}

impl StretchState {
    pub(crate) fn new(id: u32, table: PageTable) -> Self {
        Self {
            id,
            table,
            driver: OnceLock::new(),
            odd_access: AtomicBool::new(false),
            huge: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            rights: AtomicU8::new(Rights::ALL.bits()),
            log: AccessLogSlot::default(),
            page_handler: AtomicPtr::default(),
            protection_handler: AtomicPtr::default(),
            flushing: Lock::new(()),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The log of pages that come in.
    pub(crate) fn log(&self) -> &AccessLogSlot {
        &self.log
    }

    pub(crate) fn table(&self) -> &PageTable {
        &self.table
    }

    /// Returns false if the stretch is bound already.
    pub(crate) fn set_driver(&self, driver: Box<dyn StretchDriver>) -> bool {
        self.driver.set(driver).is_ok()
    }

    pub(crate) fn driver(&self) -> Option<&dyn StretchDriver> {
        self.driver.get().map(Box::as_ref)
    }

    pub(crate) fn rights(&self) -> Rights {
        Rights::from_bits(self.rights.load(Ordering::Acquire))
    }

    pub(crate) fn set_rights(&self, rights: Rights) {
        self.rights.store(rights.bits(), Ordering::Release);
    }

    /// Returns true if its pages may be evicted.
    pub(crate) fn evictable(&self) -> bool {
        !self.closing.load(Ordering::Acquire) && self.driver().is_some_and(StretchDriver::evictable)
    }

    pub(crate) fn set_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Returns true if none of its pages is the domain's any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.closing.load(Ordering::Acquire) || self.table.is_abandoned()
    }

    /// Returns true if its faults are resolved with huge frames when possible.
    pub(crate) fn huge(&self) -> bool {
        self.huge.load(Ordering::Relaxed)
    }

    pub(crate) fn set_huge(&self) {
        self.huge.store(true, Ordering::Relaxed);
    }

    pub(crate) fn odd_access(&self) -> bool {
        self.odd_access.load(Ordering::Relaxed)
    }

    pub(crate) fn set_odd_access(&self) {
        self.odd_access.store(true, Ordering::Relaxed);
    }

    /// Runs the driver on a fault.
    pub(crate) fn fault(&self, activation: &mut Activation<'_>) -> FillOutcome {
        match self.driver() {
            Some(driver) => call_driver(|| driver.fault(activation)),
            None => FillOutcome::Failure(crate::fault_outcome::FaultError::Unbound),
        }
    }

    fn slot(&self, kind: FaultKind) -> Option<&AtomicPtr<Box<Handler>>> {
        match kind {
            FaultKind::Page => Some(&self.page_handler),
            FaultKind::Protection => Some(&self.protection_handler),
            FaultKind::Unallocated => None,
        }
    }

    /// The program's own handler, if it set one. Handlers are never freed: another thread may
    /// be running one.
    pub(crate) fn handler(&self, kind: FaultKind) -> Option<&'static Handler> {
        let at = self.slot(kind)?.load(Ordering::Acquire);
        // SAFETY: a pointer stored here came from a leaked box.
        unsafe { at.as_ref() }.map(|boxed| &**boxed)
    }

    pub(crate) fn set_handler(&self, kind: FaultKind, handler: Option<Box<Handler>>) {
        let Some(slot) = self.slot(kind) else { return };
        let at = handler.map_or(std::ptr::null_mut(), |h| Box::into_raw(Box::new(h)));
        slot.store(at, Ordering::Release);
    }
}
