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
//! Where pages are encrypted, the hash is of what was sent, and the record has the tags of two writes as well, the
//! acknowledged one and the last, without which neither opens.
//!
//! Rule: a page is given to a program only if its record permits it. The hash is xxh3-64: it finds
//! errors and lies that are not made to fit it; the store's own checksum, of 128 bits, follows.

use crate::page_cipher::{PageCipher, TAG};
use remote_policy::identity::Version;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use twox_hash::XxHash3_64;
use wired::{PAGE, WiredMemory};

/// The acknowledged version of a page whose copies are all lost.
const LOST: u64 = u64::MAX;
/// The words of a record, and of one with tags: of two writes the version and the tag.
const WORDS: usize = 3;
const WORDS_OF_SEAL: usize = 1 + TAG / size_of::<u64>();
const SEALED_WORDS: usize = WORDS + 2 * WORDS_OF_SEAL;

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
    /// It does not decrypt.
    #[error("version {0}, which does not decrypt to what was written")]
    Forged(u64),
}

/// The records of a space's pages.
pub struct PageRecords {
    memory: Arc<WiredMemory>,
    /// Where they begin in it.
    start: usize,
    /// Encrypts pages; `None` where servers may read them.
    cipher: Option<PageCipher>,
}

/// One record.
struct Record<'a> {
    acknowledged: &'a AtomicU64,
    issued: &'a AtomicU64,
    /// Of the contents of version `issued`; zero before they were sent.
    hash: &'a AtomicU64,
    /// Of two writes, where pages are encrypted.
    seals: &'a [AtomicU64],
}

impl Record<'_> {
    /// Keeps the tag of a write beside that of the acknowledged one.
    fn keep_tag(&self, version: Version, tag: [u8; TAG]) {
        let acknowledged = load(self.acknowledged);
        let seals = || self.seals.chunks_exact(WORDS_OF_SEAL);
        let number = |seal: &&[AtomicU64]| load(&seal[0]);
        let is_free = |seal: &&[AtomicU64]| number(seal) == 0 || number(seal) != acknowledged;
        let own = seals().find(|seal| number(seal) == version.0);
        let oldest = || seals().filter(is_free).min_by_key(number);
        let Some([number, first, last]) = own.or_else(oldest) else {
            return;
        };
        number.store(version.0, Ordering::Relaxed);
        let [low, high] = [0, 8].map(|at| {
            let bytes = tag[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        });
        first.store(low, Ordering::Relaxed);
        last.store(high, Ordering::Relaxed);
    }

    fn tag(&self, version: Version) -> Option<[u8; TAG]> {
        let mut seals = self.seals.chunks_exact(WORDS_OF_SEAL);
        let seal = seals.find(|seal| load(&seal[0]) == version.0)?;
        let mut tag = [0; TAG];
        let words = tag.as_chunks_mut::<8>().0.iter_mut().zip(&seal[1..]);
        words.for_each(|(bytes, word)| *bytes = load(word).to_le_bytes());
        Some(tag)
    }
}

fn words_of(cipher: Option<&PageCipher>) -> usize {
    match cipher {
        Some(_) => SEALED_WORDS,
        None => WORDS,
    }
}

fn load(word: &AtomicU64) -> u64 {
    // One thread has the records.
    word.load(Ordering::Relaxed)
}

fn hash_of(contents: &[u8]) -> u64 {
    XxHash3_64::oneshot(contents).max(1)
}

impl PageRecords {
    /// Bytes of the records of so many pages.
    pub fn bytes(pages: u64, is_encrypted: bool) -> usize {
        let words = if is_encrypted { SEALED_WORDS } else { WORDS };
        pages as usize * words * size_of::<u64>()
    }

    /// The records that begin at a place in memory, which is of zeros where no page is written, and a cipher to
    /// encrypt pages by.
    pub fn at((memory, start): (Arc<WiredMemory>, usize), cipher: Option<PageCipher>) -> Self {
        Self {
            memory,
            start,
            cipher,
        }
    }

    #[cfg(test)]
    fn new(pages: u64, cipher: Option<PageCipher>) -> std::io::Result<Self> {
        let bytes = Self::bytes(pages, cipher.is_some());
        Ok(Self::at(
            (Arc::new(WiredMemory::private(bytes)?), 0),
            cipher,
        ))
    }

