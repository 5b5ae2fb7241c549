//! The place and hash of each page, and the names of segments, in memory that outlives the process.
//!
//! | part | is written |
//! |---|---|
//! | the number of a segment, in a slot | before the segment is written; removed when it is deleted |
//! | a page's hash, then its place | when its segment was acknowledged, before the write is |
//! | a page's place alone | when cleaning has moved it: its contents are the same; 0 when it is needed no more |
//!
//! Rule: a process may end between any two stores. Between hash and place the page reads as an error; its write was not
//! acknowledged, and the next process finds it in its channel and makes it again. The hash is of the page's number and
//! contents, not of its place.

use crate::segments::SegmentNumber;
use pageclient::KeptHeader;
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use twox_hash::XxHash3_64;
use wired::{PAGE, WiredMemory};

const WORD: usize = size_of::<u64>();
/// The words of the first page, after those of each client.
const NEXT_SEGMENT: usize = KeptHeader::WORDS;
const RUN: usize = NEXT_SEGMENT + 1;
const BEGUN: usize = NEXT_SEGMENT + 2;
const ENDED: usize = NEXT_SEGMENT + 3;

/// The low bits of a place: the page's index in its segment.
const INDEX_BITS: u32 = 20;
/// Segments beyond one for each page: those under way, and those that are being deleted.
const SPARE_SLOTS: usize = 1024;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    pub segment: SegmentNumber,
    pub index: u32,
}

impl PagePlace {
    fn word(self) -> u64 {
        self.segment.0 << INDEX_BITS | u64::from(self.index)
    }

    fn of_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self {
            segment: SegmentNumber(word >> INDEX_BITS),
            index: (word & ((1 << INDEX_BITS) - 1)) as u32,
        })
    }
}

/// The memory.
pub struct PageTable {
    memory: WiredMemory,
    pages: usize,
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

fn store(word: &AtomicU64, value: u64) {
    // A process that is killed has made its stores in this order.
    word.store(value, Ordering::Release);
}

/// The hash of a page's contents.
pub fn hash(page: u32, contents: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(page.into(), contents)
}

impl PageTable {
    /// That of a space of so many pages, none of which was written.
    pub fn new(pages: usize) -> io::Result<Self> {
        let bytes = PAGE + (pages * 3 + SPARE_SLOTS) * WORD;
        let (memory, _) = WiredMemory::shared(bytes, "selfpage-objects")?;
        let table = Self { memory, pages };
        let mut run = [0; WORD];
        getrandom(&mut run, GetRandomFlags::empty())?;
        let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let header = table.header();
        store(&header[RUN], u64::from_ne_bytes(run));
        store(
            &header[BEGUN],
            begun.map_or(0, |since_epoch| since_epoch.as_secs()),
        );
        Ok(table)
    }

    fn header(&self) -> &[AtomicU64] {
        self.memory.slice(0, PAGE / WORD)
    }

    fn places(&self) -> &[AtomicU64] {
        self.memory.slice(PAGE, self.pages)
    }

    fn hashes(&self) -> &[AtomicU64] {
        self.memory.slice(PAGE + self.pages * WORD, self.pages)
    }

    fn slots(&self) -> &[AtomicU64] {
        let slots = self.pages + SPARE_SLOTS;
        self.memory.slice(PAGE + self.pages * 2 * WORD, slots)
    }

    /// Pages of the space.
    pub fn len(&self) -> usize {
        self.pages
    }

    /// The words of each client.
    pub fn kept_header(&self) -> KeptHeader<'_> {
        KeptHeader::at(self.header())
    }

    /// The run has ended.
    pub fn end(&self) {
        store(&self.header()[ENDED], 1);
    }

    /// Returns true if the run has ended.
    pub fn has_ended(&self) -> bool {
        load(&self.header()[ENDED]) != 0
    }

    /// The folder of the run's objects: when the run began, in seconds since 1970, and a name that is no other's.
    pub fn folder(&self) -> String {
        let header = self.header();
        let (begun, run) = (load(&header[BEGUN]), load(&header[RUN]));
        format!("selfpage-{begun}-{run:016x}/")
    }

    /// The number of a new segment.
    pub fn next_segment(&self) -> SegmentNumber {
        SegmentNumber(1 + self.header()[NEXT_SEGMENT].fetch_add(1, Ordering::AcqRel))
    }

    /// Where a page is; `None` if it was never written.
    pub fn place(&self, page: u32) -> Option<PagePlace> {
        PagePlace::of_word(load(&self.places()[page as usize]))
    }

    /// The hash of a page's contents.
    pub fn hash(&self, page: u32) -> u64 {
        load(&self.hashes()[page as usize])
    }

    /// A page was written. Returns where it was before.
    pub fn set(&self, page: u32, place: PagePlace, hash: u64) -> Option<PagePlace> {
        let earlier = self.place(page);
        store(&self.hashes()[page as usize], hash);
        self.move_to(page, place);
        earlier
    }

    /// A page is needed no more. Returns where it was.
    pub fn clear(&self, page: u32) -> Option<PagePlace> {
        let earlier = self.place(page);
        store(&self.places()[page as usize], 0);
        earlier
    }

    /// A page was moved.
    pub fn move_to(&self, page: u32, place: PagePlace) {
        store(&self.places()[page as usize], place.word());
    }

    /// Names a segment in a slot.
    pub fn name_segment(&self, slot: usize, segment: SegmentNumber) {
        store(&self.slots()[slot], segment.0);
    }

    /// A segment is deleted.
    pub fn free_slot(&self, slot: usize) {
        store(&self.slots()[slot], 0);
    }

    /// The slots, with the segments that are named in them.
    pub fn named_segments(&self) -> impl Iterator<Item = (usize, Option<SegmentNumber>)> {
        let slots = self.slots().iter().map(load);
        slots
            .map(|word| (word != 0).then_some(SegmentNumber(word)))
            .enumerate()
    }
}
