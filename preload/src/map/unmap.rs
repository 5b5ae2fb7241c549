//! `munmap`.

use crate::address_space::{self, is_beyond_addresses, page_range};
use crate::raw_syscall::{SyscallResult, is_error, syscall3};
use wired::PAGE;

/// `munmap`.
pub fn munmap(addr: usize, len: usize) -> SyscallResult {
    // SAFETY: the program asked for exactly this.
    let through = || unsafe { syscall3(libc::SYS_munmap, addr, len, 0) };
    let is_valid = addr.is_multiple_of(PAGE) && len > 0;
    let Some(gone) = page_range(addr, len)
        .filter(|gone| address_space::is_active() && is_valid && !is_beyond_addresses(gone))
    else {
        return through();
    };
    let mut space = address_space::lock();
    if !space.map.touches(&gone) {
        // Under the lock only where the tree shares it, as in `mremap`.
        if space.shared.touches(&gone) {
            let answer = through();
            if !is_error(answer) {
                space.shared.remove(&gone);
            }
            return answer;
        }
        drop(space);
        return through();
    }
    let answer = space.release_all(&gone);
    if !is_error(answer) {
        space.shared.remove(&gone);
    }
    answer
}
