//! The program, as its pager process sees it: alive, ended, or with another image.
//!
//! A pidfd reports the end. No event reports an exec to another process: the pager process has the
//! old memory, which lives until it ends. Where the new image joins the tree, the supervisor ends
//! the pager process of the old one. Where it does not (a program that runs unpaged), the word in
//! which the kernel clears the first thread's number does: at exec, too, since the memory has
//! another user.

use crate::raw_syscall::{error, is_error, syscall3, syscall6};
use host::process_tree::ProcStat;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// How far into a thread control block glibc's number of the thread is looked for.
const REACH: usize = 1024;

/// The program.
pub struct Program {
    pid: i32,
    pidfd: OwnedFd,
    stat: Option<OwnedFd>,
    /// The word that holds its first thread's number as long as that has this image; none where
    /// it is not found.
    first: Option<usize>,
}

impl Program {
    /// The program with process number `pid`, whose one thread waits for the caller.
    pub fn new(pid: i32) -> Result<Self> {
        // SAFETY: makes a descriptor.
        let answer = unsafe { syscall3(libc::SYS_pidfd_open, pid as usize, 0, 0) };
        if is_error(answer) {
            return Err(Errno::from_raw_os_error(-answer as i32));
        }
        // SAFETY: a fresh descriptor.
        let pidfd = unsafe { OwnedFd::from_raw_fd(answer as i32) };
        let mut path = [0u8; 32];
        let stat = {
            use std::io::Write;
            let mut rest = &mut path[..];
            let _ = write!(rest, "/proc/{pid}/stat\0");
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let path = std::ffi::CStr::from_bytes_until_nul(&path).ok();
            path.and_then(|path| open(path, flags, Mode::empty()).ok())
        };
        Ok(Self {
            pid,
            pidfd,
            stat,
            first: first_number(pid),
        })
    }

    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Readable when it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.pidfd.as_fd()
    }

    /// Returns true if it has ended.
    pub fn has_ended(&self) -> bool {
        let mut end = libc::pollfd {
            fd: self.pidfd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // The call that the pager process's loop makes, and no other: a filter of the program's may refuse it.
        // SAFETY: one entry that lives through the call.
        unsafe { syscall3(libc::SYS_poll, std::ptr::from_mut(&mut end) as usize, 1, 0) == 1 }
    }

    /// Returns true if the program has begun another image. Its first thread's number is
    /// cleared when that thread ends, too; a thread that ends is marked before that.
    pub fn has_replaced_its_image(&self) -> bool {
        let (Some(first), Some(stat)) = (self.first, &self.stat) else {
            return false;
        };
        if !is_cleared(first, self.pid) {
            return false;
        }
        let mut text = [0u8; 512];
        let Ok(len) = rustix::io::pread(stat, &mut text[..], 0) else {
            return false;
        };
        ProcStat::parse(&text[..len]).is_some_and(|stat| !stat.is_exiting())
    }
}

/// Where the first thread's control block holds its number.
fn first_number(pid: i32) -> Option<usize> {
    let storage = super::PROGRAM_STORAGE.load(Ordering::Acquire);
    let mut words = (storage..storage + REACH).step_by(size_of::<i32>());
    // SAFETY: the control block of a thread that waits for the caller.
    words.find(|at| unsafe { (*at as *const i32).read_volatile() } == pid)
}

/// Returns true if the word at `at` is mapped and holds another number than `pid`. The kernel
/// looks: the program may have unmapped it.
fn is_cleared(at: usize, pid: i32) -> bool {
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let timeout = std::ptr::from_ref(&now) as usize;
    let wait = libc::FUTEX_WAIT as usize;
    // SAFETY: the kernel reads the word and the time.
    let answer = unsafe { syscall6(libc::SYS_futex, [at, wait, pid as usize, timeout, 0, 0]) };
    answer == error(libc::EAGAIN)
}
