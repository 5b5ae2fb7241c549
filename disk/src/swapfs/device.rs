//! The partition or file that a filesystem lies on.
//!
//! Allocated whole beforehand, opened for direct I/O and locked: a page store needs this to never
//! find the disk full, never keep pages twice, and never share.
//!
//! Rule: opening refuses a device that cannot hold pages, with its name and the remedy; what is
//! usable but unusual is a warning ([`Device::warnings`]).

use super::block_device::{Aligned, BlockDevice};
use super::error::OpenError;
use super::warning::DeviceWarning;
use super::{UNIT, lock};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat, accessat,
    fallocate, fcntl_getfl, fcntl_setfl, fdatasync, fstat, fstatfs, fstatvfs, ioctl_blksszget,
    openat, seek, stat,
};
use rustix::io::{Errno, pread};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use wired::PAGE;

/// Options of formatting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FormatOptions {
    /// Size in bytes of the file to make. An existing file or partition is used whole.
    pub size: Option<u64>,
    /// Formats over existing contents.
    pub force: bool,
}

const NO_SIZE: &str = "the file has to be made: give its size, as in size = \"32G\"";

/// A partition or file, opened for a filesystem.
#[derive(Debug)]
pub struct Device {
    fd: File,
    name: String,
    size: u64,
    is_partition: bool,
    warnings: Vec<DeviceWarning>,
    zeros: Aligned,
}

