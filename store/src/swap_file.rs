//! The swap file: allocated whole when the store is made, and unlinked.
//!
//! Allocated beforehand because a pager that finds the disk full in the middle of an eviction has
//! nowhere to go (Mach's default memory manager, section on the paging file). Unlinked because a
//! killed process cleans nothing up: the file lives as long as a descriptor of it.

use crate::error::SetupError;
use crate::growth::EXTENT;
use crate::{DiskConfig, DiskLocation};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, fallocate, fcntl_getfl, fcntl_setfl,
    fstat, fstatfs, fstatvfs, ftruncate, openat, stat, unlinkat,
};
use rustix::io::Errno;
use std::ops::Range;
use std::path::{Path, PathBuf};
use wired::Bytes;
use wired::{PAGE, WiredMemory};

/// Warnings about a swap file, as bits for `describe`.
pub(crate) mod notes {
    /// The file system has no direct I/O.
    pub const BUFFERED: u64 = 1;
    /// The file system is itself memory.
    pub const MEMORY: u64 = 2;
    /// The kernel refused a ring; I/O is synchronous.
    pub const NO_RING: u64 = 4;
}

/// f_type of tmpfs, from magic.h.
const TMPFS: u64 = 0x0102_1994;

impl DiskConfig {
    /// Makes a file of its own size, with no name; for another place than a file, an error.
    pub fn create_file(&self) -> Result<OwnedFd, SetupError> {
        match &self.place {
            DiskLocation::File(path) => create(path, self).map(|(file, _)| file),
            DiskLocation::Remote | DiskLocation::Objects(_) | DiskLocation::System => {
                Err(SetupError::Path {
                    path: PathBuf::new(),
                    why: "the store has no file of its own".to_owned(),
                })
            }
        }
    }
}

/// Opens and allocates a swap file at `path`.
pub(crate) fn create(path: &Path, config: &DiskConfig) -> Result<(OwnedFd, u64), SetupError> {
    let inside;
    let mut path = path;
    match stat(path).map(|there| FileType::from_raw_mode(there.st_mode)) {
        // Its name is visible only where the file system makes no unnamed files.
        Ok(FileType::Directory) => {
            inside = path.join(format!("selfpage-swap-{}", std::process::id()));
            path = &inside;
        }
        Ok(_) => {
            return Err(SetupError::Path {
                path: path.into(),
                why: "something of that name is there, and is not overwritten".to_owned(),
            });
        }
        Err(_) => {}
    }
    let fail = |errno: Errno| SetupError::Path {
        path: path.into(),
        why: match errno {
            Errno::NOENT if folder_of(path).is_dir() => "no file can be made there".to_owned(),
            errno => explain(errno),
        },
    };
    wired::check_file_size(config.size).map_err(fail)?;
    let fd = open_nameless(path).map_err(fail)?;
    if config.grows {
        // Beyond the first extent the file has its full length, but no blocks.
        let size = config.size / PAGE as u64 * PAGE as u64;
        allocate(&fd, path, size.min(EXTENT))?;
        ftruncate(&fd, size).map_err(fail)?;
    } else {
        allocate(&fd, path, config.size)?;
    }
    let mut notes = 0;
    if fstatfs(&fd).is_ok_and(|fs| fs.f_type as u64 == TMPFS) {
        notes |= notes::MEMORY;
    }
    if !set_direct(&fd) {
        notes |= notes::BUFFERED;
    }
    if config.written {
        write_zeros(&fd, 0..config.size / PAGE as u64 * PAGE as u64).map_err(fail)?;
    }
    Ok((fd, notes))
}

fn explain(errno: Errno) -> String {
    match errno {
        Errno::ROFS => "the file system is read-only".to_owned(),
        Errno::NOENT => "there is no such directory".to_owned(),
        Errno::ACCESS | Errno::PERM => "no permission to write there".to_owned(),
        Errno::NOTDIR => "part of the path is not a directory".to_owned(),
        Errno::FBIG => {
            "a file of that size is more than the file system or `ulimit -f` allows".to_owned()
        }
        other => other.to_string(),
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Opens an unlinked file in the directory of `path`.
fn open_nameless(path: &Path) -> Result<OwnedFd, Errno> {
    let directory = folder_of(path);
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match openat(CWD, directory, flags | OFlags::TMPFILE, mode) {
        // Some file systems make no unnamed files: makes a file and unlinks it.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let named: PathBuf = path.into();
            let fd = openat(CWD, &named, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            unlinkat(CWD, &named, AtFlags::empty())?;
            Ok(fd)
        }
        result => result,
    }
}

fn allocate(fd: &OwnedFd, path: &Path, asked: u64) -> Result<(), SetupError> {
    let free = || fstatvfs(fd).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    let no_room = || SetupError::NoRoom {
        path: path.into(),
        asked,
        there: free(),
    };
    let size = asked / PAGE as u64 * PAGE as u64;
    // Checked first, so that an impossible size does not fill the disk before it fails.
    if fstatvfs(fd).is_ok_and(|fs| fs.f_bfree.saturating_mul(fs.f_frsize) < size) {
        return Err(no_room());
    }
    match allocate_extent(fd, 0, size) {
        Ok(()) => {}
        Err(Errno::NOSPC | Errno::DQUOT) => return Err(no_room()),
        Err(errno) => {
            return Err(SetupError::Path {
                path: path.into(),
                why: explain(errno),
            });
        }
    }
    let there = fstat(fd).map_or(0, |stat| stat.st_size as u64);
    if there < size {
        let why = format!("it is {} long, not {}", Bytes(there), Bytes(size));
        return Err(SetupError::Path {
            path: path.into(),
            why,
        });
    }
    Ok(())
}

/// Space of a file system.
pub(crate) struct Room {
    pub free: u64,
    pub total: u64,
}

/// Total space of the file's file system, and free space for this user.
pub(crate) fn room(file: impl AsFd) -> Option<Room> {
    let fs = fstatvfs(file).ok()?;
    Some(Room {
        free: fs.f_bavail.saturating_mul(fs.f_frsize),
        total: fs.f_blocks.saturating_mul(fs.f_frsize),
    })
}

/// Allocates blocks for a part of a file.
pub(crate) fn allocate_extent(file: impl AsFd, start: u64, bytes: u64) -> Result<(), Errno> {
    match fallocate(&file, FallocateFlags::empty(), start, bytes) {
        Err(Errno::OPNOTSUPP) => write_zeros(file, start..start + bytes),
        result => result,
    }
}

/// Frees the blocks of a part of a file.
pub(crate) fn punch_hole(file: impl AsFd, start: u64, bytes: u64) -> Result<(), Errno> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, hole, start, bytes)
}

