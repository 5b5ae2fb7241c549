//! The seccomp filter of a tree: the calls that stop at it, and its listener.
//!
//! A page that the kernel or a device writes into by a reference of its own must not be copied out and
//! discarded (`translation::pinned`). Checking each page costs time, so pagers check only once pages of
//! the tree can be held at all. The few system calls that make this possible (`CALLS`) stop at this
//! filter, and the supervisor decides when they continue. A call that discards memory stops likewise,
//! since the pager may store pages of it. The filter adds 32 to 55 ns to every other system call.
//!
//! Every process of a tree is under the filter for good: across exec, after setuid, in other
//! namespaces, with all descriptors closed. So it is also how a process reaches its supervisor:
//! [`call`].
//!
//! Not covered: the 32-bit system call table of a 64-bit program, processes outside of the tree
//! that write into one within, and what holds pages by plain references, which the check does
//! not find (NFS and Ceph with O_DIRECT, 9p, a FUSE server's own reads, vmsplice).

pub mod call;
pub mod listener;

pub use listener::Listener;

use rustix::fd::{FromRawFd, OwnedFd};
use rustix::io::{self, Errno};

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Offsets in the kernel's `struct seccomp_data`; arguments by their low halves.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const INSTRUCTION: u32 = 8;
const fn argument(n: u32) -> u32 {
    16 + 8 * n
}

const NATIVE: u32 = 0xc000_003e;

/// The high half of the addresses of shared libraries, which the kernel maps downwards from the top. An
/// executed file lies lower, unless the loader itself is executed. (Without a limit on the stack
/// libraries lie lower, too: their calls then stop.)
const LIBRARIES: u32 = 0x7000;

/// The bit of x32's system call numbers; x32's table also has calls of its own.
const OTHER_TABLE: u32 = 0x4000_0000;

const fn op(code: u16, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: yes,
        jf: no,
        k,
    }
}

const fn load(at: u32) -> libc::sock_filter {
    op(LOAD, at, 0, 0)
}

