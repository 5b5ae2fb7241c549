//! Pages that the kernel holds for a device, a file system or another process are noticed
//! before that begins.
//!
//! A page that is written into while no process maps it must not be copied out and discarded
//! (`translation::pinned`). Checking each page costs, so pagers check only once pages of the tree
//! can be held at all. The few system calls that bring that about (`CALLS`) stop at a seccomp
//! filter and wait for the system domain: it sets the board's flag, waits until every
//! pager has seen it, and lets the call go on. Every other system call pays 32 to 55 ns.
//!
//! Rule: a call goes on only when every pager that could be evicting checks. A call whose wait
//! exceeds its bound gets the error of a kernel without the call, and does not go on.
//!
//! A file system whose plain reads go straight into memory (FUSE, where its server wants that)
//! cannot be detected by a call on its files. So the tree is careful once one is mounted: mounts
//! are read before the program starts, when the tree mounts one, and when the kernel reports that
//! they have changed ([`Notifier::settle`]).
//!
//! Not seen: the 32-bit system call table of a 64-bit program, processes outside of the tree
//! that write into one within, and what holds pages by plain references, which the check does
//! not find (NFS and Ceph with O_DIRECT, 9p, a FUSE server's own reads, vmsplice).

use crate::connector;
use crate::handshake::Slot;
use crate::process_tree::Stat;
use crate::stats_page::Board;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{FileType, OFlags};
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

/// The bit that sets the numbers of x32 apart, whose table has calls of its own beside.
#[cfg(target_arch = "x86_64")]
const OTHER_TABLE: u32 = 0x4000_0000;
/// There is one table.
#[cfg(target_arch = "aarch64")]
const OTHER_TABLE: u32 = 0;

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
    /// An argument is this, and another has this bit.
    IsAndHas(u32, i32, u32, i32),
    /// An argument is one of these.
    IsOneOf(u32, &'static [u32]),
    /// An argument is not this. All its bits count.
    IsNot(u32, u64),
}

/// Calls after which the kernel may write into pages that it holds, without a trace that a
/// pager could see. One row a number.
#[cfg(target_arch = "x86_64")]
const CALLS: [(libc::c_long, When); 14] = rows([(libc::SYS_open, When::Has(1, libc::O_DIRECT))]);
/// As above; this table has no `open`.
#[cfg(target_arch = "aarch64")]
const CALLS: [(libc::c_long, When); 13] = rows([]);

/// The rows of every machine, and its own.
const fn rows<const OWN: usize, const ALL: usize>(
    own: [(libc::c_long, When); OWN],
) -> [(libc::c_long, When); ALL] {
    let common = [
        // Files.
        (libc::SYS_openat, When::Has(2, libc::O_DIRECT)),
        (libc::SYS_openat2, When::Always),
        (libc::SYS_open_by_handle_at, When::Has(2, libc::O_DIRECT)),
        (
            libc::SYS_fcntl,
            When::IsAndHas(1, libc::F_SETFL, 2, libc::O_DIRECT),
        ),
        // Another process's descriptor.
        (libc::SYS_pidfd_getfd, When::Always),
        // Reads and writes that go on after the call.
        (libc::SYS_io_uring_setup, When::IsNot(5, RING_OF_PAGER)),
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
    ];
    let mut all = [common[0]; ALL];
    let mut n = 0;
    while n < ALL {
        all[n] = if n < OWN { own[n] } else { common[n - OWN] };
        n += 1;
    }
    all
}

/// What a pager process gives as the sixth argument of io_uring_setup, which the kernel ignores: its
/// rings reach the store and never the program's memory. A program that does the same harms only
/// itself.
pub const RING_OF_PAGER: u64 = connector::TAG;

/// linux/socket.h.
const AF_XDP: u32 = 44;

