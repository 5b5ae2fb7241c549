//! Frames of one NUMA node, where the contract names one.

use rustix::io::{self, Errno};

/// Binds all memory that this process, and those it starts from now on, allocate to
/// one NUMA node.
pub fn bind_to_node(node: u32) -> io::Result<()> {
    let mut mask = [0u64; 16];
    let word = mask.get_mut(node as usize / 64).ok_or(Errno::INVAL)?;
    *word = 1 << (node % 64);
    let bits = mask.len() * 64;
    // SAFETY: the call reads `bits` bits, which is all of the mask.
    let bound = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::MPOL_BIND,
            mask.as_ptr(),
            bits,
        )
    };
    match bound {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
