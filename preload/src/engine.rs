//! This process's pager: created in the constructor, and again in the child of a fork.

use crate::outlet::Outlet;
use crate::traps::{self, Traps};
use crate::{allocated, link, notice, pager_process, processors};
use ::link::client::{Connection, Joined};
use ::link::handshake::slot_of;
use ::link::stats_page::Metric;
use ::link::stats_page::StatsPage;
use frames::{Contract, DomainFrames, DomainId, Ledger};
use selfpage::embedding::{Config, EntryThread, ForkError, ForkGuard, ProcessPager};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{Duration, Instant};
use store::{SharedStore, Store};
use translation::{Capabilities, EntryKind, Userfault};
use wired::futex;

/// State that lives as long as the process, and continues in its children.
pub struct Engine {
    /// The pager.
    pub process: &'static ProcessPager,
    ledger: &'static Ledger,
    store: &'static SharedStore,
    board: &'static StatsPage,
    capabilities: Capabilities,
    contract: Contract,
    disk: Disk,
    entries: [AtomicPtr<EntryThread>; pager_process::HANDLERS],
}

/// The disk behind a store's compressed RAM.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    /// No disk.
    None,
    /// A file, whose descriptor comes last.
    File,
    /// The daemon's disk.
    System,
}

/// Longest wait of a parent for its child: a child that dies first sends no message.
const CHILD: Duration = Duration::from_secs(2);

/// Interval at which the parent checks that the child's domain still exists.
const LOOK: Duration = Duration::from_millis(10);

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// The engine; none before it starts, and none in plain mode.
pub fn get() -> Option<&'static Engine> {
    ENGINE.get()
}

/// The pager's callbacks.
struct Hooks;

impl selfpage::Hooks for Hooks {
    fn allocated(&self, addr: usize) -> bool {
        allocated::allocated(addr)
    }

    fn close(&self, page: usize) {
        allocated::close(page);
    }

    fn processor_of(&self, thread: u32) -> Option<u32> {
        processors::of(thread)
    }

