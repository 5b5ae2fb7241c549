//! `posix_spawn` and its kin. The C library's own makes the child, in which no code of this library
//! runs: so the policy is decided before, and the environment is made here.

use super::environment::{CStringArray, are_readable, with_limits, with_preload_env};
use super::{ExecPolicy, policy_by, search_path};
use crate::dlsym::{NextFunction, next_function};
use crate::raw_syscall;
use host::{Unpageable, pageable, pageable_with_ids_reset};
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

next_function!(POSIX_SPAWN = "posix_spawn");
next_function!(POSIX_SPAWNP = "posix_spawnp");
/// C libraries before 2.39 lack them: [`next_function`] is for what each has.
static PIDFD_SPAWN: NextFunction = NextFunction::new("pidfd_spawn\0");
static PIDFD_SPAWNP: NextFunction = NextFunction::new("pidfd_spawnp\0");

/// Defines functions that differ in where they find the program, and in what they return of it. Where
/// the C library has no such function, the older one makes the child.
macro_rules! spawn {
    ($($name:ident, $policy:expr, $next:expr, $older:expr;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name(
            child: *mut c_int,
            path: *const c_char,
            actions: Actions,
            attributes: Attributes,
            argv: CStringArray,
            envp: CStringArray,
        ) -> c_int {
            let call = |function: &NextFunction, child, envp| {
                // SAFETY: a function of the C library's of this type, and the program's own call.
                unsafe {
                    let spawn = std::mem::transmute::<*mut c_void, Spawn>(function.find());
                    spawn(child, path, actions, attributes, argv, envp)
                }
            };
            let go = |envp| {
                if !$next.find().is_null() {
                    return call(&$next, child, envp);
                }
                let mut pid = 0;
                match call(&$older, &raw mut pid, envp) {
                    0 => open_pidfd(pid, child),
                    why => why,
                }
            };
            if !are_readable(path, envp) {
                return go(envp);
            }
            // SAFETY: the program's string.
            match $policy(unsafe { CStr::from_ptr(path) }, actions, check_for(attributes)) {
                // SAFETY: the program's array.
                ExecPolicy::Paged => unsafe { with_preload_env(envp, go) },
                // SAFETY: as above.
                ExecPolicy::Unpaged => unsafe { with_limits(envp, go) },
                ExecPolicy::Refused => libc::EACCES,
            }
        }
    )*};
}
spawn! {
    posix_spawn, policy_of_path, POSIX_SPAWN, POSIX_SPAWN;
    posix_spawnp, policy_along_path, POSIX_SPAWNP, POSIX_SPAWNP;
    pidfd_spawn, policy_of_path, PIDFD_SPAWN, POSIX_SPAWN;
    pidfd_spawnp, policy_along_path, PIDFD_SPAWNP, POSIX_SPAWNP;
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

type Check = fn(&CStr) -> Result<(), Unpageable>;

/// The check of a program whose process has these attributes.
fn check_for(attributes: Attributes) -> Check {
    let mut flags = 0;
    // SAFETY: the program's attributes, which the call reads, too.
    let is_read = !attributes.is_null()
        && unsafe { libc::posix_spawnattr_getflags(attributes, &mut flags) } == 0;
    match is_read && c_int::from(flags) & libc::POSIX_SPAWN_RESETIDS != 0 {
        true => pageable_with_ids_reset,
        false => pageable,
    }
}

fn policy_of_path(path: &CStr, actions: Actions, check: Check) -> ExecPolicy {
    match is_own_path(path, actions) {
        true => policy_by(path, check),
        false => ExecPolicy::Paged,
    }
}

fn policy_along_path(name: &CStr, actions: Actions, check: Check) -> ExecPolicy {
    let mut policy = ExecPolicy::Paged;
    search_path(name, |path| {
        if !is_own_path(path, actions) {
            return false;
        }
        let found = rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
        if found {
            policy = policy_by(path, check);
        }
        found
    });
    policy
}
