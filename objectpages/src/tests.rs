//! The transport over a folder that fails on demand.

use crate::gather::Gather;
use crate::operations::Operations;
use crate::page_table::PageTable;
use crate::transport::ObjectTransport;
use objectstore::ObjectStore;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use wired::PAGE;

/// How long operations that are to succeed may take, and those that are to fail.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);

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

    /// The run's objects.
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

    /// Serves until it is so.
    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            let ended = self.transport.operations.wait(LONG);
            self.transport.on_ended(ended.expect("it is never so"));
        }
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
    scene.until(|scene| scene.transport.undeleted.len() == 5);
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
    scene.until(|scene| scene.transport.undeleted.len() == 2);
    scene.recover();
    // It finds no slot.
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
    let again = ObjectTransport::new(scene.store.clone(), Arc::clone(&scene.table)).unwrap();
    drop(std::mem::replace(&mut scene.transport, again));
    assert_eq!(scene.objects(), SEGMENTS as usize);
    scene.table.end();
    let again = ObjectTransport::new(scene.store.clone(), Arc::clone(&scene.table)).unwrap();
    drop(std::mem::replace(&mut scene.transport, again));
    assert!(!scene.run_folder().exists());
}
