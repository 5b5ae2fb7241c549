//! Frames of one NUMA node, where the contract names one.

use rustix::io::{self, Errno};

/// Has the kernel take all memory of this process, and of those it starts from now on, from
/// one NUMA node.
pub fn bind_to_node(node: u32) -> io::Result<()> {
    let mut mask = [0u64; 16];
    let word = mask.get_mut(node as usize / 64).ok_or(Errno::INVAL)?;
    *word = 1 << (node % 64);
    let most = mask.len() * 64;
    // SAFETY: reads as many words of the mask as it is told there are.
    let bound = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::MPOL_BIND,
            mask.as_ptr(),
            most,
        )
    };
    match bound {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
