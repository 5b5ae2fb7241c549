//! The peer of a connection, as the kernel reports it.
//!
//! Rule: a pid alone does not identify a process. The process may end, and its pid be reused,
//! before the pid is looked up; so the process is held by a pidfd from when it connected, and
//! what was read by the pid counts only if the process still ran afterwards.

use crate::refusal::Refusal;
use host::process_tree::ProcStat;
use host::procfs::is_shortage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// From asm-generic/socket.h, since Linux 6.5.
const SO_PEERPIDFD: i32 = 77;

/// A process that connected.
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its number when it connected.
    pub pid: Pid,
    /// A pidfd of the process; `None` if the process had ended before one could be opened.
    held: Option<OwnedFd>,
}

impl Peer {
    /// The peer of a connection. A process outside this pid namespace has no pid here, and is
    /// refused.
    pub fn of(socket: impl AsFd) -> Result<Self, Errno> {
        let mut found = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        option(&socket, libc::SO_PEERCRED, &mut found)?;
        let pid = Pid::from_raw(found.pid).ok_or(Errno::SRCH)?;
        let mut number = -1i32;
        let held = match option(&socket, SO_PEERPIDFD, &mut number) {
            // SAFETY: the kernel has just opened it for this process.
            Ok(()) => Some(unsafe { OwnedFd::from_raw_fd(number) }),
            Err(Errno::NOPROTOOPT) => pidfd_open(pid, PidfdFlags::empty())
                .map(Some)
                .or_else(unless_ended)?,
            Err(why) => unless_ended(why)?,
        };
        let (uid, gid) = (found.uid, found.gid);
        Ok(Self {
            uid,
            gid,
            pid,
            held,
        })
    }

    /// When the process started, which together with its pid identifies it. An error if it has ended, or where that cannot be found out.
    pub fn start(&self) -> Result<u64, Refusal> {
        let stat = ProcStat::read(self.pid)
            .map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))?;
        let start = stat.filter(|_| self.runs()).map(|stat| stat.start);
        start.ok_or(Refusal::ProcessEnded)
    }

    /// Returns true if the process still runs, so that its pid is still its own.
    fn runs(&self) -> bool {
        // A pidfd is readable once its process has ended.
        self.held.as_ref().is_some_and(|held| {
            let mut fds = [PollFd::new(held, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())) == Ok(0)
        })
    }
}

/// `None` where a pidfd cannot be opened since the process has ended; the error where this process lacks a descriptor for it.
fn unless_ended(why: Errno) -> Result<Option<OwnedFd>, Errno> {
    match is_shortage(&why.into()) {
        true => Err(why),
        false => Ok(None),
    }
}

/// Reads an option of a socket.
fn option<T>(socket: impl AsFd, name: i32, value: &mut T) -> Result<(), Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, of options that are plain numbers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_mut(value).cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::seqpacket;

    #[test]
    fn a_peer_is_identified_until_it_ends() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let us = rustix::process::getpid();
        let peer = Peer::of(&ours).unwrap();
        assert_eq!(
            (peer.pid, peer.start().ok()),
            (us, ProcStat::of(us).map(|s| s.start))
        );
        drop(theirs);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let held = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        // Its pid may be reused by any process: here it is that of this one.
        let ended = Peer {
            held: Some(held),
            ..peer
        };
        assert!(matches!(ended.start(), Err(Refusal::ProcessEnded)));
    }

    #[test]
    fn a_peer_is_not_taken_for_ended_for_lack_of_a_descriptor() {
        use rustix::process::{Resource, Rlimit, setrlimit};
        const LIMITED: &str = "SELFPAGE_TEST_LIMITED";
        if std::env::var_os(LIMITED).is_none() {
            // The limit applies to all threads.
            let limited = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["a_peer_is_not_taken_for_ended", "--test-threads=1"])
                .env(LIMITED, "1")
                .output()
                .unwrap();
            return assert!(limited.status.success(), "{limited:?}");
        }
        let (ours, _theirs) = seqpacket::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        let (current, maximum) = (Some(0), Some(0));
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        let why = peer.start().unwrap_err().to_string();
        assert!(why.contains("raise its `ulimit -n`"), "{why}");
        assert_eq!(Peer::of(&ours).err(), Some(Errno::MFILE));
    }
}
