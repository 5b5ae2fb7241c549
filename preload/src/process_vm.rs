//! `process_vm_readv` and `process_vm_writev`, in pieces.
//!
//! The kernel holds up to 4 MiB of the other process's pages for one call, until it has copied them.
//! Where those are all frames of that process, none is left for the next page, and the call and the
//! process wait for each other.

use crate::process_pager;
use crate::raw_syscall::{SyscallResult, c_result, is_error, is_readable, syscall6};
use std::ffi::{c_int, c_long};
use wired::PAGE;

/// Bytes of the other process that one call of ours copies: a quarter of the frames that processes can
/// not lock, within these limits.
const SHORTEST: usize = 16 * PAGE;
const LONGEST: usize = 256 * PAGE;

/// Iovecs that one call of ours has on either side.
const IOVECS: usize = 16;

/// Most iovecs that a call of the program may have (`UIO_MAXIOV`).
const MAX_IOVECS: usize = 1024;

/// Most bytes that the kernel copies by one call (`MAX_RW_COUNT`).
const MAX_COPIED: usize = 0x7fff_f000;

const NONE: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// The rest of one side's iovecs.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    iovecs: &'a [libc::iovec],
    /// Bytes of the first one that are copied.
    offset: usize,
}

impl Cursor<'_> {
    /// Takes iovecs of at most `limit` bytes in all: them, their count, and their bytes.
    fn take(&mut self, limit: usize) -> ([libc::iovec; IOVECS], usize, usize) {
        let mut taken = [NONE; IOVECS];
        let (mut count, mut bytes) = (0, 0);
        while let Some((first, rest)) = self.iovecs.split_first() {
            let len = (first.iov_len - self.offset).min(limit - bytes);
            if len == 0 && first.iov_len > self.offset || count == IOVECS {
                break;
            }
            taken[count] = libc::iovec {
                iov_base: first.iov_base.wrapping_byte_add(self.offset),
                iov_len: len,
            };
            (count, bytes) = (count + 1, bytes + len);
            self.offset += len;
            if self.offset == first.iov_len {
                (self.iovecs, self.offset) = (rest, 0);
            }
        }
        (taken, count, bytes)
    }
}

/// A program's array of iovecs; `None` where the kernel returns the error.
fn iovecs<'a>(array: usize, count: usize) -> Option<&'a [libc::iovec]> {
    let bytes = count * size_of::<libc::iovec>();
    let pages = (array..array.checked_add(bytes)?).step_by(PAGE);
    let mut ends = pages.map(|at| (at, (array + bytes - at).min(PAGE)));
    if count == 0 || count > MAX_IOVECS || !ends.all(|(at, len)| is_readable(at, len)) {
        return None;
    }
    // SAFETY: readable, and the program's argument.
    Some(unsafe { std::slice::from_raw_parts(array as *const libc::iovec, count) })
}

fn total(iovecs: &[libc::iovec]) -> Option<usize> {
    iovecs
        .iter()
        .try_fold(0usize, |sum, iovec| sum.checked_add(iovec.iov_len))
        .filter(|sum| isize::try_from(*sum).is_ok())
}

/// Either call, by its number.
pub fn copy_in_pieces(number: c_long, args: [usize; 6]) -> SyscallResult {
    let [process, local, local_count, remote, remote_count, flags] = args;
    // SAFETY: the program asked for exactly this.
    let call = |args| unsafe { syscall6(number, args) };
    let (Some(ours), Some(theirs)) = (iovecs(local, local_count), iovecs(remote, remote_count))
    else {
        return call(args);
    };
    let (Some(room), Some(wanted)) = (total(ours), total(theirs)) else {
        return call(args);
    };
    let frames = process_pager::get().map_or(0, |pager| pager.process.most_frames());
    let piece = (frames as usize / 32 * PAGE).clamp(SHORTEST, LONGEST);
    let wanted = wanted.min(room).min(MAX_COPIED);
    if wanted <= piece {
        return call(args);
    }
    let mut ours = Cursor {
        iovecs: ours,
        offset: 0,
    };
    let mut theirs = Cursor {
        iovecs: theirs,
        offset: 0,
    };
    let mut copied = 0;
    while copied < wanted {
        let mut ahead = ours;
        let (_, _, room) = ahead.take(piece.min(wanted - copied));
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
            c_result(copy_in_pieces($number, args))
        }
    )*};
}
calls! {
    process_vm_readv libc::SYS_process_vm_readv;
    process_vm_writev libc::SYS_process_vm_writev;
}
