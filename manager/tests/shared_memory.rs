//! What a tree's pager reads late, and what it keeps. The test process is pager and client: only the pager's own threads must not touch what it serves.

use frames::{Contract, DomainId, Ledger};
use manager::shared_memory::{Change, Mailbox, Request, Responder, SharedMemoryParts, start};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Far below all other memory: the kernel chooses the highest place that is free, and threads of other tests' pagers may map
/// something at any time.
const FAR: usize = 1 << 44;

/// Held by a test. The place of memory that it has unmapped is free until it maps something there.
static PLACES: Mutex<()> = Mutex::new(());

fn hold_places() -> MutexGuard<'static, ()> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

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
fn memory() -> OwnedFd {
    wired::sealed_memory("selfpage-test-shared", LEN as u64).unwrap()
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

/// Maps an object, at a place where nothing is that is needed (`how`: MAP_FIXED, or the like), or where the kernel chooses.
fn map(at: Option<(usize, MapFlags)>, memory: &OwnedFd) -> usize {
    let (to, how) = at.unwrap_or((0, MapFlags::empty()));
    let (flags, rights) = (MapFlags::SHARED | how, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: nothing is there that is needed.
    let mapped = unsafe { mmap(to as *mut _, LEN, rights, flags, memory, 0) }.unwrap();
    assert!(at.is_none_or(|_| mapped as usize == to));
    mapped as usize
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
    memory: OwnedFd,
) -> Outcome {
    request(mailbox, |respond| Request::Share {
        slot,
        uffd,
        addr,
        len: LEN,
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
    check(at, version);
}

/// Reads what [`touch`] wrote.
fn check(at: usize, version: u64) {
    for page in 0..PAGES {
        let word = (at + page * PAGE) as *const u64;
        // SAFETY: memory that the caller has mapped.
        let found = unsafe { word.read_volatile() };
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
    let _places = hold_places();
    let gate = Arc::new(Gate::default());
    let Tree { mailbox, .. } = start_pager(gate.clone(), "ram:16M");
    let first = memory();
    let at = map(Some((FAR, MapFlags::FIXED_NOREPLACE)), &first);
    share(&mailbox, (SLOT, Some(uffd())), at, first).succeeds();
    touch(at, 1000);

    gate.close(&mailbox);
    // SAFETY: nothing uses it any more.
    let unmaps = std::thread::spawn(move || unsafe { munmap(at as *mut _, LEN) });
    wait_until(|| !is_mapped(at));
    let second = memory();
    let same = map(Some((at, MapFlags::FIXED_NOREPLACE)), &second);
    let shared = share(&mailbox, (SLOT, None), same, second);
    gate.open();
    shared.succeeds();
    unmaps.join().unwrap().unwrap();
    touch(at, 2000);
}

/// O_NONBLOCK is the open file's: the process has the same one as its pager.
#[test]
fn a_process_whose_userfaultfd_blocks_holds_up_no_other_and_is_dropped_the_second_time() {
    let _places = hold_places();
    let Tree { mailbox, .. } = start_pager(Arc::default(), "ram:16M");
    let own = uffd();
    let sent = rustix::io::dup(&own).unwrap();
    let (first, second) = (memory(), memory());
    let [at, beside] = [&first, &second].map(|it| map(None, it));
    share(&mailbox, (SLOT, Some(sent)), at, first).succeeds();
    share(&mailbox, (OTHER, Some(uffd())), beside, second).succeeds();
    let is_nonblocking = || fcntl_getfl(&own).unwrap().contains(OFlags::NONBLOCK);
    let lock = || {
        fcntl_setfl(&own, OFlags::empty()).unwrap();
        request(&mailbox, |respond| Request::Change {
            slot: SLOT,
            change: Change::Lock(at..at + PAGE),
            respond,
        })
    };
    lock().succeeds();
    wait_until(is_nonblocking);
    touch(beside, 1);
    lock().succeeds();
    assert!(!is_nonblocking());
    let more = memory();
    let more_at = map(None, &more);
    let refused = share(&mailbox, (SLOT, None), more_at, more);
    assert!(refused.0.recv().unwrap().is_err(), "it is served still");
    check(beside, 1);
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
    let _places = hold_places();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("disk:{},size=128K", folder.path().display());
    let tree = start_pager(Arc::default(), &store);
    let (inherited, others) = (memory(), memory());
    let descriptor = rustix::io::dup(&inherited).unwrap();
    let [at, beside] = [&inherited, &others].map(|it| map(None, it));
    let (parent, other) = ((SLOT, Some(uffd())), (OTHER, Some(uffd())));
    share(&tree.mailbox, other, beside, others).succeeds();
    share(&tree.mailbox, parent, at, descriptor).succeeds();
    write_noise(beside, 1);
    write_noise(at, 2);
    request(&tree.mailbox, |respond| Request::Fork {
        slot: SLOT,
        child: tree.child,
        respond,
    })
    .succeeds();
    // The parent has it no more. Something else is there, so that other threads map nothing there.
    map(Some((at, MapFlags::FIXED)), &memory());
    // All frames are demanded, and the store has room for half of the pages: each of the others is refused more than once.
    let demanding = tree.ledger.admit(contract(FRAMES)).unwrap();
    wait_until(|| {
        tree.ledger.demand(demanding, FRAMES);
        tree.mailbox.ring();
        tree.refused.load(Ordering::SeqCst) > u64::from(FRAMES)
    });
    tree.ledger.retire(demanding);
    map(Some((at, MapFlags::FIXED)), &inherited);
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