impl Device {
    /// Opens an existing device.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let place = DevicePath(path);
        let there = stat(path).map_err(|errno| place.refused(errno))?;
        let mut device = Self::open_existing(&place, &there)?;
        device.check_allocated(&place)?;
        Ok(device)
    }

    /// Opens an existing device or makes a file, and allocates it. Returns true if it made one.
    pub(super) fn prepare(path: &Path, options: &FormatOptions) -> Result<(Self, bool), OpenError> {
        let place = DevicePath(path);
        match stat(path) {
            Ok(there) => {
                let device = Self::open_existing(&place, &there)?;
                Ok((device.sized(&place, options.size)?, false))
            }
            Err(Errno::NOENT) => {
                let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
                let fd = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)
                    .map_err(|errno| place.refused(errno))?;
                let made = Self::lock(&place, fd, false);
                let made = made.and_then(|device| device.sized(&place, options.size));
                if made.is_err() {
                    // The refusal below explains more than a failure to remove it.
                    let _ = std::fs::remove_file(path);
                }
                made.map(|device| (device, true))
            }
            Err(errno) => Err(place.refused(errno)),
        }
    }

    /// Opens what [`Device::prepare`] would use, or returns nothing where it would make a file,
    /// after a check that the file system has room for it.
    pub(super) fn inspect(path: &Path, size: Option<u64>) -> Result<Option<Self>, OpenError> {
        let place = DevicePath(path);
        match stat(path) {
            Ok(there) => {
                let device = Self::open_existing(&place, &there)?;
                if device.size > 0 {
                    return device.sized(&place, size).map(Some);
                }
                device.check_room(&place, size)?;
                Ok(None)
            }
            Err(Errno::NOENT) if path.starts_with("/dev") => Err(place.error("no such device")),
            Err(Errno::NOENT) => {
                let above = path.parent().filter(|above| !above.as_os_str().is_empty());
                let above = above.unwrap_or(Path::new("."));
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let fd = openat(CWD, above, flags, Mode::empty());
                let fd = fd.map_err(|errno| DevicePath(above).refused(errno))?;
                accessat(CWD, above, Access::WRITE_OK, AtFlags::EACCESS)
                    .map_err(|errno| DevicePath(above).refused(errno))?;
                let mut folder = Self::of(&place, fd, false)?;
                folder.check_file_system(&place)?;
                folder.check_room(&place, size)?;
                Ok(None)
            }
            Err(errno) => Err(place.refused(errno)),
        }
    }

    fn check_room(&self, place: &DevicePath<'_>, size: Option<u64>) -> Result<(), OpenError> {
        let Some(asked) = size else {
            return Err(place.error(NO_SIZE));
        };
        let free = self.room();
        match asked > free {
            true => Err(OpenError::Disk {
                place: place.to_string(),
                asked,
                free,
            }),
            false => Ok(()),
        }
    }

    /// Free bytes of its file system.
    fn room(&self) -> u64 {
        fstatvfs(&self.fd).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize))
    }

    /// Warnings for the operator.
    pub fn warnings(&self) -> &[DeviceWarning] {
        &self.warnings
    }

    fn open_existing(place: &DevicePath<'_>, there: &Stat) -> Result<Self, OpenError> {
        let is_partition = match FileType::from_raw_mode(there.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            FileType::Directory => {
                return Err(place.error("is a directory: name a file in it"));
            }
            _ => return Err(place.error("is neither a partition nor a file: name one")),
        };
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        if is_partition {
            flags |= OFlags::EXCL;
        }
        let fd = match openat(CWD, place.0, flags, Mode::empty()) {
            Err(Errno::BUSY) => return Err(place.held(there)),
            opened => opened.map_err(|errno| place.refused(errno))?,
        };
        Self::lock(place, fd, is_partition)
    }

    fn lock(place: &DevicePath<'_>, fd: OwnedFd, is_partition: bool) -> Result<Self, OpenError> {
        let opened = fstat(&fd).map_err(|errno| place.refused(errno))?;
        match lock::take(&fd) {
            Err(Errno::WOULDBLOCK) => return Err(place.held(&opened)),
            locked => locked.map_err(|errno| place.refused(errno))?,
        }
        let mut device = Self::of(place, fd, is_partition)?;
        if is_partition {
            device.check_sectors(place)?;
        } else {
            device.check_file_system(place)?;
            if opened.st_mode & 0o044 != 0 {
                device.warnings.push(DeviceWarning::Readable);
            }
        }
        Ok(device)
    }

    fn of(place: &DevicePath<'_>, fd: OwnedFd, is_partition: bool) -> Result<Self, OpenError> {
        Ok(Self {
            size: seek(&fd, SeekFrom::End(0)).map_err(|errno| place.refused(errno))?,
            fd: fd.into(),
            name: place.to_string(),
            is_partition,
            warnings: Vec::new(),
            zeros: Aligned::zeros(UNIT as usize),
        })
    }

    fn check_sectors(&self, place: &DevicePath<'_>) -> Result<(), OpenError> {
        let sector = ioctl_blksszget(&self.fd).map_err(|errno| place.refused(errno))?;
        if sector as usize > PAGE {
            return Err(place.error(format!(
                "its sectors are {sector} bytes, larger than pages of {PAGE}: use another device"
            )));
        }
        Ok(())
    }

    /// File system types as in magic.h.
    fn check_file_system(&mut self, place: &DevicePath<'_>) -> Result<(), OpenError> {
        const TMPFS: u32 = 0x0102_1994;
        const RAMFS: u32 = 0x8584_58F6;
        const HUGETLBFS: u32 = 0x9584_58F6;
        const BTRFS: u32 = 0x9123_683E;
        const BCACHEFS: u32 = 0xCA45_1A4E;
        const NFS: u32 = 0x6969;
        const CIFS: u32 = 0xFF53_4D42;
        const SMB2: u32 = 0xFE53_4D42;
        let kind = fstatfs(&self.fd).map_err(|errno| place.refused(errno))?;
        match kind.f_type as u32 {
            TMPFS | RAMFS | HUGETLBFS => {
                return Err(place.error(
                    "its file system is memory (tmpfs or the like), and pages written there stay \
                     in memory: name a file on a disk",
                ));
            }
            BTRFS | BCACHEFS => self.warnings.push(DeviceWarning::CopyOnWrite),
            NFS | CIFS | SMB2 => self.warnings.push(DeviceWarning::Network),
            _ => {}
        }
        Ok(())
    }

    /// Brings the file to the requested size: an empty file is allocated, any other must have the
    /// size. Contents are not touched before their format is known.
    fn sized(mut self, place: &DevicePath<'_>, asked: Option<u64>) -> Result<Self, OpenError> {
        match asked {
            Some(asked) if self.size == 0 => self.allocate(place, asked)?,
            None if self.size == 0 => return Err(place.error(NO_SIZE)),
            asked => self.require_size(asked)?,
        }
        self.check_allocated(place)?;
        Ok(self)
    }

    /// Refuses another size than the one that is asked for, of which a file has the whole pages.
    pub(super) fn require_size(&self, asked: Option<u64>) -> Result<(), OpenError> {
        let there = self.size;
        let has = |asked: &u64| *asked == there || whole_pages(*asked) == there;
        match asked.filter(|asked| !has(asked)) {
            Some(asked) => Err(OpenError::OtherSize {
                place: self.name.clone(),
                asked,
                there,
            }),
            None => Ok(()),
        }
    }

    fn allocate(&mut self, place: &DevicePath<'_>, size: u64) -> Result<(), OpenError> {
        let size = whole_pages(size);
        let no_room = || OpenError::Disk {
            place: place.to_string(),
            asked: size,
            free: self.room(),
        };
        // Checked first, so that an impossible size does not fill the disk before it fails.
        self.check_room(place, Some(size))?;
        match fallocate(&self.fd, FallocateFlags::empty(), 0, size) {
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(no_room()),
            // The check below explains the failure.
            Err(Errno::OPNOTSUPP) | Ok(()) => {}
            Err(errno) => return Err(place.refused(errno)),
        }
        self.size = seek(&self.fd, SeekFrom::End(0)).map_err(|errno| place.refused(errno))?;
        Ok(())
    }

    /// Refuses a file with holes, then turns on direct I/O if the file system has it.
    fn check_allocated(&mut self, place: &DevicePath<'_>) -> Result<(), OpenError> {
        if !self.is_partition {
            let stat = fstat(&self.fd).map_err(|errno| place.refused(errno))?;
            let blocks = stat.st_blocks as u64 * 512;
            if blocks < self.size {
                return Err(place.error(format!(
                    "it has holes ({blocks} of {} bytes are allocated), and pages must not find \
                     the disk full: fill them with fallocate -l {}, or write it whole",
                    self.size, self.size
                )));
            }
        }
        if !self.set_direct() {
            self.warnings.push(DeviceWarning::Buffered);
        }
        Ok(())
    }

    /// Turns on direct I/O if a page can be read that way. Returns true if it did.
    fn set_direct(&self) -> bool {
        let Ok(flags) = fcntl_getfl(&self.fd) else {
            return false;
        };
        if fcntl_setfl(&self.fd, flags | OFlags::DIRECT).is_err() {
            return false;
        }
        let mut page = Aligned::zeros(PAGE);
        let works = !matches!(pread(&self.fd, page.as_mut_slice(), 0), Err(Errno::INVAL));
        if !works {
            let _ = fcntl_setfl(&self.fd, flags);
        }
        works
    }
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE as u64 * PAGE as u64
}