    fn record(&self, page: u64) -> Record<'_> {
        let count = words_of(self.cipher.as_ref());
        let at = self.start + page as usize * count * size_of::<u64>();
        let words = self.memory.slice::<AtomicU64>(at, count);
        Record {
            acknowledged: &words[0],
            issued: &words[1],
            hash: &words[2],
            seals: &words[WORDS..],
        }
    }

    /// The version last acknowledged; 0 where the page was never written.
    pub fn acknowledged(&self, page: u64) -> Version {
        Version(load(self.record(page).acknowledged))
    }

    /// The version of the last write that was begun; 0 where there was none.
    pub fn issued(&self, page: u64) -> Version {
        Version(load(self.record(page).issued))
    }

    /// Returns true if all current copies have the same page, none or the one last written: it is not lost, and no later
    /// write is under way or has failed, which some copies may have.
    pub fn is_settled(&self, page: u64) -> bool {
        self.acknowledged(page) == self.issued(page)
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

    /// Notes what a write sends, and encrypts it in place where pages are.
    pub fn on_write_sent(&self, page: u64, version: Version, contents: &mut [u8]) {
        let record = self.record(page);
        if let Some(cipher) = &self.cipher {
            let tag = cipher.seal(page, version, contents);
            if record.tag(version).is_some_and(|first| first != tag) {
                // Its program has changed it under the write. Two ciphertexts of one nonce would tell a server of
                // both; zeros are found to be wrong when they are read.
                return contents.fill(0);
            }
            record.keep_tag(version, tag);
        }
        if load(record.issued) == version.0 {
            record.hash.store(hash_of(contents), Ordering::Relaxed);
        }
    }

    /// Notes what a write of a stripe's parity sends, which is as it is of encrypted pages, too.
    pub fn on_parity_sent(&self, page: u64, version: Version, contents: &[u8]) {
        self.on_write_begun(page, version);
        self.record(page)
            .hash
            .store(hash_of(contents), Ordering::Relaxed);
    }

    /// Forgets a page: it counts as never written.
    pub fn forget(&self, page: u64) {
        let record = self.record(page);
        let words = [record.acknowledged, record.issued, record.hash];
        words
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
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

    /// Returns true if pages are encrypted before they leave this host.
    pub fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    /// Decrypts in place a page that was found to be right, where pages are encrypted.
    pub fn open(
        &self,
        page: u64,
        version: Version,
        contents: &mut [u8],
    ) -> Result<(), PageMismatch> {
        let Some(cipher) = &self.cipher else {
            return Ok(());
        };
        let tag = self.record(page).tag(version);
        let is_open = tag.is_some_and(|tag| cipher.open(page, version, tag, contents));
        is_open.then_some(()).ok_or(PageMismatch::Forged(version.0))
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
        records.on_write_sent(0, Version(version), &mut contents.to_vec());
    }

    #[test]
    fn of_encrypted_pages_the_acknowledged_write_and_the_last_open() {
        let records = PageRecords::new(1, Some(PageCipher::new().unwrap())).unwrap();
        let send = |version, contents: [u8; PAGE]| {
            let mut contents = contents;
            records.on_write_begun(0, Version(version));
            records.on_write_sent(0, Version(version), &mut contents);
            contents
        };
        let send_again = |version, mut contents: [u8; PAGE]| {
            records.on_write_sent(0, Version(version), &mut contents);
            contents
        };
        let opens = |version, sealed: [u8; PAGE]| {
            let mut contents = sealed;
            let checked = records.check(0, Version(version), &sealed);
            checked.and_then(|()| records.open(0, Version(version), &mut contents))?;
            Ok(contents)
        };
        let first = send(4, OLD);
        assert_ne!(first, OLD);
        records.on_write_acknowledged(0, Version(4));
        // Writes that failed, again and again.
        let failed = send(5, NEW);
        let last = send(6, NEW);
        assert_eq!(send_again(6, NEW), last, "sent again");
        assert_ne!(failed, last);
        assert_eq!(send_again(6, OLD), [0; PAGE], "changed, and sent again");
        assert_eq!(opens(4, first), Ok(OLD));
        assert_eq!(opens(6, last), Ok(NEW));
        assert_eq!(opens(5, failed), Err(PageMismatch::Forged(5)));
        assert_eq!(opens(4, last), Err(PageMismatch::Forged(4)));
        records.on_write_acknowledged(0, Version(6));
        let next = send(7, OLD);
        assert_eq!((opens(6, last), opens(7, next)), (Ok(NEW), Ok(OLD)));
    }

    #[test]
    fn only_the_last_acknowledged_write_is_accepted() {
        let records = PageRecords::new(2, None).unwrap();
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
        let records = PageRecords::new(1, None).unwrap();
        write(&records, 4, &OLD);
        records.on_write_acknowledged(0, Version(4));
        write(&records, 6, &NEW);
        let check = |version, contents| records.check(0, Version(version), contents);
        assert_eq!(check(4, &OLD), Ok(()));
        assert_eq!(check(6, &NEW), Ok(()));
        assert_eq!(check(6, &OLD), Err(PageMismatch::Contents(6)));
        assert!(check(7, &NEW).is_err() && check(3, &OLD).is_err());
        assert!(!records.is_settled(0));
        records.on_write_acknowledged(0, Version(6));
        assert!(records.is_settled(0));
    }

    #[test]
    fn a_page_that_was_never_written_has_no_version() {
        let records = PageRecords::new(1, None).unwrap();
        assert_eq!(records.check(0, Version(0), &OLD), Ok(()));
        assert!(records.check(0, Version(1), &OLD).is_err());
        assert!(!records.lose(0) && !records.is_lost(0) && records.is_settled(0));
    }

    #[test]
    fn of_a_lost_page_a_server_may_have_any_version_that_was_written() {
        let records = PageRecords::new(1, None).unwrap();
        write(&records, 4, &OLD);
        records.on_write_acknowledged(0, Version(4));
        assert!(records.lose(0) && records.is_lost(0) && !records.is_settled(0));
        assert_eq!(records.check(0, Version(0), &NEW), Ok(()));
        assert!(records.check(0, Version(5), &NEW).is_err());
    }
}
