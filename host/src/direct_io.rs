//! The ways by which the kernel can hold pages of a process: mounts that read straight into memory,
//! and descriptors for direct I/O.

use crate::seccomp::AF_XDP;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, OFlags};

/// Returns true if plain reads of a file system of this kind may go straight into memory.
pub fn reads_in_place(kind: &[u8]) -> bool {
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

/// The mounts in this namespace, and whether they changed since the last check.
pub struct Mounts(Option<std::fs::File>);

impl Mounts {
    /// The mounts as they are now.
    pub fn open() -> Self {
        Self(std::fs::File::open("/proc/self/mountinfo").ok())
    }

    /// Returns true if they have changed since this was last called.
    pub fn changed(&self) -> bool {
        let Some(file) = &self.0 else { return false };
        let mut fds = [PollFd::new(file, PollFlags::PRI)];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
    }
}

/// A mounted file system that may read straight into memory: its type and mount point.
pub fn mounted_in_place() -> Option<String> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    mounts.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let mount_point = fields.nth(4)?;
        // Optional fields end with a dash.
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        let text = String::from_utf8_lossy;
        reads_in_place(kind).then(|| format!("{} at {}", text(kind), text(mount_point)))
    })
}

/// A descriptor or mount through which the kernel can hold pages of this process, or of one that
/// inherits its descriptors, without a call that stops at the filter; `None` where there is none.
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

/// Returns true if the kernel may hold pages for calls with a descriptor of this process, and false for
/// a number that is not open.
pub fn may_hold_pages(number: i32) -> bool {
    /// linux/magic.h, and cifs's own.
    const IN_PLACE: [libc::c_long; 3] = [0x6573_5546, 0xff53_4d42, 0xfe53_4d42];
    if number < 0 {
        return false;
    }
    // SAFETY: used while the caller keeps it open; calls on any other number return errors.
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

/// As [`may_hold_pages`], for a descriptor that arrived with a message, by only those system calls that
/// sandboxes allow: Chromium's kills a process that queries a file system or a socket's domain.
/// So it does not recognise sockets, or files in mounts that are not the tree's.
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
        // A pipe in packet mode has the flag of direct I/O, too.
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
