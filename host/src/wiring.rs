//! Keeps a process in memory.

use rustix::process::{Resource, getrlimit};

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
