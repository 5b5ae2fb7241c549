//! The system calls that a pager process keeps: those that move pages. None of them opens a file, makes
//! a socket that leads anywhere, signals, or starts a program.

use crate::raw_syscall::syscall3;

/// Calls without conditions: memory, waiting, the descriptors that there are, its own threads.
const ALLOWED: [std::ffi::c_long; 53] = [
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
    // Where a page fails on a kernel without UFFDIO_POISON, an empty file takes its place.
    libc::SYS_memfd_create,
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
    // Of an IO channel's memory.
    libc::SYS_fstatfs,
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
pub fn install() {
    let program = libc::sock_fprog {
        len: FILTER.len() as u16,
        filter: FILTER.as_ptr().cast_mut(),
    };
    let at = std::ptr::from_ref(&program) as usize;
    let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
    // SAFETY: a filter that the kernel copies. A kernel without filters leaves all calls allowed.
    unsafe { syscall3(libc::SYS_seccomp, mode, 0, at) };
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
