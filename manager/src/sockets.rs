//! The two sockets of a manager: for hand-offs, and beside it for `selfpage vm`.

use crate::control::control_path;
use crate::server::ManagerError;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
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
        let handoffs = listen(path)?;
        let path = control_path(path);
        let control = listen(&path)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
        Ok(Self { handoffs, control })
    }
}

fn listen(path: &Path) -> Result<UnixListener, ManagerError> {
    let fail = |error| ManagerError::Socket {
        path: path.to_owned(),
        error,
    };
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
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
