//! `posix_spawn` and its kin. The C library's own makes the child, in which no code of this library
//! runs: so the policy is decided before, and the environment is made here.

use super::environment::{CStringArray, are_readable, with_preload_env};
use super::{ExecPolicy, policy_for, search_path};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

type Actions = *const libc::posix_spawn_file_actions_t;
type Attributes = *const libc::posix_spawnattr_t;

/// Set once the program has made a list of actions by which a child begins in another folder.
static CHANGES_FOLDER: AtomicBool = AtomicBool::new(false);

/// Defines `posix_spawn` and `posix_spawnp`, which differ in where they find the program.
macro_rules! spawn {
    ($name:ident, $policy:expr) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: Actions,
            attributes: Attributes,
            argv: CStringArray,
            envp: CStringArray,
        ) -> c_int {
            crate::dlsym::next! {
                /// The C library's own function.
                fn $name(
                    pid: *mut libc::pid_t,
                    path: *const c_char,
                    actions: Actions,
                    attributes: Attributes,
                    argv: CStringArray,
                    envp: CStringArray
                ) -> c_int
            }
            // SAFETY: the program's own call.
            let go = |envp| unsafe { $name(pid, path, actions, attributes, argv, envp) };
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
    };
}
spawn!(posix_spawn, policy_of_path);
spawn!(posix_spawnp, policy_along_path);

/// Defines the functions that have a child begin in another folder.
macro_rules! from_folder {
    ($($name:ident($folder:ty);)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        extern "C" fn $name(
            actions: *mut libc::posix_spawn_file_actions_t,
            folder: $folder,
        ) -> c_int {
            crate::dlsym::next! {
                /// The C library's own function.
                fn $name(
                    actions: *mut libc::posix_spawn_file_actions_t,
                    folder: $folder
                ) -> c_int
            }
            CHANGES_FOLDER.store(true, Ordering::Relaxed);
            // SAFETY: the program's own call.
            unsafe { $name(actions, folder) }
        }
    )*};
}
from_folder! {
    posix_spawn_file_actions_addchdir_np(*const c_char);
    posix_spawn_file_actions_addfchdir_np(c_int);
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
