//! The supervisor's end of the filter: calls that have stopped, and the replies to them.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};

/// The listener of a filter.
pub struct Listener(OwnedFd);

/// `SECCOMP_IOCTL_NOTIF_ID_VALID`.
const ID_VALID: libc::Ioctl = rustix::ioctl::opcode::write::<u64>(b'!', 2) as libc::Ioctl;

/// `SECCOMP_IOCTL_NOTIF_SET_FLAGS`, and its one flag (Linux 6.6).
const SET_FLAGS: libc::Ioctl = rustix::ioctl::opcode::write::<u64>(b'!', 4) as libc::Ioctl;
const SYNC_WAKE_UP: libc::Ioctl = 1;

impl From<OwnedFd> for Listener {
    /// Has the kernel wake the supervisor on the caller's processor: the caller of a stopped call sleeps
    /// until the reply, so that processor is free soonest. Older kernels ignore this.
    fn from(fd: OwnedFd) -> Self {
        // SAFETY: the flags are passed by value.
        unsafe { libc::ioctl(fd.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) };
        Self(fd)
    }
}

impl AsFd for Listener {
    /// Readable when a call has stopped.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    /// Receives a call that has stopped; `None` where its caller was killed meanwhile.
    ///
    /// # Errors
    /// Where no process is left under the filter.
    pub fn receive(&self) -> io::Result<Option<libc::seccomp_notif>> {
        // SAFETY: plain numbers, for which zeros are a value; the kernel wants zeros.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) {
            Ok(_) => Ok(Some(call)),
            Err(Errno::NOENT | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns true if the caller of a call that has stopped still waits: it has neither been killed, nor
    /// has its process begun another image.
    pub fn is_valid(&self, mut id: u64) -> bool {
        self.ioctl(ID_VALID, &raw mut id).is_ok()
    }

    /// Lets a stopped call continue in the kernel.
    pub fn resume(&self, id: u64) {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        self.respond(id, 0, 0, flags);
    }

    /// Completes a stopped call with an error.
    pub fn fail(&self, id: u64, errno: i32) {
        self.respond(id, 0, -errno, 0);
    }

    fn respond(&self, id: u64, val: i64, error: i32, flags: u32) {
        let mut reply = libc::seccomp_notif_resp {
            id,
            val,
            error,
            flags,
        };
        // The error of a caller that died meanwhile is ignored.
        let _ = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut reply);
    }

    /// Moves a descriptor into the table of the caller, whose call returns its number. Closes the copy
    /// here before that: the caller has the socket signal its program when the peer closes (`F_SETOWN`),
    /// and a copy that is open elsewhere would signal after the caller has ended.
    pub fn complete_with(&self, id: u64, fd: OwnedFd) -> io::Result<()> {
        let mut install = libc::seccomp_notif_addfd {
            id,
            flags: 0,
            srcfd: fd.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: libc::O_CLOEXEC as u32,
        };
        let number = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut install)?;
        drop(fd);
        self.respond(id, number.into(), 0, 0);
        Ok(())
    }

    fn ioctl<T>(&self, request: libc::Ioctl, argument: *mut T) -> io::Result<i32> {
        // SAFETY: the structure that this request reads or fills, by the sizes in the numbers.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) } {
            value @ 0.. => Ok(value),
            _ => Err(crate::last_errno()),
        }
    }
}
