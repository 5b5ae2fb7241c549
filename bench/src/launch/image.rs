//! What an executable is made of: text, data and bss, as table 1 of the paper has them of
//! its programs. They are the loadable segments of the ELF file that are executable, that
//! may be written as far as they are in the file, and beyond that.

use crate::prelude::*;

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

/// Of the ELF64 format (elf(5)).
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const LOAD: u64 = 1;
const MAY_WRITE: u64 = 2;

impl Image {
    /// Of a file.
    pub fn of(path: &Path) -> Result<Self> {
        let doing = || format!("read {}", path.display());
        let bytes = std::fs::read(path).doing(doing())?;
        Self::parse(&bytes)
            .ok_or_else(|| unavailable(format!("{} is no 64-bit ELF program", path.display())))
    }

    fn parse(file: &[u8]) -> Option<Self> {
        if !file.starts_with(MAGIC) {
            return None;
        }
        let at = usize::try_from(number(file, 32, 8)?).ok()?;
        let (size, count) = (number(file, 54, 2)? as usize, number(file, 56, 2)? as usize);
        let mut image = Self::default();
        for n in 0..count {
            let header = file.get(at.checked_add(n * size)?..)?;
            if number(header, 0, 4)? != LOAD {
                continue;
            }
            let (in_file, in_memory) = (number(header, 32, 8)?, number(header, 40, 8)?);
            match number(header, 4, 4)? & MAY_WRITE {
                0 => image.text += in_file,
                _ => {
                    image.data += in_file;
                    image.bss += in_memory.saturating_sub(in_file);
                }
            }
        }
        Some(image)
    }
}

/// Little-endian, of so many bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |all, byte| all << 8 | u64::from(*byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(segments: &[(u64, u64, u64, u64)]) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        file.resize(64, 0);
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
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
        assert_eq!(Image::parse(b"#!/bin/sh"), None);
        let file = elf(&[(1, 6, 30, 50)]);
        assert_eq!(Image::parse(&file[..file.len() - 20]), None);
    }

    #[test]
    fn this_very_program_has_text_and_data() {
        let image = Image::of(&std::env::current_exe().unwrap()).unwrap();
        assert!(image.text > 0 && image.data > 0);
    }
}
