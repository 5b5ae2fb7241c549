//! Stretch drivers: the objects that provide the backing of stretches.
//!
//! Nemesis, section 6.6: "something which provides physical resources to back the
//! virtual addresses of the stretches it is responsible for". Unprivileged objects of
//! the program; the four here are those most programs need, and a program may bring its
//! own by implementing [`StretchDriver`].

mod mapped;
mod mapped_error;
mod nailed;
mod paged;
mod physical;

pub use mapped::Mapped;
pub use mapped_error::MappedError;
pub use nailed::Nailed;
pub use paged::Paged;
pub use physical::Physical;

use crate::fault_outcome::FillOutcome;
use crate::page_in::Activation;
use crate::pager::{Hooks, StderrLog};
use store::StoreError;
use wired::PAGE;

/// A driver's decision about a page that is evicted.
#[derive(Clone, Copy, Debug)]
pub enum CleanOutcome {
    /// It goes to the domain's store.
    ToStore,
    /// The driver has saved it: the page is as if never touched, and the next fault calls the
    /// driver again.
    Kept,
    /// It could not be saved: it stays resident.
    Refused(StoreError),
}

/// Provides the backing of stretches. All methods run on the page path: they allocate
/// nothing and touch no stretch. A panic in one ends the process.
pub trait StretchDriver: Send + Sync {
    /// The driver's name in messages.
    fn name(&self) -> &'static str;

    /// Resolves a fault, or returns that it cannot now.
    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome;

    /// Returns true if pages of the driver's stretches may be evicted when frames are needed.
    fn evictable(&self) -> bool {
        false
    }

    /// Returns true if the driver puts pages in the domain's store.
    fn needs_store(&self) -> bool {
        false
    }

    /// Pages of the longest stretch that it can back; none if it can back any.
    fn pages(&self) -> Option<usize> {
        None
    }

    /// Returns false if what the program writes cannot be kept: the stretch is then not writeable.
    fn writeable(&self) -> bool {
        true
    }

    /// Returns true if all pages are populated at bind time.
    fn fills_at_bind(&self) -> bool {
        false
    }

    /// Returns true if a page of zeros is the same as a page never touched.
    fn zero_is_empty(&self) -> bool {
        true
    }

    /// A page with these contents is being evicted; or it stays resident and is flushed
    /// ([`crate::Stretch::flush`]). For a driver that puts no pages in the store there is one call for a page at a
    /// time, and a fault on the page waits for its end.
    fn clean(&self, _page: usize, _contents: &[u8; PAGE]) -> CleanOutcome {
        CleanOutcome::ToStore
    }
}

/// Ends the process where it is dropped: by a panic.
struct UnwindGuard;

impl Drop for UnwindGuard {
    fn drop(&mut self) {
        StderrLog.notice(
            "a stretch driver panicked: its page can be neither filled nor released, and the process ends",
        );
        std::process::abort();
    }
}

/// Calls a driver. Where it panics the process ends: an unwinding that was caught would leave pages in transit and gates
/// closed for ever.
pub(crate) fn call_driver<T>(call: impl FnOnce() -> T) -> T {
    let guard = UnwindGuard;
    let result = call();
    std::mem::forget(guard);
    result
}
