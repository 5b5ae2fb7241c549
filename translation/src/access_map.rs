//! The access rights that the kernel's mappings have, as `/proc/self/maps` shows them.

use crate::protect::Access;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, pread};

/// Bytes of a line that hold its addresses and rights.
const LINE_HEAD: usize = 64;

/// The mappings of the address space that opened it: after a fork the child opens its own. Open it
/// early: a process that changed its user may lack permission.
#[derive(Debug)]
pub struct AccessMap {
    fd: OwnedFd,
}

impl AccessMap {
    /// Opens `/proc/self/maps`.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(c"/proc/self/maps", flags, Mode::empty())?;
        Ok(Self { fd })
    }

    /// The rights of the mapping at `addr`; None where there is none. Reads the mappings below it,
    /// some hundred nanoseconds each.
    pub fn access(&self, addr: usize) -> Result<Option<Access>, Errno> {
        let mut buffer = [0u8; 4096];
        let (mut offset, mut held) = (0u64, 0);
        loop {
            let read = pread(&self.fd, &mut buffer[held..], offset)?;
            offset += read as u64;
            held += read;
            let mut begin = 0;
            while let Some(length) = buffer[begin..held].iter().position(|byte| *byte == b'\n') {
                let line = parse(&buffer[begin..begin + length]);
                if let Some((start, end, access)) = line
                    && addr < end
                {
                    return Ok((start <= addr).then_some(access));
                }
                begin += length + 1;
            }
            if read == 0 {
                return Ok(None);
            }
            buffer.copy_within(begin..held, 0);
            held -= begin;
            if held == buffer.len() {
                // The rest is a long path.
                held = LINE_HEAD;
            }
        }
    }
}

/// A line's addresses and rights: `7f00-7f08 rw-p ...`.
fn parse(line: &[u8]) -> Option<(usize, usize, Access)> {
    // A path may be of any bytes.
    let mut words = line.split(|byte| *byte == b' ');
    let (start, end) = std::str::from_utf8(words.next()?).ok()?.split_once('-')?;
    let rights = words.next()?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let access = Access {
        read: rights.first() == Some(&b'r'),
        write: rights.get(1) == Some(&b'w'),
        execute: rights.get(2) == Some(&b'x'),
    };
    Some((address(start)?, address(end)?, access))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wired::PAGE;

    #[test]
    fn the_rights_of_a_page_are_those_it_was_given() {
        let area = crate::reserve(None, 3 * PAGE, true).unwrap();
        let map = AccessMap::open().unwrap();
        for access in [Access::NONE, Access::READ, Access::READ_WRITE] {
            // SAFETY: the test's own reservation, in which nothing is.
            unsafe { crate::set_access(area.addr + PAGE, PAGE, access) }.unwrap();
            assert_eq!(map.access(area.addr + PAGE + 1), Ok(Some(access)));
            assert_eq!(map.access(area.addr), Ok(Some(Access::READ_WRITE)));
        }
        assert_eq!(map.access(0), Ok(None));
        assert_eq!(map.access(usize::MAX), Ok(None));
        let code = AccessMap::open as *const () as usize;
        assert!(
            map.access(code)
                .unwrap()
                .is_some_and(|access| access.execute)
        );
        // SAFETY: as above.
        unsafe { crate::unmap_reservation(area) }.unwrap();
    }

    #[test]
    fn a_mapped_file_whose_path_is_long_and_no_text_hides_no_mapping() {
        use rustix::fs::{ftruncate, mkdirat, openat};
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        const LOW: usize = 0x10_0000_0000;
        let top = tempfile::tempdir().unwrap();
        let name = [0xff; 250].as_slice();
        let read_directory = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut directory =
            openat(rustix::fs::CWD, top.path(), read_directory, Mode::empty()).unwrap();
        for _ in 0..17 {
            mkdirat(&directory, name, Mode::RWXU).unwrap();
            directory = openat(&directory, name, read_directory, Mode::empty()).unwrap();
        }
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = openat(&directory, "file", flags, Mode::RWXU).unwrap();
        ftruncate(&file, PAGE as u64).unwrap();
        let area = crate::reserve(None, PAGE, true).unwrap();
        let map = AccessMap::open().unwrap();
        let low = std::ptr::without_provenance_mut(LOW);
        // SAFETY: addresses that nothing has, or the call fails.
        unsafe {
            mmap(
                low,
                PAGE,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
                &file,
                0,
            )
        }
        .unwrap();
        assert_eq!(map.access(LOW), Ok(Some(Access::READ)));
        assert_eq!(map.access(area.addr), Ok(Some(Access::READ_WRITE)));
        // SAFETY: the test's own mappings.
        unsafe {
            munmap(low, PAGE).unwrap();
            crate::unmap_reservation(area).unwrap();
        }
    }
}