const ALLOW: libc::sock_filter = op(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
const NOTIFY: libc::sock_filter = op(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0, 0);

/// Which of the calls with one number stop. Arguments are counted from 0.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// An argument has this bit.
    Has(u32, i32),
    /// An argument has this value, and another has this bit.
    IsAndHas(u32, i32, u32, i32),
    /// An argument is one of these values.
    IsOneOf(u32, &'static [u32]),
    /// An argument, all 64 bits of it, is not this value.
    IsNot(u32, u64),
    /// An argument is one of these values, another is not this value, and the caller is not a shared library.
    IsOneOfAndIsNot(u32, &'static [u32], u32, u64),
}

/// Calls after which the kernel may write into pages that it holds, without a trace that a
/// pager could see, and calls that discard memory that a pager stores. One row for each number.
const CALLS: [(libc::c_long, When); 15] = [
    // Files.
    (libc::SYS_open, When::Has(1, libc::O_DIRECT)),
    (libc::SYS_openat, When::Has(2, libc::O_DIRECT)),
    (libc::SYS_openat2, When::Always),
    (libc::SYS_open_by_handle_at, When::Has(2, libc::O_DIRECT)),
    (
        libc::SYS_fcntl,
        When::IsAndHas(1, libc::F_SETFL, 2, libc::O_DIRECT),
    ),
    // Another process's descriptor.
    (libc::SYS_pidfd_getfd, When::Always),
    // Reads and writes that continue after the call.
    (libc::SYS_io_uring_setup, When::IsNot(5, wired::PAGER_TAG)),
    (libc::SYS_io_setup, When::Always),
    // Another process's memory, while the caller's own is read.
    (libc::SYS_process_vm_writev, When::Always),
    // Devices, and the kernel's ciphers.
    (libc::SYS_ioctl, When::IsOneOf(1, &PINNING)),
    (
        libc::SYS_socket,
        When::IsOneOf(0, &[libc::AF_ALG as u32, AF_XDP]),
    ),
    // File systems that read straight into memory.
    (libc::SYS_mount, When::Always),
    (libc::SYS_fsopen, When::Always),
    (libc::SYS_setns, When::Always),
    // Contents that the pager may have in its store. Calls of the C library, which discards the stacks of
    // ended threads, do not stop: no thread reads them again, and a stop would cost 0.2 ms a thread.
    (
        libc::SYS_madvise,
        When::IsOneOfAndIsNot(2, &NOTIFIED_ADVICE, 3, wired::PAGER_TAG),
    ),
];

/// MADV_GUARD_INSTALL of Linux 6.13.
pub const GUARD_INSTALL: u32 = 102;

/// Advice that discards private memory, or guards it.
const NOTIFIED_ADVICE: [u32; 4] = [
    libc::MADV_DONTNEED as u32,
    libc::MADV_FREE as u32,
    libc::MADV_DONTNEED_LOCKED as u32,
    GUARD_INSTALL,
];

/// linux/socket.h.
pub(crate) const AF_XDP: u32 = 44;

/// Device ioctls that read or write the caller's pages in place.
const PINNING: [u32; 12] = [
    0x2285,      // SG_IO
    0xc048_4e41, // NVME_IOCTL_ADMIN_CMD
    0x4030_4e42, // NVME_IOCTL_SUBMIT_IO
    0xc048_4e43, // NVME_IOCTL_IO_CMD
    0xc050_4e47, // NVME_IOCTL_ADMIN64_CMD
    0xc050_4e48, // NVME_IOCTL_IO64_CMD
    0xc050_4e49, // NVME_IOCTL_IO64_CMD_VEC
    0xc014_5608, // VIDIOC_REQBUFS
    0xc100_565c, // VIDIOC_CREATE_BUFS
    0x3b71,      // VFIO_IOMMU_MAP_DMA
    0x3b85,      // IOMMU_IOAS_MAP
    0xc018_1b01, // RDMA_VERBS_IOCTL
];

/// Instructions of a row.
const fn length(when: When) -> usize {
    match when {
        When::Always => 2,
        When::Has(..) => 5,
        When::IsAndHas(..) => 7,
        When::IsOneOf(_, values) => 4 + values.len(),
        When::IsNot(..) => 7,
        When::IsOneOfAndIsNot(_, values, ..) => 11 + values.len(),
    }
}

/// Instructions before the rows.
const HEAD: usize = 7;

const LENGTH: usize = {
    let (mut all, mut n) = (HEAD + 1, 0);
    while n < CALLS.len() {
        all += length(CALLS[n].1);
        n += 1;
    }
    all
};

/// One instruction more than there are values. If the argument is none of the values, execution continues at the
/// next instruction, [`ALLOW`]; otherwise at the one after that.
const fn is_one_of(
    program: &mut [libc::sock_filter; LENGTH],
    at: usize,
    place: u32,
    values: &[u32],
) {
    program[at] = load(argument(place));
    let mut v = 0;
    while v < values.len() {
        program[at + 1 + v] = op(IF_EQUAL, values[v], (values.len() - v) as u8, 0);
        v += 1;
    }
}

/// Four instructions. If the argument has the value, execution continues at the next instruction,
/// [`ALLOW`]; otherwise at the one after that.
const fn is_not(program: &mut [libc::sock_filter; LENGTH], at: usize, place: u32, value: u64) {
    program[at] = load(argument(place));
    program[at + 1] = op(IF_EQUAL, value as u32, 0, 3);
    program[at + 2] = load(argument(place) + 4);
    program[at + 3] = op(IF_EQUAL, (value >> 32) as u32, 0, 1);
}

/// The rows as the kernel runs them; jumps count from the next instruction.
static PROGRAM: [libc::sock_filter; LENGTH] = {
    let mut program = [ALLOW; LENGTH];
    program[0] = load(ARCH);
    program[1] = op(IF_EQUAL, NATIVE, 1, 0);
    program[2] = ALLOW;
    program[3] = load(NUMBER);
    // -1 is in no table: tracers put it in place of a call.
    program[4] = op(IF_EQUAL, u32::MAX, (LENGTH - 6) as u8, 0);
    program[5] = op(IF_ANY, OTHER_TABLE, 0, 1);
    program[6] = NOTIFY;
    let (mut at, mut n) = (HEAD, 0);
    while n < CALLS.len() {
        let (number, when) = CALLS[n];
        let next = at + length(when);
        program[at] = op(IF_EQUAL, number as u32, 0, (next - at - 1) as u8);
        match when {
            When::Always => {}
            When::Has(place, bit) => {
                program[at + 1] = load(argument(place));
                program[at + 2] = op(IF_ANY, bit as u32, 1, 0);
            }
            When::IsAndHas(place, value, other, bit) => {
                program[at + 1] = load(argument(place));
                program[at + 2] = op(IF_EQUAL, value as u32, 0, 2);
                program[at + 3] = load(argument(other));
                program[at + 4] = op(IF_ANY, bit as u32, 1, 0);
            }
            When::IsOneOf(place, values) => is_one_of(&mut program, at + 1, place, values),
            When::IsNot(place, value) => is_not(&mut program, at + 1, place, value),
            When::IsOneOfAndIsNot(place, values, other, value) => {
                is_one_of(&mut program, at + 1, place, values);
                let next = at + 3 + values.len();
                program[next] = load(INSTRUCTION + 4);
                program[next + 1] = op(IF_AT_LEAST, LIBRARIES, 4, 0);
                is_not(&mut program, next + 2, other, value);
            }
        }
        // The instruction before this one is ALLOW.
        program[next - 1] = NOTIFY;
        at = next;
        n += 1;
    }
    program
};
const _: () = assert!(LENGTH < 256, "a jump is a byte");

/// Returns true if a call's number is of the x32 table.
pub const fn is_of_other_table(number: i32) -> bool {
    number as u32 & OTHER_TABLE != 0
}

/// Installs the filter on this process and all that it starts, for ever, and returns the
/// listener for the supervisor. By raw system calls only, between fork and exec.
///
/// Without the privilege to filter, the process gives up gaining any by exec
/// (no_new_privs): set-user-ID programs below it run without theirs.
pub fn install() -> io::Result<OwnedFd> {
    // A call that the supervisor has received waits for the reply unless the process is killed: a
    // program whose timer interrupts it would otherwise restart it again and again.
    let killable = 1u64 << 5;
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | killable;
    match set_filter(flags) {
        Err(Errno::ACCESS) => {
            rustix::thread::set_no_new_privs(true)?;
            set_filter(flags)
        }
        other => other,
    }
}

fn set_filter(flags: u64) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog {
        len: PROGRAM.len() as u16,
        filter: PROGRAM.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads the program, which is static, and writes nothing.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match fd {
        // SAFETY: a descriptor the kernel just made for us.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(crate::last_errno()),
    }
}
