//! The transport over a folder that fails on demand.

use crate::gather::Gather;
use crate::operations::{Ended, Operations};
use crate::page_table::PageTable;
use crate::transport::{ObjectTransport, PATIENCE};
use disk::time::{Nanos, Time};
use disk::usd::{PartId, Transport};
use iochannel::{IoVec, Op};
use objectstore::{ObjectStore, Written};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use wired::PAGE;

/// How long operations that are to succeed may take, and those that are to fail.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);

const NOW: Time = Time(0);

/// What a store may do to an object of a page.
const DAMAGES: [fn(&Path); 3] = [
    |object| fs::write(object, [9; PAGE]).unwrap(),
    |object| fs::write(object, [1; PAGE - 1]).unwrap(),
    |object| fs::remove_file(object).unwrap(),
];

fn piece(memory: &mut [u8; PAGE]) -> IoVec {
    IoVec::page(memory.as_mut_ptr())
}

struct Scene {
    folder: TempDir,
    store: ObjectStore,
    table: Arc<PageTable>,
    transport: ObjectTransport,
}

impl Scene {
    fn new(pages: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("fs://{}", folder.path().display());
        let store = ObjectStore::open(&url.parse().unwrap(), LONG).unwrap();
        let table = Arc::new(PageTable::new(pages).unwrap());
        let transport = ObjectTransport::new(store.clone(), Arc::clone(&table)).unwrap();
        fs::create_dir(folder.path().join(table.folder())).unwrap();
        Self {
            folder,
            store,
            table,
            transport,
        }
    }

    fn run_folder(&self) -> PathBuf {
        self.folder
            .path()
            .join(self.table.folder().trim_end_matches('/'))
    }

    /// Another process goes on.
    fn restart(&mut self) {
        let again = ObjectTransport::new(self.store.clone(), Arc::clone(&self.table)).unwrap();
        drop(std::mem::replace(&mut self.transport, again));
    }

    fn objects(&self) -> usize {
        fs::read_dir(self.run_folder()).map_or(0, Iterator::count)
    }

    /// None is under way.
    fn set_patience(&mut self, patience: Duration) {
        let store = self.store.with_patience(patience);
        self.transport.operations = Operations::new(store, self.table.folder()).unwrap();
    }

    /// The store refuses each operation from now on.
    fn refuse(&mut self) {
        self.set_patience(SHORT);
        fs::rename(self.run_folder(), self.folder.path().join("aside")).unwrap();
        fs::write(self.run_folder(), "").unwrap();
    }

    /// It works again.
    fn recover(&mut self) {
        self.set_patience(LONG);
        fs::remove_file(self.run_folder()).unwrap();
        fs::rename(self.folder.path().join("aside"), self.run_folder()).unwrap();
    }

    /// Begins to write pages.
    fn write(&mut self, pages: impl IntoIterator<Item = u32>) {
        let mut gather = Gather::default();
        for page in pages {
            gather.push(page, &[page as u8; PAGE]);
        }
        self.transport.begin_write(gather, None);
    }

    /// Writes a page, or reads it, as the disk's thread does. Returns how that ended.
    fn move_page(&mut self, op: Op, page: u64, memory: &mut [u8; PAGE]) -> i32 {
        let pieces = [piece(memory)];
        let id = PartId::new(0, 0);
        // SAFETY: pieces and memory stay until the part was reaped, below.
        unsafe { self.start(op, id, page, &pieces) };
        self.transport.flush(NOW);
        self.reap()
    }

    /// # Safety
    /// That of [`Transport::start`].
    unsafe fn start(&mut self, op: Op, id: PartId, page: u64, pieces: &[IoVec]) {
        let at = page * PAGE as u64;
        // SAFETY: by the contract of this function.
        unsafe { self.transport.start(NOW, id, op, 0, pieces, at) }
    }

