//! Direct I/O is noticed before it begins.
//!
//! A page that a device writes into must not be copied out and discarded
//! (`translation::pinned`). Checking each page costs, so pagers check only once the tree can do
//! direct I/O at all. The few system calls that bring that about stop at a seccomp
//! filter and wait for the system domain: it sets the board's flag, waits until every
//! pager has seen it, and lets the call go on. Every other system call pays 32 to 55 ns.
//!
//! Rule: a call goes on only when every pager that could be evicting checks. One that
//! cannot be waited for long enough is answered with the error of a kernel without
//! direct I/O, never let through.
//!
//! Not seen: descriptors received over a socket from outside of the tree, and io_uring
//! or O_DIRECT by the 32-bit system call table of a 64-bit program.

use crate::board::Board;
use crate::tree::Stat;
use crate::wire::Slot;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::process::Pid;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a call may wait for the tree's pagers: an eviction takes well under a
/// second, a machine in trouble a few.
const LIMIT: Duration = Duration::from_secs(5);

/// What every pager of the tree must have seen.
const CAREFUL: u32 = 1;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_ANY: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Offsets in the kernel's `struct seccomp_data`; arguments by their low halves.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(n: u32) -> u32 {
    16 + 8 * n
}

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

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
const O_DIRECT: u32 = libc::O_DIRECT as u32;

/// Calls that always notify, calls that do when an argument has O_DIRECT, and fcntl.
/// Jumps count from the next instruction.
#[cfg(target_arch = "x86_64")]
static PROGRAM: [libc::sock_filter; 20] = [
    load(ARCH),
    op(IF_EQUAL, NATIVE, 0, 16),
    load(NUMBER),
    op(IF_EQUAL, libc::SYS_openat as u32, 6, 0),
    op(IF_EQUAL, libc::SYS_fcntl as u32, 9, 0),
    op(IF_EQUAL, libc::SYS_open as u32, 6, 0),
    op(IF_EQUAL, libc::SYS_io_uring_setup as u32, 12, 0),
    op(IF_EQUAL, libc::SYS_io_setup as u32, 11, 0),
    op(IF_EQUAL, libc::SYS_openat2 as u32, 10, 0),
    ALLOW,
    // 10: openat
    load(argument(2)),
    op(IF_ANY, O_DIRECT, 7, 6),
    // 12: open
    load(argument(1)),
    op(IF_ANY, O_DIRECT, 5, 4),
    // 14: fcntl
    load(argument(1)),
    op(IF_EQUAL, libc::F_SETFL as u32, 0, 2),
    load(argument(2)),
    op(IF_ANY, O_DIRECT, 1, 0),
    // 18, 19
    ALLOW,
    NOTIFY,
];

/// As above; this table has no `open`.
#[cfg(target_arch = "aarch64")]
static PROGRAM: [libc::sock_filter; 17] = [
    load(ARCH),
    op(IF_EQUAL, NATIVE, 0, 13),
    load(NUMBER),
    op(IF_EQUAL, libc::SYS_openat as u32, 5, 0),
    op(IF_EQUAL, libc::SYS_fcntl as u32, 6, 0),
    op(IF_EQUAL, libc::SYS_io_uring_setup as u32, 10, 0),
    op(IF_EQUAL, libc::SYS_io_setup as u32, 9, 0),
    op(IF_EQUAL, libc::SYS_openat2 as u32, 8, 0),
    ALLOW,
    // 9: openat
    load(argument(2)),
    op(IF_ANY, O_DIRECT, 5, 4),
    // 11: fcntl
    load(argument(1)),
    op(IF_EQUAL, libc::F_SETFL as u32, 0, 2),
    load(argument(2)),
    op(IF_ANY, O_DIRECT, 1, 0),
    // 15, 16
    ALLOW,
    NOTIFY,
];

/// Installs the filter on this process, for good and for all it starts, and returns the
/// listener for the system domain. Raw system calls only: between fork and exec.
///
/// Without the privilege to filter, the process gives up gaining any by exec
/// (no_new_privs): set-user-ID programs below it run without theirs.
pub fn install() -> io::Result<OwnedFd> {
    // A call already taken up waits for its answer unless the process is killed: a
    // program whose timer interrupts it would else begin it again and again.
    let killable = 1u64 << 5;
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    match filter(listener | killable) {
        Err(Errno::INVAL) => filter(listener),
        other => other,
    }
}

