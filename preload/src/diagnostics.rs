//! Lines for the user, from places that may not allocate.

use crate::raw_syscall::syscall3;
use crate::{pager_process, supervisor};
use link::handshake::ChildMessage;
use std::fmt::{Arguments, Write};

/// Longest line, in bytes; longer ones are cut.
const LINE: usize = 400;

struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let n = text.len().min(LINE - 1 - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

fn line(text: Arguments<'_>) -> Line {
    let mut line = Line {
        bytes: [0; LINE],
        len: 0,
    };
    let _ = line.write_fmt(text);
    line
}

/// Prints a line once by way of `run`, which has the user's terminal; on this process's
/// standard error where `run` cannot be reached.
pub fn log(text: Arguments<'_>) {
    let line = line(text);
    let port = supervisor::port();
    if port.is_none_or(|port| {
        port.say(ChildMessage::Notice(&line.bytes[..line.len]))
            .is_err()
    }) {
        write(line);
    }
}

/// Prints the reason of a refusal.
pub fn log_refusal(text: Arguments<'_>) {
    let line = line(text);
    let port = supervisor::port();
    if port.is_none_or(|port| {
        port.say(ChildMessage::Refused(&line.bytes[..line.len]))
            .is_err()
    }) {
        write(line);
    }
}

fn write(mut line: Line) {
    line.bytes[line.len] = b'\n';
    let head = "selfpage: ";
    for (start, len) in [
        (head.as_ptr(), head.len()),
        (line.bytes.as_ptr(), line.len + 1),
    ] {
        // SAFETY: bytes that live through the call.
        unsafe { syscall3(libc::SYS_write, 2, start as usize, len) };
    }
}

/// Prints why the process cannot continue, and ends it: it would read wrong data otherwise.
pub fn abort(text: Arguments<'_>) -> ! {
    log_refusal(text);
    pager_process::kill_program()
}