/// Writes zeros: allocates on file systems without fallocate, and makes blocks written on others.
fn write_zeros(file: impl AsFd, range: Range<u64>) -> Result<(), Errno> {
    const AT_ONCE: usize = 1 << 20;
    // Aligned, for direct I/O.
    let zeros = vec![0u8; AT_ONCE + PAGE];
    let start = zeros.as_ptr().align_offset(PAGE);
    let zeros = &zeros[start..start + AT_ONCE];
    let mut at = range.start;
    while at < range.end {
        let len = zeros.len().min((range.end - at) as usize);
        match rustix::io::pwrite(&file, &zeros[..len], at) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(done) => at += done as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Turns on direct I/O if a page can be written and read that way. Returns true if it did.
fn set_direct(fd: &OwnedFd) -> bool {
    let Ok(flags) = fcntl_getfl(fd) else {
        return false;
    };
    if fcntl_setfl(fd, flags | OFlags::DIRECT).is_err() {
        return false;
    }
    let Ok(page) = WiredMemory::private(PAGE) else {
        return false;
    };
    // SAFETY: fresh memory of a page, used only here.
    let page = unsafe { std::slice::from_raw_parts_mut(page.as_ptr(), PAGE) };
    let works = rustix::io::pwrite(fd, page, 0) == Ok(PAGE)
        && rustix::io::pread(fd, &mut *page, 0) == Ok(PAGE);
    if !works {
        let _ = fcntl_setfl(fd, flags);
    }
    works
}

/// Waits until no I/O on the file is in flight, of any process: also that of a killed process,
/// whose ring the kernel tears down later. Changing a file's allocation waits for direct I/O
/// (inode_dio_wait); allocating allocated blocks changes nothing. Returns false if the file system cannot: it allocates
/// no blocks ahead (ext3), and I/O may be in flight still.
pub(crate) fn wait_for_io(fd: BorrowedFd<'_>) -> bool {
    let allocate = || fallocate(fd, FallocateFlags::KEEP_SIZE, 0, PAGE as u64);
    rustix::io::retry_on_intr(allocate).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    fn refused(path: &str, size: u64) -> String {
        create(Path::new(path), &DiskConfig::new(path, size))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn impossible_paths_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        std::fs::write(&there, "precious").unwrap();
        assert!(refused(there.to_str().unwrap(), 1 << 20).contains("not overwritten"));
        assert!(refused("/no/such/place/swap", 1 << 20).contains("no such directory"));
        assert!(refused("/proc/swap", 1 << 20).contains("no file can be made there"));
        assert_eq!(std::fs::read(&there).unwrap(), b"precious");
    }

    #[test]
    fn a_size_beyond_the_disks_space_is_refused_with_the_figures() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("swap");
        let error = create(&path, &DiskConfig::new(&path, 1 << 42)).unwrap_err();
        assert!(
            matches!(error, SetupError::NoRoom { asked, there, .. } if there < asked),
            "{error}"
        );
    }

    #[test]
    fn a_directory_takes_an_unnamed_file() {
        let dir = tempfile::tempdir().unwrap();
        let (fd, _) = create(dir.path(), &DiskConfig::new(dir.path(), 1 << 20)).unwrap();
        let stat = fstat(&fd).unwrap();
        assert_eq!((stat.st_size, stat.st_nlink), (1 << 20, 0));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_file_has_its_size_no_holes_and_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("swap");
        let (fd, _) = create(&path, &DiskConfig::new(&path, 1 << 20)).unwrap();
        let stat = fstat(&fd).unwrap();
        assert_eq!(stat.st_size, 1 << 20);
        assert!(stat.st_blocks * 512 >= 1 << 20);
        assert_eq!(stat.st_nlink, 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(wait_for_io(fd.as_fd()));
    }

    #[test]
    fn a_file_that_allocates_nothing_waits_for_no_io() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // As a file system without fallocate would, the kernel refuses a descriptor that may not write.
        let file = std::fs::File::open(file.path()).unwrap();
        assert!(!wait_for_io(file.as_fd()));
    }
}
