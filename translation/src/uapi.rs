//! Numbers, layouts and calls of the kernel interface that `rustix` does not wrap.
//!
//! Constants come from `linux-raw-sys`, not from the builder's headers: [`crate::probe`] finds by
//! trial which of them the running kernel honours. The ioctl numbers it lacks are derived from
//! their definitions in `include/uapi/linux/userfaultfd.h` and `include/uapi/linux/fs.h` and
//! asserted below against their known values.

use linux_raw_sys::general as sys;
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::{Errno, Result};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use std::ffi::c_void;

pub(crate) use sys::{
    page_region, pm_scan_arg, uffd_msg, uffdio_api, uffdio_continue, uffdio_copy, uffdio_move,
    uffdio_poison, uffdio_range, uffdio_register, uffdio_writeprotect, uffdio_zeropage,
};

const GROUP: u8 = 0xAA;

pub(crate) const API: Opcode = opcode::read_write::<uffdio_api>(GROUP, 0x3F);
pub(crate) const REGISTER: Opcode = opcode::read_write::<uffdio_register>(GROUP, 0x00);
pub(crate) const UNREGISTER: Opcode = opcode::read::<uffdio_range>(GROUP, 0x01);
pub(crate) const WAKE: Opcode = opcode::read::<uffdio_range>(GROUP, 0x02);
pub(crate) const COPY: Opcode = opcode::read_write::<uffdio_copy>(GROUP, 0x03);
pub(crate) const ZEROPAGE: Opcode = opcode::read_write::<uffdio_zeropage>(GROUP, 0x04);
pub(crate) const MOVE: Opcode = opcode::read_write::<uffdio_move>(GROUP, 0x05);
pub(crate) const WRITEPROTECT: Opcode = opcode::read_write::<uffdio_writeprotect>(GROUP, 0x06);
pub(crate) const CONTINUE: Opcode = opcode::read_write::<uffdio_continue>(GROUP, 0x07);
pub(crate) const POISON: Opcode = opcode::read_write::<uffdio_poison>(GROUP, 0x08);
/// On `/dev/userfaultfd`: opens a userfaultfd.
pub(crate) const IOC_NEW: Opcode = opcode::none(GROUP, 0x00);
pub(crate) const PAGEMAP_SCAN: Opcode = opcode::read_write::<pm_scan_arg>(b'f', 16);

const _: () = {
    assert!(API == linux_raw_sys::ioctl::UFFDIO_API as Opcode);
    assert!(REGISTER == linux_raw_sys::ioctl::UFFDIO_REGISTER as Opcode);
    assert!(UNREGISTER == linux_raw_sys::ioctl::UFFDIO_UNREGISTER as Opcode);
    assert!(WAKE == linux_raw_sys::ioctl::UFFDIO_WAKE as Opcode);
    assert!(COPY == linux_raw_sys::ioctl::UFFDIO_COPY as Opcode);
    assert!(ZEROPAGE == linux_raw_sys::ioctl::UFFDIO_ZEROPAGE as Opcode);
    assert!(WRITEPROTECT == linux_raw_sys::ioctl::UFFDIO_WRITEPROTECT as Opcode);
    // Missing in linux-raw-sys; values of the kernel's headers on x86-64 and arm64.
    assert!(MOVE == 0xC028_AA05);
    assert!(POISON == 0xC020_AA08);
    assert!(IOC_NEW == 0x0000_AA00);
    assert!(PAGEMAP_SCAN == 0xC060_6610);
    assert!(size_of::<uffd_msg>() == 32);
};

pub(crate) const WRITEPROTECT_MODE_WP: u64 = 1;
pub(crate) const MOVE_MODE_DONTWAKE: u64 = 1;
pub(crate) const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 2;

/// Names the process itself where a call takes a pidfd (Linux 6.14).
const PIDFD_SELF: i32 = sys::PIDFD_SELF_THREAD_GROUP;

/// An ioctl that takes a pointer and returns a count.
struct CountingIoctl<'a, const OP: Opcode, T>(&'a mut T);

// SAFETY: `call`'s callers pair the opcodes above with their argument types; the kernel reads and
// writes exactly one `T`.
unsafe impl<const OP: Opcode, T> Ioctl for CountingIoctl<'_, OP, T> {
    type Output = usize;
    const IS_MUTATING: bool = true;
    fn opcode(&self) -> Opcode {
        OP
    }
    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }
    unsafe fn output_from_ptr(count: IoctlOutput, _: *mut c_void) -> Result<usize> {
        Ok(count as usize)
    }
}

/// Performs `OP` with `argument`, which the kernel updates on failure too.
///
/// # Safety
/// `T` must be the argument type of `OP`, and the requested effect must be sound.
pub(crate) unsafe fn call<const OP: Opcode, T>(
    fd: BorrowedFd<'_>,
    argument: &mut T,
) -> Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { rustix::ioctl::ioctl(fd, CountingIoctl::<OP, T>(argument)) }
}

/// `USERFAULTFD_IOC_NEW`: takes flags by value, returns a descriptor.
struct New(u32);

// SAFETY: the kernel takes the argument as a number and returns a descriptor.
unsafe impl Ioctl for New {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;
    fn opcode(&self) -> Opcode {
        IOC_NEW
    }
    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }
    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> Result<OwnedFd> {
        // SAFETY: a descriptor that the kernel just returned.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Opens a userfaultfd through an open `/dev/userfaultfd`.
pub(crate) fn userfaultfd_from_device(device: BorrowedFd<'_>, flags: u32) -> Result<OwnedFd> {
    // SAFETY: the argument is a number.
    unsafe { rustix::ioctl::ioctl(device, New(flags)) }
}

/// Makes a system call that `rustix` does not wrap.
///
/// # Safety
/// The call's own conditions.
pub(crate) unsafe fn syscall(number: u32, a: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the x86-64 convention; the kernel clobbers rcx and r11 only.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if (-4095..0).contains(&result) {
        Err(Errno::from_raw_os_error(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// Calls `process_madvise` on this process. Returns the bytes advised.
///
/// # Safety
/// As for `madvise` on every range.
pub(crate) unsafe fn advise_self(pieces: &[crate::IoVec], advice: u32) -> Result<usize> {
    // SAFETY: `IoVec` has the layout of `struct iovec`; the rest is the caller's promise.
    unsafe {
        syscall(
            sys::__NR_process_madvise,
            [
                PIDFD_SELF as isize as usize,
                pieces.as_ptr() as usize,
                pieces.len(),
                advice as usize,
                0,
                0,
            ],
        )
    }
}

/// Returns true if the kernel can read user memory at `address` without help. EFAULT: the page is
/// missing from a user-mode-only registration, or poisoned.
pub(crate) fn kernel_can_read(address: usize) -> bool {
    // SAFETY: looks up a path that starts at the address; the kernel only reads it.
    let answer = unsafe {
        syscall(
            sys::__NR_faccessat,
            [sys::AT_FDCWD as isize as usize, address, 0, 0, 0, 0],
        )
    };
    // A poisoned page yields EHWPOISON or EFAULT.
    !matches!(answer, Err(Errno::FAULT | Errno::HWPOISON))
}

/// Makes the kernel write a `timespec`, 16 bytes, to user memory at `address`.
///
/// # Safety
/// The memory must be the caller's to overwrite.
pub(crate) unsafe fn kernel_writes(address: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        syscall(
            sys::__NR_clock_gettime,
            [sys::CLOCK_MONOTONIC as usize, address, 0, 0, 0, 0],
        )
    }
    .map(drop)
}
