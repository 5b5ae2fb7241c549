//! How an attempt at a fault ends, and under which conditions it is made.

use crate::page::PageState;
use store::StoreError;

/// How an attempt to resolve a fault ended.
#[derive(Debug)]
pub enum FillOutcome {
    /// The page is mapped; the access can be repeated.
    Success,
    /// Not possible now; a retry has the frame that the activation lacks.
    Retry,
    /// A read is under way; the fault is resolved when it completes.
    Pending,
    /// Another thread is filling the page.
    Busy,
    /// The program's access cannot be satisfied.
    Failure(FaultError),
}

/// Why an access cannot be satisfied.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum FaultError {
    /// No frame is available: nothing can be evicted because the store refuses.
    #[error("no frame is free and none can be emptied: {0}")]
    NoFrame(StoreError),
    /// No frame is available: every resident page is nailed, or held by a device.
    #[error(
        "no frame is free and none can be emptied: every resident page is nailed or held by a device (give the program more frames), or the process has used up its mappings (vm.max_map_count)"
    )]
    AllNailed,
    /// No frame is available: a device may hold any page, and this kernel cannot tell which.
    #[error(
        "no frame is free, and none can be emptied soundly: direct I/O may be under way into any page and this kernel has no UFFDIO_MOVE (Linux 6.8) to tell which; give the program as many frames as it touches, or pin its I/O buffers and promise so"
    )]
    NoSoundEviction,
    /// The page's contents cannot be read back.
    #[error("the contents cannot be read back: {0}")]
    Unreadable(StoreError),
    /// The stretch's driver never faults, yet this is a fault.
    #[error("a nailed stretch lost a page it was given at bind time")]
    NeverFaults,
    /// The stretch has no driver.
    #[error("the stretch is not bound to a stretch driver")]
    Unbound,
    /// The page has as many pins as are counted.
    #[error(
        "it is pinned {} times already, the most there can be; pin it once for several buffers",
        PageState::MOST_NAILS
    )]
    MostPins,
    /// The page was lost earlier.
    #[error("the page was lost before")]
    Lost,
    /// The kernel refused to map the page: errno.
    #[error("the kernel would not map the page (errno {0})")]
    Unmappable(i32),
}

impl FaultError {
    /// Returns true if any other page would have met the same obstacle: no frame.
    pub(crate) fn is_for_lack_of_frames(&self) -> bool {
        matches!(
            self,
            Self::AllNailed | Self::NoSoundEviction | Self::NoFrame(_)
        )
    }
}

/// The context in which a driver runs, which decides what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillPhase {
    /// The first attempt: must not wait, may use an unused frame.
    Activation,
    /// A later attempt, by a handler thread or by the faulting thread itself. It has a frame in
    /// hand that an activation could not have had, because getting it took waiting, eviction, or
    /// a request to the allocator.
    Retry,
    /// The stretch is being bound, or pages are populated before any access.
    Bind,
}