    /// How the next part ends.
    fn reap(&mut self) -> i32 {
        loop {
            if let Some((_, result)) = self.transport.reap(NOW) {
                return result;
            }
            let ended = self.transport.poll_fd();
            let mut ready = [PollFd::from_borrowed_fd(ended, PollFlags::IN)];
            poll(&mut ready, None).unwrap();
        }
    }

    /// The object of the next segment.
    fn next_object(&self) -> PathBuf {
        // The number itself is not used then.
        let next = self.table.next_segment().0 + 1;
        self.run_folder().join(next.to_string())
    }

    /// Serves until it is so.
    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            let ended = self.transport.operations.wait(LONG);
            self.transport.on_ended(ended.expect("it is never so"));
        }
    }
}

/// A write fails with an error, and the page stays what it was: of the next write, too.
fn check_failed_write(scene: &mut Scene, expected: Errno, recover: impl FnOnce(&mut Scene)) {
    let mut read = [0; PAGE];
    let result = scene.move_page(Op::Write, 1, &mut [2; PAGE]);
    assert_eq!(result, -expected.raw_os_error());
    recover(scene);
    assert_eq!(scene.move_page(Op::Read, 1, &mut read), PAGE as i32);
    assert_eq!(read, [1; PAGE]);
    assert_eq!(scene.move_page(Op::Write, 1, &mut [3; PAGE]), PAGE as i32);
    assert_eq!(scene.move_page(Op::Read, 1, &mut read), PAGE as i32);
    assert_eq!(read, [3; PAGE]);
    scene.until(|scene| scene.objects() == 1);
}

fn scene_with_a_page() -> Scene {
    let mut scene = Scene::new(16);
    let written = scene.move_page(Op::Write, 1, &mut [1; PAGE]);
    assert_eq!(written, PAGE as i32);
    scene
}

#[test]
fn a_store_without_room_keeps_what_it_has() {
    let mut scene = scene_with_a_page();
    symlink("/dev/full", scene.next_object()).unwrap();
    check_failed_write(&mut scene, Errno::NOSPC, |_| {});
}

#[test]
fn a_store_that_does_not_answer_a_write_in_time_keeps_what_it_has() {
    let mut scene = scene_with_a_page();
    scene.set_patience(SHORT);
    let object = scene.next_object();
    mknodat(CWD, &object, FileType::Fifo, Mode::RWXU, 0).unwrap();
    check_failed_write(&mut scene, Errno::TIMEDOUT, |scene| {
        scene.set_patience(LONG);
    });
}

#[test]
fn a_store_that_is_away_for_longer_than_it_is_waited_for_keeps_what_it_has() {
    let mut scene = scene_with_a_page();
    scene.refuse();
    let read = scene.move_page(Op::Read, 1, &mut [0; PAGE]);
    assert_eq!(read, -Errno::TIMEDOUT.raw_os_error());
    check_failed_write(&mut scene, Errno::IO, Scene::recover);
}

#[test]
fn a_write_that_was_given_up_has_no_effect_though_its_segment_arrives() {
    let mut scene = scene_with_a_page();
    let start = |scene: &mut Scene, part, page| {
        let mut memory = [2; PAGE];
        let pieces = [piece(&mut memory)];
        // SAFETY: a write is copied when it starts.
        unsafe { scene.start(Op::Write, PartId::new(0, part), page, &pieces) };
    };
    start(&mut scene, 1, 1);
    start(&mut scene, 2, 2);
    scene.transport.flush(NOW);
    // It waits, and is no segment any more.
    start(&mut scene, 3, 3);
    for part in [1, 3] {
        scene.transport.give_up(NOW, PartId::new(0, part));
        assert_eq!(scene.reap(), -Errno::TIMEDOUT.raw_os_error());
    }
    assert_eq!(scene.reap(), PAGE as i32);
    scene.transport.flush(NOW);
    assert!(scene.transport.writes.is_empty());
    assert_eq!(scene.transport.in_flight(), 0);
    for (page, expected) in [(1, 1), (2, 2), (3, 0)] {
        let mut memory = [7; PAGE];
        let read = scene.move_page(Op::Read, page, &mut memory);
        assert_eq!((read, memory), (PAGE as i32, [expected; PAGE]));
    }
    // What is dead of the segment is no page's.
    assert_eq!(scene.move_page(Op::Write, 1, &mut [3; PAGE]), PAGE as i32);
    assert_eq!(scene.move_page(Op::Write, 2, &mut [3; PAGE]), PAGE as i32);
    scene.until(|scene| scene.objects() == 2);
}

