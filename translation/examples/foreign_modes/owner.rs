//! The owner's part of the experiment, in a process of its own.

use crate::{Kind, LEN, PAGE, PAGES};
use linux_raw_sys::general as sys;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Maps, registers, hands over, and carries out commands.
pub fn own(kind: Kind, features: u64, memfd: &OwnedFd, mut control: UnixStream) {
    let (flags, fd) = match kind {
        Kind::Anonymous => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        Kind::SharedMemfd => (libc::MAP_SHARED, memfd.as_raw_fd()),
        Kind::PrivateMemfd => (libc::MAP_PRIVATE, memfd.as_raw_fd()),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, where the kernel chooses.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, flags, fd, 0) };
    assert!(memory != libc::MAP_FAILED);
    // SAFETY: huge pages would hide single faults.
    unsafe { libc::madvise(memory, LEN, libc::MADV_NOHUGEPAGE) };
    let uffd = open(features);
    register(&uffd, memory as usize);
    let mut words = (uffd.as_raw_fd() as u64).to_ne_bytes().to_vec();
    words.extend((memory as u64).to_ne_bytes());
    control.write_all(&words).expect("the hand-over");
    let mut command = [0];
    while control.read_exact(&mut command).is_ok() {
        let start = Instant::now();
        obey(command[0], memory.cast());
        let each = start.elapsed().as_nanos() as u64 / PAGES as u64;
        control.write_all(&each.to_ne_bytes()).expect("a reply");
    }
}

fn obey(command: u8, memory: *mut u8) {
    // SAFETY: within the mapping of `own`; a forked child ends at once.
    unsafe {
        match command {
            b'r' | b'w' => {
                for page in 0..PAGES {
                    let at = memory.add(page * PAGE);
                    let seen = at.read_volatile();
                    if command == b'w' {
                        at.write_volatile(seen.wrapping_add(1));
                    }
                }
            }
            b'd' => drop(libc::madvise(memory.cast(), PAGE, libc::MADV_DONTNEED)),
            b'm' => drop(libc::madvise(memory.cast(), PAGE, libc::MADV_REMOVE)),
            b'u' => drop(libc::munmap(memory.add(LEN - PAGE).cast(), PAGE)),
            _ => match libc::fork() {
                0 => libc::_exit(0),
                child => drop(libc::waitpid(child, std::ptr::null_mut(), 0)),
            },
        }
    }
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

fn open(features: u64) -> OwnedFd {
    // SAFETY: an unregistered descriptor affects no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    assert!(fd >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
    // SAFETY: a descriptor that the kernel just returned.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut api = Api {
        api: sys::UFFD_API.into(),
        features,
        ioctls: 0,
    };
    // SAFETY: the argument of UFFDIO_API.
    let outcome = unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            linux_raw_sys::ioctl::UFFDIO_API.into(),
            &raw mut api,
        )
    };
    assert_eq!(
        outcome,
        0,
        "UFFDIO_API: {}",
        std::io::Error::last_os_error()
    );
    fd
}

fn register(fd: &OwnedFd, start: usize) {
    let mut argument = Register {
        start: start as u64,
        len: LEN as u64,
        mode: sys::UFFDIO_REGISTER_MODE_MISSING.into(),
        ioctls: 0,
    };
    let number = linux_raw_sys::ioctl::UFFDIO_REGISTER.into();
    // SAFETY: the argument of UFFDIO_REGISTER, for memory of this process.
    let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), number, &raw mut argument) };
    assert_eq!(
        outcome,
        0,
        "UFFDIO_REGISTER: {}",
        std::io::Error::last_os_error()
    );
}
