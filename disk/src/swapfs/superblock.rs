//! Two superblocks: copies of the file table on the device, of which one is always whole.
//!
//! An operation writes the next table over one copy and flushes; then it is durable. It writes the
//! table over the other copy, flushes, and returns. Each copy has a sequence number and a checksum.
//!
//! | crash while | the copy written first | the other | the next open finds |
//! |---|---|---|---|
//! | the first is written | torn, or the next table | this table | one of the two |
//! | the second is written | the next table | torn, or either table | the next table |
//! | nothing is written | the table | the table | the table, even if one copy decays or cannot be read |
//!
//! Rules:
//! - The copy written first is the expendable one: that of a failed write, else the one that was
//!   written second the last time.
//! - Both have fixed places and sizes, so that no operation fails for lack of room for its table,
//!   nor moves it.

use super::block_device::{Aligned, BlockDevice};
use super::error::OpenError;
use super::format::{self, FormatError, MAX_IMAGE, VERSION};
use super::signatures;
use super::table::FileTable;
use rustix::io::Errno;
use std::sync::Arc;
use wired::PAGE;

/// Bytes of each copy.
pub(super) const SUPERBLOCK_BYTES: u64 = 1 << 20;

const _: () = assert!(MAX_IMAGE as u64 <= SUPERBLOCK_BYTES);

/// The copies on a device, and which to write first.
pub(super) struct Superblocks<M> {
    medium: Arc<M>,
    buffer: Aligned,
    /// The largest sequence number ever tried.
    sequence: u64,
    /// The copy that is written first.
    first: u64,
}

impl<M: BlockDevice> Superblocks<M> {
    /// For a device whose copies, if any, have smaller sequence numbers than `sequence`.
    fn new(medium: Arc<M>, sequence: u64) -> Self {
        Self {
            medium,
            buffer: Aligned::zeros(SUPERBLOCK_BYTES as usize),
            sequence,
            first: 0,
        }
    }

    /// Writes the first table, over any contents.
    pub fn make(medium: Arc<M>, table: &FileTable) -> Result<Self, OpenError> {
        let mut superblocks = Self::new(medium, 0);
        // A filesystem that is formatted again has sequence numbers that must be exceeded.
        for copy in 0..2 {
            if let Ok((_, sequence)) = superblocks.read(copy)? {
                superblocks.sequence = superblocks.sequence.max(sequence);
            }
        }
        match superblocks.commit(table) {
            Ok(()) => Ok(superblocks),
            Err(errno) => Err(superblocks.failed("writing", errno)),
        }
    }

    /// Finds the newest table and repairs the other copy.
    pub fn open(medium: Arc<M>) -> Result<(Self, FileTable), OpenError> {
        let mut superblocks = Self::new(medium, 0);
        let read = match [superblocks.read(0), superblocks.read(1)] {
            [Ok(a), Ok(b)] => [a, b],
            // A bad sector: writing it again, as a torn copy, has the device replace it.
            [Err(_), Ok(whole @ Ok(_))] => [Err(FormatError::Torn), whole],
            [Ok(whole @ Ok(_)), Err(_)] => [whole, Err(FormatError::Torn)],
            [Err(why), _] | [_, Err(why)] => return Err(why),
        };
        for unreadable in read.iter().filter_map(|copy| copy.as_ref().err()) {
            superblocks.refuse_whole(unreadable)?;
        }
        let place = superblocks.medium.name().to_owned();
        let same = matches!(&read, [Ok((_, a)), Ok((_, b))] if a == b);
        let newest = match read {
            [Ok(a), Ok(b)] if b.1 > a.1 => (b, 1),
            [Ok(a), _] => (a, 0),
            [_, Ok(b)] => (b, 1),
            [Err(FormatError::NotOurs), Err(FormatError::NotOurs)] => {
                let found = signatures::describe(&*superblocks.medium)
                    .map_err(|errno| superblocks.failed("reading", errno))?
                    .map_or_else(|| "zeros".to_owned(), |found| found.to_string());
                return Err(OpenError::NotOurs { place, found });
            }
            _ => {
                let why = "both superblocks are lost".to_owned();
                return Err(OpenError::Damaged { place, why });
            }
        };
        let ((table, sequence), whole) = newest;
        superblocks.sequence = sequence;
        superblocks.first = 1 - whole;
        if !same {
            let mended = superblocks.write(&table, 1 - whole);
            mended.map_err(|errno| superblocks.failed("mending", errno))?;
        }
        Ok((superblocks, table))
    }

    /// Refuses a copy that is whole but not understood: using the other would go back in time.
    fn refuse_whole(&self, unreadable: &FormatError) -> Result<(), OpenError> {
        let place = self.medium.name().to_owned();
        match *unreadable {
            FormatError::NotOurs | FormatError::Torn => Ok(()),
            FormatError::Newer(version) => Err(OpenError::Newer {
                place,
                version,
                known: VERSION,
            }),
            FormatError::Invalid(why) => Err(OpenError::Damaged {
                place,
                why: why.to_owned(),
            }),
        }
    }

    /// Makes `table` durable. After a failure the next open may still find it, unless this table or
    /// another is committed after it.
    pub fn commit(&mut self, table: &FileTable) -> Result<(), Errno> {
        self.sequence += 1;
        let (first, second) = (self.first, 1 - self.first);
        self.write(table, first)?;
        // The table is durable already, even if this copy fails: the next commit writes that one
        // first.
        let _ = self.write(table, second);
        self.first = second;
        Ok(())
    }

    fn write(&mut self, table: &FileTable, copy: u64) -> Result<(), Errno> {
        let len = format::encode(table, self.sequence, self.buffer.as_mut_slice());
        let padded = len.next_multiple_of(PAGE);
        self.medium
            .write(&self.buffer.as_slice()[..padded], copy * SUPERBLOCK_BYTES)?;
        self.medium.flush()
    }

    fn read(&mut self, copy: u64) -> Result<Result<(FileTable, u64), FormatError>, OpenError> {
        let at = copy * SUPERBLOCK_BYTES;
        let failed = |errno| OpenError::Io {
            place: self.medium.name().to_owned(),
            doing: "reading",
            errno,
        };
        let bytes = self.buffer.as_mut_slice();
        self.medium.read(&mut bytes[..PAGE], at).map_err(failed)?;
        let len = match format::length(&bytes[..PAGE]) {
            Ok(len) if len <= MAX_IMAGE => len,
            Ok(_) => return Ok(Err(FormatError::Torn)),
            Err(unreadable) => return Ok(Err(unreadable)),
        };
        let rest = len.next_multiple_of(PAGE);
        if rest > PAGE {
            let more = self.medium.read(&mut bytes[PAGE..rest], at + PAGE as u64);
            more.map_err(failed)?;
        }
        Ok(format::decode(&bytes[..len]))
    }

    fn failed(&self, doing: &'static str, errno: Errno) -> OpenError {
        OpenError::Io {
            place: self.medium.name().to_owned(),
            doing,
            errno,
        }
    }
}
