//! What resolves a domain's faults: their limits, contexts, streams and handlers.

use crate::entry::failed_pages::FailedPages;
use crate::entry::idle::HandlerSet;
use crate::fault_context::ContextPool;
use crate::huge::HugeBuffers;
use crate::streams::Streams;
use crate::stretch::Handler;
use crate::throttle::FaultThrottle;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use wired::WiredMemory;

/// The parts of the pager that only faults use.
pub(crate) struct FaultPath {
    /// Limits of the fault rate.
    pub(crate) throttle: FaultThrottle,
    /// Contexts of faults on threads of the program.
    pub(crate) contexts: ContextPool,
    pub(crate) streams: Streams,
    /// Where huge frames are made.
    pub(crate) huge: Arc<HugeBuffers>,
    /// Which handler threads wait for faults.
    pub(crate) handlers: Arc<HandlerSet>,
    /// Pages whose access failed for now.
    pub(crate) failed: FailedPages,
    /// As many pages of zeros as the widest window has. Never written, so that all are one
    /// page of the kernel's.
    pub(crate) zeros: WiredMemory,
    /// For faults on addresses of no stretch.
    pub(crate) unallocated: AtomicPtr<Box<Handler>>,
}

impl FaultPath {
    /// The handler for faults on addresses of no stretch.
    pub(crate) fn unallocated_handler(&self) -> Option<&'static Handler> {
        // SAFETY: a pointer stored here came from a leaked box.
        unsafe { self.unallocated.load(Ordering::Acquire).as_ref() }.map(|boxed| &**boxed)
    }

    pub(crate) fn set_unallocated_handler(&self, handler: Box<Handler>) {
        self.unallocated
            .store(Box::into_raw(Box::new(handler)), Ordering::Release);
    }
}
