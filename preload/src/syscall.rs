//! The C library's `syscall`: calls by number take the same way as calls by name.
//!
//! Where the kernel may return on another stack (a `clone` that shares memory), nothing
//! may lie between the instruction and the return; so the function is written in
//! assembly and branches off only for the calls that are emulated.

use crate::raw_syscall::{SyscallResult, c_result, syscall3, syscall6};
use crate::{
    brk, exec, fd_guard, filters, fork, futex, limits, madvise, map, mlock, mremap, mseal,
};
use crate::{process_vm, remap_file_pages, sysv_shm, trace, wait};
use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_long};

/// `syscall`: number, six arguments.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn syscall() -> c_long {
    naked_asm!(
        // A clone that shares memory may go on on another stack: the kernel's, at once.
        "cmp rdi, {clone}",
        "jne 2f",
        "test esi, {vm}",
        "jnz 5f",
        "jmp 4f",
        "2: cmp rdi, {clone3}",
        "jne 3f",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "call {kernels_clone3}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test al, al",
        "jnz 5f",
        "jmp 4f",
        "3: cmp rdi, {vfork}",
        "je 5f",
        // All other calls go through Rust, which selects the emulated ones.
        "4: push [rsp + 8]",
        "call {route}",
        "add rsp, 8",
        "ret",
        "5: mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 6f",
        "ret",
        "6: mov rdi, rax",
        "jmp {fail}",
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        vfork = const libc::SYS_vfork,
        vm = const libc::CLONE_VM,
        kernels_clone3 = sym fork::is_kernels_clone3,
        route = sym route,
        fail = sym fail,
    )
}

extern "C" fn fail(answer: SyscallResult) -> c_long {
    c_result(answer) as c_long
}

extern "C" fn route(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let (fd, flags) = (a as c_int, d as c_int);
    let answer = match number {
        libc::SYS_mmap => map::mmap(a, b, c as c_int, flags, e as c_int, f as i64),
        libc::SYS_munmap => map::munmap(a, b),
        libc::SYS_mremap => mremap::mremap(a, b, c, flags, e),
        libc::SYS_remap_file_pages => {
            remap_file_pages::remap_file_pages(a, b, c as c_int, d, e as c_int)
        }
        libc::SYS_mprotect => map::mprotect(a, b, c as c_int, -1),
        libc::SYS_pkey_mprotect => map::mprotect(a, b, c as c_int, flags),
        libc::SYS_madvise => madvise::madvise(a, b, c as c_int),
        libc::SYS_mlock => mlock::mlock(a, b, false),
        libc::SYS_mlock2 if c <= 1 => mlock::mlock(a, b, c == 1),
        libc::SYS_munlock => mlock::munlock(a, b),
        libc::SYS_mlockall => mlock::mlockall(a as c_int),
        libc::SYS_munlockall => mlock::munlockall(),
        libc::SYS_mincore => madvise::mincore(a, b, c),
        libc::SYS_msync => match madvise::msync(a, b, c as c_int) {
            Some(answer) => answer,
            // SAFETY: the program asked for exactly this.
            None => unsafe { syscall3(number, a, b, c) },
        },
        libc::SYS_process_madvise => madvise::process_madvise(a as c_int, b, c, flags, e as u32),
        libc::SYS_brk => brk::brk(a),
        // Only those that copy memory come here.
        libc::SYS_fork => fork::raw_fork(libc::SIGCHLD as usize, [0; 4]),
        libc::SYS_clone => fork::raw_fork(a, [b, c, d, e]),
        libc::SYS_clone3 => fork::raw_clone3(a, b),
        libc::SYS_execve => {
            exec::execve_answer(libc::AT_FDCWD, a as *const c_char, b as _, c as _, 0)
        }
        libc::SYS_execveat => {
            exec::execve_answer(fd, b as *const c_char, c as _, d as _, e as c_int)
        }
        // SAFETY: the program's pointers.
        libc::SYS_prlimit64 => unsafe { limits::prlimit(a as c_int, b as c_int, c as _, d as _) },
        // SAFETY: as above.
        libc::SYS_setrlimit => unsafe {
            limits::prlimit(0, a as c_int, b as _, std::ptr::null_mut())
        },
        // SAFETY: as above.
        libc::SYS_getrlimit => unsafe { limits::prlimit(0, a as c_int, std::ptr::null(), b as _) },
        libc::SYS_wait4 => wait::raw_wait4(a, b, c, d),
        libc::SYS_waitid => wait::raw_waitid(a, b, c, d, e),
        libc::SYS_mseal => mseal::mseal(a, b, c),
        libc::SYS_shmat => sysv_shm::shmat(a as c_int, b, c as c_int),
        libc::SYS_shmdt => sysv_shm::shmdt(a),
        libc::SYS_futex => futex::futex([a, b, c, d, e, f]),
        libc::SYS_seccomp | libc::SYS_prctl => filters::call(number, [a, b, c, d, e, f]),
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
            process_vm::copy_in_pieces(number, [a, b, c, d, e, f])
        }
        libc::SYS_ptrace => trace::raw_ptrace(a, b, c, d),
        _ => descriptor_call(number, [a, b, c, d, e, f]),
    };
    c_result(answer) as c_long
}

/// Calls on descriptors, which leave those of the library alone. Every call that is not emulated is the kernel's.
fn descriptor_call(number: c_long, args: [usize; 6]) -> SyscallResult {
    let [a, b, c, ..] = args;
    let fd = a as c_int;
    match number {
        libc::SYS_close => fd_guard::close(fd),
        libc::SYS_close_range => fd_guard::close_range(a as u32, b as u32, c as c_int),
        libc::SYS_dup2 => fd_guard::dup2(fd, b as c_int),
        libc::SYS_dup3 => fd_guard::dup3(fd, b as c_int, c as c_int),
        libc::SYS_recvmsg => fd_guard::raw_recvmsg(fd, b, c as c_int),
        // SAFETY: the program asked for exactly this.
        _ => unsafe { syscall6(number, args) },
    }
}
