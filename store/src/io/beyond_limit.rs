//! Writes beyond a limit on the size of files (`ulimit -f`). The limit is the program's, and its pager has it, too: the kernel
//! refuses to write to the swap file beyond it, although the file does not grow by that. A mapping of the file has no such
//! limit: a refused write goes through one, and so through the page cache, which later reads and writes by O_DIRECT follow.

use super::{IoBackend, IoVec, MAX_OPS};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use wired::PAGE;

/// A write in flight.
#[derive(Clone, Copy)]
struct Write {
    pieces: *const IoVec,
    count: usize,
    offset: u64,
}

impl Write {
    const NONE: Self = Self {
        pieces: std::ptr::null(),
        count: 0,
        offset: 0,
    };
}

/// A backend on the swap file.
pub(crate) struct BeyondLimit<B> {
    backend: B,
    /// The file's descriptor, which the store keeps open.
    file: RawFd,
    writes: [Write; MAX_OPS],
}

// SAFETY: a pointer is used when its operation completes, and what it points to stays until then.
unsafe impl<B: Send> Send for BeyondLimit<B> {}

impl<B> BeyondLimit<B> {
    pub fn new(backend: B, file: BorrowedFd<'_>) -> Self {
        Self {
            backend,
            file: file.as_raw_fd(),
            writes: [Write::NONE; MAX_OPS],
        }
    }

    /// The result of an operation that has completed with `result`.
    fn complete(&mut self, op: usize, result: i32) -> i32 {
        let write = std::mem::replace(&mut self.writes[op], Write::NONE);
        // What crosses the limit is cut short, to a length that O_DIRECT refuses.
        let is_limit = [Errno::FBIG, Errno::INVAL].map(|it| -it.raw_os_error());
        if !is_limit.contains(&result) || write.count == 0 {
            return result;
        }
        // SAFETY: the caller of `begin` keeps the pieces until it has the result.
        let pieces = unsafe { std::slice::from_raw_parts(write.pieces, write.count) };
        match self.write_mapped(pieces, write.offset) {
            Ok(bytes) => bytes as i32,
            Err(_) => result,
        }
    }

    /// Writes to a part of the file that it has already.
    fn write_mapped(&self, pieces: &[IoVec], offset: u64) -> Result<usize, Errno> {
        // SAFETY: the store keeps it open.
        let file = unsafe { BorrowedFd::borrow_raw(self.file) };
        let bytes: usize = pieces.iter().map(|piece| piece.len).sum();
        if offset + bytes as u64 > fstat(file)?.st_size as u64 {
            return Err(Errno::FBIG);
        }
        let skipped = offset as usize % PAGE;
        let len = skipped + bytes;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let start = offset - skipped as u64;
        // SAFETY: a new mapping, where the kernel chooses.
        let mapped = unsafe { mmap(std::ptr::null_mut(), len, access, flags, file, start)? };
        // Of these pages alone: others that came in beside them might be written back over what another process writes. An
        // access that the file system cannot serve would be a SIGBUS; this is an error.
        let advices = [Advice::Random, Advice::LinuxPopulateWrite];
        let mut advised = advices.into_iter().map(|advice| {
            // SAFETY: the mapping above, whose contents stay.
            unsafe { madvise(mapped, len, advice) }
        });
        let is_there = advised.try_for_each(|advised| advised);
        let mut to = mapped.cast::<u8>().wrapping_add(skipped);
        for piece in pieces.iter().filter(|_| is_there.is_ok()) {
            // SAFETY: the caller of `begin` keeps the memory; the mapping is there, and as long as all pieces.
            unsafe { std::ptr::copy_nonoverlapping(piece.start, to, piece.len) };
            to = to.wrapping_add(piece.len);
        }
        // SAFETY: the mapping above.
        unsafe { munmap(mapped, len)? };
        is_there.map(|()| bytes)
    }
}

impl<B: IoBackend> IoBackend for BeyondLimit<B> {
    unsafe fn begin(
        &mut self,
        op: usize,
        write: bool,
        pieces: &mut [IoVec],
        offset: u64,
    ) -> Option<i32> {
        self.writes[op] = match write {
            true => Write {
                pieces: pieces.as_ptr(),
                count: pieces.len(),
                offset,
            },
            false => Write::NONE,
        };
        // SAFETY: the caller's promise.
        let result = unsafe { self.backend.begin(op, write, pieces, offset) };
        result.map(|result| self.complete(op, result))
    }

    fn submit(&mut self) {
        self.backend.submit();
    }

    fn reap(&mut self, wait: bool) -> Option<(usize, i32)> {
        let (op, result) = self.backend.reap(wait)?;
        Some((op, self.complete(op, result)))
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.backend.poll_fd()
    }

    fn may_poll(&self) -> bool {
        self.backend.may_poll()
    }

    fn close(&mut self) {
        self.backend.close();
    }
}
