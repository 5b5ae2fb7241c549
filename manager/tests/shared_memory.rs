//! What a tree's pager reads late. The test process is pager and client: only the pager's own threads must not touch what it serves.

use frames::{Contract, Ledger};
use manager::shared_memory::{Mailbox, Request, SharedMemoryParts, start};
use rustix::fd::OwnedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use store::SharedStore;
use translation::{Capabilities, EntryKind, Userfault, UserfaultOptions};
use wired::PAGE;

const FRAMES: u32 = 64;
const PAGES: usize = 32;
const LEN: usize = PAGES * PAGE;
/// The test process's place.
const SLOT: u16 = 1;

/// Holds the pager's thread up between what it has read and what it is asked.
#[derive(Default)]
struct Gate {
    is_closed: AtomicBool,
    is_reached: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        while self.is_closed.load(Ordering::SeqCst) {
            self.is_reached.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn close(&self, mailbox: &Mailbox) {
        self.is_closed.store(true, Ordering::SeqCst);
        mailbox.ring();
        wait_until(|| self.is_reached.load(Ordering::SeqCst));
    }

    fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it never is");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn start_pager(gate: Arc<Gate>) -> Mailbox {
    let (ledger, descriptor) = Ledger::create(FRAMES, 1).unwrap();
    let domain = ledger
        .admit(Contract {
            g: FRAMES,
            x: FRAMES,
        })
        .unwrap();
    ledger.adopt(domain).unwrap();
    let holder = domain.slot() as store::HolderId;
    let store = "ram:16M".parse().unwrap();
    let (store, _) = SharedStore::create(&store, holder + 1).unwrap();
    store.set_holder(holder).unwrap();
    let parts = SharedMemoryParts {
        ledger: Ledger::attach(&descriptor).unwrap(),
        domain,
        store,
        careful: Box::new(move || {
            gate.pass();
            false
        }),
        count: Box::new(|_, _, _| {}),
    };
    start(parts).unwrap()
}

/// Maps fresh memory for an object; its place is free.
fn map(to: *mut std::ffi::c_void) -> (usize, OwnedFd) {
    let memory = wired::sealed_memory("selfpage-test-shared", LEN as u64).unwrap();
    let flags = match to.is_null() {
        true => MapFlags::SHARED,
        false => MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
    };
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping.
    let at = unsafe { mmap(to, LEN, rights, flags, &memory, 0) }.unwrap();
    assert!(to.is_null() || at == to);
    (at as usize, memory)
}

/// Returns what tells the outcome.
fn share(
    mailbox: &Mailbox,
    addr: usize,
    memory: OwnedFd,
    uffd: Option<OwnedFd>,
) -> impl FnOnce() -> Result<(), String> {
    let (send, receive) = std::sync::mpsc::channel();
    mailbox.send(Request::Share {
        slot: SLOT,
        uffd,
        addr,
        len: LEN,
        memory,
        respond: Box::new(move |outcome| send.send(outcome).unwrap()),
    });
    move || receive.recv_timeout(Duration::from_secs(30)).unwrap()
}

/// Writes and reads all pages.
fn touch(at: usize, version: u64) {
    let word = |page: usize| (at + page * PAGE) as *mut u64;
    for page in 0..PAGES {
        // SAFETY: memory that the caller has mapped.
        assert_eq!(unsafe { word(page).read_volatile() }, 0, "page {page}");
        // SAFETY: as above.
        unsafe { word(page).write_volatile(version + page as u64) };
    }
    for page in 0..PAGES {
        // SAFETY: as above.
        let found = unsafe { word(page).read_volatile() };
        assert_eq!(found, version + page as u64, "page {page}");
    }
}

fn is_mapped(at: usize) -> bool {
    let mut there = [0u8; PAGES];
    // SAFETY: writes a byte for each page.
    unsafe { libc::mincore(at as *mut _, LEN, there.as_mut_ptr()) == 0 }
}

#[test]
fn memory_is_served_where_other_memory_was_whose_end_is_read_late() {
    let options = UserfaultOptions {
        user_mode_only: true,
        reports_changes: true,
        ..UserfaultOptions::default()
    };
    let capabilities = Capabilities::probe_fast();
    let uffd = Userfault::open_with(EntryKind::Thread, &capabilities, options).unwrap();
    let gate = Arc::new(Gate::default());
    let mailbox = start_pager(gate.clone());
    let (at, memory) = map(std::ptr::null_mut());
    share(&mailbox, at, memory, Some(uffd.into()))().unwrap();
    touch(at, 1000);

    gate.close(&mailbox);
    // SAFETY: nothing uses it any more.
    let unmaps = std::thread::spawn(move || unsafe { munmap(at as *mut _, LEN) });
    wait_until(|| !is_mapped(at));
    let (same, memory) = map(at as *mut _);
    let shared = share(&mailbox, same, memory, None);
    gate.open();
    shared().unwrap();
    unmaps.join().unwrap().unwrap();
    touch(at, 2000);
}
