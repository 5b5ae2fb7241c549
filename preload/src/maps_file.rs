//! The process's mappings as the kernel lists them, in /proc/self/maps.

use crate::vma_map::AddrRange;
use rustix::fs::{Mode, OFlags, open};

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub struct MapsLine<'a> {
    /// Its addresses.
    pub span: AddrRange,
    /// As `rw-p`.
    pub access: &'a str,
    /// Where it begins in its file, in bytes.
    pub offset: usize,
    /// The device of its file, by its major and minor number.
    pub device: (usize, usize),
    /// Of its file; 0 where it has none.
    pub inode: u64,
    /// The path of its file, or what the kernel calls it; up to the first space.
    pub name: &'a str,
}

impl<'a> MapsLine<'a> {
    /// None for what is no such line.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let mut fields = line.split_ascii_whitespace();
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let (start, end) = fields.next()?.split_once('-')?;
        let (access, offset) = (fields.next()?, fields.next()?);
        let ((major, minor), inode) = (fields.next()?.split_once(':')?, fields.next()?);
        Some(Self {
            span: number(start)?..number(end)?,
            access,
            offset: number(offset)?,
            device: (number(major)?, number(minor)?),
            inode: inode.parse().ok()?,
            name: fields.next().unwrap_or(""),
        })
    }
}

/// Passes each mapping to `take`, without the heap.
///
/// # Errors
/// Where the list cannot be read to its end: no descriptor is free, or there is no /proc.
pub fn for_each_mapping(mut take: impl FnMut(&MapsLine<'_>)) -> rustix::io::Result<()> {
    let file = open(
        c"/proc/self/maps",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut buffer = [0u8; 8192];
    let mut held = 0;
    loop {
        match rustix::io::read(&file, &mut buffer[held..])? {
            0 => return Ok(()),
            n => held += n,
        }
        let mut start = 0;
        while let Some(len) = buffer[start..held].iter().position(|b| *b == b'\n') {
            if let Some(mapping) = MapsLine::parse(&buffer[start..start + len]) {
                take(&mapping);
            }
            start += len + 1;
        }
        buffer.copy_within(start..held, 0);
        held -= start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_addresses_rights_a_place_in_a_file_and_a_name() {
        let line =
            b"7fd720cd7000-7fd720ce0000 rw-s 0001f000 00:01 32770      /SYSV00000000 (deleted)";
        let expected = MapsLine {
            span: 0x7fd7_20cd_7000..0x7fd7_20ce_0000,
            access: "rw-s",
            offset: 0x1f000,
            device: (0, 1),
            inode: 32770,
            name: "/SYSV00000000",
        };
        assert_eq!(MapsLine::parse(line), Some(expected));
        assert_eq!(MapsLine::parse(b"7fd720cd7000"), None);
    }

    #[test]
    fn this_function_is_in_a_mapping_that_is_executed() {
        let mut accesses = Vec::new();
        let own = MapsLine::parse as fn(_) -> _ as usize;
        for_each_mapping(|mapping| {
            if mapping.span.contains(&own) {
                accesses.push(mapping.access.to_owned());
            }
        })
        .unwrap();
        assert_eq!(accesses, ["r-xp"]);
    }
}
