//! What the kernel can hold pages of a process for: mounts that read straight into memory, and
//! descriptors for direct I/O.

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

/// A mounted file system that may read straight into memory: its kind and place.
pub fn mounted_in_place() -> Option<String> {
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
