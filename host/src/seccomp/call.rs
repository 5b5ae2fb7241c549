//! The call by which a process of a tree requests a connection to its supervisor.
//!
//! It is an error everywhere but under the filter ([`CALL`]). The supervisor puts one end of a new
//! socket pair into the caller's descriptor table, and the call returns that descriptor. No process
//! outside of the tree can make that call, so none can keep the supervisor busy; and there is
//! neither a name to connect to nor a descriptor in the program's table.

use rustix::fd::{FromRawFd, OwnedFd};
use rustix::io;
use wired::syscall::{checked, syscall6};

/// `fcntl(-1, F_SETFL, TAG)`: an error of a bad descriptor where there is no filter, and a call
/// that the filter stops, since the tag contains O_DIRECT.
pub const CALL: (i64, [u64; 3]) = (libc::SYS_fcntl, [u64::MAX, libc::F_SETFL as u64, TAG]);

/// Tells calls that are meant for the supervisor, or come from a pager process, from the program's.
pub const TAG: u64 = wired::RING_OF_PAGER;
const _: () = assert!(CALL.1[2] & libc::O_DIRECT as u64 != 0);

/// Returns true if a stopped call is a request for a connection.
pub fn is_request(data: &libc::seccomp_data) -> bool {
    let [fd, command, tag] = CALL.1;
    let arguments = (data.args[0] as u32, data.args[1] as u32, data.args[2]);
    i64::from(data.nr) == CALL.0 && arguments == (fd as u32, command as u32, tag)
}

/// Makes the call: a connection to the supervisor whose filter this process is under. Raw: in a
/// constructor and in a fork's child.
pub fn request() -> io::Result<OwnedFd> {
    let (number, [fd, command, tag]) = CALL;
    // SAFETY: the call has no effect on this process but the descriptor that it may return. Raw,
    // since nothing here may set errno in a thread without one.
    let made = unsafe {
        syscall6(
            number,
            [fd, command, tag, 0, 0, 0].map(|word| word as usize),
        )
    };
    let made = checked(made)?;
    // SAFETY: a descriptor that the supervisor has just put here, for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}
