//! `posix_spawn` and its kin. The C library's own makes the child, in which no code of this library
//! runs: so the policy is decided before, and the environment is made here.

use super::environment::{CStringArray, are_readable, with_preload_env};
use super::{ExecPolicy, policy_for, search_path};
use crate::dlsym::{NextFunction, next_function};
use crate::raw_syscall;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

type Actions = *const libc::posix_spawn_file_actions_t;
type Attributes = *const libc::posix_spawnattr_t;

/// Set once the program has made a list of actions by which a child begins in another folder.
static CHANGES_FOLDER: AtomicBool = AtomicBool::new(false);

/// The program's number, or its descriptor, is written to the first argument.
type Spawn = unsafe extern "C" fn(
    child: *mut c_int,
    path: *const c_char,
    actions: Actions,
    attributes: Attributes,
    argv: CStringArray,
    envp: CStringArray,
) -> c_int;

/// Defines a function that an older C library may lack.
macro_rules! newer_function {
    ($slot:ident = $name:expr) => {
        static $slot: NextFunction = NextFunction::new(concat!($name, "\0"));
    };
}

/// Defines functions that differ in where they find the program, and in what they return of it; each
/// with what stands in for it where the C library is too old.
macro_rules! spawn {
    ($($next:ident $name:ident, $policy:expr, $older:expr;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name(
            child: *mut c_int,
            path: *const c_char,
            actions: Actions,
            attributes: Attributes,
            argv: CStringArray,
            envp: CStringArray,
        ) -> c_int {
            $next!(NEXT = stringify!($name));
            let older: Option<Spawn> = $older;
            // SAFETY: the C library's function of that name has this type.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Spawn>>(NEXT.find()) };
            let Some(real) = next.or(older) else {
                return libc::ENOSYS;
            };
            // SAFETY: the program's own call.
            let go = |envp| unsafe { real(child, path, actions, attributes, argv, envp) };
            if !are_readable(path, envp) {
                return go(envp);
            }
            // SAFETY: the program's string.
            match $policy(unsafe { CStr::from_ptr(path) }, actions) {
                // SAFETY: the program's array.
                ExecPolicy::Paged => unsafe { with_preload_env(envp, go) },
                ExecPolicy::Unpaged => go(envp),
                ExecPolicy::Refused => libc::EACCES,
            }
        }
    )*};
}
spawn! {
    next_function posix_spawn, policy_of_path, None;
    next_function posix_spawnp, policy_along_path, None;
    newer_function pidfd_spawn, policy_of_path, Some(pidfd_of_path);
    newer_function pidfd_spawnp, policy_along_path, Some(pidfd_along_path);
}

/// Defines `pidfd_spawn` and `pidfd_spawnp` by the functions that C libraries before 2.39 have.
macro_rules! pidfd {
    ($($name:ident = $spawn:ident;)*) => {$(
        unsafe extern "C" fn $name(
            child: *mut c_int,
            path: *const c_char,
            actions: Actions,
            attributes: Attributes,
            argv: CStringArray,
            envp: CStringArray,
        ) -> c_int {
            next_function!(NEXT = stringify!($spawn));
            // SAFETY: the C library's function of that name has this type.
            let spawn = unsafe { std::mem::transmute::<*mut c_void, Spawn>(NEXT.find()) };
            let mut pid = 0;
            // SAFETY: the program's own call, but for the place of the number.
            match unsafe { spawn(&raw mut pid, path, actions, attributes, argv, envp) } {
                0 => open_pidfd(pid, child),
                why => why,
            }
        }
    )*};
}
pidfd! {
    pidfd_of_path = posix_spawn;
    pidfd_along_path = posix_spawnp;
}

/// Writes a descriptor of a new child to `to`. A child that cannot have one ends.
fn open_pidfd(pid: libc::pid_t, to: *mut c_int) -> c_int {
    // SAFETY: a child of this process that only this call knows, and the program's place for a descriptor.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid, 0) {
            -1 => {
                let why = raw_syscall::errno();
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
                why
            }
            fd => {
                to.write(fd as c_int);
                0
            }
        }
    }
}

/// Defines the functions that have a child begin in another folder, by the older name of each.
macro_rules! from_folder {
    ($($name:ident = $older:literal ($folder:ty);)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name(
            actions: *mut libc::posix_spawn_file_actions_t,
            folder: $folder,
        ) -> c_int {
            type Real = unsafe extern "C" fn(*mut libc::posix_spawn_file_actions_t, $folder) -> c_int;
            next_function!(NEXT = $older);
            // SAFETY: the C library's function of that name has this type.
            let real = unsafe { std::mem::transmute::<*mut c_void, Real>(NEXT.find()) };
            CHANGES_FOLDER.store(true, Ordering::Relaxed);
            // SAFETY: the program's own call.
            unsafe { real(actions, folder) }
        }
    )*};
}
from_folder! {
    posix_spawn_file_actions_addchdir = "posix_spawn_file_actions_addchdir_np" (*const c_char);
    posix_spawn_file_actions_addchdir_np = "posix_spawn_file_actions_addchdir_np" (*const c_char);
    posix_spawn_file_actions_addfchdir = "posix_spawn_file_actions_addfchdir_np" (c_int);
    posix_spawn_file_actions_addfchdir_np = "posix_spawn_file_actions_addfchdir_np" (c_int);
}

/// Returns true if a path is looked up in this process's folder, and its file can be checked here.
fn is_own_path(path: &CStr, actions: Actions) -> bool {
    let is_childs = !actions.is_null() && CHANGES_FOLDER.load(Ordering::Relaxed);
    path.to_bytes().starts_with(b"/") || !is_childs
}

fn policy_of_path(path: &CStr, actions: Actions) -> ExecPolicy {
    match is_own_path(path, actions) {
        true => policy_for(path),
        false => ExecPolicy::Paged,
    }
}

fn policy_along_path(name: &CStr, actions: Actions) -> ExecPolicy {
    let mut policy = ExecPolicy::Paged;
    search_path(name, |path| {
        if !is_own_path(path, actions) {
            return false;
        }
        let found = rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
        if found {
            policy = policy_for(path);
        }
        found
    });
    policy
}
