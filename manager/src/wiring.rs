//! Keeps the manager in memory, and its threads out of reclaim.
//!
//! *Moving the Default Memory Manager out of the Mach Kernel*, section 4: the manager cannot be paged, and
//! its threads cannot wait for the memory that they free.

use host::wiring::wire_process;

/// PR_SET_IO_FLUSHER of linux/prctl.h.
const SET_IO_FLUSHER: libc::c_int = 57;

/// Wires the process, before it maps what may stay pageable. Returns what the kernel refused.
pub fn wire() -> Vec<String> {
    let mut lacks = Vec::new();
    if let Err(why) = wire_process() {
        lacks.push(format!("its memory may be paged out (mlockall: {why})"));
    }
    if !wire_thread() {
        lacks.push("its allocations may wait for reclaim (PR_SET_IO_FLUSHER)".to_owned());
    }
    if let Err(why) = std::fs::write("/proc/self/oom_score_adj", "-900") {
        lacks.push(format!(
            "the kernel may choose it when memory is short (oom_score_adj: {why})"
        ));
    }
    lacks
}

/// The calling thread's allocations do not wait for writeback. Returns false where the kernel refuses.
pub(crate) fn wire_thread() -> bool {
    // SAFETY: affects how the kernel allocates for this thread.
    unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) == 0 }
}
