//! Lines for the user, from places that may not allocate.

use crate::cancellation::CancellationDisabled;
use crate::raw_syscall::syscall3;
use crate::{pager_process, supervisor};
use link::handshake::ChildMessage;
use rustix::fd::BorrowedFd;
use std::fmt::Arguments;
use std::sync::atomic::{AtomicU64, Ordering};
use wired::LogLine;

/// The file that was standard error when the program began: device and inode.
static STANDARD_ERROR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Notes what standard error is, when a program begins.
pub fn init() {
    let file = standard_error().unwrap_or_default();
    STANDARD_ERROR
        .iter()
        .zip(file)
        .for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}

/// What descriptor 2 is.
fn standard_error() -> Option<[u64; 2]> {
    // SAFETY: a query without effect.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(2) }).ok()?;
    Some([stat.st_dev, stat.st_ino])
}

/// Returns true if descriptor 2 is what it was: a program that has closed it may have a file of its own there.
fn has_standard_error() -> bool {
    standard_error() == Some([0, 1].map(|n: usize| STANDARD_ERROR[n].load(Ordering::Relaxed)))
}

/// Prints a line once by way of `run`, which has the user's terminal; where `run` cannot be reached on
/// standard error, if the program has still what it was given as that.
pub fn log(text: Arguments<'_>) {
    let _uncancelled = CancellationDisabled::new();
    let line = LogLine::new(text);
    let message = ChildMessage::Notice(line.as_str().as_bytes());
    let by_port = supervisor::port().is_some_and(|port| port.send_message(message).is_ok());
    let sent = by_port || pager_process::say(message);
    if !sent && has_standard_error() {
        for part in ["selfpage: ", line.as_str(), "\n"] {
            // SAFETY: bytes that live through the call.
            unsafe { syscall3(libc::SYS_write, 2, part.as_ptr() as usize, part.len()) };
        }
    }
}
