//! The exclusive lock on a device.
//!
//! Two owners of one file table would allocate the same space twice. So the device is locked
//! (`flock`), and a partition opened exclusively besides, which also keeps out mounts, swap and
//! volumes. The lock belongs to the open file, not to the process: while I/O of a killed process is
//! in flight, its ring holds the file and the file the lock. So an owner that gets the lock knows
//! that nothing more of the last owner's reaches the device, provided that all data goes by this
//! descriptor or a duplicate.

use rustix::fd::AsFd;
use rustix::fs::{FlockOperation, Stat, flock, major, minor};
use rustix::io::Errno;

/// Locks the open file of `fd`, until its last duplicate is closed.
pub(super) fn take(fd: impl AsFd) -> Result<(), Errno> {
    flock(fd, FlockOperation::NonBlockingLockExclusive)
}

/// The pid that holds the lock on the file of `stat`, if the kernel shows it.
pub(super) fn pid(stat: &Stat) -> Option<u32> {
    /// The list is read in parts, and one is missed where others end between two of them.
    const READS: usize = 3;
    (0..READS).find_map(|_| find(&std::fs::read_to_string("/proc/locks").ok()?, stat))
}

/// A line is `1: FLOCK ADVISORY WRITE pid major:minor:inode start end`, the device's numbers
/// in hexadecimal.
fn find(locks: &str, stat: &Stat) -> Option<u32> {
    let device = (major(stat.st_dev), minor(stat.st_dev));
    let file = format!("{:02x}:{:02x}:{}", device.0, device.1, stat.st_ino);
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let locked = words.next() == Some("FLOCK");
        let mut words = words.skip(2);
        let pid = words.next()?.parse().ok().filter(|&pid| pid != 0);
        pid.filter(|_| locked && words.next() == Some(&file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_in_the_kernels_lock_list() {
        let file = tempfile::tempfile().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let named = format!(
            "{:02x}:{:02x}:{}",
            major(stat.st_dev),
            minor(stat.st_dev),
            stat.st_ino
        );
        let locks = format!(
            "1: POSIX  ADVISORY  WRITE 11 {named} 0 EOF\n\
             2: FLOCK  ADVISORY  WRITE 22 00:00:1 0 EOF\n\
             3: FLOCK  ADVISORY  WRITE 33 {named} 0 EOF\n\
             3: -> FLOCK  ADVISORY  WRITE 44 {named} 0 EOF\n"
        );
        assert_eq!(find(&locks, &stat), Some(33));
        assert_eq!(find("nothing\n", &stat), None);
    }
}
