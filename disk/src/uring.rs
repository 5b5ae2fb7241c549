//! The io_uring of a thread that does nothing but I/O.
//!
//! For the user-safe disk (*Self-Paging*, section 6.7) and for the calibration of the same disk,
//! which is only valid if it does I/O the same way.
//!
//! Rule: only the thread that built a ring uses it. So the kernel never interrupts that thread for
//! a completion: the thread reaps all completions at once when it enters the kernel.

use io_uring::IoUring;
use rustix::io::Errno;

/// Builds a ring with `submitted` submission and `completed` completion entries.
pub(crate) fn build(submitted: u32, completed: u32) -> Result<IoUring, Errno> {
    let ring = IoUring::builder()
        .setup_cqsize(completed)
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(submitted);
    ring.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
