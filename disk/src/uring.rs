//! The io_uring of a thread that does nothing but I/O.
//!
//! For the user-safe disk (*Self-Paging*, section 6.7) and for the calibration of the same disk,
//! which is only valid if it does I/O the same way.
//!
//! Rule: only the thread that built a ring uses it. So the kernel never interrupts that thread for
//! a completion: the thread reaps all completions at once when it enters the kernel.

use io_uring::{Builder, IoUring};
use rustix::io::Errno;

/// Ring flags to request, the best first: Linux 6.1, 5.19, any.
const WAYS: [fn(&mut Builder); 3] = [
    |ring| {
        ring.setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag();
    },
    |ring| {
        ring.setup_coop_taskrun().setup_taskrun_flag();
    },
    |_| {},
];

/// Builds a ring with `submitted` submission and `completed` completion entries.
pub(crate) fn build(submitted: u32, completed: u32) -> Result<IoUring, Errno> {
    let mut refused = Errno::INVAL;
    for way in WAYS {
        let mut ring = IoUring::builder();
        ring.setup_cqsize(completed);
        way(&mut ring);
        match ring.build(submitted) {
            Ok(ring) => return Ok(ring),
            Err(error) => refused = Errno::from_io_error(&error).unwrap_or(Errno::IO),
        }
        // A kernel refuses unknown flags by EINVAL.
        if refused != Errno::INVAL {
            break;
        }
    }
    Err(refused)
}