/// Orders to devices that read or write the caller's pages in place.
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
            When::IsOneOf(place, values) => {
                program[at + 1] = load(argument(place));
                let mut v = 0;
                while v < values.len() {
                    program[at + 2 + v] = op(IF_EQUAL, values[v], (values.len() - v) as u8, 0);
                    v += 1;
                }
            }
            When::IsNot(place, value) => {
                program[at + 1] = load(argument(place));
                program[at + 2] = op(IF_EQUAL, value as u32, 0, 3);
                program[at + 3] = load(argument(place) + 4);
                program[at + 4] = op(IF_EQUAL, (value >> 32) as u32, 0, 1);
            }
        }
        // The instruction before it is ALLOW.
        program[next - 1] = NOTIFY;
        at = next;
        n += 1;
    }
    program
};
const _: () = assert!(LENGTH < 256, "a jump is a byte");

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

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// `_IOWR('!', nr, size)` and `_IOW('!', nr, size)` of linux/seccomp.h.
pub(crate) const fn ioctl_number(direction: u64, nr: u64, size: usize) -> u64 {
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

/// The system domain's end of the filter.
pub struct Notifier {
    listener: OwnedFd,
    waiting: Vec<Waiting>,
    mounts: Mounts,
    requests: Vec<u64>,
}

impl Notifier {
    /// Answers the filter whose listener this is.
    pub fn new(listener: OwnedFd) -> Self {
        Self {
            listener,
            waiting: Vec::new(),
            mounts: Mounts::new(),
            requests: Vec::new(),
        }
    }

    /// Readable when a call has stopped at the filter.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Returns true if calls wait for pagers: [`Notifier::settle`] must be called again soon.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes up one call that has stopped: from now on the tree is careful, if the call can
    /// make the kernel hold pages. `Err` when no process is left under the filter.
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
        if connector::is_request(&call.data) {
            self.requests.push(call.id);
            return Ok(());
        }
        if !can_hold_pages(&call) {
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

    /// Calls by which processes asked for a connection: see [`crate::System::connect`].
    pub fn take_requests(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.requests)
    }

    /// Lets calls go on if every pager of `members` checks by now, and refuses those
    /// that have waited too long. Returns how many were refused. Checks new mounts, too.
    pub fn settle(&mut self, board: &Board, members: impl Iterator<Item = (Slot, Pid)>) -> usize {
        if self.mounts.changed() && mounted_in_place().is_some() {
            be_careful(board);
        }
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

/// Returns true if a call that has stopped can make the kernel hold pages.
fn can_hold_pages(call: &libc::seccomp_notif) -> bool {
    /// Mounts that ask for no file system.
    const MOVES: libc::c_ulong = libc::MS_BIND
        | libc::MS_MOVE
        | libc::MS_REMOUNT
        | libc::MS_SHARED
        | libc::MS_PRIVATE
        | libc::MS_SLAVE
        | libc::MS_UNBINDABLE;
    let args = call.data.args;
    // What cannot be read counts as the worst.
    let in_place = |at| text_of(call.pid, at).is_none_or(|kind| reads_in_place(&kind));
    match i64::from(call.data.nr) {
        libc::SYS_mount => args[3] & MOVES == 0 && in_place(args[2]),
        libc::SYS_fsopen => in_place(args[0]),
        // Other mounts may be seen there.
        libc::SYS_setns => args[1] == 0 || args[1] & libc::CLONE_NEWNS as u64 != 0,
        _ => true,
    }
}

/// Returns true if plain reads of a file system of this kind may go straight into memory.
fn reads_in_place(kind: &[u8]) -> bool {
    let kind = kind.split(|byte| *byte == b'.').next().unwrap_or(kind);
    [
        b"fuse".as_slice(),
        b"fuseblk",
        b"virtiofs",
        b"cifs",
        b"smb3",
    ]
    .contains(&kind)
}

/// A short text in a stopped thread's memory; `None` where it cannot be read without waiting
/// for that process's pager.
fn text_of(thread: u32, at: u64) -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::open(format!("/proc/{thread}/mem")).ok()?;
    let mut text = Vec::new();
    while text.len() < LONGEST_KIND {
        let mut byte = [0];
        memory
            .read_exact_at(&mut byte, at + text.len() as u64)
            .ok()?;
        match byte {
            [0] => return Some(text),
            [byte] => text.push(byte),
        }
    }
    None
}

/// Bytes of a file system's kind that are compared.
const LONGEST_KIND: usize = 64;

/// The mounts in this namespace, and whether they changed since the last check.
struct Mounts(Option<std::fs::File>);

impl Mounts {
    fn new() -> Self {
        Self(std::fs::File::open("/proc/self/mountinfo").ok())
    }

    fn changed(&self) -> bool {
        let Some(file) = &self.0 else { return false };
        let mut fds = [PollFd::new(file, PollFlags::PRI)];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
    }
}

/// A mounted file system that may read straight into memory: its kind and place.
fn mounted_in_place() -> Option<String> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    mounts.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let place = fields.nth(4)?;
        // Optional fields end with a dash.
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        let text = String::from_utf8_lossy;
        reads_in_place(kind).then(|| format!("{} at {}", text(kind), text(place)))
    })
}

