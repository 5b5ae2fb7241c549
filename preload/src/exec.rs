//! Exec: a program's children belong to the tree, even with an environment of their own.
//!
//! Rule: safe between vfork and exec: this code allocates on no heap.

mod environment;
mod scratch;
mod shell;
mod spawn;

use crate::cancellation::CancellationDisabled;
use crate::raw_syscall::{SyscallResult, c_result, error, syscall3, syscall6};
use crate::{address_space, diagnostics, limits, supervisor};
use environment::{are_readable, is_readable_path, with_limits, with_preload_env};
use host::{Unpageable, pageable};
use scratch::with_scratch;
use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::ptr::null;

pub use environment::{CStringArray, save_environment, strings};
pub use scratch::unmap_leftovers;

/// The decision about a program to execute.
enum ExecPolicy {
    /// It runs in the tree.
    Paged,
    /// It runs unpaged, as `--allow-unpaged` permits.
    Unpaged,
    /// It does not run.
    Refused,
}

fn policy_for(path: &CStr) -> ExecPolicy {
    policy_by(path, pageable)
}

/// The policy for a program, by a check of whether a pager can be loaded into it.
fn policy_by(path: &CStr, check: impl FnOnce(&CStr) -> Result<(), Unpageable>) -> ExecPolicy {
    if !address_space::is_active() {
        return ExecPolicy::Paged;
    }
    let _uncancelled = CancellationDisabled::new();
    if let Err(why) = check(path) {
        return policy_without_pager(path, format_args!("{why:#}"), format_args!("{why}"));
    }
    let Some(library) = environment::unreadable_library().filter(|_| is_there(path)) else {
        return ExecPolicy::Paged;
    };
    let library = std::str::from_utf8(library.to_bytes()).unwrap_or("the pager's library");
    let why = format_args!("{library} is not readable in the program's root directory by its user");
    let advice =
        format_args!("put it there, or use --allow-unpaged to let it run outside the contract");
    policy_without_pager(path, why, format_args!("{why}: {advice}"))
}

/// The policy for a program that no pager can be loaded into, logged with the reason, or the reason and what to do.
fn policy_without_pager(
    path: &CStr,
    why: std::fmt::Arguments<'_>,
    why_and_advice: std::fmt::Arguments<'_>,
) -> ExecPolicy {
    match supervisor::allows_unpaged() {
        true => {
            log_decision(path, format_args!("runs without a pager: {why}"));
            ExecPolicy::Unpaged
        }
        false => {
            log_decision(path, format_args!("refused: {why_and_advice}"));
            ExecPolicy::Refused
        }
    }
}

/// Returns true if there is a file; otherwise exec decides about the path.
fn is_there(path: &CStr) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok()
}

fn log_decision(path: &CStr, what: std::fmt::Arguments<'_>) {
    let path = std::str::from_utf8(path.to_bytes()).unwrap_or("a program");
    diagnostics::log(format_args!("{path}: {what}"));
}

/// The policy for the path that the program's `execveat` means.
fn policy_at(dir: c_int, path: &CStr, flags: c_int) -> ExecPolicy {
    let bytes = path.to_bytes();
    let empty = bytes.is_empty() && flags & libc::AT_EMPTY_PATH != 0;
    if bytes.starts_with(b"/") || dir == libc::AT_FDCWD && !empty {
        return policy_for(path);
    }
    /// Bytes of the longest name of a descriptor.
    const DESCRIPTOR: usize = "/proc/self/fd/-2147483648/".len();
    with_string(
        DESCRIPTOR + bytes.len(),
        |buffer| {
            write!(buffer, "/proc/self/fd/{dir}")?;
            if !empty {
                buffer.write_all(b"/")?;
            }
            buffer.write_all(bytes)
        },
        policy_for,
    )
    .unwrap_or(ExecPolicy::Paged)
}

