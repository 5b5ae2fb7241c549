//! The domains of this process, as the signal handlers find them.

use super::signals;
use super::upcall::{on_sigbus, on_sigsegv, thread_hint};
use crate::freeze_gate::FreezeGate;
use crate::pager::Pager;
use crate::stretch::{Handled, RegionFault, RegionHandler};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use wired::{ForkGuard, Lock};

/// Domains that one process can have at once.
pub const MOST_DOMAINS: usize = 64;

/// A domain of this process, for the handlers.
#[derive(Default)]
struct Slot {
    /// Null before the pager is freed.
    pager: AtomicPtr<Pager>,
    /// Handlers are inside while they use the pager. The code that removes the pager closes
    /// and opens this gate, and then knows that no handler uses it. Each domain has its own
    /// gate: an upcall may wait for frames for a long time, and the other domains' faults and
    /// removals do not wait for it.
    handlers: FreezeGate,
}

/// The domains of one process.
struct DomainTable {
    /// The child of a fork copies the table, and none of the domains is its own.
    fork_guard: ForkGuard,
    slots: Box<[Slot]>,
}

/// The table of this process or, until the process has a domain, that of its parent. Null before the first domain; tables
/// are never freed: a handler may be reading one.
static DOMAINS: AtomicPtr<DomainTable> = AtomicPtr::new(null_mut());

/// Resolves the faults that are in no stretch.
static REGIONS: OnceLock<RegionHandler> = OnceLock::new();

/// Whether the handlers are installed.
static INSTALLED: Lock<bool> = Lock::new(false);

/// Registers a pager with the handlers, and installs them if they are not installed yet.
/// Returns false if the process has too many domains.
///
/// # Safety
/// The pager must live until [`detach`] has returned.
pub(crate) unsafe fn attach(pager: &Pager) -> std::io::Result<bool> {
    let mut installed = INSTALLED.lock();
    if slots().is_empty() {
        let table = DomainTable {
            fork_guard: ForkGuard::new()?,
            slots: (0..MOST_DOMAINS).map(|_| Slot::default()).collect(),
        };
        DOMAINS.store(Box::into_raw(Box::new(table)), Ordering::Release);
    }
    let mine = std::ptr::from_ref(pager).cast_mut();
    let free = slots().iter().any(|slot| {
        slot.pager
            .compare_exchange(null_mut(), mine, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    });
    if free {
        install(&mut installed)?;
    }
    Ok(free)
}

/// The slots of this process; none before its first domain.
fn slots() -> &'static [Slot] {
    // SAFETY: a pointer stored here came from a leaked box.
    let table = unsafe { DOMAINS.load(Ordering::Acquire).as_ref() };
    let own = table.filter(|table| table.fork_guard.is_same_process());
    own.map_or(&[], |table| &table.slots)
}

fn install(installed: &mut bool) -> std::io::Result<()> {
    if !*installed {
        signals::install(libc::SIGBUS, on_sigbus)?;
        signals::install(libc::SIGSEGV, on_sigsegv)?;
        *installed = true;
    }
    Ok(())
}

/// Sets the handler of faults that are in no stretch, once for the process, and installs the signal handlers. Returns false
/// if there is another handler already.
///
/// # Errors
/// The kernel's error if the signal handlers could not be installed.
pub fn set_region_handler(handler: RegionHandler) -> std::io::Result<bool> {
    if let Some(there) = REGIONS.get() {
        return Ok(std::ptr::fn_addr_eq(*there, handler));
    }
    let mut installed = INSTALLED.lock();
    install(&mut installed)?;
    let there = *REGIONS.get_or_init(|| handler);
    Ok(std::ptr::fn_addr_eq(there, handler))
}

/// Calls the handler of faults that are in no stretch. True if the access can be repeated.
pub(super) fn resolve_region(fault: &RegionFault) -> bool {
    REGIONS
        .get()
        .is_some_and(|handler| handler(fault) == Handled::Resume)
}

/// Removes a pager from the handlers. When it returns, no handler uses the pager.
pub(crate) fn detach(pager: &Pager) {
    let mine = std::ptr::from_ref(pager).cast_mut();
    let _one = INSTALLED.lock();
    for slot in slots() {
        let taken = slot
            .pager
            .compare_exchange(mine, null_mut(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if taken {
            slot.handlers.close();
            slot.handlers.open();
        }
    }
}

/// Calls `visit` with each pager in turn until it returns a value. No handler that is inside
/// `visit` outlives its pager.
pub(super) fn find_map<T>(mut visit: impl FnMut(&Pager) -> Option<T>) -> Option<T> {
    let hint = thread_hint();
    for slot in slots() {
        if slot.pager.load(Ordering::Acquire).is_null() {
            continue;
        }
        // A closed gate is that of a pager that is being removed.
        let Some(_inside) = slot.handlers.try_enter(hint) else {
            continue;
        };
        // SAFETY: inside the slot's gate, which is closed before the pager goes.
        let Some(pager) = (unsafe { slot.pager.load(Ordering::Acquire).as_ref() }) else {
            continue;
        };
        if let Some(found) = visit(pager) {
            return Some(found);
        }
    }
    None
}
