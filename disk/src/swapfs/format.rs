//! The on-disk format of the file table.
//!
//! All numbers are little-endian. Every version begins with the same 24 bytes: magic, version,
//! total length in bytes, and a checksum (XXH3-64) of the bytes that follow. So a program that does
//! not know a version can still tell it from half an image.
//!
//! Rule: decoded values are validated before use. A checksum shows that the bytes are those that
//! were written, not that this program wrote them.

use super::file::{File, FileId, FileName, MAX_BLOB};
use super::free_space::UnitRun;
use super::table::FileTable;
use super::{MAX_EXTENTS, MAX_FILES, UNIT};
use twox_hash::XxHash3_64;

/// The version written, and the last that is understood.
pub(super) const VERSION: u32 = 1;

/// Identifies the format.
pub(super) const MAGIC: [u8; 8] = *b"SlfPgSwp";

/// Bytes common to all versions.
pub(super) const PREFIX: usize = 24;

const HEADER: usize = PREFIX + 8 + 16 + 8 + 4 + 8 + 4;
const FILE: usize = 8 + 1 + FileName::MAX + 2 + 4 + 4;
const RUN: usize = 4 + 4;

/// Maximum bytes of an image.
pub(super) const MAX_IMAGE: usize = HEADER + MAX_FILES * (FILE + MAX_BLOB) + MAX_EXTENTS * RUN;

/// Why bytes are not a valid image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FormatError {
    /// No swap filesystem.
    NotOurs,
    /// Half written, or decayed.
    Torn,
    /// Whole, of a later version.
    Newer(u32),
    /// Whole, with contents that contradict each other.
    Invalid(&'static str),
}

/// Length of the image that begins with `prefix`.
pub(super) fn length(prefix: &[u8]) -> Result<usize, FormatError> {
    let mut from = Cursor(prefix);
    if from.array() != Some(MAGIC) {
        return Err(FormatError::NotOurs);
    }
    let _version = from.u32();
    from.u32().map(|len| len as usize).ok_or(FormatError::Torn)
}

/// Encodes `table` at the front of `to`, which is at least [`MAX_IMAGE`] long, and returns the
/// length.
pub(super) fn encode(table: &FileTable, sequence: u64, to: &mut [u8]) -> usize {
    let mut body = Vec::with_capacity(HEADER);
    body.extend(sequence.to_le_bytes());
    body.extend(table.id);
    body.extend(UNIT.to_le_bytes());
    body.extend(table.units.to_le_bytes());
    body.extend(table.next.to_le_bytes());
    body.extend((table.files.len() as u32).to_le_bytes());
    for file in &table.files {
        encode_file(file, &mut body);
    }
    let len = PREFIX + body.len();
    let (prefix, rest) = to.split_at_mut(PREFIX);
    prefix[..8].copy_from_slice(&MAGIC);
    prefix[8..12].copy_from_slice(&VERSION.to_le_bytes());
    prefix[12..16].copy_from_slice(&(len as u32).to_le_bytes());
    prefix[16..24].copy_from_slice(&XxHash3_64::oneshot(&body).to_le_bytes());
    rest[..body.len()].copy_from_slice(&body);
    len
}

fn encode_file(file: &File, body: &mut Vec<u8>) {
    let name = file.name.as_bytes();
    body.extend(file.id.0.to_le_bytes());
    body.push(name.len() as u8);
    body.extend(name);
    body.extend((file.blob.len() as u16).to_le_bytes());
    body.extend(&file.blob);
    body.extend(file.clean.to_le_bytes());
    body.extend((file.runs.len() as u32).to_le_bytes());
    for run in &file.runs {
        body.extend(run.first.to_le_bytes());
        body.extend(run.count.to_le_bytes());
    }
}

/// Decodes a table and its sequence number.
pub(super) fn decode(bytes: &[u8]) -> Result<(FileTable, u64), FormatError> {
    let len = length(bytes)?;
    let mut from = Cursor(bytes.get(8..len).ok_or(FormatError::Torn)?);
    let version = from.u32().ok_or(FormatError::Torn)?;
    let _len = from.u32();
    let checksum = from.u64().ok_or(FormatError::Torn)?;
    if XxHash3_64::oneshot(from.0) != checksum {
        return Err(FormatError::Torn);
    }
    if version > VERSION {
        return Err(FormatError::Newer(version));
    }
    let read = decode_body(&mut from).ok_or(FormatError::Invalid("a table ends too early"))?;
    check(&read.0, from.0)?;
    Ok(read)
}

fn decode_body(from: &mut Cursor<'_>) -> Option<(FileTable, u64)> {
    let sequence = from.u64()?;
    let id = from.array()?;
    let unit = from.u64()?;
    // A different unit size is decoded as a table of no units, which `check` refuses.
    let units = if unit == UNIT { from.u32()? } else { 0 };
    let mut table = FileTable::new(id, units);
    table.next = from.u64()?;
    let files = from.u32()?;
    for _ in 0..files {
        table.files.push(decode_file(from)?);
    }
    Some((table, sequence))
}

fn decode_file(from: &mut Cursor<'_>) -> Option<File> {
    let id = FileId(from.u64()?);
    let name_len = from.u8()?;
    let name = FileName::new(from.bytes(name_len.into())?).ok()?;
    let blob_len = from.u16()?;
    let blob = from.bytes(blob_len.into())?.to_vec();
    let clean = from.u32()?;
    let count = from.u32()?;
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push(UnitRun {
            first: from.u32()?,
            count: from.u32()?,
        });
    }
    Some(File {
        id,
        name,
        blob,
        clean,
        runs,
    })
}

