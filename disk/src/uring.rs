//! The io_uring of one thread that does nothing but I/O.
//!
//! For the user-safe disk (*Self-Paging*, section 6.7) and for measuring the same disk, which
//! has to be done the same way to be worth anything.
//!
//! Rule: a ring is used by the thread that built it. So the kernel never interrupts that
//! thread to tell it that something has ended: it is told when it asks, of all at once.

use io_uring::{Builder, IoUring};
use rustix::io::Errno;

/// What the kernel is asked for, the best first: Linux 6.1, 5.19, any.
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

/// A ring that takes `submitted` entries at once and has room for `completed`.
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
        // A kernel that does not know what it is asked for says so.
        if refused != Errno::INVAL {
            break;
        }
    }
    Err(refused)
}
