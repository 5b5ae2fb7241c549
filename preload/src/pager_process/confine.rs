//! Drops the pager process's rights: an attacker that takes over the program reaches the pager
//! process by their common memory, and must find no rights there that the program lacks.
//!
//! It starts with the program's own. Before it reads a fault it leaves the program's descriptors,
//! session, process group and working directory; where it may, it takes a user and a group that
//! nothing else has; it drops every capability; and a filter leaves it those system calls that move
//! pages. None of these opens a file, makes a socket that leads anywhere, signals, or starts a
//! program; so what the program itself changes later (user, root directory, capabilities,
//! filters, namespaces) has nothing to follow here.
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

/// Raises the limits that the program's pager would meet when it works for the program, which may
/// have lowered its own: it writes the store's file, maps, locks, opens, and computes. A hard limit
/// that the process may not raise holds.
fn raise_limits() {
    for (resource, most) in [
        (libc::RLIMIT_AS, libc::RLIM_INFINITY),
        (libc::RLIMIT_DATA, libc::RLIM_INFINITY),
        (libc::RLIMIT_FSIZE, libc::RLIM_INFINITY),
        (libc::RLIMIT_MEMLOCK, libc::RLIM_INFINITY),
        (libc::RLIMIT_CPU, libc::RLIM_INFINITY),
        (libc::RLIMIT_RTTIME, libc::RLIM_INFINITY),
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

/// Gives up what the pager process does not need to serve. A step that is not
/// available is skipped: an ordinary user keeps the user, a container without filters the calls.
pub fn give_up_rights() {
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
    // The memory is the program's, too, and so is this mark of it, which a change of user takes.
    if dumpable == 1 {
        call(
            libc::SYS_prctl,
            [libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0],
        );
    }
    call(
        libc::SYS_prctl,
        [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0],
    );
    wired::clock::prepare();
    filter_calls();
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

/// Calls without conditions: memory, waiting, the descriptors that there are, its own threads.
const ALLOWED: [std::ffi::c_long; 51] = [
    libc::SYS_ioctl,
    libc::SYS_futex,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_process_madvise,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_pkey_mprotect,
    libc::SYS_sched_yield,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setscheduler,
    libc::SYS_getcpu,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_eventfd2,
    libc::SYS_socketpair,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls that are allowed where a bit, or a whole word, of their first argument is.
const ALLOWED_WITH_BIT: (std::ffi::c_long, u32) = (libc::SYS_clone, libc::CLONE_THREAD as u32);
const ALLOWED_WITH: (std::ffi::c_long, u32) = (libc::SYS_prctl, libc::PR_SET_NAME as u32);

/// The machine that call numbers are of (`AUDIT_ARCH_X86_64`).
const MACHINE: u32 = 0xc000_003e;

/// Offsets in the kernel's `struct seccomp_data`.
const NUMBER: u32 = 0;
const MACHINE_OF_CALL: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

/// From now on all other calls fail with EPERM, on this thread and those that it starts.
fn filter_calls() {
    let program = libc::sock_fprog {
        len: FILTER.len() as u16,
        filter: FILTER.as_ptr().cast_mut(),
    };
    let at = std::ptr::from_ref(&program) as usize;
    let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
    call(libc::SYS_seccomp, [mode, 0, at, 0, 0]);
}

/// The filter. The kernel compiles it, and runs it for every call number, whenever a process
/// starts: so it finds a number in a few steps, by a search among the ends of runs of allowed
/// numbers.
static FILTER: [libc::sock_filter; FILTER_LEN] = filter();

const FILTER_LEN: usize = HEAD + ENDS + 2;

/// Steps before the tree.
const HEAD: usize = 13;

/// Steps of the tree, which are the ends of runs.
const ENDS: usize = ends(&sorted()).1;

/// The numbers in ascending order.
const fn sorted() -> [u32; ALLOWED.len()] {
    let mut numbers = [0; ALLOWED.len()];
    let mut count = 0;
    while count < ALLOWED.len() {
        let mut at = count;
        while at > 0 && numbers[at - 1] > ALLOWED[count] as u32 {
            numbers[at] = numbers[at - 1];
            at -= 1;
        }
        numbers[at] = ALLOWED[count] as u32;
        count += 1;
    }
    numbers
}

/// Where runs of numbers begin, and the numbers after their last, in turn; and how many there are.
const fn ends(numbers: &[u32; ALLOWED.len()]) -> ([u32; 2 * ALLOWED.len()], usize) {
    let mut ends = [0; 2 * ALLOWED.len()];
    let (mut count, mut at) = (0, 0);
    while at < numbers.len() {
        if count > 0 && ends[count - 1] == numbers[at] {
            ends[count - 1] += 1;
        } else {
            ends[count] = numbers[at];
            ends[count + 1] = numbers[at] + 1;
            count += 2;
        }
        at += 1;
    }
    (ends, count)
}

const fn step(code: u32, k: u32, jt: usize, jf: usize) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    }
}

const fn filter() -> [libc::sock_filter; FILTER_LEN] {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    const ALLOW: libc::sock_filter = step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
    const DENY: libc::sock_filter =
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0);
    let mut filter = [DENY; FILTER_LEN];
    filter[0] = step(LOAD, MACHINE_OF_CALL, 0, 0);
    filter[1] = step(EQUAL, MACHINE, 1, 0);
    filter[3] = step(LOAD, NUMBER, 0, 0);
    filter[4] = step(EQUAL, ALLOWED_WITH_BIT.0 as u32, 0, 3);
    filter[5] = step(LOAD, FIRST_ARGUMENT, 0, 0);
    filter[6] = step(BIT, ALLOWED_WITH_BIT.1, 5, 0);
    filter[8] = step(EQUAL, ALLOWED_WITH.0 as u32, 0, HEAD - 9);
    filter[9] = step(LOAD, FIRST_ARGUMENT, 0, 0);
    filter[10] = step(EQUAL, ALLOWED_WITH.1, 1, 0);
    filter[12] = ALLOW;
    let numbers = sorted();
    put_tree(&mut filter, &ends(&numbers).0, 0, ENDS, HEAD);
    filter[HEAD + ENDS] = ALLOW;
    filter
}

/// Writes, from `at` on, the steps that find a number among the ends `first..last`. Below an odd
/// count of ends a number is in a run.
const fn put_tree(
    filter: &mut [libc::sock_filter; FILTER_LEN],
    ends: &[u32; 2 * ALLOWED.len()],
    first: usize,
    last: usize,
    at: usize,
) {
    const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    let middle = first + (last - first) / 2;
    let above = at + 1 + (middle - first);
    // Distance to the verdict on a number that is past so many ends.
    const fn verdict(ends: usize, at: usize) -> usize {
        HEAD + ENDS + (ends + 1) % 2 - (at + 1)
    }
    let (mut jt, mut jf) = (verdict(middle + 1, at), verdict(middle, at));
    if middle > first {
        jf = 0;
        put_tree(filter, ends, first, middle, at + 1);
    }
    if last > middle + 1 {
        jt = above - (at + 1);
        put_tree(filter, ends, middle + 1, last, above);
    }
    filter[at] = step(AT_LEAST, ends[middle], jt, jf);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter answers, as the kernel runs it.
    fn answer(machine: u32, number: u32, first_argument: u32) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let step = FILTER[at];
            at += 1;
            let is = match (u32::from(step.code) & 0x07, u32::from(step.code) & 0xf0) {
                (libc::BPF_RET, _) => return step.k,
                (libc::BPF_LD, _) => {
                    word = match step.k {
                        NUMBER => number,
                        MACHINE_OF_CALL => machine,
                        FIRST_ARGUMENT => first_argument,
                        other => panic!("a load from {other}"),
                    };
                    continue;
                }
                (libc::BPF_JMP, libc::BPF_JEQ) => word == step.k,
                (libc::BPF_JMP, libc::BPF_JGE) => word >= step.k,
                (libc::BPF_JMP, libc::BPF_JSET) => word & step.k != 0,
                other => panic!("a step {other:?}"),
            };
            at += usize::from(if is { step.jt } else { step.jf });
        }
    }

    #[test]
    fn the_filter_allows_the_calls_of_the_list_and_no_others() {
        for number in 0..1024 {
            let listed = ALLOWED.contains(&number.into());
            for argument in [0, 1, ALLOWED_WITH.1, ALLOWED_WITH_BIT.1, u32::MAX] {
                let with_bit =
                    i64::from(number) == ALLOWED_WITH_BIT.0 && argument & ALLOWED_WITH_BIT.1 != 0;
                let with = i64::from(number) == ALLOWED_WITH.0 && argument == ALLOWED_WITH.1;
                let allowed = answer(MACHINE, number, argument) == libc::SECCOMP_RET_ALLOW;
                assert_eq!(
                    allowed,
                    listed || with_bit || with,
                    "call {number}, {argument}"
                );
            }
            assert_ne!(answer(MACHINE ^ 1, number, 0), libc::SECCOMP_RET_ALLOW);
        }
    }
}
