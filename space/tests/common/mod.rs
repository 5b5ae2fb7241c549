//! What the tests of address spaces share.
#![allow(dead_code)]

use selfpage::{DirectIo, Domain};
use space::{AddressSpace, Backing, MapFlags, MemoryObject, Rights};
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// What a page of page tables covers.
pub const TABLE: usize = 2 << 20;

/// A domain of so many frames, with a store in compressed RAM.
pub fn backing(frames: u32) -> Arc<Backing> {
    let domain = Domain::builder()
        .frames(frames)
        .store("ram:32M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    Backing::new(domain)
}

/// A space with a domain of its own.
pub fn space(frames: u32, vtlb_pages: usize) -> AddressSpace {
    AddressSpace::new(backing(frames), vtlb_pages).unwrap()
}

/// Mapped to be read and written.
pub fn read_write() -> MapFlags {
    MapFlags::new(Rights::READ | Rights::WRITE)
}

/// Executes an instruction that needs six ranges: it, what it loads and what it stores lie across boundaries.
pub fn copy_across_boundaries(space: &AddressSpace) {
    const CONTENTS: u64 = 0x0102_0304_0506_0708;
    // `movsq` is the first two bytes; `ret`.
    let instructions = [0x48, 0xa5, 0xc3];
    let object = MemoryObject::create(6 * TABLE as u64).unwrap();
    let write = |bytes: &[u8], at: usize| rustix::io::pwrite(object.as_fd(), bytes, at as u64);
    write(&CONTENTS.to_le_bytes(), TABLE - 4).unwrap();
    write(&instructions, 5 * TABLE - 1).unwrap();
    let map = |first: usize, rights| {
        let offset = (first * TABLE) as u64;
        space.map(None, 2 * TABLE, &object, offset, MapFlags::new(rights))
    };
    let from = map(0, Rights::READ).unwrap();
    let to = map(2, Rights::READ | Rights::WRITE).unwrap();
    let code = map(4, Rights::READ | Rights::EXECUTE).unwrap();
    // SAFETY: the code copies eight bytes of mapped memory, which this function alone uses.
    unsafe {
        std::arch::asm!(
            "call rax",
            in("rax") code + TABLE - 1,
            inout("rsi") from + TABLE - 4 => _,
            inout("rdi") to + TABLE - 4 => _,
        );
    }
    let mut copied = [0; 8];
    rustix::io::pread(object.as_fd(), &mut copied, 3 * TABLE as u64 - 4).unwrap();
    assert_eq!(u64::from_le_bytes(copied), CONTENTS);
    for at in [from, to, code] {
        space.deallocate(at, 2 * TABLE).unwrap();
    }
}

/// The bytes at an address of a space.
///
/// # Safety
/// The range may be read, and no thread writes it meanwhile.
pub unsafe fn bytes<'a>(addr: usize, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(addr), len) }
}

/// The same, to be written.
///
/// # Safety
/// The range may be written, and no other code uses it meanwhile.
pub unsafe fn bytes_mut<'a>(addr: usize, len: usize) -> &'a mut [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(addr), len) }
}

/// For tests that fork: one at a time, since a child has the locks as other threads held them.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pair of sockets that keep messages apart.
pub fn sockets() -> (OwnedFd, OwnedFd) {
    host::seqpacket::pair().unwrap()
}

/// Runs `child` in a forked process, which ends with its result, or with 101 for a panic.
pub fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs the closure and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        let status = catch_unwind(AssertUnwindSafe(child)).unwrap_or(101);
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(status) };
    }
    pid
}

/// Exit status of a child, or the signal that ended it.
pub fn wait(pid: i32) -> Result<i32, i32> {
    let mut status = 0;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    match libc::WIFEXITED(status) {
        true => Ok(libc::WEXITSTATUS(status)),
        false => Err(libc::WTERMSIG(status)),
    }
}

/// Runs `child` in a forked process, and waits for its end.
pub fn in_child(child: impl FnOnce() -> i32) -> Result<i32, i32> {
    wait(fork(child))
}

/// A line of `/proc/PID/status`, in kilobytes; of this process by `self`.
pub fn status_kb(pid: impl std::fmt::Display, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Uses `bytes` of the stack at least; returns what its frames held.
#[inline(never)]
pub fn dig(bytes: usize, seed: u64) -> u64 {
    let frame = black_box([seed; 120]);
    let deeper = match bytes.checked_sub(1024) {
        Some(rest) => dig(rest, seed + 1),
        None => 0,
    };
    black_box(&frame).iter().sum::<u64>().wrapping_add(deeper)
}
