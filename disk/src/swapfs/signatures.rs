//! Detects what a device holds before it is formatted.
//!
//! Rule: only zeros are formatted over unless forced, and the refusal names what would be lost.
//! Signatures are those of the formats' own documentation.

use super::block_device::{Aligned, BlockDevice};
use super::format::MAGIC;
use super::{DATA, UNIT};
use rustix::io::Errno;
use std::fmt;
use wired::PAGE;

/// Offset, signature, format. More specific ones first: the bytes that end the sector of an MBR end
/// that of a FAT file system, too.
const SIGNATURES: [(usize, &[u8], &str); 15] = [
    (1080, &[0x53, 0xEF], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (1024, &[0x10, 0x20, 0xF5, 0xF2], "an F2FS file system"),
    (PAGE - 10, b"SWAPSPACE2", "swap space of the kernel"),
    (0, b"LUKS\xBA\xBE", "an encrypted volume (LUKS)"),
    (512, b"LABELONE", "a physical volume (LVM)"),
    (4096, &[0xFC, 0x4E, 0x2B, 0xA9], "a part of a RAID array"),
    (0, b"hsqs", "a squashfs file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (510, &[0x55, 0xAA], "a partition table (MBR)"),
];

/// The detected contents of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DetectedFormat {
    /// A swap filesystem, of any version and in any state.
    Ours,
    /// A known signature.
    Known(&'static str),
    /// Unknown data, beginning at this byte.
    Data(u64),
}

impl DetectedFormat {
    pub fn is_ours(self) -> bool {
        self == Self::Ours
    }
}

impl fmt::Display for DetectedFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours => f.write_str("a swap filesystem"),
            Self::Known(what) => f.write_str(what),
            Self::Data(at) => write!(f, "data (from byte {at} on)"),
        }
    }
}

/// Detects what the device holds, or nothing where it holds zeros: at its start, where the
/// superblocks lie, and at its end, where RAID arrays and partition tables keep copies.
pub(super) fn describe(medium: &impl BlockDevice) -> Result<Option<DetectedFormat>, Errno> {
    let mut bytes = Aligned::zeros(DATA as usize);
    medium.read(bytes.as_mut_slice(), 0)?;
    let start = bytes.as_slice();
    let has = |at: usize, signature: &[u8]| start[at..].starts_with(signature);
    // Our own signature last: formatting over a swap filesystem need not overwrite all of it.
    if let Some((_, _, what)) = SIGNATURES.iter().find(|(at, sign, _)| has(*at, sign)) {
        return Ok(Some(DetectedFormat::Known(what)));
    }
    if has(0, &MAGIC) || has((DATA / 2) as usize, &MAGIC) {
        return Ok(Some(DetectedFormat::Ours));
    }
    if let Some(at) = first_set(start) {
        return Ok(Some(DetectedFormat::Data(at)));
    }
    let last = &mut bytes.as_mut_slice()[..UNIT as usize];
    medium.read(last, end(medium))?;
    Ok(first_set(last).map(|at| DetectedFormat::Data(end(medium) + at)))
}

/// Zeroes the parts of the device that [`describe`] reads.
pub(super) fn wipe(medium: &impl BlockDevice) -> Result<(), Errno> {
    medium.zero(0, DATA)?;
    medium.zero(end(medium), UNIT)?;
    medium.flush()
}

/// First byte of the last unit.
fn end(medium: &impl BlockDevice) -> u64 {
    let page = PAGE as u64;
    medium.size().saturating_sub(UNIT) / page * page
}

fn first_set(bytes: &[u8]) -> Option<u64> {
    (bytes.iter().position(|&byte| byte != 0)).map(|at| at as u64)
}
