//! What a VMM does with a userfaultfd: opens it, registers memory, sends it.

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg};
use std::os::unix::net::UnixStream;

/// Sends bytes and descriptors.
pub fn send(to: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::NOSIGNAL;
    sendmsg(to, &[IoSlice::new(bytes)], &mut control, flags).expect("sendmsg");
}

/// An event of discarded pages, and of forks.
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_FORK: u64 = 1 << 1;
/// Faults on pages that a memfd has, and the feature that reports them.
const MINOR: u64 = 1 << 2;
const MINOR_SHMEM: u64 = 1 << 10;
/// Faults on missing pages.
const MISSING: u64 = 1;

/// Opens a userfaultfd with events of discarded pages, as VMMs with a balloon do.
pub fn open_userfaultfd() -> OwnedFd {
    open_with(EVENT_REMOVE)
}

/// Opens one that follows forks, too.
pub fn open_following_forks() -> OwnedFd {
    open_with(EVENT_REMOVE | EVENT_FORK)
}

/// Opens one for faults on pages that a memfd has, too, and registers memory for them.
pub fn register_minor(start: usize, len: usize) -> OwnedFd {
    let fd = open_with(EVENT_REMOVE | MINOR_SHMEM);
    register_for(&fd, start, len, MISSING | MINOR);
    fd
}

fn open_with(features: u64) -> OwnedFd {
    // SAFETY: an unregistered descriptor affects no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    assert!(fd >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
    // SAFETY: a descriptor that the kernel just returned.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut api = [0xAAu64, features, 0];
    // SAFETY: struct uffdio_api is three words.
    let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), 0xC018_AA3F, api.as_mut_ptr()) };
    assert_eq!(
        outcome,
        0,
        "UFFDIO_API: {}",
        std::io::Error::last_os_error()
    );
    fd
}

/// Registers memory for missing pages.
pub fn register(fd: &OwnedFd, start: usize, len: usize) {
    register_for(fd, start, len, MISSING);
}

fn register_for(fd: &OwnedFd, start: usize, len: usize, faults: u64) {
    let mut argument = [start as u64, len as u64, faults, 0];
    // SAFETY: struct uffdio_register is four words; the memory is this process's own.
    let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), 0xC020_AA00, argument.as_mut_ptr()) };
    assert_eq!(
        outcome,
        0,
        "UFFDIO_REGISTER: {}",
        std::io::Error::last_os_error()
    );
}

fn stream_socket() -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap()
}

fn await_connection(socket: OwnedFd) -> UnixStream {
    while rustix::net::getpeername(&socket).is_err() {
        std::thread::yield_now();
    }
    socket.into()
}

/// Connects by a child process that outlives this one, until the writer of the standard input has ended.
pub fn connect_by_launcher(path: &str) -> UnixStream {
    let socket = stream_socket();
    let address = SocketAddrUnix::new(path).unwrap();
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        rustix::net::connect(&socket, &address).unwrap();
        let mut input = libc::pollfd {
            fd: 0,
            events: 0,
            revents: 0,
        };
        // SAFETY: one pollfd; the process ends without running what its parent has registered.
        unsafe {
            while libc::poll(&raw mut input, 1, -1) < 1 {}
            libc::_exit(0);
        }
    }
    await_connection(socket)
}

/// Connects by a child process, which writes to its own copy of the memory and stays as long as this one.
pub fn connect_from_child(path: &str, start: *mut libc::c_void, len: usize) -> UnixStream {
    let socket = stream_socket();
    let address = SocketAddrUnix::new(path).unwrap();
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: ends with its parent, and uses its own copy of the mapping until then.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            std::ptr::write_bytes(start.cast::<u8>(), b'L', len);
            rustix::net::connect(&socket, &address).unwrap();
            loop {
                libc::pause();
            }
        }
    }
    await_connection(socket)
}
