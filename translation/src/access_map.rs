//! The access rights that the kernel's mappings have, as `/proc/self/maps` shows them.

use crate::protect::Access;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, pread};

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
            if read == 0 || begin == 0 {
                return Ok(None);
            }
            buffer.copy_within(begin..held, 0);
            held -= begin;
        }
    }
}

/// A line's addresses and rights: `7f00-7f08 rw-p ...`.
fn parse(line: &[u8]) -> Option<(usize, usize, Access)> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?.as_bytes();
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
}
