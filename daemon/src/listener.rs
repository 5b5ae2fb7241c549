//! The socket at which the daemon listens.

use crate::DaemonError;
use crate::own_folder::missing_own_folder;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a killed daemon may take to end: until then its socket accepts connections.
const FORMER_DAEMON_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two attempts to take the socket of a daemon that is ending.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Device and inode of a file.
type FileIdentity = (u64, u64);

fn identity(file: rustix::fs::Stat) -> FileIdentity {
    (file.st_dev, file.st_ino)
}

/// A listening socket. Its file is made and removed by the daemon that holds the lock beside it.
pub(crate) struct Listener {
    socket: OwnedFd,
    /// The file and what identifies it, unless a service manager made it.
    file: Option<(PathBuf, FileIdentity)>,
    /// Held until the socket is closed; `None` where a service manager made the socket.
    _lock: Option<OwnedFd>,
}

impl Listener {
    /// Listens at `path`. A stale socket, at which no process listens, is removed. Where one listens, it may
    /// be a daemon that is ending: its end is awaited for [`FORMER_DAEMON_TIMEOUT`].
    pub fn open(path: &Path) -> Result<Self, DaemonError> {
        let fail = |why: String| DaemonError::Listen {
            path: path.into(),
            why,
        };
        if let Some(folder) = Self::check(path)? {
            std::fs::create_dir(folder)
                .map_err(|why| fail(format!("{}: {why}", folder.display())))?;
        }
        let begun = Instant::now();
        let mut is_reported = false;
        let lock = loop {
            let lock = try_lock(path).map_err(|why| fail(format!("its lock: {why}")))?;
            // One that does not accept has a listener, too.
            let connected = host::seqpacket::try_connect(path);
            if lock.is_some() && !matches!(connected, Ok(_) | Err(Errno::AGAIN)) {
                break lock;
            }
            if !std::mem::replace(&mut is_reported, true) {
                tracing::warn!(
                    "another daemon listens at {}: waiting for its end, {FORMER_DAEMON_TIMEOUT:?} at most",
                    path.display()
                );
            }
            if begun.elapsed() > FORMER_DAEMON_TIMEOUT {
                return Err(fail(
                    "another daemon does already; stop that one first".into(),
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        if Self::check(path).is_ok() {
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
        let bound = bound().and_then(|socket| Ok((socket, rustix::fs::lstat(path)?)));
        bound
            .map(|(socket, file)| Self {
                _lock: lock,
                socket,
                file: Some((path.into(), identity(file))),
            })
            .map_err(|errno| fail(errno.to_string()))
    }

    /// Refuses a path where no socket can be made. Returns its folder if the daemon has yet to make that.
    fn check(path: &Path) -> Result<Option<&Path>, DaemonError> {
        match std::fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => Err(DaemonError::Listen {
                path: path.into(),
                why: "the file that is there is no socket; name another path".into(),
            }),
            _ => Ok(missing_own_folder(path)?),
        }
    }

    /// A listener on a socket passed by the service manager, which keeps the socket's file.
    pub fn passed(socket: OwnedFd) -> Self {
        Self {
            _lock: None,
            socket,
            file: None,
        }
    }
}

/// Refuses a path where no socket can be made, for `selfpage system check`.
pub fn check_socket(path: &Path) -> Result<(), DaemonError> {
    Listener::check(path).map(|_| ())
}

/// PATH.lock.
fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".lock");
    name.into()
}

/// Locks PATH.lock; `None` where another daemon holds the lock. The holder removes the file, so a lock counts
/// only while its file still has the name.
fn try_lock(path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let name = lock_of(path);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&name, flags, Mode::RUSR | Mode::WUSR)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let named = rustix::fs::lstat(&name).map(identity);
            let has_name = named == rustix::fs::fstat(&file).map(identity);
            Ok(has_name.then_some(file))
        }
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((path, own)) = &self.file else {
            return;
        };
        // Another process may have replaced the file.
        if rustix::fs::lstat(path).map(identity) == Ok(*own) {
            let _ = std::fs::remove_file(path);
        }
        let _ = std::fs::remove_file(lock_of(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_daemon_that_is_ending_is_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let former = Listener::open(&path).unwrap();
        let next = std::thread::spawn({
            let path = path.clone();
            move || Listener::open(&path).map(|_| ())
        });
        std::thread::sleep(POLL_INTERVAL * 2);
        drop(former);
        next.join().unwrap().unwrap();
    }

    #[test]
    fn a_listener_removes_its_own_file_and_not_a_service_managers() {
        let there = tempfile::tempdir().unwrap();
        let path = there.path().join("selfpage/daemon.socket");
        let own = Listener::open(&path).unwrap();
        assert!(
            Listener::open(&path).is_err(),
            "two daemons listen at one path"
        );
        assert!(path.exists(), "the refused daemon removed the socket");
        let again = own.as_fd().try_clone_to_owned().unwrap();
        drop(own);
        assert!(!path.exists() && !lock_of(&path).exists());
        std::fs::write(&path, "made by a service manager").unwrap();
        drop(Listener::passed(again));
        assert!(path.exists());
        let refused = Listener::open(&path).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("no socket") && !lock_of(&path).exists());
        std::fs::remove_file(&path).unwrap();
        let own = Listener::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(own);
        assert!(path.exists() && !lock_of(&path).exists());
    }
}
