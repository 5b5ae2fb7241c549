//! The page memory beside a model of it, with a disk whose operations complete in any order.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const OBJECTS: u32 = 3;
const PAGES: u64 = 24;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        object: u32,
        page: u64,
        version: u64,
    },
    Read {
        object: u32,
        page: u64,
    },
    Discard {
        object: u32,
        page: u64,
    },
    Terminate {
        object: u32,
    },
    Resize(u32),
    /// The operation of the disk in flight that this is modulo their number; whether it fails.
    Complete(usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || (0..OBJECTS, 0..PAGES);
    let step = prop_oneof![
        6 => (at(), 1..40u64).prop_map(|((object, page), version)| Step::Write { object, page, version }),
        6 => at().prop_map(|(object, page)| Step::Read { object, page }),
        2 => at().prop_map(|(object, page)| Step::Discard { object, page }),
        1 => (0..OBJECTS).prop_map(|object| Step::Terminate { object }),
        1 => (2..12u32).prop_map(Step::Resize),
        6 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(at, failed)| Step::Complete(at, failed)),
    ];
    prop::collection::vec(step, 0..400)
}

fn bytes(object: u32, page: u64, version: u64) -> [u8; PAGE] {
    let mut bytes = [version as u8; PAGE];
    bytes[..8].copy_from_slice(&(u64::from(object) << 32 | page).to_le_bytes());
    bytes
}

struct InFlight {
    id: PageId,
    frame: *mut u8,
    is_store: bool,
}

struct Harness {
    memory: PageMemory,
    has_disk: bool,
    disk: BTreeMap<u32, [u8; PAGE]>,
    in_flight: Vec<InFlight>,
    model: BTreeMap<(u32, u64), u64>,
}

impl Harness {
    fn new(frames: u32, disk_pages: Option<u32>) -> Self {
        Self {
            memory: PageMemory::new(frames, disk_pages).unwrap(),
            has_disk: disk_pages.is_some(),
            disk: BTreeMap::new(),
            in_flight: Vec::new(),
            model: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write {
                object,
                page,
                version,
            } => self.write(object, page, version),
            Step::Read { object, page } => self.read(object, page),
            Step::Discard { object, page } => {
                if let Some(id) = self.memory.find(object, page) {
                    self.memory.discard(id);
                }
                self.model.remove(&(object, page));
            }
            Step::Terminate { object } => {
                self.memory.discard_object(object, u32::MAX);
                self.model.retain(|(other, _), _| *other != object);
            }
            Step::Resize(frames) => _ = self.memory.resize(frames, 100),
            Step::Complete(at, failed) => {
                if !self.in_flight.is_empty() {
                    let at = at % self.in_flight.len();
                    self.complete(at, failed);
                }
            }
        }
    }

    fn write(&mut self, object: u32, page: u64, version: u64) {
        let at = (object, page);
        let new = bytes(object, page, version);
        match self.memory.write(object, page, Version(version), &new) {
            Ok(id) => {
                let known = self.model.entry(at).or_insert(version);
                *known = version.max(*known);
                if !self.memory.is_busy(id)
                    && let Some(frame) = self.memory.start_store(id)
                {
                    self.in_flight.push(InFlight {
                        id,
                        frame,
                        is_store: true,
                    });
                }
            }
            Err(Wait::Busy) => assert!(!self.in_flight.is_empty()),
            Err(Wait::NoFrame) => {
                assert!(self.has_disk || self.memory.room() == 0 || self.is_small())
            }
        }
    }

    fn is_small(&self) -> bool {
        self.memory.arena.used() >= self.memory.arena.limit()
    }

    fn read(&mut self, object: u32, page: u64) {
        let found = self.memory.find(object, page);
        let known = self.model.get(&(object, page)).copied();
        assert_eq!(found.map(|id| self.memory.version(id).0), known);
        let Some((id, version)) = found.zip(known) else {
            return;
        };
        match self.memory.location(id) {
            Location::Frame => {
                assert_eq!(self.memory.read(id), Some(&bytes(object, page, version)));
            }
            Location::Arriving => assert_eq!(self.memory.read(id), None),
            Location::Disk => {
                assert_eq!(self.memory.read(id), None);
                if let Ok(frame) = self.memory.start_load(id) {
                    self.in_flight.push(InFlight {
                        id,
                        frame,
                        is_store: false,
                    });
                }
            }
        }
    }

    fn complete(&mut self, at: usize, failed: bool) {
        let InFlight {
            id,
            frame,
            is_store,
        } = self.in_flight.swap_remove(at);
        // SAFETY: the page is busy, so that its frame stays.
        let frame = unsafe { &mut *frame.cast::<[u8; PAGE]>() };
        if is_store {
            if !failed {
                self.disk.insert(id.0, *frame);
            }
            self.memory.on_stored(id, failed);
        } else {
            if !failed {
                *frame = self.disk[&id.0];
            }
            self.memory.on_loaded(id, failed).unwrap();
        }
    }

