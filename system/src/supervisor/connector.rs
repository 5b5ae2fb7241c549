//! Connections that are handed out through the seccomp filter.
//!
//! Every process of a tree is under the filter (see [`crate::direct_io_filter`]), for good: across exec, after
//! setuid, in other namespaces, with all descriptors closed. So the filter is how a process reaches
//! the supervisor: it makes a call that is an error everywhere else ([`CALL`]), the supervisor puts
//! one end of a new socket pair into its descriptor table, and the call returns that descriptor.
//! No other process can make that call, so no other process can keep the supervisor busy; and there
//! is neither a name to connect to nor a descriptor in the program's table.
//!
//! The kernel installs a descriptor when the caller runs next, which a scheduler may put off (a
//! reservation that is used up, a group without quota). So a thread of its own installs them: the
//! supervisor's loop waits for no process.

use crate::direct_io_filter::ioctl_number;
use crate::seqpacket;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::sockopt;
use std::sync::mpsc::{Sender, channel};

/// `fcntl(-1, F_SETFL, TAG)`: an error of a bad descriptor where there is no filter, and a call
/// that the filter stops, since the tag contains O_DIRECT.
pub const CALL: (i64, [u64; 3]) = (libc::SYS_fcntl, [u64::MAX, libc::F_SETFL as u64, TAG]);

/// Tells calls that are meant for the supervisor, or come from a pager process, from the program's.
pub const TAG: u64 = u64::from_le_bytes(*b"selfpage");
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
    let result: isize;
    // SAFETY: the call has no effect on this process but the descriptor that it may return. By
    // hand, since nothing here may set errno in a thread without one.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") fd,
            in("rsi") command,
            in("rdx") tag,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") fd as isize => result,
            in("x1") command,
            in("x2") tag,
            options(nostack),
        );
    }
    match result {
        // SAFETY: a descriptor that the supervisor has just put here, for this call.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(result as i32) }),
        _ => Err(Errno::from_raw_os_error(-result as i32)),
    }
}

/// linux/seccomp.h.
#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    srcfd: u32,
    newfd: u32,
    newfd_flags: u32,
}
/// Installs the descriptor and completes the call with its number, at once.
const SEND: u32 = 2;
/// `_IOW('!', 3, struct seccomp_notif_addfd)`.
const ADD: u64 = ioctl_number(1, 3, size_of::<AddFd>());
const _: () = assert!(ADD == 0x4018_2103);

/// The thread that hands connections out.
pub(crate) struct Connector(Sender<(u64, io::Result<OwnedFd>)>);

impl Connector {
    /// Starts the thread. `listener` is the filter's.
    pub fn start(listener: OwnedFd) -> std::io::Result<Self> {
        let (requests, requested) = channel::<(u64, io::Result<OwnedFd>)>();
        std::thread::Builder::new()
            .name("selfpage-connect".into())
            .stack_size(64 << 10)
            .spawn(move || {
                for (id, connection) in requested {
                    let installed = connection.and_then(|fd| install(&listener, id, &fd));
                    if let Err(errno) = installed {
                        crate::direct_io_filter::respond(&listener, id, -errno.raw_os_error(), 0);
                    }
                }
            })?;
        Ok(Self(requests))
    }

    /// Answers the call with this id: by a connection, whose other end is returned, or an error.
    /// A caller that was killed meanwhile, or has no room for a descriptor, hangs up.
    pub fn connect(&self, id: u64) -> Option<OwnedFd> {
        let pair = seqpacket::pair().and_then(|(ours, theirs)| {
            // Messages then come with their sender's credentials.
            sockopt::set_socket_passcred(&ours, true)?;
            Ok((ours, theirs))
        });
        let (ours, theirs) = match pair {
            Ok((ours, theirs)) => (Some(ours), Ok(theirs)),
            Err(errno) => (None, Err(errno)),
        };
        let _ = self.0.send((id, theirs));
        ours
    }
}

/// Puts a descriptor into the table of the caller, whose call returns its number.
fn install(listener: &OwnedFd, id: u64, fd: &OwnedFd) -> io::Result<()> {
    let install = AddFd {
        id,
        flags: SEND,
        srcfd: fd.as_raw_fd() as u32,
        newfd: 0,
        newfd_flags: libc::O_CLOEXEC as u32,
    };
    // SAFETY: the structure that this ioctl reads.
    match unsafe { libc::ioctl(listener.as_raw_fd(), ADD as _, &raw const install) } {
        0.. => Ok(()),
        _ => Err(crate::direct_io_filter::last_errno()),
    }
}
