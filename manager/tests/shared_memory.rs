//! What a tree's pager reads late, and what it keeps. The test process is pager and client: only the pager's own threads must not touch what it serves.

use frames::{Contract, DomainId, Ledger};
use manager::shared_memory::{Mailbox, Request, Responder, SharedMemoryParts, start};
use rustix::fd::OwnedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use store::SharedStore;
use translation::{Capabilities, EntryKind, Userfault, UserfaultOptions};
use wired::{Counter, PAGE};

const FRAMES: u32 = 64;
const PAGES: usize = 32;
const LEN: usize = PAGES * PAGE;
/// The place of the test process.
const SLOT: u16 = 1;
/// Those of its child, and of another process; it acts for both.
const CHILD: u16 = 2;
const OTHER: u16 = 3;

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

/// What a pager works with.
struct Tree {
    mailbox: Mailbox,
    ledger: Ledger,
    child: DomainId,
    /// Pages that the store did not take.
    refused: Arc<AtomicU64>,
}

fn contract(g: u32) -> Contract {
    Contract { g, x: FRAMES }
}

fn start_pager(gate: Arc<Gate>, store: &str) -> Tree {
    let (ledger, descriptor) = Ledger::create(FRAMES, 3).unwrap();
    let domain = ledger.admit(contract(0)).unwrap();
    ledger.adopt(domain).unwrap();
    let child = ledger.admit(contract(0)).unwrap();
    let holder = domain.slot() as store::HolderId;
    let store = store.parse().unwrap();
    let (store, _) = SharedStore::create(&store, holder + 1).unwrap();
    store.set_holder(holder).unwrap();
    let refused = Arc::new(AtomicU64::new(0));
    let counted = refused.clone();
    let parts = SharedMemoryParts {
        ledger: Ledger::attach(&descriptor).unwrap(),
        domain,
        store,
        careful: Box::new(move || {
            gate.pass();
            false
        }),
        count: Box::new(move |_, counter, by| {
            if counter == Counter::WriteFailures {
                counted.fetch_add(by, Ordering::SeqCst);
            }
        }),
    };
    Tree {
        mailbox: start(parts).unwrap(),
        ledger,
        child,
        refused,
    }
}

/// Memory for an object.
fn memory(len: usize) -> OwnedFd {
    wired::sealed_memory("selfpage-test-shared", len as u64).unwrap()
}

/// A process's userfaultfd.
fn uffd() -> OwnedFd {
    let options = UserfaultOptions {
        user_mode_only: true,
        reports_changes: true,
        ..UserfaultOptions::default()
    };
    let capabilities = Capabilities::probe_fast();
    let opened = Userfault::open_with(EntryKind::Thread, &capabilities, options);
    opened.unwrap().into()
}

/// Maps an object; its place is free.
fn map(to: *mut std::ffi::c_void, memory: &OwnedFd, len: usize) -> usize {
    let flags = match to.is_null() {
        true => MapFlags::SHARED,
        false => MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
    };
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping.
    let at = unsafe { mmap(to, len, rights, flags, memory, 0) }.unwrap();
    assert!(to.is_null() || at == to);
    at as usize
}

/// The outcome of a request.
struct Outcome(Receiver<Result<(), String>>);

impl Outcome {
    fn succeeds(self) {
        let outcome = self.0.recv_timeout(Duration::from_secs(30));
        outcome.unwrap().unwrap();
    }
}

/// Sends a request.
fn request(mailbox: &Mailbox, request: impl FnOnce(Responder) -> Request) -> Outcome {
    let (send, receive) = channel();
    mailbox.send(request(Box::new(move |outcome| {
        send.send(outcome).unwrap();
    })));
    Outcome(receive)
}

/// Shares memory that is mapped, as the process in a slot.
fn share(
    mailbox: &Mailbox,
    (slot, uffd): (u16, Option<OwnedFd>),
    addr: usize,
    (memory, len): (OwnedFd, usize),
) -> Outcome {
    request(mailbox, |respond| Request::Share {
        slot,
        uffd,
        addr,
        len,
        memory,
        respond,
    })
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
    let gate = Arc::new(Gate::default());
    let Tree { mailbox, .. } = start_pager(gate.clone(), "ram:16M");
    let first = memory(LEN);
    let at = map(std::ptr::null_mut(), &first, LEN);
    share(&mailbox, (SLOT, Some(uffd())), at, (first, LEN)).succeeds();
    touch(at, 1000);

    gate.close(&mailbox);
    // SAFETY: nothing uses it any more.
    let unmaps = std::thread::spawn(move || unsafe { munmap(at as *mut _, LEN) });
    wait_until(|| !is_mapped(at));
    let second = memory(LEN);
    let same = map(at as *mut _, &second, LEN);
    let shared = share(&mailbox, (SLOT, None), same, (second, LEN));
    gate.open();
    shared.succeeds();
    unmaps.join().unwrap().unwrap();
    touch(at, 2000);
}

/// Contents of pages from `at` on that no store compresses.
fn noise(version: u64, word: usize) -> u64 {
    (version << 32 | word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (word as u64) << 40
}

fn write_noise(at: usize, version: u64) {
    for word in 0..LEN / 8 {
        // SAFETY: memory that the caller has mapped.
        unsafe { ((at + word * 8) as *mut u64).write_volatile(noise(version, word)) };
    }
}

fn check_noise(at: usize, version: u64) {
    for word in 0..LEN / 8 {
        // SAFETY: memory that the caller has mapped.
        let found = unsafe { ((at + word * 8) as *const u64).read_volatile() };
        assert_eq!(found, noise(version, word), "page {}", word * 8 / PAGE);
    }
}

#[test]
fn a_full_store_loses_nothing_that_a_child_alone_inherits() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("disk:{},size=128K", folder.path().display());
    let tree = start_pager(Arc::default(), &store);
    let (inherited, others) = (memory(LEN), memory(LEN));
    let descriptor = rustix::io::dup(&inherited).unwrap();
    let [at, beside] = [&inherited, &others].map(|it| map(std::ptr::null_mut(), it, LEN));
    let (parent, other) = ((SLOT, Some(uffd())), (OTHER, Some(uffd())));
    share(&tree.mailbox, other, beside, (others, LEN)).succeeds();
    share(&tree.mailbox, parent, at, (descriptor, LEN)).succeeds();
    write_noise(beside, 1);
    write_noise(at, 2);
    request(&tree.mailbox, |respond| Request::Fork {
        slot: SLOT,
        child: tree.child,
        respond,
    })
    .succeeds();
    // SAFETY: nothing uses it until it is mapped again.
    unsafe { munmap(at as *mut _, LEN) }.unwrap();
    // All frames are demanded, and the store has room for half of the pages: each of the others is refused more than once.
    let demanding = tree.ledger.admit(contract(FRAMES)).unwrap();
    wait_until(|| {
        tree.ledger.demand(demanding, FRAMES);
        tree.mailbox.ring();
        tree.refused.load(Ordering::SeqCst) > u64::from(FRAMES)
    });
    tree.ledger.retire(demanding);
    map(at as *mut _, &inherited, LEN);
    request(&tree.mailbox, |respond| Request::Inherit {
        slot: CHILD,
        domain: tree.child,
        uffd: uffd(),
        respond,
    })
    .succeeds();
    check_noise(at, 2);
    check_noise(beside, 1);
}