/// Checks every property that the rest of the filesystem relies on.
fn check(table: &FileTable, rest: &[u8]) -> Result<(), FormatError> {
    let files = &table.files;
    let wrong = |what| Err(FormatError::Invalid(what));
    if !rest.is_empty() {
        return wrong("bytes follow the table");
    }
    if table.units == 0 {
        return wrong("space is allocated in other units");
    }
    if files.len() > MAX_FILES || table.extents() > MAX_EXTENTS {
        return wrong("there are too many files or extents");
    }
    // Checked before any sum: a sum assumes that all extents fit on the device.
    if table.space().is_none() {
        return wrong("two extents overlap, or one is not on the device");
    }
    let in_order = files.is_sorted_by(|a, b| a.id < b.id)
        && files.last().is_none_or(|last| last.id.0 < table.next);
    if !in_order {
        return wrong("the files are not in order");
    }
    let sound = |file: &File| {
        file.clean <= file.units() && file.blob.len() <= MAX_BLOB && !file.runs.is_empty()
    };
    if !files.iter().all(sound) {
        return wrong("a file's scrubbed part is larger than the file");
    }
    let mut names: Vec<_> = files.iter().map(|file| file.name).collect();
    names.sort_unstable();
    if !names.is_sorted_by(|a, b| a < b) {
        return wrong("two files have one name");
    }
    Ok(())
}

/// Reads from the front of bytes; `None` at their end.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::UNIT;
    use super::*;
    use proptest::prelude::*;

    fn table() -> FileTable {
        let mut table = FileTable::new([3; 16], 100);
        for tag in 0..5 {
            let name = FileName::new(&[tag; 17]).unwrap();
            table.create(name, 9 * UNIT, &[tag; 40]).unwrap();
        }
        table.release(FileId(2)).unwrap();
        table.grow(FileId(3), 20 * UNIT).unwrap();
        table.cleaned(FileId(4), 4).unwrap();
        table
    }

    fn image(table: &FileTable) -> Vec<u8> {
        let mut bytes = vec![0; MAX_IMAGE];
        let len = encode(table, 77, &mut bytes);
        bytes.truncate(len);
        bytes
    }

    /// Recomputes the checksum of changed bytes.
    fn sign(bytes: &mut [u8]) {
        let checksum = XxHash3_64::oneshot(&bytes[PREFIX..]);
        bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
    }

    #[test]
    fn a_table_survives_encoding() {
        assert_eq!(decode(&image(&table())), Ok((table(), 77)));
    }

    #[test]
    fn full_tables_have_room() {
        let mut table = FileTable::new([0; 16], u32::MAX);
        for file in 0..MAX_FILES {
            let mut name = [0; FileName::MAX];
            name[..8].copy_from_slice(&file.to_le_bytes());
            let each = MAX_EXTENTS / MAX_FILES;
            let runs = (0..each).map(|at| UnitRun {
                first: 2 * (file * each + at) as u32,
                count: 1,
            });
            table.files.push(File {
                id: FileId(file as u64),
                name: FileName::new(&name).unwrap(),
                blob: vec![0xFF; MAX_BLOB],
                clean: 0,
                runs: runs.collect(),
            });
        }
        table.next = MAX_FILES as u64;
        let image = image(&table);
        assert_eq!(image.len(), MAX_IMAGE);
        assert_eq!(decode(&image), Ok((table, 77)));
    }

    #[test]
    fn a_later_version_is_refused() {
        let mut bytes = image(&table());
        bytes[8] = 9;
        assert_eq!(decode(&bytes), Err(FormatError::Newer(9)));
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert_eq!(decode(&bytes), Err(FormatError::Torn));
    }

    #[test]
    fn a_whole_image_of_overlapping_files_is_refused() {
        let mut table = table();
        let run = table.files[0].runs[0];
        table.files[1].runs = vec![run];
        let refused = decode(&image(&table));
        assert!(
            matches!(refused, Err(FormatError::Invalid(_))),
            "{refused:?}"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut whole = MAGIC.to_vec();
            whole.extend(VERSION.to_le_bytes());
            whole.extend(((PREFIX + bytes.len()) as u32).to_le_bytes());
            whole.extend([0; 8]);
            whole.extend(&bytes);
            prop_assert!(decode(&bytes).is_err());
            prop_assert!(decode(&whole).is_err());
            sign(&mut whole);
            let _ = decode(&whole);
        }

        /// Forged images, too: an image that decodes also encodes to the same table.
        #[test]
        fn what_is_believed_makes_sense(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            signed: bool,
        ) {
            let mut bytes = image(&table());
            for (at, value) in changes {
                let at = PREFIX + at.index(bytes.len() - PREFIX);
                bytes[at] = value;
            }
            let changed = bytes != image(&table());
            if signed {
                sign(&mut bytes);
            }
            match decode(&bytes) {
                Ok((table, _)) => {
                    prop_assert!(signed || !changed);
                    prop_assert!(table.space().is_some());
                    prop_assert_eq!(image(&table)[32..].to_vec(), bytes[32..].to_vec());
                }
                Err(unreadable) => prop_assert!(signed || unreadable == FormatError::Torn),
            }
        }
    }
}
