//! The socket that systemd passes, and the readiness that it awaits.
//!
//! Two small protocols over the environment (sd_listen_fds(3), sd_notify(3)); nothing of
//! systemd is needed for either, and without it both do nothing.

use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{self, Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, sockopt};

/// The number of the first descriptor that systemd passes.
const FIRST: RawFd = 3;

/// The listening socket that systemd opened for this process, if it did. As a socket of our
/// own it does not make who accepts wait, and what we start does not get it: systemd leaves
/// both to us.
///
/// # Safety
/// Nothing else in the process may own descriptor 3. Call once, at the start.
pub unsafe fn listener() -> io::Result<Option<OwnedFd>> {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) || number("LISTEN_FDS") != Some(1) {
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

/// Tells systemd something: `READY=1`, `RELOADING=1`, `STATUS=...`.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let bytes = path.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name),
        None => SocketAddrUnix::new(bytes),
    };
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    if let (Ok(socket), Ok(address)) = (socket, address) {
        // Without a listener no service manager waits for it.
        let _ = rustix::net::sendto(&socket, state.as_bytes(), SendFlags::NOSIGNAL, &address);
    }
}
