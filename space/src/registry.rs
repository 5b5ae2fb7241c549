//! The spaces and stack pools of this process, as the fault handler finds them.

use crate::error::SpaceError;
use selfpage::{Handled, RegionFault};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Spaces and stack pools that one process can have at once.
pub(crate) const MOST: usize = 128;

/// Has addresses whose faults it resolves. Runs in the signal handler: see [`selfpage::RegionHandler`].
pub(crate) trait FaultResolver: Send + Sync {
    /// None if the address is not its own.
    fn resolve(&self, fault: &RegionFault) -> Option<Handled>;
}

struct ResolverSlot {
    resolver: AtomicPtr<Arc<dyn FaultResolver>>,
    /// Handlers that use the resolver, or are about to look.
    inside: AtomicU32,
}

static SLOTS: [ResolverSlot; MOST] = [const {
    ResolverSlot {
        resolver: AtomicPtr::new(null_mut()),
        inside: AtomicU32::new(0),
    }
}; MOST];

/// A place among them. Dropping it waits for the handlers that are inside.
pub(crate) struct Registration {
    slot: &'static ResolverSlot,
}

/// Registers a resolver, and installs the handler with the first one.
pub(crate) fn register(resolver: Arc<dyn FaultResolver>) -> Result<Registration, SpaceError> {
    if !selfpage::set_region_handler(resolve)? {
        return Err(SpaceError::HandlerTaken);
    }
    let boxed = Box::into_raw(Box::new(resolver));
    let free = SLOTS.iter().find(|slot| {
        slot.resolver
            .compare_exchange(null_mut(), boxed, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    });
    if let Some(slot) = free {
        return Ok(Registration { slot });
    }
    // SAFETY: just made, and in no slot.
    drop(unsafe { Box::from_raw(boxed) });
    Err(SpaceError::TooMany(MOST))
}

impl Drop for Registration {
    fn drop(&mut self) {
        let boxed = self.slot.resolver.swap(null_mut(), Ordering::SeqCst);
        while self.slot.inside.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        // SAFETY: out of its slot, and every handler that saw it there has left.
        drop(unsafe { Box::from_raw(boxed) });
    }
}

fn resolve(fault: &RegionFault) -> Handled {
    for slot in &SLOTS {
        if slot.resolver.load(Ordering::Relaxed).is_null() {
            continue;
        }
        slot.inside.fetch_add(1, Ordering::SeqCst);
        // SAFETY: a registration is freed only when no handler is inside.
        let resolver = unsafe { slot.resolver.load(Ordering::SeqCst).as_ref() };
        let resolved = resolver.and_then(|r| r.resolve(fault));
        slot.inside.fetch_sub(1, Ordering::SeqCst);
        if let Some(handled) = resolved {
            return handled;
        }
    }
    Handled::Default
}