/// Makes every pager of the tree check for pinned pages, for good.
pub fn be_careful(board: &Board) {
    board.careful().store(CAREFUL, Ordering::SeqCst);
    wired::futex::wake_all(board.careful());
}

/// Returns true if no pager evicts without the check. A stopped or dead pager evicts nothing.
fn all_careful(board: &Board, mut members: impl Iterator<Item = (Slot, Pid)>) -> bool {
    members.all(|(slot, pid)| {
        board.block(slot).careful_seen().load(Ordering::SeqCst) == CAREFUL
            || Stat::of(pid).is_none_or(|stat| stat.is_still())
    })
}

/// The error of a kernel, a device or a file that lacks what the call needs: programs handle
/// that.
fn error_without(number: i32) -> i32 {
    match i64::from(number) {
        libc::SYS_io_uring_setup
        | libc::SYS_io_setup
        | libc::SYS_process_vm_writev
        | libc::SYS_pidfd_getfd => libc::ENOSYS,
        libc::SYS_socket => libc::EAFNOSUPPORT,
        libc::SYS_ioctl => libc::ENOTTY,
        libc::SYS_mount | libc::SYS_fsopen => libc::ENODEV,
        libc::SYS_setns => libc::EPERM,
        _ if number as u32 & OTHER_TABLE != 0 => libc::ENOSYS,
        _ => libc::EINVAL,
    }
}

pub(crate) fn respond(listener: &OwnedFd, id: u64, error: i32, flags: u32) {
    let mut answer = libc::seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags,
    };
    // SAFETY: the structure this ioctl reads. A caller that died meanwhile is no error.
    let _ = unsafe { libc::ioctl(listener.as_raw_fd(), SEND as _, &raw mut answer) };
}

/// Through what the kernel can hold pages of this process, or of one that inherits its
/// descriptors, without any call that stops at the filter; `None` where there is nothing.
pub fn inherited_direct_io() -> Option<String> {
    for entry in std::fs::read_dir("/proc/self/fd").ok()?.flatten() {
        let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<i32>().ok())
        else {
            continue;
        };
        if may_hold_pages(number) {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            return Some(format!("descriptor {number} ({})", target.display()));
        }
    }
    mounted_in_place()
}

/// Whether the kernel may hold pages for what is done with a descriptor of this process's. A
/// number that is not open is none.
pub fn may_hold_pages(number: i32) -> bool {
    /// linux/magic.h, and cifs's own.
    const IN_PLACE: [libc::c_long; 3] = [0x6573_5546, 0xff53_4d42, 0xfe53_4d42];
    if number < 0 {
        return false;
    }
    // SAFETY: used while the caller keeps it open; any other number gives errors.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let in_place = |fs: rustix::fs::StatFs| IN_PLACE.contains(&fs.f_type);
    let holds = |domain: rustix::net::AddressFamily| {
        [libc::AF_ALG as u16, AF_XDP as u16].contains(&domain.as_raw())
    };
    received_may_hold_pages(number)
        || rustix::net::sockopt::socket_domain(fd).is_ok_and(holds)
        || rustix::fs::fstatfs(fd).is_ok_and(in_place)
        || is_ring(number)
}

/// [`may_hold_pages`] of a descriptor that came with a message, by those system calls alone that
/// sandboxes allow: Chromium's ends a process that asks for a file system or a socket's domain.
/// So sockets, and files in a mount that is not the tree's, are not told apart.
pub fn received_may_hold_pages(number: i32) -> bool {
    if number < 0 {
        return false;
    }
    // SAFETY: as above.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let direct = rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
    let Ok(kind) = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) else {
        return false;
    };
    match kind {
        // In packet mode a pipe carries the flag of direct I/O.
        FileType::Fifo | FileType::Directory | FileType::Socket => false,
        // An inode without a file: a ring, or an event counter.
        FileType::Unknown => is_ring(number),
        _ => direct,
    }
}

fn is_ring(number: i32) -> bool {
    rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new())
        .is_ok_and(|target| target.as_bytes() == b"anon_inode:[io_uring]")
}
