//! This process's pager: created in the constructor, and again in the child of a fork.
//!
//! In plain mode (see [`crate::paged_memory`]) there is none.

mod fork_gate;

use crate::raw_syscall::{error, syscall3};
use crate::supervisor::disk::SupervisorDisk;
use crate::{
    diagnostics, mapped_bitmap, pager_process, raw_syscall, rseq, shared_memory, supervisor,
};
use frames::{Contract, DomainFrames, DomainId, Ledger};
use link::client::{Connection, Joined};
use link::handshake::slot_of;
use link::stats_page::{ProcessStats, StatsPage};
use selfpage::embedding::{Config, ForkGuard, HandlerThread, ProcessPager, SharedWords};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use store::SharedStore;
use translation::{Capabilities, EntryKind, Userfault, UserfaultOptions};
use wired::futex;

pub use fork_gate::{
    ForkGate, ForkOutcome, admit_child, await_inheritance, dismiss_child, is_retryable,
};

/// State that lives as long as the process, and continues in its children.
pub struct AttachedPager {
    /// The pager.
    pub process: &'static ProcessPager,
    ledger: &'static Ledger,
    store: &'static SharedStore,
    stats_page: &'static StatsPage,
    capabilities: Capabilities,
    contract: Contract,
    disk: StoreKind,
    handlers: [AtomicPtr<HandlerThread>; pager_process::HANDLERS],
}

/// How long the memory of a child that has ended is waited for: longer than a pager process takes to end on a machine
/// with much other work.
const LONGEST_END: Duration = Duration::from_secs(2);

/// The disk behind a store's compressed RAM.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreKind {
    /// No disk.
    None,
    /// A file, whose descriptor comes last.
    File,
    /// IO channels, to the daemon or a remote client.
    Channels,
}

static PAGER: OnceLock<AttachedPager> = OnceLock::new();

/// The pager; none before it starts, and none in plain mode.
pub fn get() -> Option<&'static AttachedPager> {
    PAGER.get()
}

/// The pager's callbacks.
struct Hooks;

impl selfpage::Hooks for Hooks {
    fn allocated(&self, addr: usize) -> bool {
        mapped_bitmap::is_mapped(addr)
    }

    fn close(&self, page: usize) {
        mapped_bitmap::close(page);
    }

    fn processor_of(&self, thread: u32) -> Option<u32> {
        rseq::cpu_of(thread)
    }

    fn check_pager(&self) {
        pager_process::end_if_gone();
    }