/// Calls `go` with the C string of at most `len` bytes that `put` writes; `None` if there is no memory
/// for it.
fn with_string<R>(
    len: usize,
    put: impl FnOnce(&mut &mut [u8]) -> std::io::Result<()>,
    go: impl FnOnce(&CStr) -> R,
) -> Option<R> {
    with_scratch(len + 1, |memory| {
        let memory = memory?;
        // SAFETY: as long as that, and initialised here.
        let buffer = unsafe {
            memory.write_bytes(0, len + 1);
            std::slice::from_raw_parts_mut(memory, len + 1)
        };
        put(&mut &mut buffer[..len]).ok()?;
        CStr::from_bytes_until_nul(buffer).ok().map(go)
    })
}

/// `execve` and `execveat` as system calls: an error, or no return.
pub fn execve_answer(
    dir: c_int,
    path: *const c_char,
    argv: CStringArray,
    envp: CStringArray,
    flags: c_int,
) -> SyscallResult {
    match try_exec(dir, path, argv, envp, flags) {
        Ok(answer) => answer,
        Err(()) => error(libc::EACCES),
    }
}

/// The same; `Err` is a refusal of ours, as opposed to an error of the kernel's.
fn try_exec(
    dir: c_int,
    path: *const c_char,
    argv: CStringArray,
    envp: CStringArray,
    flags: c_int,
) -> Result<SyscallResult, ()> {
    let call = |envp: CStringArray| {
        let args = [
            dir as usize,
            path as usize,
            argv as usize,
            envp as usize,
            flags as usize,
            0,
        ];
        match (dir, flags) {
            // SAFETY: the program asked for exactly this.
            (libc::AT_FDCWD, 0) => unsafe { syscall3(libc::SYS_execve, args[1], args[2], args[3]) },
            // SAFETY: as above.
            _ => unsafe { syscall6(libc::SYS_execveat, args) },
        }
    };
    if !address_space::is_active() || !are_readable(path, envp) {
        return Ok(call(envp));
    }
    // SAFETY: the program's string.
    match policy_at(dir, unsafe { CStr::from_ptr(path) }, flags) {
        // SAFETY: the program's array.
        ExecPolicy::Paged => Ok(unsafe { with_preload_env(envp, call) }),
        // SAFETY: as above.
        ExecPolicy::Unpaged => Ok(unsafe {
            with_limits(envp, |envp| {
                let _limits = limits::LimitsWithoutRoom::set();
                call(envp)
            })
        }),
        ExecPolicy::Refused => Err(()),
    }
}

unsafe extern "C" {
    static environ: CStringArray;
    fn selfpage_v_execl();
    fn selfpage_v_execlp();
    fn selfpage_v_execle();
}

fn current_environ() -> CStringArray {
    // SAFETY: the C library's variable; the program owns what it points to.
    unsafe { environ }
}

/// `execve`, also by the variadic functions.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn selfpage_execve(
    path: *const c_char,
    argv: CStringArray,
    envp: CStringArray,
) -> c_int {
    c_result(execve_answer(libc::AT_FDCWD, path, argv, envp, 0)) as c_int
}

/// `execvpe`, also by the variadic functions: looks along PATH as the C library does.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn selfpage_execvpe(
    file: *const c_char,
    argv: CStringArray,
    envp: CStringArray,
) -> c_int {
    if !is_readable_path(file) {
        return selfpage_execve(file, argv, envp);
    }
    // SAFETY: the program's string.
    let name = unsafe { CStr::from_ptr(file) };
    match name.to_bytes().len() {
        0 => return c_result(error(libc::ENOENT)) as c_int,
        len if len > libc::NAME_MAX as usize && !name.to_bytes().contains(&b'/') => {
            return c_result(error(libc::ENAMETOOLONG)) as c_int;
        }
        _ => {}
    }
    let mut last = error(libc::ENOENT);
    let mut denied = false;
    search_path(name, |path| {
        let mut answer = match try_exec(libc::AT_FDCWD, path.as_ptr(), argv, envp, 0) {
            Ok(answer) => answer,
            Err(()) => {
                last = error(libc::EACCES);
                return true;
            }
        };
        if answer == error(libc::ENOEXEC) {
            answer = exec_by_shell(path, argv, envp);
        }
        last = answer;
        denied |= answer == error(libc::EACCES);
        !continues_search(answer)
    });
    if denied && continues_search(last) {
        last = error(libc::EACCES);
    }
    c_result(last) as c_int
}

