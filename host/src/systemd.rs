//! Descriptors that systemd passes to a service, and notifications of the service to systemd.
//!
//! Two small protocols over the environment (sd_listen_fds(3), sd_notify(3)). Neither needs a library of
//! systemd's, and both do nothing where systemd did not start the process.

use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{self, Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::time::Duration;

/// The number of the first descriptor that systemd passes.
const FIRST: RawFd = 3;

/// How long a message to systemd may wait for room in its socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// A descriptor that systemd passes.
#[derive(Debug)]
pub struct PassedFd {
    /// Its name: of the descriptor store, or of a socket's unit.
    pub name: String,
    /// The descriptor.
    pub fd: OwnedFd,
}

/// A number in the environment.
pub(crate) fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many descriptors systemd passes to this process.
fn passed_count() -> usize {
    let is_ours = number("LISTEN_PID") == Some(std::process::id() as usize);
    is_ours.then(|| number("LISTEN_FDS")).flatten().unwrap_or(0)
}

/// All descriptors that systemd passes to this process, with their names. They are close-on-exec.
///
/// # Errors
/// `BADF` where the environment names more than are open.
///
/// # Safety
/// No other code of the process may own them. Call once, at the start.
pub unsafe fn passed() -> io::Result<Vec<PassedFd>> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut all = Vec::new();
    for at in 0..passed_count() {
        let number = FIRST + RawFd::try_from(at).map_err(|_| Errno::BADF)?;
        // SAFETY: the call fails where it is not open, and nothing else closes it, by the caller's promise.
        fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC)?;
        // SAFETY: it is open, and passed to this process.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        let name = names.next().unwrap_or_default().to_owned();
        all.push(PassedFd { name, fd });
    }
    Ok(all)
}

/// The listening socket that systemd opened for this process, if it did. It is made non-blocking and
/// close-on-exec here: systemd leaves both to the service.
///
/// # Safety
/// No other code of the process may own descriptor 3. Call once, at the start.
pub unsafe fn listener() -> io::Result<Option<OwnedFd>> {
    if passed_count() != 1 {
        return Ok(None);
    }
    // SAFETY: passed to this process, and the caller's promise.
    let socket = unsafe { OwnedFd::from_raw_fd(FIRST) };
    let flags = fcntl_getfl(&socket)?;
    fcntl_setfl(&socket, flags | OFlags::NONBLOCK)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    match sockopt::socket_type(&socket)? {
        SocketType::SEQPACKET => Ok(Some(socket)),
        _ => Err(Errno::PROTOTYPE),
    }
}

/// A connection to systemd's socket for notifications, if this process is a service that has one.
pub(crate) fn connect() -> Option<OwnedFd> {
    let path = std::env::var_os("NOTIFY_SOCKET")?;
    let bytes = path.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name),
        None => SocketAddrUnix::new(bytes),
    };
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(SEND_TIMEOUT)).ok()?;
    rustix::net::connect(&socket, &address.ok()?).ok()?;
    Some(socket)
}

/// Notifies systemd of a state: `READY=1`, `RELOADING=1`, `STATUS=...`.
pub fn notify(state: &str) {
    if let Some(socket) = connect() {
        // An error is ignored: no service manager waits for it then.
        let _ = rustix::net::send(&socket, state.as_bytes(), SendFlags::NOSIGNAL);
    }
}