#[test]
fn a_segment_whose_pages_are_forgotten_is_deleted() {
    let mut scene = Scene::new(16);
    scene.write([1, 2]);
    scene.until(|scene| scene.transport.writes.is_empty());
    assert!(scene.transport.forget(0, 1) && scene.transport.forget(0, 3));
    let mut memory = [7; PAGE];
    assert_eq!(scene.move_page(Op::Read, 2, &mut memory), PAGE as i32);
    assert_eq!(memory, [2; PAGE]);
    assert!(scene.transport.forget(0, 2));
    let free = scene.transport.free_slots.len();
    scene.until(|scene| scene.transport.free_slots.len() > free);
    assert_eq!(scene.objects(), 0);
    assert_eq!(scene.move_page(Op::Read, 1, &mut memory), PAGE as i32);
    assert_eq!(memory, [0; PAGE]);
    scene.write([1]);
    scene.until(|scene| scene.table.place(1).is_some());
}

#[test]
fn a_page_that_is_gone_or_different_is_an_error_until_it_is_written_again() {
    let mut scene = scene_with_a_page();
    let object = |scene: &Scene| fs::read_dir(scene.run_folder()).unwrap().next();
    for damage in DAMAGES {
        damage(&object(&scene).unwrap().unwrap().path());
        let mut read = [0; PAGE];
        let result = scene.move_page(Op::Read, 1, &mut read);
        assert_eq!(result, -Errno::IO.raw_os_error());
        assert_eq!(scene.move_page(Op::Write, 1, &mut [1; PAGE]), PAGE as i32);
        assert_eq!(scene.move_page(Op::Read, 1, &mut read), PAGE as i32);
        scene.until(|scene| scene.objects() == 1);
    }
}

#[test]
fn a_page_that_is_gone_or_different_for_a_moment_is_read_again() {
    let mut scene = scene_with_a_page();
    let object = fs::read_dir(scene.run_folder()).unwrap().next();
    let object = object.unwrap().unwrap().path();
    for damage in DAMAGES {
        damage(&object);
        let mut read = [0; PAGE];
        let pieces = [piece(&mut read)];
        // SAFETY: pieces and memory stay until the part was reaped, below.
        unsafe { scene.start(Op::Read, PartId::new(0, 0), 1, &pieces) };
        scene.transport.flush(NOW);
        // The first answer.
        let ended = scene.transport.operations.wait(LONG);
        scene.transport.on_ended(ended.expect("an answer"));
        fs::write(&object, [1; PAGE]).unwrap();
        assert_eq!(scene.reap(), PAGE as i32);
        assert_eq!(read, [1; PAGE]);
    }
}

#[test]
fn segments_that_could_not_be_deleted_are_deleted_when_the_store_works_again() {
    let mut scene = Scene::new(16);
    let free = scene.transport.free_slots.len();
    scene.write([1]);
    scene.until(|scene| scene.transport.writes.is_empty());
    scene.refuse();
    (0..5).for_each(|_| scene.write([1]));
    scene.until(|scene| scene.transport.deletions.waiting.len() == 5);
    assert_eq!(scene.transport.free_slots.len(), free - 6);
    scene.recover();
    // The one before it dies, too.
    scene.write([1]);
    scene.until(|scene| scene.transport.free_slots.len() == free - 1);
    assert_eq!(scene.objects(), 1);
}

