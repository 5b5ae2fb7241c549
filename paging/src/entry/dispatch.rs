//! Dispatch of a handler thread's fault: to a stretch, to the program's own handler, or back to the
//! kernel, which has the access fail.

use crate::counters::Counter;
use crate::page::State;
use crate::pager::{Pager, page_base};
use crate::resolve::PageFault;
use crate::stretch::{Fault, FaultKind, Handled, StretchState};
use wired::PAGE;

/// A fault that needs no page of the pager's: its thread has been woken.
pub(super) struct Settled;

/// The stretch of a fault, unless the program's own handler resolves the fault, or the access
/// is to fail.
pub(super) fn find_allocated<'p>(
    pager: &'p Pager,
    fault: &PageFault,
) -> Result<&'p StretchState, Settled> {
    let addr = fault.addr;
    let Some(stretch) = pager.mm.index.find(addr) else {
        // Registered, but not in a stretch: the stretch has just been removed. The kernel
        // reports that when the access is repeated.
        let _ = pager.mm.userfault().wake(page_base(addr), PAGE);
        return Err(Settled);
    };
    let table = stretch.table();
    let index = table.index(addr);
    let untouched = table.word(index).load().state() == State::Empty
        && !table.is_surrendered(table.unit_of(index));
    if untouched && !pager.hooks.allocated(addr) {
        pager.log.add(Counter::UnallocatedFaults, 1);
        refuse_access(pager, addr);
        return Err(Settled);
    }
    let kind = FaultKind::Page;
    let write = fault.write;
    if let Some(handler) = stretch.handler(kind)
        && handler(&Fault { kind, addr, write }) == Handled::Resume
    {
        let _ = pager.mm.userfault().wake(addr, PAGE);
        return Err(Settled);
    }
    Ok(stretch)
}

/// An address that the program has not allocated: the access gets its natural SIGSEGV.
fn refuse_access(pager: &Pager, addr: usize) {
    let page = page_base(addr);
    pager.hooks.close(page);
    let _ = pager.mm.userfault().wake(page, PAGE);
}
