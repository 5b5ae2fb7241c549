//! Lines for the user, from places that may not allocate.

use crate::cancellation::CancellationDisabled;
use crate::raw_syscall::syscall3;
use crate::{pager_process, supervisor};
use link::handshake::ChildMessage;
use std::fmt::Arguments;
use wired::LogLine;

/// Prints a line once by way of `run`, which has the user's terminal; on this process's
/// standard error where `run` cannot be reached.
pub fn log(text: Arguments<'_>) {
    let _uncancelled = CancellationDisabled::new();
    let line = LogLine::new(text);
    let message = ChildMessage::Notice(line.as_str().as_bytes());
    let by_port = supervisor::port().is_some_and(|port| port.say(message).is_ok());
    let sent = by_port || pager_process::say(message);
    if !sent {
        for part in ["selfpage: ", line.as_str(), "\n"] {
            // SAFETY: bytes that live through the call.
            unsafe { syscall3(libc::SYS_write, 2, part.as_ptr() as usize, part.len()) };
        }
    }
}
