//! Drops the pager process's rights: an attacker that takes over the program reaches the pager
//! process by their common memory, and must find no rights there that the program lacks.
//!
//! It starts with the program's own. Before it reads a fault it leaves the program's descriptors,
//! session, process group and working directory; where it may, it takes a user and a group that
//! nothing else has; it drops every capability; and a filter leaves it those system calls that move
//! pages ([`call_filter`]). None of these opens a file, makes a socket that leads anywhere, signals,
//! or starts a program; so what the program itself changes later (user, root directory,
//! capabilities, filters, namespaces) has nothing to follow here.

use super::call_filter;
use crate::raw_syscall::{SyscallResult, is_error, syscall6};
use crate::supervisor;

/// The first of the numbers from which a user and a group are drawn that own no file and run no
/// other process. The user of number 65534 does run some: its processes could trace this one, and
/// reach the program's memory.
const UNUSED: u32 = 0x6000_0000;
/// Count of these numbers.
const UNUSED_COUNT: u32 = 0x1000_0000;

fn call(number: std::ffi::c_long, args: [usize; 5]) -> SyscallResult {
    let [a, b, c, d, e] = args;
    // SAFETY: called below with arguments that live through the call.
    unsafe { syscall6(number, [a, b, c, d, e, 0]) }
}

/// Leaves what a new process shares with the program or has a copy of. The port stays:
/// messages go through it.
pub fn leave_program() {
    super::threads::name(c"selfpage-pager");
    // The program may have denied itself the processor's counter; the pager's clock needs it.
    call(
        libc::SYS_prctl,
        [
            libc::PR_SET_TSC as usize,
            libc::PR_TSC_ENABLE as usize,
            0,
            0,
            0,
        ],
    );
    // Its core dump would hold the program's memory.
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let none = std::ptr::from_ref(&none) as usize;
    call(
        libc::SYS_setrlimit,
        [libc::RLIMIT_CORE as usize, none, 0, 0, 0],
    );
    raise_limits();
    // Signals to the program's process group or terminal do not reach this process.
    call(libc::SYS_setsid, [0; 5]);
    call(libc::SYS_chdir, [c"/".as_ptr() as usize, 0, 0, 0, 0]);
    let close = |first: u32, last: u32| {
        call(
            libc::SYS_close_range,
            [first as usize, last as usize, 0, 0, 0],
        );
    };
    match supervisor::guarded_fd().map(|fd| fd as u32) {
        Some(port) => {
            if port > 0 {
                close(0, port - 1);
            }
            close(port + 1, u32::MAX);
        }
        None => close(0, u32::MAX),
    }
    occupy_standard_streams();
}

/// Descriptors that a pager process needs, with room.
const DESCRIPTORS: u64 = 1024;

/// Raises limits that the program may have lowered for itself: the pager process writes the store's
/// file, maps, locks, opens, computes, and starts threads for the program. A hard limit that the
/// process may not raise holds.
fn raise_limits() {
    for (resource, most) in [
        (libc::RLIMIT_AS, libc::RLIM_INFINITY),
        (libc::RLIMIT_DATA, libc::RLIM_INFINITY),
        (libc::RLIMIT_FSIZE, libc::RLIM_INFINITY),
        (libc::RLIMIT_MEMLOCK, libc::RLIM_INFINITY),
        (libc::RLIMIT_CPU, libc::RLIM_INFINITY),
        (libc::RLIMIT_RTTIME, libc::RLIM_INFINITY),
        (libc::RLIMIT_NPROC, libc::RLIM_INFINITY),
        (libc::RLIMIT_NOFILE, DESCRIPTORS),
    ] {
        let mut now = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        let at = std::ptr::from_mut(&mut now) as usize;
        call(libc::SYS_getrlimit, [resource as usize, at, 0, 0, 0]);
        if now.rlim_cur >= most {
            continue;
        }
        let hard = now.rlim_max;
        for most in [most.max(hard), hard] {
            let raised = libc::rlimit {
                rlim_cur: most,
                rlim_max: most,
            };
            let at = std::ptr::from_ref(&raised) as usize;
            if !is_error(call(libc::SYS_setrlimit, [resource as usize, at, 0, 0, 0])) {
                break;
            }
        }
    }
}

/// Puts an event counter at descriptors 0 to 2: code of the program's that a thread of the pager
/// may run into (a sanitizer's report) writes to them, and would write into shared memory.
fn occupy_standard_streams() {
    for stream in 0..=2 {
        let flags = libc::EFD_NONBLOCK as usize;
        let fd = call(libc::SYS_eventfd2, [0, flags, 0, 0, 0]);
        if is_error(fd) || fd > stream {
            call(libc::SYS_close, [fd as usize, 0, 0, 0, 0]);
        }
    }
}

/// Leaves the user, the groups and the capabilities. An ordinary user keeps the user.
///
/// The program waits meanwhile: a change of user takes the mark that a process may be traced from
/// the memory, which is the program's, too. It must not see that, nor have a mark of its own undone.
pub fn leave_user() {
    let dumpable = call(
        libc::SYS_prctl,
        [libc::PR_GET_DUMPABLE as usize, 0, 0, 0, 0],
    );
    if let Some(unused) = unused_number() {
        call(libc::SYS_setgroups, [0; 5]);
        call(libc::SYS_setresgid, [unused, unused, unused, 0, 0]);
        call(libc::SYS_setresuid, [unused, unused, unused, 0, 0]);
    }
    drop_capabilities();
    if dumpable == 1 {
        call(
            libc::SYS_prctl,
            [libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0],
        );
    }
}

/// Gives up the system calls that the pager process does not need to serve, where the kernel has filters.
pub fn filter_calls() {
    call(
        libc::SYS_prctl,
        [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0],
    );
    call_filter::install();
}

fn unused_number() -> Option<usize> {
    let mut random = 0u32;
    let at = std::ptr::from_mut(&mut random) as usize;
    let drawn = call(libc::SYS_getrandom, [at, size_of::<u32>(), 0, 0, 0]);
    (drawn == size_of::<u32>() as SyscallResult).then(|| (UNUSED + random % UNUSED_COUNT) as usize)
}

fn drop_capabilities() {
    /// Of `capset`, for 64 capabilities.
    const VERSION_3: u32 = 0x2008_0522;
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    // Effective, permitted, inheritable, in two halves.
    let none = [0u32; 6];
    let (header, none) = (std::ptr::from_ref(&header), none.as_ptr());
    call(libc::SYS_capset, [header as usize, none as usize, 0, 0, 0]);
}
