//! What an executable is made of: text, data and bss, as table 1 of the paper has them of
//! its programs. They are the loadable segments of the ELF file that are executable, that
//! may be written as far as they are in the file, and beyond that.

use crate::prelude::*;
use object::elf::PF_W;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSegment, SegmentFlags};

/// Bytes of an executable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Image {
    /// That are not written.
    pub text: u64,
    /// That may be written, and come from the file.
    pub data: u64,
    /// That begin as zeros.
    pub bss: u64,
}

impl Image {
    /// Of a file.
    pub fn of(path: &Path) -> Result<Self> {
        let file = std::fs::read(path).at("read", path)?;
        let of = format!("{} is no 64-bit ELF program", path.display());
        Self::parse(&file).or_unavailable(of)
    }

    fn parse(file: &[u8]) -> object::Result<Self> {
        let mut image = Self::default();
        for segment in ElfFile64::<Endianness>::parse(file)?.segments() {
            let (_, in_file) = segment.file_range();
            match segment.flags() {
                SegmentFlags::Elf { p_flags, .. } if p_flags.contains(PF_W) => {
                    image.data += in_file;
                    image.bss += segment.size().saturating_sub(in_file);
                }
                _ => image.text += in_file,
            }
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(segments: &[(u64, u64, u64, u64)]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[16..20].copy_from_slice(&[2, 0, 62, 0]);
        file[20..24].copy_from_slice(&1u32.to_le_bytes());
        file[52..54].copy_from_slice(&64u16.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        for (kind, flags, in_file, in_memory) in segments {
            let mut header = vec![0; 56];
            header[..4].copy_from_slice(&(*kind as u32).to_le_bytes());
            header[4..8].copy_from_slice(&(*flags as u32).to_le_bytes());
            header[32..40].copy_from_slice(&in_file.to_le_bytes());
            header[40..48].copy_from_slice(&in_memory.to_le_bytes());
            file.extend(header);
        }
        file
    }

    #[test]
    fn what_may_be_written_is_data_as_far_as_it_is_in_the_file() {
        let file = elf(&[
            (1, 4, 100, 100),
            (1, 5, 1000, 1000),
            (1, 6, 30, 50),
            (2, 6, 9, 9),
        ]);
        let image = Image::parse(&file).unwrap();
        assert_eq!((image.text, image.data, image.bss), (1100, 30, 20));
    }

    #[test]
    fn what_is_no_program_or_ends_too_soon_has_no_image() {
        assert!(Image::parse(b"#!/bin/sh").is_err());
        let file = elf(&[(1, 6, 30, 50)]);
        assert!(Image::parse(&file[..file.len() - 20]).is_err());
    }

    #[test]
    fn this_very_program_has_text_and_data() {
        let image = Image::of(&std::env::current_exe().unwrap()).unwrap();
        assert!(image.text > 0 && image.data > 0);
    }
}