/// Returns true for the errors after which the next folder is tried; any other is the reason of the failure.
fn continues_search(answer: SyscallResult) -> bool {
    matches!(
        -answer as c_int,
        libc::EACCES | libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT
    )
}

/// Calls `take` for every path that `name` may be at, until it returns true.
fn search_path(name: &CStr, mut take: impl FnMut(&CStr) -> bool) {
    let bytes = name.to_bytes();
    if bytes.contains(&b'/') {
        take(name);
        return;
    }
    // SAFETY: the program's environment.
    let listed =
        unsafe { strings(current_environ()) }.find_map(|e| e.to_bytes().strip_prefix(b"PATH="));
    for dir in listed.unwrap_or(b"/bin:/usr/bin").split(|b| *b == b':') {
        let len = dir.len() + 1 + bytes.len();
        if len >= libc::PATH_MAX as usize {
            continue;
        }
        let put = |buffer: &mut &mut [u8]| {
            if !dir.is_empty() {
                buffer.write_all(dir)?;
                buffer.write_all(b"/")?;
            }
            buffer.write_all(bytes)
        };
        if with_string(len, put, &mut take) == Some(true) {
            return;
        }
    }
}

/// Runs a file of an unknown format as a shell script.
fn exec_by_shell(path: &CStr, argv: CStringArray, envp: CStringArray) -> SyscallResult {
    // SAFETY: the program's array.
    let rest = || unsafe { strings(argv) }.skip(1).map(CStr::as_ptr);
    let shell = c"/bin/sh".as_ptr();
    with_scratch(
        (rest().count() + 3) * size_of::<*const c_char>(),
        |memory| {
            let Some(memory) = memory else {
                return error(libc::ENOMEM);
            };
            let args = memory.cast::<*const c_char>();
            let all = [shell, path.as_ptr()].into_iter().chain(rest());
            for (n, arg) in all.chain([null()]).enumerate() {
                // SAFETY: room for all of them, as computed.
                unsafe { args.add(n).write(arg) };
            }
            execve_answer(libc::AT_FDCWD, shell, args.cast_const(), envp, 0)
        },
    )
}

/// The functions as the program calls them.
mod exports {
    use super::*;
    use std::arch::naked_asm;

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn execve(path: *const c_char, argv: CStringArray, envp: CStringArray) -> c_int {
        selfpage_execve(path, argv, envp)
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn execv(path: *const c_char, argv: CStringArray) -> c_int {
        selfpage_execve(path, argv, current_environ())
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn execvp(file: *const c_char, argv: CStringArray) -> c_int {
        selfpage_execvpe(file, argv, current_environ())
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn execvpe(file: *const c_char, argv: CStringArray, envp: CStringArray) -> c_int {
        selfpage_execvpe(file, argv, envp)
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn execveat(
        dir: c_int,
        path: *const c_char,
        argv: CStringArray,
        envp: CStringArray,
        flags: c_int,
    ) -> c_int {
        c_result(execve_answer(dir, path, argv, envp, flags)) as c_int
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn fexecve(fd: c_int, argv: CStringArray, envp: CStringArray) -> c_int {
        if fd < 0 || argv.is_null() || envp.is_null() {
            return c_result(error(libc::EINVAL)) as c_int;
        }
        c_result(execve_answer(
            fd,
            c"".as_ptr(),
            argv,
            envp,
            libc::AT_EMPTY_PATH,
        )) as c_int
    }

    /// Goes on in C, arguments and all.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    #[unsafe(naked)]
    unsafe extern "C" fn execl() {
        naked_asm!("jmp {}", sym selfpage_v_execl)
    }

    /// Goes on in C, arguments and all.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    #[unsafe(naked)]
    unsafe extern "C" fn execlp() {
        naked_asm!("jmp {}", sym selfpage_v_execlp)
    }

    /// Goes on in C, arguments and all.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    #[unsafe(naked)]
    unsafe extern "C" fn execle() {
        naked_asm!("jmp {}", sym selfpage_v_execle)
    }
}