#[test]
fn an_outage_that_has_taken_all_slots_gives_them_back() {
    let mut scene = Scene::new(16);
    scene.transport.free_slots.truncate(2);
    scene.refuse();
    (0..2).for_each(|_| scene.write([1]));
    scene.until(|scene| scene.transport.deletions.waiting.len() == 2);
    scene.recover();
    // No slot is free.
    scene.write([1]);
    assert!(scene.transport.writes.is_empty());
    scene.until(|scene| scene.transport.free_slots.len() == 2);
    scene.write([1]);
    scene.until(|scene| scene.table.place(1).is_some());
}

#[test]
fn the_end_of_the_run_alone_deletes_its_objects() {
    const SEGMENTS: u32 = 1000;
    let mut scene = Scene::new(16);
    for slot in 0..SEGMENTS as usize {
        let number = scene.table.next_segment();
        scene.table.name_segment(slot, number);
        fs::write(scene.run_folder().join(number.0.to_string()), "").unwrap();
    }
    scene.restart();
    assert_eq!(scene.objects(), SEGMENTS as usize);
    scene.table.end();
    scene.restart();
    assert!(!scene.run_folder().exists());
}

#[test]
fn parts_that_a_silent_store_holds_up_count_as_in_flight_no_longer() {
    let mut scene = scene_with_a_page();
    let object = scene.next_object();
    mknodat(CWD, &object, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (mut memory, id) = ([2; PAGE], PartId::new(0, 7));
    let pieces = [piece(&mut memory)];
    // SAFETY: pieces and memory stay until the part was reaped, below.
    unsafe { scene.start(Op::Write, id, 1, &pieces) };
    scene.transport.flush(NOW);
    let due = scene.transport.next_due().unwrap();
    assert_eq!(scene.transport.reap(NOW), None);
    assert_eq!(scene.transport.next_waiting(), None);
    assert_eq!(scene.transport.reap(due), None);
    assert_eq!(scene.transport.next_waiting(), Some(id));
    assert_eq!(scene.transport.next_waiting(), None);
    assert_eq!(scene.transport.next_due(), None);
    drop(fs::read(&object).unwrap());
    assert_eq!(scene.reap(), PAGE as i32);
}

#[test]
fn what_a_killed_client_has_left_is_deleted_once_its_writes_have_ended() {
    let mut scene = scene_with_a_page();
    let (number, slot) = (scene.table.next_segment(), 9);
    scene.table.name_segment(slot, number);
    fs::write(scene.run_folder().join(number.0.to_string()), "").unwrap();
    scene.restart();
    let free = scene.transport.free_slots.len();
    assert_eq!(scene.transport.reap(NOW), None);
    assert_eq!(scene.objects(), 2);
    let due = scene.transport.next_due().unwrap();
    assert_eq!(due, NOW + Nanos::from(PATIENCE));
    assert_eq!(scene.transport.reap(due), None);
    scene.until(|scene| scene.transport.free_slots.len() > free);
    assert_eq!((scene.objects(), scene.transport.next_due()), (1, None));
    let mut read = [0; PAGE];
    assert_eq!(scene.move_page(Op::Read, 1, &mut read), PAGE as i32);
    assert_eq!(read, [1; PAGE]);
}

#[test]
fn a_segment_whose_attempt_arrives_after_it_was_deleted_is_deleted_at_the_end() {
    let mut scene = Scene::new(16);
    scene.write([1]);
    let Some(Ended::Written(number, Ok(_))) = scene.transport.operations.wait(LONG) else {
        panic!("not written");
    };
    let written = Ended::Written(number, Ok(Written::Again));
    scene.transport.on_ended(written);
    let object = scene.run_folder().join(number.0.to_string());
    scene.write([1]);
    scene.until(|scene| scene.transport.writes.is_empty());
    scene.until(|_| !object.exists());
    fs::write(&object, "late").unwrap();
    scene.table.end();
    scene.restart();
    assert!(!scene.run_folder().exists());
}
