//! The program, as its pager process sees it: alive, ended, or with another image.
//!
//! A pidfd reports the end. No event reports an exec to another process: the pager process has the
//! old memory, which lives until it ends. Where the new image joins the tree, the supervisor ends
//! the pager process of the old one. Where it does not (a program that runs unpaged), the word in
//! which the kernel clears the first thread's number does: at exec, too, since the memory has
//! another user.

use super::thread_pointer;
use crate::raw_syscall::{self, error, is_error, syscall3, syscall6};
use host::process_tree::ProcStat;
use rustix::fs::{CWD, Mode, OFlags, open, readlinkat_raw};
use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where glibc has a thread's number in its control block, since its version 2.5; looked for where it is not there.
const KNOWN_OFFSET: usize = 0x2d0;

/// How far into the block it is looked for.
const REACH: usize = 1024;

/// Where it was found; 0 where it was not.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Finds where the C library has a thread's number, by that of the calling thread. In the constructor: in the child of a bare
/// clone the number is the parent's, and the first process of a namespace has one that other words have, too.
pub fn find_number() {
    let number = raw_syscall::tid();
    let storage = thread_pointer();
    // SAFETY: the control block of this thread.
    let is_number = |offset: &usize| unsafe { number_at(storage + offset) } == number;
    let offsets = std::iter::once(KNOWN_OFFSET).chain((0..REACH).step_by(size_of::<i32>()));
    let found = offsets.into_iter().find(is_number);
    OFFSET.store(found.unwrap_or(0), Ordering::Release);
}

/// # Safety
/// The word is there.
unsafe fn number_at(addr: usize) -> i32 {
    // SAFETY: the caller's.
    unsafe { (addr as *const i32).read_volatile() }
}

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
            path.filter(|_| has_own_proc())
                .and_then(|path| open(path, flags, Mode::empty()).ok())
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

/// Where the first thread's control block holds its number. None in the child of a bare clone.
fn first_number(pid: i32) -> Option<usize> {
    let offset = OFFSET.load(Ordering::Acquire);
    let at = super::PROGRAM_STORAGE.load(Ordering::Acquire) + offset;
    // SAFETY: the control block of a thread that waits for the caller.
    (offset != 0 && unsafe { number_at(at) } == pid).then_some(at)
}

/// Returns true if /proc is that of the calling process's PID namespace: in another one numbers are other processes'.
fn has_own_proc() -> bool {
    let mut number = [0u8; 16];
    let Ok(len) = readlinkat_raw(CWD, c"/proc/self", &mut number[..]) else {
        return false;
    };
    let number = std::str::from_utf8(&number[..len]).ok();
    number.and_then(|it| it.parse().ok()) == Some(raw_syscall::pid())
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
