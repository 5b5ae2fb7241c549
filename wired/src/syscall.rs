//! System calls by number, without the C library: they set no `errno`, which is
//! thread-local, and return exactly what the kernel returns, for any argument.

use rustix::io::Errno;
use std::arch::asm;
use std::ffi::c_long;

/// The result of a system call: a value, or a negated error number.
pub type SyscallResult = isize;

/// The largest error number the kernel returns.
const MAX_ERRNO: isize = 4095;

/// Makes system call `number`.
///
/// # Safety
/// As the call itself.
#[inline]
pub unsafe fn syscall6(number: c_long, args: [usize; 6]) -> SyscallResult {
    let result: isize;
    // SAFETY: the caller's; the kernel clobbers only rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// `madvise` by a pager, or by the preload library for the program, marked with [`crate::PAGER_TAG`]. The
/// tree's filter stops calls without that tag.
///
/// # Safety
/// As the call itself.
pub unsafe fn madvise(addr: usize, len: usize, advice: i32) -> SyscallResult {
    let tag = crate::PAGER_TAG as usize;
    // SAFETY: the caller's.
    unsafe { syscall6(libc::SYS_madvise, [addr, len, advice as usize, tag, 0, 0]) }
}

/// Returns true if a result is an error.
#[inline]
pub fn is_error(result: SyscallResult) -> bool {
    (-MAX_ERRNO..0).contains(&result)
}

/// The value of a result, or its error.
pub fn checked(result: SyscallResult) -> Result<usize, Errno> {
    match is_error(result) {
        true => Err(Errno::from_raw_os_error(-result as i32)),
        false => Ok(result as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_a_value_or_an_error() {
        // SAFETY: takes nothing, changes nothing.
        let pid = unsafe { syscall6(libc::SYS_getpid, [0; 6]) };
        assert_eq!(checked(pid), Ok(std::process::id() as usize));
        // SAFETY: closes no descriptor: there is none of this number.
        let closed = unsafe { syscall6(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]) };
        assert_eq!(checked(closed), Err(Errno::BADF));
        assert!(is_error(-4095) && !is_error(-4096) && !is_error(0));
    }
}
