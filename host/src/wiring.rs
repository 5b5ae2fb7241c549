//! Keeps a pager process in memory: if the kernel evicted a page of the pager's own, reading it back could wait for the
//! pager itself.

use rustix::process::{Resource, getrlimit};

/// PR_SET_IO_FLUSHER of linux/prctl.h.
const SET_IO_FLUSHER: libc::c_int = 57;

/// Keeps this process, a pager of others, in memory, and protects it from the kernel's OOM killer, as far as
/// that is permitted. Returns a warning for each step that is not.
pub fn wire_pager() -> Vec<&'static str> {
    let mut warnings = Vec::new();
    if wire_process().is_err() {
        warnings.push("its memory may be paged out (mlockall)");
    }
    if !set_io_flusher() {
        warnings.push("its allocations may wait for reclaim (PR_SET_IO_FLUSHER, which CAP_SYS_RESOURCE permits)");
    }
    if std::fs::write("/proc/self/oom_score_adj", "-900").is_err() {
        warnings.push("the kernel may choose it when memory is short (oom_score_adj, which CAP_SYS_RESOURCE permits)");
    }
    warnings
}

/// Has allocations of the calling thread, and of those it starts, not wait for writeback. Returns false where
/// the kernel refuses.
fn set_io_flusher() -> bool {
    // SAFETY: affects how the kernel allocates for this thread.
    unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) == 0 }
}

/// Locks this process's memory in RAM, as it is touched, where the kernel permits it. Later mappings are
/// locked only where no limit could refuse them.
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
