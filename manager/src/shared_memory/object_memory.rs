//! The memory of an object. It is validated, since a process may have made it.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat, fstatfs};
use rustix::io::{self, Errno};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use wired::PAGE;

/// f_type of hugetlbfs, from magic.h.
const HUGETLBFS: u64 = 0x9584_58f6;

/// Why a descriptor is no memory for an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnObject {
    /// Another kind of file, or one whose size, or what may be done to it, may change.
    #[error("the descriptor is no memory of the supervisor's: it has not the seals of such")]
    NotSealed,
    /// Memory of which no hole can be punched.
    #[error("the memory is sealed against writes, or open for reading alone: it cannot be evicted")]
    NotWritable,
    /// Pages of another size.
    #[error("the memory has huge pages, which are not evicted")]
    HugePages,
    /// Another size.
    #[error("the memory has {there} bytes, and {asked} are mapped")]
    Size {
        /// Of the file.
        there: u64,
        /// Of the mapping.
        asked: u64,
    },
    /// The kernel refused to tell.
    #[error("the memory cannot be inspected: {0}")]
    Refused(#[from] Errno),
}

/// Checks memory for an object of so many pages. Returns its inode.
pub(super) fn check_memory(memory: &OwnedFd, pages: usize) -> Result<u64, NotAnObject> {
    let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    // Only a file in memory has seals.
    let seals = fcntl_get_seals(memory).map_err(|_| NotAnObject::NotSealed)?;
    if !seals.contains(fixed) {
        return Err(NotAnObject::NotSealed);
    }
    let is_open = fcntl_getfl(memory)?.contains(OFlags::RDWR);
    if !is_open || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(NotAnObject::NotWritable);
    }
    if fstatfs(memory)?.f_type as u64 == HUGETLBFS {
        return Err(NotAnObject::HugePages);
    }
    let stat = fstat(memory)?;
    let (there, asked) = (stat.st_size as u64, (pages * PAGE) as u64);
    match there == asked {
        true => Ok(stat.st_ino),
        false => Err(NotAnObject::Size { there, asked }),
    }
}

/// Writes a page that no process maps, and that is not there. One that a process maps would be zeros to it meanwhile. It goes
/// through a mapping: a write by the descriptor may bring in a huge page, of which a removal loses stores.
pub(super) fn write_page(memory: BorrowedFd<'_>, page: usize, from: *const u8) -> io::Result<()> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    let offset = (page * PAGE) as u64;
    // SAFETY: a new mapping, where the kernel chooses.
    let at = unsafe { mmap(std::ptr::null_mut(), PAGE, access, flags, memory, offset)? };
    // SAFETY: the mapping above, whose contents stay. A kernel without huge pages refuses it.
    let _ = unsafe { madvise(at, PAGE, Advice::LinuxNoHugepage) };
    // An access that the kernel has no memory for would be a SIGBUS; this is an error.
    // SAFETY: as above.
    let is_there = unsafe { madvise(at, PAGE, Advice::LinuxPopulateWrite) };
    if is_there.is_ok() {
        // SAFETY: the caller's page, and the mapping, which is there.
        unsafe { std::ptr::copy_nonoverlapping(from, at.cast(), PAGE) };
    }
    // SAFETY: the mapping above.
    unsafe { munmap(at, PAGE)? };
    is_there
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsFd, AsRawFd};
    use rustix::fs::{MemfdFlags, Mode, fcntl_add_seals, ftruncate, memfd_create, open};

    const HUGE_PAGE: u64 = 2 << 20;
    const FIXED: SealFlags = SealFlags::SHRINK
        .union(SealFlags::GROW)
        .union(SealFlags::SEAL);

    fn memory(flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create(c"test", flags).unwrap();
        ftruncate(&memory, HUGE_PAGE).unwrap();
        fcntl_add_seals(&memory, seals).unwrap();
        memory
    }

    fn outcome(memory: &OwnedFd) -> Option<NotAnObject> {
        check_memory(memory, HUGE_PAGE as usize / PAGE).err()
    }

    #[test]
    fn memory_that_may_change_and_files_are_refused() {
        let with = |seals| memory(MemfdFlags::empty(), seals);
        assert_eq!(outcome(&with(FIXED)), None);
        let unsealed = SealFlags::SHRINK | SealFlags::GROW;
        assert_eq!(outcome(&with(unsealed)), Some(NotAnObject::NotSealed));
        let file = tempfile::tempfile().unwrap().into();
        assert_eq!(outcome(&file), Some(NotAnObject::NotSealed));
        let sizes = NotAnObject::Size {
            there: HUGE_PAGE,
            asked: PAGE as u64,
        };
        assert_eq!(check_memory(&with(FIXED), 1).err(), Some(sizes));
    }

    #[test]
    fn a_page_is_written_where_no_process_maps_it() {
        let own = memory(MemfdFlags::empty(), FIXED);
        let mut there = [0u8; 3 * PAGE];
        write_page(own.as_fd(), 1, [7u8; PAGE].as_ptr()).unwrap();
        io::pread(&own, &mut there[..], 0).unwrap();
        let page = |number: usize| &there[number * PAGE..][..PAGE];
        assert_eq!([0, 1, 2].map(page), [[0; PAGE], [7; PAGE], [0; PAGE]]);
    }

    #[test]
    fn memory_without_holes_and_of_huge_pages_is_refused() {
        let sealed = memory(MemfdFlags::empty(), FIXED | SealFlags::FUTURE_WRITE);
        assert_eq!(outcome(&sealed), Some(NotAnObject::NotWritable));
        let own = memory(MemfdFlags::empty(), FIXED);
        let path = format!("/proc/self/fd/{}", own.as_raw_fd());
        let read_only = open(path, OFlags::RDONLY, Mode::empty()).unwrap();
        assert_eq!(outcome(&read_only), Some(NotAnObject::NotWritable));
        let huge = memory(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, FIXED);
        assert_eq!(outcome(&huge), Some(NotAnObject::HugePages));
    }
}
