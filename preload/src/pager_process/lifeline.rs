//! The lifeline: the kernel kills the program when its pager process, or the supervisor, ends
//! first.
//!
//! A page that was missing when the userfaultfd closes reads as zeros from then on. So the kill
//! must not depend on code of ours running in time. Two sockets have the program as their owner and
//! SIGKILL as their signal (F_SETOWN, F_SETSIG, O_ASYNC): the kernel sends it when a socket's peer
//! closes, whatever the program's threads wait for.
//!
//! | socket | holder | its peer closes when |
//! |---|---|---|
//! | the connection | the pager process | the supervisor ends |
//! | one end of a pair | the supervisor | the pager process, which holds the other, ends |
//!
//! The signal may be sent by the rights of the thread that made itself the sender (F_SETOWN
//! keeps its user), so it reaches a program that has given up its user since. With its end of
//! the pair the supervisor holds a copy of the userfaultfd, which is closed when the
//! supervisor finds the pager process gone: by then the signal is sent. The userfaultfd of shared memory, which
//! the supervisor reads, has its copy here.

use crate::raw_syscall::{is_error, syscall3};
use crate::{process_pager, shared_memory};
use link::client::Connection;
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The sockets that are tied to the program.
pub struct Lifeline {
    /// The supervisor's end, a copy.
    end: OwnedFd,
    /// The connection, a copy.
    connection: OwnedFd,
    _peer: OwnedFd,
    /// A copy of what the supervisor has: its end leaves missing pages of shared memory missing.
    _shared: Option<OwnedFd>,
}

impl Lifeline {
    /// Ties the program's life to its pager process and to the supervisor. The supervisor sends
    /// nothing on the connection any more: what it sent would kill, too.
    pub fn tie(program: i32, connection: &Connection) -> Result<Self> {
        let (end, peer) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let connection_copy = rustix::io::fcntl_dupfd_cloexec(connection.fd(), 0)?;
        own(end.as_fd(), program)?;
        own(connection_copy.as_fd(), program)?;
        let userfault = process_pager::userfault();
        let shared = shared_memory::take_userfault();
        connection.send_lifeline(end.as_fd(), userfault, shared.as_ref().map(AsFd::as_fd))?;
        Ok(Self {
            end,
            connection: connection_copy,
            _peer: peer,
            _shared: shared,
        })
    }

    /// Lets the program outlive its pager process: it has another image.
    pub fn cut(&self) {
        let _ = own(self.end.as_fd(), 0);
        let _ = own(self.connection.as_fd(), 0);
    }
}

/// Makes `program` the owner of a socket's signal, SIGKILL; of none for 0.
fn own(socket: BorrowedFd<'_>, program: i32) -> Result<()> {
    let fcntl = |command: i32, argument: usize| {
        let fd = socket.as_raw_fd() as usize;
        // SAFETY: changes the socket alone, no memory.
        let answer = unsafe { syscall3(libc::SYS_fcntl, fd, command as usize, argument) };
        match is_error(answer) {
            true => Err(Errno::from_raw_os_error(-answer as i32)),
            false => Ok(answer as usize),
        }
    };
    /// `F_SETSIG` of the kernel's interface, which the C library's bindings lack.
    const F_SETSIG: i32 = 10;
    fcntl(libc::F_SETOWN, program as usize)?;
    fcntl(F_SETSIG, libc::SIGKILL as usize)?;
    let flags = fcntl(libc::F_GETFL, 0)?;
    fcntl(libc::F_SETFL, flags | libc::O_ASYNC as usize).map(|_| ())
}
