//! The two sockets of a manager: for hand-offs, and beside it for `selfpage vm`.

use crate::control::control_path;
use crate::server::ManagerError;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

/// Sockets that are listened at.
#[derive(Debug)]
pub struct Sockets {
    /// Where clients connect.
    pub handoffs: UnixListener,
    /// Where `selfpage vm` connects.
    pub control: UnixListener,
}

impl Sockets {
    /// Listens at `path`, and beside it. A socket that no server listens at any more is replaced.
    pub fn listen(path: &Path) -> Result<Self, ManagerError> {
        Self::resume(path, None, None)
    }

    /// The same, but for sockets that a service before has listened at.
    pub(crate) fn resume(
        path: &Path,
        handoffs: Option<UnixListener>,
        control: Option<UnixListener>,
    ) -> Result<Self, ManagerError> {
        // Before the first is made: the second's name is longer.
        SocketAddr::from_pathname(control_path(path)).map_err(|error| ManagerError::Socket {
            path: control_path(path),
            error,
        })?;
        let handoffs = handoffs.map_or_else(|| listen(path), Ok)?;
        let control = control.map_or_else(|| listen_for_owner(&control_path(path)), Ok)?;
        Ok(Self { handoffs, control })
    }
}

fn listen_for_owner(path: &Path) -> Result<UnixListener, ManagerError> {
    let listener = listen(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

fn listen(path: &Path) -> Result<UnixListener, ManagerError> {
    let fail = |error| ManagerError::Socket {
        path: path.to_owned(),
        error,
    };
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // The kernel refuses a connection to a file that is no socket, too.
            if !is_socket(path) {
                let text = "the file that is there is no socket";
                return Err(fail(io::Error::new(io::ErrorKind::AlreadyExists, text)));
            }
            let is_abandoned = UnixStream::connect(path)
                .is_err_and(|why| why.kind() == io::ErrorKind::ConnectionRefused);
            if !is_abandoned {
                return Err(fail(error));
            }
            std::fs::remove_file(path).map_err(fail)?;
            UnixListener::bind(path).map_err(fail)
        }
        other => other.map_err(fail),
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket())
}

/// Removes a socket that is listened at no more. What is there in its place stays.
pub fn remove_socket(path: &Path) {
    if is_socket(path) {
        // It is replaced by the next server.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_left_is_replaced_and_another_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(Sockets::listen(&path).unwrap());
        drop(Sockets::listen(&path).unwrap());
        for name in ["notes", "other.control"] {
            let notes = folder.path().join(name);
            std::fs::write(&notes, "notes").unwrap();
            let socket = folder.path().join(name.trim_end_matches(".control"));
            let refused = Sockets::listen(&socket).unwrap_err();
            assert!(refused.to_string().contains("no socket"), "{refused}");
            remove_socket(&notes);
            assert_eq!(std::fs::read(&notes).unwrap(), b"notes");
        }
        remove_socket(&path);
        assert!(!path.exists());
    }

    #[test]
    fn a_name_that_is_too_long_for_the_second_socket_leaves_none() {
        let folder = tempfile::tempdir().unwrap();
        let room = 104 - folder.path().as_os_str().len();
        let path = folder.path().join("s".repeat(room - 1));
        assert!(SocketAddr::from_pathname(&path).is_ok());
        let refused = Sockets::listen(&path).unwrap_err().to_string();
        assert!(refused.contains(".control"), "{refused}");
        assert!(!path.exists());
    }
}
