//! The child of a fork from when the kernel has made it until its parent's call returns: it gets its pager, or ends at
//! once, and the program gets EAGAIN.
//!
//! Where the call is this library's, the parent waits when it holds no lock any more, and knows the child by its number:
//! one that is killed meanwhile is not waited for.

use super::thread_words::ThreadWords;
use crate::process_pager::await_inheritance;
use crate::raw_syscall::{SyscallResult, error, has_ended, is_error, is_killed, reap};
use crate::supervisor;
use frames::DomainId;

/// Children of threads whose calls have not returned yet; [`REFUSED`] for one that ends.
static CHILDREN: ThreadWords = ThreadWords::new();

/// No domain has this number.
const REFUSED: u32 = 0;

/// The calling thread's child ends at once.
pub fn record_refusal() {
    CHILDREN.put(REFUSED);
}

/// The calling thread's child is made, and waited for by [`await_birth`]. Returns false where more threads fork than
/// there are places.
pub fn record_child(child: DomainId) -> bool {
    CHILDREN.put(child.raw())
}

/// The calling thread's child whose fork a signal's handler has interrupted: that forks, too.
pub struct OuterChild(Option<u32>);

impl OuterChild {
    pub fn take() -> Self {
        Self(CHILDREN.take())
    }
}

impl Drop for OuterChild {
    fn drop(&mut self) {
        self.0.map(|child| CHILDREN.put(child));
    }
}

/// In the child of a fork.
pub fn forget_all() {
    CHILDREN.clear();
}

/// Waits until the child of a fork that returned `pid` has its pager. Returns the result for the program.
pub fn await_birth(pid: SyscallResult) -> SyscallResult {
    let has_pager = match CHILDREN.take() {
        None => true,
        Some(REFUSED) => false,
        Some(child) => await_pager(DomainId::from_raw(child), || has_ended(pid as i32)),
    };
    // The pager process of a child that is killed before it serves reports a refusal, too; the fork succeeded.
    if has_pager || is_error(pid) || is_killed(pid as i32) {
        return pid;
    }
    reap(pid as i32, libc::__WALL);
    error(libc::EAGAIN)
}

/// Waits until a child has its pager. Returns false if it ends without one.
pub fn await_pager(child: DomainId, has_ended: impl Fn() -> bool) -> bool {
    let has_pager = await_inheritance(child, has_ended);
    if !has_pager && let Some(port) = supervisor::port() {
        let _ = port.release_child(supervisor::domain(), child.raw());
    }
    has_pager
}
