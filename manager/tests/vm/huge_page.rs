//! A huge page of a memfd, of which a pipe holds a part.

use super::{Memory, PAGE};
use rustix::fd::AsRawFd;

/// Has the kernel make one of the first pages. A kernel that makes none leaves nothing to go wrong.
pub fn collapse(memory: &Memory) -> &'static str {
    let (start, len) = (memory.start.cast(), 2 << 20);
    // SAFETY: within the mapping; contents stay.
    unsafe {
        libc::madvise(start, len, libc::MADV_HUGEPAGE);
        // It fails where the page is made, too: none is mapped whole under write protection.
        libc::madvise(start, len, libc::MADV_COLLAPSE);
    }
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let part = libc::iovec {
        iov_base: memory.at(7, 0).cast(),
        iov_len: PAGE,
    };
    // SAFETY: the pipe holds a page of the mapping.
    let sent = unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const part, 1, 0) };
    assert_eq!(sent, PAGE as isize);
    std::mem::forget((reader, writer));
    "collapsed"
}
