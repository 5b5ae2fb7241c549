//! A tracer's reads and writes of another process's memory: PTRACE_PEEKDATA and its kin, and /proc/PID/mem.
//!
//! These calls do not bring in a page that a userfaultfd serves: the kernel fails them with EIO, which a debugger shows as
//! memory that is not there. `process_vm_readv` does, by the traced program's pager. So a call that fails touches the page
//! that way, and is repeated. A tracer outside the tree has no such help.

use crate::dlsym;
use crate::raw_syscall::{SyscallResult, c_result, errno, error, syscall6};
use std::ffi::{c_int, c_long, c_void};
use std::mem::transmute;
use wired::PAGE;

/// Attempts: a page may leave again before the call is repeated.
const ATTEMPTS: usize = 64;

/// Bytes of the longest name of a /proc/PID/mem.
const NAME: usize = 64;

dlsym::next_function!(PREAD = "pread64");
dlsym::next_function!(PWRITE = "pwrite64");

/// `ptrace` by its number: made again where it needs a page that is paged out.
pub fn raw_ptrace(request: usize, traced: usize, addr: usize, data: usize) -> SyscallResult {
    let words = [
        libc::PTRACE_PEEKDATA,
        libc::PTRACE_PEEKTEXT,
        libc::PTRACE_POKEDATA,
        libc::PTRACE_POKETEXT,
    ];
    // SAFETY: the program asked for exactly this.
    let call = || unsafe { syscall6(libc::SYS_ptrace, [request, traced, addr, data, 0, 0]) };
    let mut answer = call();
    if !words.contains(&(request as u32)) {
        return answer;
    }
    for _ in 0..ATTEMPTS {
        // The word may begin in one page and end in the next.
        let last = addr.wrapping_add(size_of::<c_long>() - 1);
        if answer != error(libc::EIO) || !(bring_in(traced, addr) && bring_in(traced, last)) {
            break;
        }
        answer = call();
    }
    answer
}

/// Brings a byte's page in. Returns false if nothing is there.
fn bring_in(process: usize, addr: usize) -> bool {
    let mut byte = 0u8;
    let to = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let from = libc::iovec {
        iov_base: addr as *mut c_void,
        iov_len: 1,
    };
    let (to, from) = (&raw const to as usize, &raw const from as usize);
    // SAFETY: one byte of this frame is written.
    unsafe { syscall6(libc::SYS_process_vm_readv, [process, to, 1, from, 1, 0]) == 1 }
}

/// `ptrace`, which has four arguments for the kernel. The word that a PEEK reads is returned, with `errno` 0.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ptrace(request: usize, traced: usize, addr: usize, data: usize) -> c_long {
    let is_peek = [
        libc::PTRACE_PEEKDATA,
        libc::PTRACE_PEEKTEXT,
        libc::PTRACE_PEEKUSER,
    ]
    .contains(&(request as u32));
    let mut word = 0;
    let data = if is_peek {
        &raw mut word as usize
    } else {
        data
    };
    let answer = c_result(raw_ptrace(request & 0xffff_ffff, traced, addr, data)) as c_long;
    if is_peek && answer == 0 {
        crate::raw_syscall::set_errno(0);
        return word;
    }
    answer
}

/// The process whose memory a descriptor is: /proc/PID/mem.
fn process_of(fd: c_int) -> Option<usize> {
    let mut path = [0u8; 32];
    let mut name = [0u8; NAME];
    std::io::Write::write_fmt(&mut &mut path[..], format_args!("/proc/self/fd/{fd}\0")).ok()?;
    let (path, to) = (path.as_ptr() as usize, name.as_mut_ptr() as usize);
    // SAFETY: a C string, and room for its length.
    let len = unsafe { syscall6(libc::SYS_readlink, [path, to, NAME, 0, 0, 0]) };
    let name = std::str::from_utf8(name.get(..usize::try_from(len).ok()?)?).ok()?;
    let process = name.strip_prefix("/proc/")?.strip_suffix("/mem")?;
    // That of a thread is /proc/PID/task/TID/mem.
    process.rsplit('/').next()?.parse().ok()
}

/// Defines a call that reads or writes at an offset, which has two names on 64-bit machines.
macro_rules! at_offset {
    ($slot:ident: $($name:ident)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(fd: c_int, bytes: *mut c_void, len: usize, at: i64) -> isize {
            type Real = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;
            // SAFETY: the C library's function of that name has this type.
            let real: Real = unsafe { transmute($slot.find()) };
            // SAFETY: a part of the caller's bytes.
            let transfer = |done: usize| unsafe { real(fd, bytes.byte_add(done), len - done, at + done as i64) };
            match transfer(0) {
                answer if answer == len as isize => answer,
                answer => go_on(fd, at as usize, len, answer, transfer),
            }
        }
    )*};
}
at_offset!(PREAD: pread pread64 __pread64);
at_offset!(PWRITE: pwrite pwrite64 __pwrite64);

/// Defines the call as programs make it that are compiled with _FORTIFY_SOURCE: `room` is that at `bytes`.
macro_rules! checked_at_offset {
    ($($name:ident)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(fd: c_int, bytes: *mut c_void, len: usize, at: i64, room: usize) -> isize {
            crate::dlsym::next_function!(CHECKED = stringify!($name));
            type Real = unsafe extern "C" fn(c_int, *mut c_void, usize, i64, usize) -> isize;
            match len <= room {
                // SAFETY: the caller's bytes.
                true => unsafe { pread(fd, bytes, len, at) },
                // SAFETY: the C library's function of that name, which ends the program.
                false => unsafe { transmute::<*mut c_void, Real>(CHECKED.find())(fd, bytes, len, at, room) },
            }
        }
    )*};
}
checked_at_offset!(__pread_chk __pread64_chk);

/// Goes on with a transfer that ended early, where that is of a process's memory at a page that is paged out.
fn go_on(
    fd: c_int,
    at: usize,
    len: usize,
    mut answer: isize,
    transfer: impl Fn(usize) -> isize,
) -> isize {
    let (mut done, mut process, mut attempts) = (0, None, 0);
    loop {
        if answer > 0 {
            (done, attempts) = (done + answer as usize, 0);
        }
        let is_at_page = match answer {
            ..0 => errno() == libc::EIO,
            // The end of a file: memory that is paged out is an error, or a part.
            0 => false,
            _ => at.wrapping_add(done).is_multiple_of(PAGE),
        };
        if !is_at_page || done == len {
            break;
        }
        attempts += 1;
        process = process.or_else(|| process_of(fd));
        let is_brought = process.is_some_and(|it| bring_in(it, at.wrapping_add(done)));
        if attempts > ATTEMPTS || !is_brought {
            break;
        }
        answer = transfer(done);
    }
    if done > 0 { done as isize } else { answer }
}
