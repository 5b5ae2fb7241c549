//! Two copies of the tables on the device, of which one is always whole.
//!
//! An operation writes the next table over one copy, flushes, and is then done; it writes it
//! over the other copy, flushes, and returns. Each copy has a sequence number and a checksum.
//!
//! | killed while | the copy written first | the other | found at the next open |
//! |---|---|---|---|
//! | the first is written | torn, or the next table | this table | one of the two |
//! | the second is written | the next table | torn, or either table | the next table |
//! | nothing is written | the table | the table | the table, even if one copy decays |
//!
//! Rules:
//! - The copy written first is one that may be lost: that of a write that failed, else the one
//!   that was written second the last time.
//! - Both are in fixed places of fixed size, so that no operation fails for want of room for
//!   its tables, nor moves them.

use super::error::OpenError;
use super::found;
use super::image::{self, MAX_IMAGE, Unreadable, VERSION};
use super::medium::{Aligned, Medium};
use super::table::Table;
use rustix::io::Errno;
use std::sync::Arc;
use wired::PAGE;

/// Bytes each copy has room for.
pub(super) const COPY: u64 = 1 << 20;

const _: () = assert!(MAX_IMAGE as u64 <= COPY);

/// The copies on a device, and which to write first.
pub(super) struct Copies<M> {
    medium: Arc<M>,
    buffer: Aligned,
    /// The largest ever tried.
    sequence: u64,
    /// Which copy is written first.
    first: u64,
}

impl<M: Medium> Copies<M> {
    /// Of a device whose copies, if any, have smaller sequence numbers than `sequence`.
    fn new(medium: Arc<M>, sequence: u64) -> Self {
        Self {
            medium,
            buffer: Aligned::zeros(COPY as usize),
            sequence,
            first: 0,
        }
    }

    /// Writes the first table, over whatever is there.
    pub fn make(medium: Arc<M>, table: &Table) -> Result<Self, OpenError> {
        let mut copies = Self::new(medium, 0);
        // Those of a filesystem that is formatted again have numbers that must be passed.
        for copy in 0..2 {
            if let Ok((_, sequence)) = copies.read(copy)? {
                copies.sequence = copies.sequence.max(sequence);
            }
        }
        match copies.commit(table) {
            Ok(()) => Ok(copies),
            Err(errno) => Err(copies.failed("writing", errno)),
        }
    }

    /// The newest table there is. Mends the other copy.
    pub fn open(medium: Arc<M>) -> Result<(Self, Table), OpenError> {
        let mut copies = Self::new(medium, 0);
        let read = [copies.read(0)?, copies.read(1)?];
        for unreadable in read.iter().filter_map(|copy| copy.as_ref().err()) {
            copies.refuse_whole(unreadable)?;
        }
        let place = copies.medium.name().to_owned();
        let same = matches!(&read, [Ok((_, a)), Ok((_, b))] if a == b);
        let newest = match read {
            [Ok(a), Ok(b)] if b.1 > a.1 => (b, 1),
            [Ok(a), _] => (a, 0),
            [_, Ok(b)] => (b, 1),
            [Err(Unreadable::NotOurs), Err(Unreadable::NotOurs)] => {
                let found = found::describe(&*copies.medium)
                    .map_err(|errno| copies.failed("reading", errno))?
                    .map_or_else(|| "zeros".to_owned(), |found| found.to_string());
                return Err(OpenError::NotOurs { place, found });
            }
            _ => {
                let why = "both copies of its tables are lost".to_owned();
                return Err(OpenError::Damaged { place, why });
            }
        };
        let ((table, sequence), whole) = newest;
        copies.sequence = sequence;
        copies.first = 1 - whole;
        if !same {
            let mended = copies.write(&table, 1 - whole);
            mended.map_err(|errno| copies.failed("mending", errno))?;
        }
        Ok((copies, table))
    }

    /// A copy that is whole and not understood: using the other would go back in time.
    fn refuse_whole(&self, unreadable: &Unreadable) -> Result<(), OpenError> {
        let place = self.medium.name().to_owned();
        match *unreadable {
            Unreadable::NotOurs | Unreadable::Torn => Ok(()),
            Unreadable::Newer(version) => Err(OpenError::Newer {
                place,
                version,
                known: VERSION,
            }),
            Unreadable::Nonsense(why) => Err(OpenError::Damaged {
                place,
                why: why.to_owned(),
            }),
        }
    }

    /// Makes `table` the one that is found. On failure it may be found all the same, unless
    /// this table or another is committed after it.
    pub fn commit(&mut self, table: &Table) -> Result<(), Errno> {
        self.sequence += 1;
        let (first, second) = (self.first, 1 - self.first);
        self.write(table, first)?;
        // It is done, whatever comes of the second copy: the next commit writes that one first.
        let _ = self.write(table, second);
        self.first = second;
        Ok(())
    }

    fn write(&mut self, table: &Table, copy: u64) -> Result<(), Errno> {
        let len = image::encode(table, self.sequence, self.buffer.as_mut_slice());
        let padded = len.next_multiple_of(PAGE);
        self.medium
            .write(&self.buffer.as_slice()[..padded], copy * COPY)?;
        self.medium.flush()
    }

    fn read(&mut self, copy: u64) -> Result<Result<(Table, u64), Unreadable>, OpenError> {
        let at = copy * COPY;
        let failed = |errno| OpenError::Io {
            place: self.medium.name().to_owned(),
            doing: "reading",
            errno,
        };
        let bytes = self.buffer.as_mut_slice();
        self.medium.read(&mut bytes[..PAGE], at).map_err(failed)?;
        let len = match image::length(&bytes[..PAGE]) {
            Ok(len) if len <= MAX_IMAGE => len,
            Ok(_) => return Ok(Err(Unreadable::Torn)),
            Err(unreadable) => return Ok(Err(unreadable)),
        };
        let rest = len.next_multiple_of(PAGE);
        if rest > PAGE {
            let more = self.medium.read(&mut bytes[PAGE..rest], at + PAGE as u64);
            more.map_err(failed)?;
        }
        Ok(image::decode(&bytes[..len]))
    }

    fn failed(&self, doing: &'static str, errno: Errno) -> OpenError {
        OpenError::Io {
            place: self.medium.name().to_owned(),
            doing,
            errno,
        }
    }
}