    /// Completes all, and reads all pages.
    fn finish(mut self, frames: u32) {
        while !self.in_flight.is_empty() {
            self.complete(0, false);
        }
        self.memory.resize(frames, 100);
        let pages: Vec<_> = self.model.keys().copied().collect();
        for (object, page) in pages {
            self.read(object, page);
            while !self.in_flight.is_empty() {
                self.complete(0, false);
            }
            self.read(object, page);
        }
        assert_eq!(self.memory.used() as usize, self.model.len());
        for object in 0..OBJECTS {
            self.step(Step::Terminate { object });
        }
        assert_eq!((self.memory.used(), self.memory.arena.used()), (0, 0));
    }
}

proptest! {
    #[test]
    fn without_a_disk_a_page_is_the_last_written(steps in steps()) {
        let mut harness = Harness::new(OBJECTS * PAGES as u32, None);
        for step in steps {
            if !matches!(step, Step::Resize(_)) {
                harness.step(step);
            }
        }
        harness.finish(OBJECTS * PAGES as u32);
    }

    #[test]
    fn before_a_disk_a_page_is_the_last_written(steps in steps(), frames in 4..16u32) {
        let mut harness = Harness::new(frames, Some(OBJECTS * PAGES as u32));
        for step in steps {
            harness.step(step);
        }
        harness.finish(frames);
    }
}

#[test]
fn a_resize_says_whether_another_one_gives_back_more() {
    let mut memory = PageMemory::new(3000, None).unwrap();
    for page in 0..3000 {
        memory.write(0, page, Version(1), &[7; PAGE]).unwrap();
    }
    assert!(!memory.resize(3000, 500), "all frames are in use");
    memory.discard_object(0, u32::MAX);
    let resizes = (1..).take_while(|_| memory.resize(3000, 500)).count();
    assert_eq!((resizes, memory.resident_frames()), (3, 1024));
}

#[test]
fn pages_that_the_disk_failed_to_store_are_named_until_it_has_them() {
    let mut memory = PageMemory::new(8, Some(16)).unwrap();
    let pages = [0, 1, 2].map(|page| memory.write(0, page, Version(1), &[7; PAGE]).unwrap());
    for id in pages {
        memory.start_store(id).unwrap();
        memory.on_stored(id, true);
    }
    assert!(!memory.can_store_again(), "the disk fails");
    memory.discard(pages[0]);
    for id in [pages[1], pages[2]] {
        assert_eq!(memory.next_unstored(8), Some(id));
        memory.start_store(id).unwrap();
        memory.on_stored(id, false);
    }
    assert_eq!(memory.next_unstored(8), None);
    assert!(!memory.can_store_again());
}

#[test]
fn pages_are_read_and_written_while_the_cache_shrinks() {
    let mut memory = PageMemory::new(16, Some(32)).unwrap();
    let pages: Vec<_> = (0..17)
        .map(|page| {
            let id = memory.write(0, page, Version(1), &[7; PAGE]).unwrap();
            memory.start_store(id).unwrap();
            memory.on_stored(id, false);
            id
        })
        .collect();
    let evicted = |id: &&PageId| memory.location(**id) == Location::Disk;
    let evicted = *pages.iter().find(evicted).unwrap();
    assert!(memory.resize(4, 2), "it shrinks a step at a time");
    assert_eq!(memory.arena.used(), 14);
    memory.start_load(evicted).unwrap();
    assert_eq!(memory.arena.used(), 14, "one page makes room for another");
    memory.reserve(2).unwrap();
    assert_eq!(memory.arena.used(), 12, "no more than is asked for");
    memory.write(0, 30, Version(1), &[7; PAGE]).unwrap();
    memory.write(0, 31, Version(1), &[7; PAGE]).unwrap();
    assert_eq!(memory.arena.used(), 14);
}

#[test]
fn a_page_that_the_disk_changed_is_not_read() {
    let mut memory = PageMemory::new(4, Some(8)).unwrap();
    let id = memory.write(0, 0, Version(1), &[7; PAGE]).unwrap();
    memory.start_store(id).unwrap();
    memory.on_stored(id, false);
    memory.resize(0, 8);
    assert_eq!(memory.location(id), Location::Disk);
    memory.resize(4, 8);
    // The frame has zeros, or what another page left there.
    let frame = memory.start_load(id).unwrap();
    // SAFETY: the page is busy, so that its frame stays.
    unsafe { frame.write_bytes(8, PAGE) };
    assert_eq!(memory.on_loaded(id, false), Err(ChecksumError));
    assert_eq!(memory.location(id), Location::Disk);
    memory.write(0, 0, Version(1), &[7; PAGE]).unwrap();
    assert_eq!(memory.read(id), Some(&[7; PAGE]));
    assert!(memory.start_store(id).is_some(), "the disk gets it again");
}
