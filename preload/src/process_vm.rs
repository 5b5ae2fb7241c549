//! `process_vm_readv` and `process_vm_writev`, in pieces.
//!
//! The kernel holds up to 4 MiB of the other process's pages for one call, until it has copied them.
//! Where those are all frames of that process, none is left for the next page, and the call and the
//! process wait for each other.

use crate::raw_syscall::{SyscallResult, c_result, is_error, is_readable, syscall6};
use std::ffi::{c_int, c_long};
use wired::PAGE;

/// Bytes of the other process that one call of ours copies: half of the fewest frames that `run` takes.
const PIECE: usize = 16 * PAGE;

/// Ranges that one call of ours has on either side.
const RANGES: usize = 16;

/// Most ranges that a call of the program may have (`UIO_MAXIOV`).
const MAX_RANGES: usize = 1024;

const NONE: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// The rest of one side's ranges.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    ranges: &'a [libc::iovec],
    /// Bytes of the first range that are behind.
    behind: usize,
}

impl Cursor<'_> {
    /// Takes ranges of at most `limit` bytes in all.
    fn take(&mut self, limit: usize) -> ([libc::iovec; RANGES], usize, usize) {
        let mut taken = [NONE; RANGES];
        let (mut count, mut bytes) = (0, 0);
        while let Some((first, rest)) = self.ranges.split_first() {
            let len = (first.iov_len - self.behind).min(limit - bytes);
            if len == 0 && first.iov_len > self.behind || count == RANGES {
                break;
            }
            taken[count] = libc::iovec {
                iov_base: first.iov_base.wrapping_byte_add(self.behind),
                iov_len: len,
            };
            (count, bytes) = (count + 1, bytes + len);
            self.behind += len;
            if self.behind == first.iov_len {
                (self.ranges, self.behind) = (rest, 0);
            }
        }
        (taken, count, bytes)
    }
}

/// A program's array of ranges; `None` where the kernel is to say what is wrong with it.
fn ranges<'a>(array: usize, count: usize) -> Option<&'a [libc::iovec]> {
    let bytes = count * size_of::<libc::iovec>();
    let pages = (array..array.checked_add(bytes)?).step_by(PAGE);
    let mut ends = pages.map(|at| (at, (array + bytes - at).min(PAGE)));
    if count == 0 || count > MAX_RANGES || !ends.all(|(at, len)| is_readable(at, len)) {
        return None;
    }
    // SAFETY: readable, and the program's argument.
    Some(unsafe { std::slice::from_raw_parts(array as *const libc::iovec, count) })
}

fn total(ranges: &[libc::iovec]) -> Option<usize> {
    ranges
        .iter()
        .try_fold(0usize, |sum, range| sum.checked_add(range.iov_len))
        .filter(|sum| isize::try_from(*sum).is_ok())
}

/// Either call, by its number.
pub fn copy(number: c_long, args: [usize; 6]) -> SyscallResult {
    let [process, local, local_count, remote, remote_count, flags] = args;
    // SAFETY: the program asked for exactly this.
    let call = |args| unsafe { syscall6(number, args) };
    let (Some(ours), Some(theirs)) = (ranges(local, local_count), ranges(remote, remote_count))
    else {
        return call(args);
    };
    let (Some(room), Some(wanted)) = (total(ours), total(theirs)) else {
        return call(args);
    };
    if wanted.min(room) <= PIECE {
        return call(args);
    }
    let mut ours = Cursor {
        ranges: ours,
        behind: 0,
    };
    let mut theirs = Cursor {
        ranges: theirs,
        behind: 0,
    };
    let mut copied = 0;
    while copied < wanted.min(room) {
        let mut ahead = ours;
        let (_, _, room) = ahead.take(PIECE);
        let (theirs, their_count, bytes) = theirs.take(room);
        let (ours, our_count, _) = ours.take(bytes);
        let (ours, theirs) = (ours.as_ptr() as usize, theirs.as_ptr() as usize);
        let answer = call([process, ours, our_count, theirs, their_count, flags]);
        if is_error(answer) {
            return if copied == 0 {
                answer
            } else {
                copied as SyscallResult
            };
        }
        copied += answer as usize;
        if answer as usize != bytes {
            break;
        }
    }
    copied as SyscallResult
}

/// Defines both calls under their names.
macro_rules! calls {
    ($($name:ident $number:expr;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name(
            process: c_int,
            local: usize,
            local_count: usize,
            remote: usize,
            remote_count: usize,
            flags: usize,
        ) -> isize {
            let process = process as usize;
            let args = [process, local, local_count, remote, remote_count, flags];
            c_result(copy($number, args))
        }
    )*};
}
calls! {
    process_vm_readv libc::SYS_process_vm_readv;
    process_vm_writev libc::SYS_process_vm_writev;
}
