//! The socket at which the daemon listens.

use crate::DaemonError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::path::{Path, PathBuf};

/// A listening socket. Dropping it removes its file and then closes it, so it never removes another daemon's file.
pub(crate) struct Listener {
    socket: OwnedFd,
    /// The file, unless a service manager made it.
    path: Option<PathBuf>,
}

impl Listener {
    /// Listens at `path`. A stale socket, without a listener, is removed.
    pub fn open(path: &Path) -> Result<Self, DaemonError> {
        let fail = |why: String| DaemonError::Listen {
            path: path.into(),
            why,
        };
        if host::seqpacket::connect(path).is_ok() {
            return Err(fail(
                "another daemon does already; stop that one first".into(),
            ));
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|why| fail(format!("{}: {why}", folder.display())))?;
        }
        let is_socket = std::fs::symlink_metadata(path)
            .is_ok_and(|there| std::os::unix::fs::FileTypeExt::is_socket(&there.file_type()));
        if is_socket {
            let _ = std::fs::remove_file(path);
        }
        let bound = || -> Result<OwnedFd, Errno> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (family, kind) = (
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::SEQPACKET,
            );
            let socket = rustix::net::socket_with(family, kind, flags, None)?;
            let address = rustix::net::SocketAddrUnix::new(path)?;
            // Authorisation is by SO_PEERCRED, not by the socket's mode. The mode is set as the
            // file is made: a later change by name could hit another file.
            let mask = rustix::process::umask(Mode::from_raw_mode(0o111));
            let bound = rustix::net::bind(&socket, &address);
            rustix::process::umask(mask);
            bound?;
            rustix::net::listen(&socket, 1024)?;
            Ok(socket)
        };
        bound()
            .map(|socket| Self {
                socket,
                path: Some(path.into()),
            })
            .map_err(|errno| fail(errno.to_string()))
    }

    /// One that a service manager has passed, which keeps its file.
    pub fn passed(socket: OwnedFd) -> Self {
        Self { socket, path: None }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_file_goes_with_it_and_a_service_managers_stays() {
        let folder = std::env::temp_dir().join(format!("selfpage-listener-{}", std::process::id()));
        let path = folder.join("daemon.socket");
        let own = Listener::open(&path).unwrap();
        assert!(Listener::open(&path).is_err(), "two listen at one path");
        assert!(path.exists(), "the one that was refused removed it");
        let again = own.as_fd().try_clone_to_owned().unwrap();
        drop(own);
        assert!(!path.exists());
        std::fs::write(&path, "made by a service manager").unwrap();
        drop(Listener::passed(again));
        assert!(path.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
