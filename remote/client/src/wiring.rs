//! What keeps the client's process in memory: a page of its own that had to be read from where it puts others'
//! would wait for itself.

use host::wiring::wire_process;

/// PR_SET_IO_FLUSHER of linux/prctl.h.
const SET_IO_FLUSHER: libc::c_int = 57;

/// Keeps this process in memory, and out of the reach of the kernel's OOM killer where that is
/// permitted. Returns what is not.
pub fn wire() -> Vec<&'static str> {
    let mut lacks = Vec::new();
    if wire_process().is_err() {
        lacks.push("its memory may be paged out (mlockall)");
    }
    // SAFETY: a flag of this process.
    if unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) } != 0 {
        lacks.push("its allocations may wait for reclaim (PR_SET_IO_FLUSHER)");
    }
    if std::fs::write("/proc/self/oom_score_adj", "-900").is_err() {
        lacks.push("the kernel may choose it when memory is short (oom_score_adj)");
    }
    lacks
}
