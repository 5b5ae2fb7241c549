//! Connections that are handed out through the seccomp filter, by the call of
//! [`host::seccomp::call`].
//!
//! The kernel installs a descriptor when the caller runs next, which the scheduler may delay (a
//! reservation that is used up, a group without quota). So a thread of its own installs them: the
//! supervisor's loop waits for no process.

use host::seccomp::Listener;
use host::seqpacket;
use rustix::fd::OwnedFd;
use rustix::io;
use rustix::net::sockopt;
use std::sync::mpsc::{Sender, channel};

/// The thread that hands connections out.
pub(crate) struct Connector(Sender<(u64, io::Result<OwnedFd>)>);

impl Connector {
    /// Starts the thread. `listener` is the filter's.
    pub fn start(listener: Listener) -> std::io::Result<Self> {
        let (requests, requested) = channel::<(u64, io::Result<OwnedFd>)>();
        std::thread::Builder::new()
            .name("selfpage-connect".into())
            .stack_size(64 << 10)
            .spawn(move || {
                for (id, connection) in requested {
                    let installed = connection.and_then(|fd| listener.complete_with(id, fd));
                    if let Err(errno) = installed {
                        listener.fail(id, errno.raw_os_error());
                    }
                }
            })?;
        Ok(Self(requests))
    }

    /// Completes the call with this id with the other end of [`Connector::pair`], or an error. The
    /// connection closes if the caller was killed meanwhile, or has no room for a descriptor.
    pub fn complete(&self, id: u64, theirs: io::Result<OwnedFd>) {
        let _ = self.0.send((id, theirs));
    }

    /// A connection: the supervisor's end, and the process's.
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        let (ours, theirs) = seqpacket::pair()?;
        // Messages then come with their sender's credentials.
        sockopt::set_socket_passcred(&ours, true)?;
        Ok((ours, theirs))
    }
}