    fn notice(&self, text: &str) {
        notice::say(format_args!("{}", text.trim_end()));
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// The engine of a new image. Returns the connection that the process joined by.
pub fn start(joined: Joined) -> Result<Connection, String> {
    let welcome = joined.welcome;
    let without = Capabilities::from_bits(welcome.options.without as u32);
    let probed = Capabilities::probe_fast();
    let capabilities = Capabilities::from_bits(probed.bits() & !without.bits());
    let userfault = userfault(&joined, &capabilities)?;
    let ledger = leak(Ledger::attach(&joined.ledger).map_err(text)?);
    let board: &'static StatsPage = leak(joined.map_board().map_err(text)?);
    let slot = slot_of(welcome.domain);
    let fds: Vec<_> = joined.store.into_iter().flatten().collect();
    if fds.is_empty() {
        return Err("the system domain has no store: give `selfpage run` one with --store".into());
    }
    let last = fds.last().map(AsRawFd::as_raw_fd);
    let store = leak(SharedStore::attach(fds, slot).map_err(text)?);
    let disk = match joined.hunger {
        Some(_) => Disk::System,
        // A store with a file keeps the last of its descriptors.
        None if last.is_some_and(is_open) => Disk::File,
        None => Disk::None,
    };
    if let Some(hunger) = joined.hunger {
        store.set_transport(Box::new(Outlet(welcome.domain)));
        ledger.set_bell(hunger);
    }
    let contract = Contract {
        g: welcome.guaranteed,
        x: welcome.frames,
    };
    let process = ProcessPager::start(Config {
        capabilities,
        userfault,
        frames: adopt(ledger, welcome.domain)?,
        store,
        holder: slot,
        counters: board.block(slot).counters(),
        careful: board.careful(),
        careful_seen: board.block(slot).careful_seen(),
        limits: board.limits(),
        hooks: &Hooks,
    })
    .map_err(text)?;
    let engine = Engine {
        process,
        ledger,
        store,
        board,
        capabilities,
        contract,
        disk,
        entries: [const { AtomicPtr::new(std::ptr::null_mut()) }; pager_process::HANDLERS],
    };
    let _ = ENGINE.set(engine);
    Ok(joined.connection)
}

/// The engine of a fork's child: every arena is registered again.
pub fn again(fork: ForkGuard, joined: Joined) -> Result<Connection, String> {
    let Some(engine) = get() else {
        return start(joined);
    };
    let userfault = userfault(&joined, &engine.capabilities)?;
    let domain = joined.welcome.domain;
    let slot = slot_of(domain);
    match engine.disk {
        Disk::None => {}
        Disk::File => {
            let swap = joined.store.into_iter().flatten().last();
            engine
                .store
                .reopen(swap.ok_or("the store's file did not come with the answer")?);
        }
        Disk::System => {
            let hunger = joined
                .hunger
                .ok_or("the bell did not come with the answer")?;
            engine.store.set_transport(Box::new(Outlet(domain)));
            engine.ledger.set_bell(hunger);
        }
    }
    let frames = adopt(engine.ledger, domain)?;
    let block = engine.board.block(slot);
    let (counters, seen) = (block.counters(), block.careful_seen());
    // SAFETY: the child's only thread, and its descriptor table has none of the pager's.
    unsafe {
        engine
            .process
            .become_child(fork, userfault, frames, slot, counters, seen)
    }
    .map_err(text)?;
    Ok(joined.connection)
}

/// Returns true if a number is an open descriptor of the calling thread's table.
fn is_open(fd: i32) -> bool {
    // SAFETY: a query without effect.
    let asked = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_getfd(asked).is_ok()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn userfault(joined: &Joined, capabilities: &Capabilities) -> Result<Userfault, String> {
    match &joined.userfaultfd {
        Some(device) => Userfault::from_device(device.as_fd(), EntryKind::Thread, capabilities),
        None => Userfault::open(EntryKind::Thread, capabilities),
    }
    .map_err(text)
}

fn adopt(ledger: &'static Ledger, domain: u32) -> Result<DomainFrames<'static>, String> {
    let process = host::process_tree::process(rustix::process::getpid());
    ledger
        .adopt(DomainId::from_raw(domain), process)
        .map_err(text)
}

/// The domain of a fork's child.
pub fn child_of(fork: &ForkGuard) -> u32 {
    ProcessPager::child_of(fork).raw()
}

/// True if the kernel lets the pager process count the faults that the kernel handles by itself.
static COUNTS_KERNEL_FAULTS: AtomicBool = AtomicBool::new(false);

/// Puts the handler of the signals in place that pace faults which the kernel handles by
/// itself, where these are counted. In the program: its signal handlers are its own. Returns
/// true where it is in place.
pub fn handle_fault_signals() -> bool {
    let Some(engine) = get().filter(|_| COUNTS_KERNEL_FAULTS.load(Ordering::Acquire)) else {
        return false;
    };
    engine.process.throttle_kernel_faults(traps::code()).is_ok()
}

/// The pacing of faults that the kernel handles by itself.
pub struct Paced(Option<Traps>);

impl Paced {
    /// Of a program that has one thread, `first`, in a tree that may have fault limits.
    pub fn begin(first: i32) -> Self {
        let Some(engine) = get().filter(|_| link::is_paced()) else {
            return Self(None);
        };
        let traps = Traps::begin(engine.process, first);
        COUNTS_KERNEL_FAULTS.store(traps.is_some(), Ordering::Release);
        let figure = match traps {
            Some(_) => Metric::KernelCounted,
            None => Metric::KernelUncounted,
        };
        engine.board.block(slot_of(link::domain())).add(figure, 1);
        Self(traps)
    }

    /// Returns true if such faults can be paced.
    pub fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// Follows the limits.
    pub fn follow(&mut self) {
        if let Some(traps) = &mut self.0 {
            traps.follow();
        }
    }
}

impl Engine {
    /// Stops the pager for a fork.
    pub fn close(&self) -> Result<ForkGuard, ForkError> {
        let process = self.process;
        let fork = process.close_for_fork(self.contract)?;
        let child = slot_of(child_of(&fork));
        self.store.adopt_fork(self.store.holder(), child);
        self.board
            .block(child)
            .inherited()
            .store(0, Ordering::Release);
        Ok(fork)
    }

    /// Restarts the pager of a fork's parent. Where a child was `born`, the parent waits until
    /// the child has what it inherits: until then the child's domain is its parent's, and would
    /// end with it, and its memory is not yet what the parent may read and write there
    /// (`process_vm_readv`).
    pub fn open(&self, fork: ForkGuard, born: bool) {
        let child = ProcessPager::child_of(&fork);
        self.process.open_after_fork(fork);
        if !born {
            return;
        }
        let inherited = self.board.block(slot_of(child.raw())).inherited();
        let since = Instant::now();
        while inherited.load(Ordering::Acquire) == 0
            && since.elapsed() < CHILD
            && self.ledger.stats(child).is_some()
        {
            futex::wait(inherited, 0, Some(LOOK));
        }
    }

    /// Signals that the child of a fork has what it inherits.
    pub fn inherited(&self) {
        let inherited = self.board.block(slot_of(link::domain())).inherited();
        inherited.store(1, Ordering::Release);
        futex::wake_all(inherited);
    }

    /// Returns true if creating the threads that read faults needs rights of the pager process's:
    /// those to receive descriptors of IO channels.
    pub fn entries_need_rights(&self) -> bool {
        self.disk == Disk::System
    }

    /// Makes what the `n`th thread that reads faults needs.
    pub fn prepare_entry(&self, n: usize, cpu: usize) -> Result<(), String> {
        let entry = Box::new(self.process.entry(cpu).map_err(text)?);
        // A parent's is not dropped in its child: its descriptors are not in this table.
        self.entries[n].store(Box::into_raw(entry), Ordering::Release);
        Ok(())
    }

    /// The `n`th thread that reads faults.
    pub fn entry_main(&self, n: usize) -> ! {
        // SAFETY: made for this thread alone, and never freed.
        let entry = unsafe { &mut *self.entries[n].load(Ordering::Acquire) };
        loop {
            self.process.entry_main(entry, None, &mut || false);
        }
    }
}
