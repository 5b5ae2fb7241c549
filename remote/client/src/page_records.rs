//! What a client knows of each page of its space, to judge what a server says of it.
//!
//! *Adaptive Remote Paging for Mobile Computers* trusts its servers; this client trusts its own
//! record. Of each page it has the version of the last write that was acknowledged, that of the last
//! write that was begun, and a hash of what that one wrote.
//!
//! | what a server says of a page | verdict |
//! |---|---|
//! | a version below the acknowledged one | old |
//! | a version above the last write's | never written |
//! | the last write's version, other contents | wrong contents |
//! | a version between the two | a write that is under way, or failed: either contents are right |
//!
//! Rule: a page is given to a program only if its record permits it. The hash is xxh3-64: it finds
//! errors and lies that are not made to fit it; the store's own checksum, of 128 bits, follows.

use remote_policy::migration::Version;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use twox_hash::XxHash3_64;
use wired::{PAGE, WiredMemory};

/// The acknowledged version of a page whose copies are all lost.
const LOST: u64 = u64::MAX;
/// The words of a record.
const WORDS: usize = 3;

/// Why a server's page is not the one that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageMismatch {
    /// A write that was acknowledged is missing.
    #[error("version {there}, and {acknowledged} was acknowledged")]
    Old { there: u64, acknowledged: u64 },
    /// No write had this version.
    #[error("version {there}, and the last write had {issued}")]
    NeverWritten { there: u64, issued: u64 },
    /// The version is right, the contents are not.
    #[error("version {0} with other contents than were written")]
    Contents(u64),
}

/// The records of a space's pages.
pub struct PageRecords(WiredMemory);

/// One record.
struct Record<'a> {
    acknowledged: &'a AtomicU64,
    issued: &'a AtomicU64,
    /// Of the contents of version `issued`; zero before they were sent.
    hash: &'a AtomicU64,
}

fn load(word: &AtomicU64) -> u64 {
    // One thread has the records.
    word.load(Ordering::Relaxed)
}

fn hash_of(contents: &[u8]) -> u64 {
    XxHash3_64::oneshot(contents).max(1)
}

impl PageRecords {
    /// Records of so many pages, none of which is written.
    pub fn new(pages: u64) -> io::Result<Self> {
        let bytes = pages as usize * WORDS * size_of::<u64>();
        Ok(Self(WiredMemory::private(bytes)?))
    }

    fn record(&self, page: u64) -> Record<'_> {
        let at = page as usize * WORDS * size_of::<u64>();
        let words = self.0.slice::<AtomicU64>(at, WORDS);
        Record {
            acknowledged: &words[0],
            issued: &words[1],
            hash: &words[2],
        }
    }

    /// The version last acknowledged; 0 where the page was never written.
    pub fn acknowledged(&self, page: u64) -> Version {
        Version(load(self.record(page).acknowledged))
    }

    /// Returns true if the page was written and is lost.
    pub fn is_lost(&self, page: u64) -> bool {
        self.acknowledged(page).0 == LOST
    }

    /// Notes that a write was begun.
    pub fn on_write_begun(&self, page: u64, version: Version) {
        let record = self.record(page);
        record.issued.store(version.0, Ordering::Relaxed);
        record.hash.store(0, Ordering::Relaxed);
    }

    /// Notes what a write sends.
    pub fn on_write_sent(&self, page: u64, version: Version, contents: &[u8]) {
        let record = self.record(page);
        if load(record.issued) == version.0 {
            record.hash.store(hash_of(contents), Ordering::Relaxed);
        }
    }

    /// Notes that a write was acknowledged.
    pub fn on_write_acknowledged(&self, page: u64, version: Version) {
        let record = self.record(page);
        let known = load(record.acknowledged);
        if known == LOST || known < version.0 {
            record.acknowledged.store(version.0, Ordering::Relaxed);
        }
    }

    /// Marks a written page lost. Returns true if it was written.
    pub fn lose(&self, page: u64) -> bool {
        let record = self.record(page);
        let is_written = load(record.acknowledged) != 0;
        if is_written {
            record.acknowledged.store(LOST, Ordering::Relaxed);
        }
        is_written
    }

    /// Judges what a server has sent as a page. Contents of version 0 are zeros, whatever it sent.
    pub fn check(&self, page: u64, version: Version, contents: &[u8]) -> Result<(), PageMismatch> {
        debug_assert_eq!(contents.len(), PAGE);
        let record = self.record(page);
        let (there, issued) = (version.0, load(record.issued));
        // What is lost elsewhere may be missing here, too.
        let acknowledged = match load(record.acknowledged) {
            LOST => 0,
            known => known,
        };
        let hash = load(record.hash);
        if there < acknowledged {
            Err(PageMismatch::Old {
                there,
                acknowledged,
            })
        } else if there > issued {
            Err(PageMismatch::NeverWritten { there, issued })
        } else if there == issued && hash != 0 && hash != hash_of(contents) {
            Err(PageMismatch::Contents(there))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [u8; PAGE] = [1; PAGE];
    const NEW: [u8; PAGE] = [2; PAGE];

    fn write(records: &PageRecords, version: u64, contents: &[u8]) {
        records.on_write_begun(0, Version(version));
        records.on_write_sent(0, Version(version), contents);
    }

    #[test]
    fn only_the_last_acknowledged_write_is_accepted() {
        let records = PageRecords::new(2).unwrap();
        write(&records, 4, &OLD);
        records.on_write_acknowledged(0, Version(4));
        let check = |version, contents| records.check(0, Version(version), contents);
        assert_eq!(check(4, &OLD), Ok(()));
        assert_eq!(check(4, &NEW), Err(PageMismatch::Contents(4)));
        let (there, acknowledged) = (3, 4);
        let old = PageMismatch::Old {
            there,
            acknowledged,
        };
        assert_eq!(check(3, &OLD), Err(old));
        let (there, issued) = (5, 4);
        let later = PageMismatch::NeverWritten { there, issued };
        assert_eq!(check(5, &OLD), Err(later));
    }

    #[test]
    fn beside_a_write_without_an_acknowledgement_both_versions_are_accepted() {
        let records = PageRecords::new(1).unwrap();
        write(&records, 4, &OLD);
        records.on_write_acknowledged(0, Version(4));
        write(&records, 6, &NEW);
        let check = |version, contents| records.check(0, Version(version), contents);
        assert_eq!(check(4, &OLD), Ok(()));
        assert_eq!(check(6, &NEW), Ok(()));
        assert_eq!(check(6, &OLD), Err(PageMismatch::Contents(6)));
        assert!(check(7, &NEW).is_err() && check(3, &OLD).is_err());
    }

    #[test]
    fn a_page_that_was_never_written_has_no_version() {
        let records = PageRecords::new(1).unwrap();
        assert_eq!(records.check(0, Version(0), &OLD), Ok(()));
        assert!(records.check(0, Version(1), &OLD).is_err());
        assert!(!records.lose(0) && !records.is_lost(0));
    }

    #[test]
    fn of_a_lost_page_a_server_may_have_any_version_that_was_written() {
        let records = PageRecords::new(1).unwrap();
        write(&records, 4, &OLD);
        records.on_write_acknowledged(0, Version(4));
        assert!(records.lose(0) && records.is_lost(0));
        assert_eq!(records.check(0, Version(0), &NEW), Ok(()));
        assert!(records.check(0, Version(5), &NEW).is_err());
    }
}