/// For I/O on the files' extents: with this descriptor, a duplicate of it, or one registered with a
/// ring. A descriptor opened anew is another open file and would not hold the lock.
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl BlockDevice for Device {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, to: &mut [u8], at: u64) -> Result<(), Errno> {
        self.fd.read_exact_at(to, at).map_err(errno)
    }

    fn write(&self, from: &[u8], at: u64) -> Result<(), Errno> {
        self.fd.write_all_at(from, at).map_err(errno)
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), Errno> {
        let zeros = self.zeros.as_slice();
        let mut done = 0;
        while done < len {
            let part = (len - done).min(zeros.len() as u64);
            self.write(&zeros[..part as usize], at + done)?;
            done += part;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        fdatasync(&self.fd)
    }
}

/// Reading past the end is an I/O error.
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The path that errors name.
struct DevicePath<'a>(&'a Path);

impl DevicePath<'_> {
    fn error(&self, why: impl Into<String>) -> OpenError {
        OpenError::Unusable {
            place: self.to_string(),
            why: why.into(),
        }
    }

    fn held(&self, stat: &Stat) -> OpenError {
        OpenError::Held {
            place: self.to_string(),
            holder: lock::pid(stat),
        }
    }

    fn refused(&self, errno: Errno) -> OpenError {
        self.error(match errno {
            Errno::NOENT => "no such file: a daemon makes it".to_owned(),
            Errno::NOTDIR => "part of the path is not a directory".to_owned(),
            Errno::ACCESS | Errno::PERM => "no permission to read and write it".to_owned(),
            Errno::ROFS => "the file system is read-only".to_owned(),
            Errno::TXTBSY => "the kernel swaps to it, or runs it: swapoff first".to_owned(),
            Errno::FBIG => "the file system has no files of that size".to_owned(),
            other => other.to_string(),
        })
    }
}

impl fmt::Display for DevicePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}
