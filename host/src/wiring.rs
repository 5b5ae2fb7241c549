//! Keeps a process in memory: a page of a pager's own that had to be read from where it puts others' would wait
//! for itself.

use rustix::process::{Resource, getrlimit};

/// PR_SET_IO_FLUSHER of linux/prctl.h.
const SET_IO_FLUSHER: libc::c_int = 57;

/// Keeps this process, a pager of others, in memory, and out of the reach of the kernel's OOM killer where
/// that is permitted. Returns what is not.
pub fn wire_pager() -> Vec<&'static str> {
    let mut lacks = Vec::new();
    if wire_process().is_err() {
        lacks.push("its memory may be paged out (mlockall)");
    }
    if !set_io_flusher() {
        lacks.push("its allocations may wait for reclaim (PR_SET_IO_FLUSHER, which CAP_SYS_RESOURCE permits)");
    }
    if std::fs::write("/proc/self/oom_score_adj", "-900").is_err() {
        lacks.push("the kernel may choose it when memory is short (oom_score_adj, which CAP_SYS_RESOURCE permits)");
    }
    lacks
}

/// Allocations of the calling thread, and of those it starts, do not wait for writeback. Returns false where
/// the kernel refuses.
fn set_io_flusher() -> bool {
    // SAFETY: affects how the kernel allocates for this thread.
    unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) == 0 }
}

/// Keeps this process's memory in RAM, as it is touched, where the kernel permits it. What is mapped
/// later is kept only where no limit could refuse it.
pub fn wire_process() -> std::io::Result<()> {
    let mut all = libc::MCL_CURRENT | libc::MCL_ONFAULT;
    // Under a limit a later mapping would fail for want of lockable memory, and a connection with it.
    if getrlimit(Resource::Memlock).current.is_none() {
        all |= libc::MCL_FUTURE;
    }
    // SAFETY: locking changes no contents.
    match unsafe { libc::mlockall(all) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
