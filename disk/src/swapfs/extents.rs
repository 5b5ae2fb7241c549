//! Translates an offset in a swap file to one on the device.
//!
//! The user-safe disk translates every transaction (Nemesis, section 6.7: extents are allocated by
//! the filesystem, transactions on them scheduled by the disk). This is a copy: the disk owns it,
//! and gets another when the file has grown.
//!
//! Rule: translation allocates nothing, and yields nothing outside the file's own extents for any
//! input: offsets and lengths come from a tenant.

use super::file::File;
use super::{DATA, UNIT};
use std::iter::FusedIterator;

/// A contiguous part of a file. All in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First byte in the file.
    pub file: u64,
    /// First byte on the device.
    pub device: u64,
    /// Length.
    pub len: u64,
}

/// A part of a request that is contiguous on the device. In bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentSlice {
    /// First byte on the device.
    pub device: u64,
    /// Length.
    pub len: u64,
}

/// A request past the end of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes at {offset} of a swap file of which {size} bytes may be used")]
pub struct OutOfFile {
    /// Requested offset.
    pub offset: u64,
    /// Requested bytes.
    pub len: u64,
    /// Usable bytes of the file.
    pub size: u64,
}

/// A file's extents, in the order of its offsets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extents {
    list: Box<[Extent]>,
    size: u64,
}

impl Extents {
    /// The extents of the scrubbed part of `file`.
    pub(super) fn of(file: &File) -> Self {
        let list = between(file, 0, file.clean);
        Self {
            size: list.last().map_or(0, |last| last.file + last.len),
            list: list.into(),
        }
    }

    /// All extents.
    pub fn list(&self) -> &[Extent] {
        &self.list
    }

    /// Usable bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The device ranges of the `len` bytes at `offset` of the file, split where extents end.
    pub fn translate(&self, offset: u64, len: u64) -> Result<ExtentSlices<'_>, OutOfFile> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        if !inside {
            return Err(OutOfFile {
                offset,
                len,
                size: self.size,
            });
        }
        let at = self
            .list
            .partition_point(|extent| extent.file + extent.len <= offset);
        Ok(ExtentSlices {
            list: self.list.get(at..).unwrap_or_default(),
            offset,
            left: len,
        })
    }
}

/// The extents of the units `from..to` of `file`.
pub(super) fn between(file: &File, from: u32, to: u32) -> Vec<Extent> {
    let mut list = Vec::with_capacity(file.runs.len());
    let mut at = 0;
    for run in &file.runs {
        let after = at + run.count;
        let (first, end) = (from.clamp(at, after), to.clamp(at, after));
        if end > first {
            list.push(Extent {
                file: u64::from(first) * UNIT,
                device: DATA + u64::from(run.first + (first - at)) * UNIT,
                len: u64::from(end - first) * UNIT,
            });
        }
        at = after;
    }
    list
}

/// The slices of a request, in order. See [`Extents::translate`].
#[derive(Clone, Debug)]
pub struct ExtentSlices<'a> {
    list: &'a [Extent],
    offset: u64,
    left: u64,
}

impl Iterator for ExtentSlices<'_> {
    type Item = ExtentSlice;

    fn next(&mut self) -> Option<ExtentSlice> {
        if self.left == 0 {
            return None;
        }
        let (extent, rest) = self.list.split_first()?;
        let skip = self.offset - extent.file;
        let len = self.left.min(extent.len - skip);
        self.list = rest;
        self.offset += len;
        self.left -= len;
        Some(ExtentSlice {
            device: extent.device + skip,
            len,
        })
    }
}

impl FusedIterator for ExtentSlices<'_> {}

#[cfg(test)]
mod tests {
    use super::super::file::{FileId, FileName};
    use super::super::free_space::UnitRun;
    use super::*;
    use proptest::prelude::*;

    fn file(runs: &[(u32, u32)], clean: u32) -> File {
        File {
            id: FileId(1),
            name: FileName::new(b"a name of a file").unwrap(),
            blob: Vec::new(),
            clean,
            runs: (runs.iter())
                .map(|&(first, count)| UnitRun { first, count })
                .collect(),
        }
    }

    fn pieces(extents: &Extents, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let pieces = extents.translate(offset, len).unwrap();
        pieces.map(|piece| (piece.device, piece.len)).collect()
    }

    #[test]
    fn a_request_is_split_where_an_extent_ends() {
        let extents = Extents::of(&file(&[(10, 2), (3, 4)], 6));
        assert_eq!(
            pieces(&extents, 4096, 8192),
            [(DATA + 10 * UNIT + 4096, 8192)]
        );
        assert_eq!(
            pieces(&extents, 2 * UNIT - 4096, 8192),
            [(DATA + 12 * UNIT - 4096, 4096), (DATA + 3 * UNIT, 4096)]
        );
        assert_eq!(pieces(&extents, 6 * UNIT, 0), []);
    }

    #[test]
    fn nothing_past_the_end_is_translated() {
        let extents = Extents::of(&file(&[(10, 2)], 2));
        for (offset, len) in [
            (2 * UNIT, 1),
            (0, 2 * UNIT + 1),
            (u64::MAX, 2),
            (1, u64::MAX),
        ] {
            assert_eq!(
                extents.translate(offset, len).unwrap_err(),
                OutOfFile {
                    offset,
                    len,
                    size: 2 * UNIT
                }
            );
        }
    }

    #[test]
    fn unscrubbed_space_is_not_translated() {
        let extents = Extents::of(&file(&[(10, 2), (3, 4)], 3));
        assert_eq!(extents.size(), 3 * UNIT);
        assert_eq!(extents.list()[1].len, UNIT);
        assert!(extents.translate(3 * UNIT, 1).is_err());
        assert_eq!(Extents::of(&file(&[(10, 2)], 0)).list(), []);
    }

    proptest! {
        #[test]
        fn every_byte_is_translated_to_its_own(
            counts in prop::collection::vec(1u32..5, 1..6),
            from in any::<prop::sample::Index>(),
            len in 0u64..(3 * UNIT),
        ) {
            let mut first = 100;
            let runs: Vec<(u32, u32)> = counts.iter().map(|&count| {
                first -= count + 1;
                (first, count)
            }).collect();
            let units: u32 = counts.iter().sum();
            let extents = Extents::of(&file(&runs, units));
            let offset = from.index((u64::from(units) * UNIT) as usize) as u64;
            let len = len.min(extents.size() - offset);
            let device_of = |byte: u64| {
                let extent = extents.list().iter().find(|e| byte >= e.file && byte < e.file + e.len);
                extent.map(|e| e.device + byte - e.file)
            };
            let mut at = offset;
            for piece in extents.translate(offset, len).unwrap() {
                prop_assert!(piece.len > 0);
                prop_assert_eq!(Some(piece.device), device_of(at));
                prop_assert_eq!(Some(piece.device + piece.len - 1), device_of(at + piece.len - 1));
                at += piece.len;
            }
            prop_assert_eq!(at, offset + len);
        }
    }
}
