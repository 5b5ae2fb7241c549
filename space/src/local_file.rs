//! Descriptors of peers: memory, and files that this machine's kernel has to itself.
//!
//! A peer may send a file of a file system that it serves itself (FUSE), and reply to no request. So what a descriptor
//! is of is found without a request: `statx` replies with what the kernel has, memory alone has seals, and the table of
//! mounts names the kind of file system.

use crate::error::SpaceError;
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, fcntl_get_seals, statx};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// Kinds of file systems whose files no other process or machine serves. The layers of an overlay that this process
/// sees are its own administrator's.
const LOCAL: [&str; 22] = [
    "bcachefs", "btrfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660",
    "jfs", "nilfs2", "ntfs3", "overlay", "ramfs", "reiserfs", "squashfs", "tmpfs", "udf", "vfat",
    "xfs", "zfs",
];

/// Checks that a descriptor is of memory, or of a regular file of a local file system in this process's mount
/// namespace.
///
/// # Errors
/// [`SpaceError::Foreign`] for no regular file, [`SpaceError::ServedFile`].
pub(crate) fn check_local(file: impl AsFd) -> Result<(), SpaceError> {
    let stat = stat_without_request(&file).ok_or(SpaceError::ServedFile)?;
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
        return Err(SpaceError::Foreign("it is not a regular file"));
    }
    let is_memory = fcntl_get_seals(&file).is_ok();
    if is_memory || is_of_local_mount(stat.stx_mnt_id) || is_secret(&stat) {
        return Ok(());
    }
    Err(SpaceError::ServedFile)
}

fn stat_without_request(file: impl AsFd) -> Option<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, StatxFlags::TYPE | StatxFlags::MNT_ID).ok()
}

fn is_of_local_mount(id: u64) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let id = format!("{id} ");
    mounts
        .lines()
        .find(|mount| mount.starts_with(&id))
        .and_then(|mount| mount.split_once(" - ")?.1.split(' ').next())
        .is_some_and(|kind| LOCAL.contains(&kind))
}

/// Returns true if a file is of `memfd_secret(2)`: its file system is in no table of mounts.
fn is_secret(stat: &Statx) -> bool {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    if fd < 0 {
        return false;
    }
    // SAFETY: made above.
    let own = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let device = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor);
    stat_without_request(&own).is_some_and(|own| device(&own) == device(stat))
}