    fn notice(&self, text: &str) {
        diagnostics::log(format_args!("{text}"));
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// The pager of a new image. Returns the connection that the process joined by.
fn start(joined: Joined) -> Result<Connection, String> {
    let welcome = joined.welcome;
    // Not probed again, which costs a process's start more than a page fault: a filter that the
    // program has set since takes no more than `process_madvise`, and a discard does without it.
    let capabilities = Capabilities::from_bits(welcome.options.capabilities);
    let device = joined.userfaultfd.as_ref();
    let userfault = open_userfault(device, &capabilities, UserfaultOptions::default())?;
    shared_memory::open_userfault(device, &capabilities);
    let ledger = leak(Ledger::attach(&joined.ledger).map_err(text)?);
    let stats_page: &'static StatsPage = leak(joined.map_stats_page().map_err(text)?);
    let slot = slot_of(welcome.domain);
    let fds: Vec<_> = joined.store.into_iter().flatten().collect();
    if fds.is_empty() {
        return Err("the supervisor has no store: give `selfpage run` one with --store".into());
    }
    let last = fds.last().map(AsRawFd::as_raw_fd);
    let store = leak(SharedStore::attach(fds, slot).map_err(text)?);
    let disk = match store.needs_transport() {
        true => StoreKind::Channels,
        // A store with a file keeps the last of its descriptors.
        false if last.is_some_and(is_open) => StoreKind::File,
        false => StoreKind::None,
    };
    if disk == StoreKind::Channels {
        store.set_transport(Box::new(SupervisorDisk));
    }
    if let Some(pressure_bell) = joined.pressure_bell {
        ledger.set_bell(pressure_bell);
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
        counters: stats_page.block(slot).counters(),
        careful: stats_page.careful(),
        words: words_of(stats_page.block(slot)),
        limits: stats_page.limits(),
        hooks: &Hooks,
    })
    .map_err(text)?;
    let pager = AttachedPager {
        process,
        ledger,
        store,
        stats_page,
        capabilities,
        contract,
        disk,
        handlers: [const { AtomicPtr::new(std::ptr::null_mut()) }; pager_process::HANDLERS],
    };
    let _ = PAGER.set(pager);
    Ok(joined.connection)
}

/// The pager of a fork's child: every arena is registered again.
fn start_in_child(fork: ForkGuard, joined: Joined) -> Result<Connection, String> {
    let Some(pager) = get() else {
        return start(joined);
    };
    let device = joined.userfaultfd.as_ref();
    let userfault = open_userfault(device, &pager.capabilities, UserfaultOptions::default())?;
    shared_memory::open_userfault(device, &pager.capabilities);
    let domain = joined.welcome.domain;
    let slot = slot_of(domain);
    match pager.disk {
        StoreKind::None => {}
        StoreKind::File => {
            let swap = joined.store.into_iter().flatten().last();
            pager
                .store
                .reopen(swap.ok_or("the store's file did not come with the answer")?);
        }
        StoreKind::Channels => pager.store.set_transport(Box::new(SupervisorDisk)),
    }
    if let Some(pressure_bell) = joined.pressure_bell {
        pager.ledger.set_bell(pressure_bell);
    }
    let frames = adopt(pager.ledger, domain)?;
    let block = pager.stats_page.block(slot);
    // SAFETY: the child's only thread, and its descriptor table has none of the pager's.
    unsafe {
        pager.process.become_child(
            fork,
            userfault,
            frames,
            slot,
            block.counters(),
            words_of(block),
        )
    }
    .map_err(text)?;
    Ok(joined.connection)
}

fn words_of(block: ProcessStats<'static>) -> SharedWords {
    SharedWords {
        careful_seen: block.careful_seen(),
        discards: block.discards(),
    }
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

/// Opens a userfaultfd for this process, by the device where `run` could open it.
pub fn open_userfault(
    device: Option<&OwnedFd>,
    capabilities: &Capabilities,
    options: UserfaultOptions,
) -> Result<Userfault, String> {
    match device {
        Some(device) => {
            Userfault::from_device(device.as_fd(), EntryKind::Thread, capabilities, options)
        }
        None => Userfault::open_with(EntryKind::Thread, capabilities, options),
    }
    .map_err(text)
}

fn adopt(ledger: &'static Ledger, domain: u32) -> Result<DomainFrames<'static>, String> {
    ledger.adopt(DomainId::from_raw(domain)).map_err(text)
}

/// Joins the tree: the pager of a new image, or, with a gate, of a fork's child.
pub fn attach(gate: Option<ForkGate>, joined: Joined) -> Result<Connection, String> {
    match gate.and_then(ForkGate::into_fork) {
        Some(fork) => start_in_child(fork, joined),
        None => start(joined),
    }
}

/// Waits until no pager has the memory of a child any more that the program has reaped. The kernel gives back what an
/// image held before its parent learns of its end: the file that it executed, shared memory, seals, mounts.
pub fn await_end_of(child: i32) {
    await_ends_of(|program| program == child as u32);
}

/// The same for every program of the tree that has ended: `system` and `pclose` do not name the child that they reap.
pub fn await_ends() {
    // SAFETY: signal 0 is sent to no process; the call reports whether the process exists.
    let is_gone =
        |program| unsafe { syscall3(libc::SYS_kill, program, 0, 0) } == error(libc::ESRCH);
    await_ends_of(|program| is_gone(program as usize));
}

fn await_ends_of(has_ended: impl Fn(u32) -> bool) {
    let Some(pager) = get() else { return };
    let programs = pager.stats_page.programs();
    // Numbers in the table are those of the supervisor's PID namespace.
    let own = usize::from(slot_of(supervisor::domain()));
    if programs[own].load(Ordering::Acquire) != raw_syscall::pid() as u32 {
        return;
    }
    let begun = Instant::now();
    for word in programs {
        loop {
            let program = word.load(Ordering::Acquire);
            if program == 0 || !has_ended(program) {
                break;
            }
            let Some(left) = LONGEST_END.checked_sub(begun.elapsed()) else {
                return;
            };
            futex::wait(word, program, Some(left));
        }
    }
}

/// Signals to its parent that the child of a fork, in this domain, has what it inherits, or that it
/// has no pager and ends.
pub fn signal_parent(domain: u32, outcome: ForkOutcome) {
    if let Some(pager) = get() {
        let inherited = pager.stats_page.block(slot_of(domain)).inherited();
        inherited.store(outcome as u32, Ordering::Release);
        futex::wake_all(inherited);
    }
}

/// The userfaultfd, of the pager process's own table.
pub fn userfault() -> Option<BorrowedFd<'static>> {
    get().map(|pager| pager.process.userfault())
}

/// Returns true if [`prepare_handler`] must be called before the pager process gives up its rights:
/// the handler threads need those to receive descriptors of IO channels.
pub fn handlers_need_rights() -> bool {
    get().is_some_and(|pager| pager.disk == StoreKind::Channels)
}

/// Creates the resources of the `n`th handler thread, before it runs.
pub fn prepare_handler(n: usize, cpu: usize) -> Result<(), String> {
    let Some(pager) = get() else { return Ok(()) };
    let handler = Box::new(pager.process.new_handler(cpu).map_err(text)?);
    let inherited = pager.handlers[n].swap(Box::into_raw(handler), Ordering::AcqRel);
    if !inherited.is_null() {
        // SAFETY: made by this function, for a thread that a fork has left behind.
        unsafe { Box::from_raw(inherited) }.free_inherited();
    }
    Ok(())
}

/// All threads run, for a program's process: the descriptors are theirs alone from now on.
pub fn threads_run(program: u32) {
    if let Some(pager) = get() {
        pager.process.threads_run(program);
    }
}

/// The `n`th handler thread.
pub fn handler_main(n: usize) -> ! {
    let Some(pager) = get() else { sleep() };
    // SAFETY: made for this thread alone, and freed in a fork's child only.
    let handler = unsafe { &mut *pager.handlers[n].load(Ordering::Acquire) };
    loop {
        pager.process.handler_main(handler, None, &mut || false);
    }
}

/// The thread that evicts.
pub fn evictor_main() -> ! {
    get().map_or_else(|| sleep(), |pager| pager.process.evictor_main())
}

fn sleep() -> ! {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    loop {
        futex::wait(&NEVER, 0, None);
    }
}