fn filter(flags: u64) -> io::Result<OwnedFd> {
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
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// `_IOWR('!', nr, size)` and `_IOW('!', nr, size)` of linux/seccomp.h.
const fn ioctl_number(direction: u64, nr: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | (b'!' as u64) << 8 | nr
}
const RECEIVE: u64 = ioctl_number(3, 0, size_of::<libc::seccomp_notif>());
const SEND: u64 = ioctl_number(3, 1, size_of::<libc::seccomp_notif_resp>());
const _: () = assert!(RECEIVE == 0xc050_2100 && SEND == 0xc018_2101);

/// A call that waits.
struct Waiting {
    id: u64,
    number: i32,
    since: Instant,
}

/// The name of the thread that makes a pager's rings.
pub const PAGER_THREAD: &str = "selfpage-keeper";

/// The system domain's end of the filter.
pub struct Notifier {
    listener: OwnedFd,
    waiting: Vec<Waiting>,
}

impl Notifier {
    /// Answers the filter whose listener this is.
    pub fn new(listener: OwnedFd) -> Self {
        Self {
            listener,
            waiting: Vec::new(),
        }
    }

    /// Readable when a call has stopped at the filter.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Whether calls wait for pagers: [`Notifier::settle`] must be called again soon.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes up one call that has stopped: from now on the tree is careful. `Err` when
    /// no process is left under the filter.
    pub fn receive(&mut self, board: &Board) -> io::Result<()> {
        // SAFETY: plain numbers, for which zeros are a value; the kernel wants zeros.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: `call` is the structure this ioctl fills.
        match unsafe { libc::ioctl(self.listener.as_raw_fd(), RECEIVE as _, &raw mut call) } {
            0 => {}
            // ENOENT: it was killed meanwhile.
            _ if matches!(last_errno(), Errno::NOENT | Errno::INTR) => return Ok(()),
            _ => return Err(last_errno()),
        }
        if is_pager(call.pid) {
            let go_on = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            respond(&self.listener, call.id, 0, go_on);
            return Ok(());
        }
        be_careful(board);
        self.waiting.push(Waiting {
            id: call.id,
            number: call.data.nr,
            since: Instant::now(),
        });
        Ok(())
    }

    /// Lets calls go on if every pager of `members` checks by now, and refuses those
    /// that have waited too long. Returns how many were refused.
    pub fn settle(&mut self, board: &Board, members: impl Iterator<Item = (Slot, Pid)>) -> usize {
        if self.waiting.is_empty() {
            return 0;
        }
        let ready = all_careful(board, members);
        let mut refused = 0;
        let listener = &self.listener;
        self.waiting.retain(|call| {
            if ready {
                respond(
                    listener,
                    call.id,
                    0,
                    libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
                );
                return false;
            }
            if call.since.elapsed() > LIMIT {
                refused += 1;
                respond(listener, call.id, -error_without(call.number), 0);
                return false;
            }
            true
        });
        refused
    }
}

/// Whether a thread is a pager's own, whose rings reach the store and never the program's
/// memory: known by its name. A program that takes the name fools itself alone.
fn is_pager(thread: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/comm"))
        .is_ok_and(|name| name.trim_end() == PAGER_THREAD)
}

/// Tells every pager of the tree to check for pinned pages, for good.
pub fn be_careful(board: &Board) {
    board.careful().store(CAREFUL, Ordering::SeqCst);
    wired::futex::wake_all(board.careful());
}

/// Whether no pager evicts without the check. One that is stopped or dead evicts nothing.
fn all_careful(board: &Board, mut members: impl Iterator<Item = (Slot, Pid)>) -> bool {
    members.all(|(slot, pid)| {
        board.block(slot).careful_seen().load(Ordering::SeqCst) == CAREFUL
            || Stat::of(pid).is_none_or(|stat| stat.is_still())
    })
}

/// What a kernel, or a file, without direct I/O says to this call: programs know what
/// to do then.
fn error_without(number: i32) -> i32 {
    match i64::from(number) {
        libc::SYS_io_uring_setup | libc::SYS_io_setup => libc::ENOSYS,
        _ => libc::EINVAL,
    }
}

fn respond(listener: &OwnedFd, id: u64, error: i32, flags: u32) {
    let mut answer = libc::seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags,
    };
    // SAFETY: the structure this ioctl reads. A caller that died meanwhile is no error.
    let _ = unsafe { libc::ioctl(listener.as_raw_fd(), SEND as _, &raw mut answer) };
}

/// An inherited descriptor through which this process could do direct I/O at once, with
/// what it is; `None` where there is none.
pub fn inherited_direct_io() -> Option<String> {
    for entry in std::fs::read_dir("/proc/self/fd").ok()?.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<i32>().ok())
        else {
            continue;
        };
        // SAFETY: asks about a number; one closed meanwhile (the directory's own) gives an error.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
        let direct = flags >= 0 && flags & libc::O_DIRECT != 0;
        // A pipe in packet mode carries the same flag.
        let pipe = target.as_os_str().as_encoded_bytes().starts_with(b"pipe:");
        if (direct && !pipe) || target.as_os_str() == "anon_inode:[io_uring]" {
            return Some(format!("descriptor {number} ({})", target.display()));
        }
    }
    None
}
