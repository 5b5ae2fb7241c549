//! A program that harms: what it does until its orders end.

use crate::prelude::*;
use crate::worker::linger;
use rustix::process::{Signal, getpid, kill_process};
use std::sync::atomic::{AtomicBool, Ordering};

/// Threads of one that rings or writes.
const THREADS: u64 = 4;

/// Pages that a child changes.
const OF_A_CHILD: u64 = 64;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
pub enum AdversaryKind {
    /// rings doorbells
    Doorbells,
    /// writes all it may
    Writes,
    /// forks
    Forks,
    /// is stopped with frames that are claimed
    Stopped,
}

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AdversaryPlan {
    /// What it does.
    pub kind: AdversaryKind,
    /// MiB of memory that it does it with.
    pub mib: u64,
}

/// The main function of one.
pub fn serve(plan: &AdversaryPlan) -> Result<()> {
    let pages = (plan.mib << 20) / PAGE as u64;
    let memory = WorkerMemory::new(&MemoryKind::Paged, pages, 0)?;
    let base = memory.start().expose_provenance();
    // SAFETY: within the memory, of which each thread, and each child, has a part of its own.
    let page = |n| unsafe { PageAt::new(std::ptr::with_exposed_provenance_mut(base), n) };
    (0..pages).for_each(|n| page(n).write(1));
    ready()?;
    if plan.kind == AdversaryKind::Stopped {
        kill_process(getpid(), Signal::STOP).doing("stop")?;
    }
    let resting = AtomicBool::new(false);
    let goes_on = || !resting.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let part = pages / THREADS;
        for thread in 0..THREADS {
            scope.spawn(move || match plan.kind {
                AdversaryKind::Doorbells => ring(goes_on),
                AdversaryKind::Writes => {
                    let mut own = (thread * part..(thread + 1) * part).cycle();
                    while goes_on() {
                        own.by_ref().take(64).for_each(|n| page(n).advance(1));
                    }
                }
                AdversaryKind::Forks if thread == 0 => {
                    while goes_on() {
                        fork_once(|| (0..OF_A_CHILD.min(pages)).for_each(|n| page(n).advance(1)));
                    }
                }
                AdversaryKind::Forks | AdversaryKind::Stopped => {}
            });
        }
        linger();
        resting.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Writes to all eventfds of the process: those by which its pager is rung and rings are among them.
fn ring(goes_on: impl Fn() -> bool) {
    let is_bell = |fd: &i32| {
        std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|to| to.as_os_str() == "anon_inode:[eventfd]")
    };
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let bells: Vec<i32> = numbers.filter(is_bell).collect();
    while goes_on() {
        for bell in &bells {
            // SAFETY: the kernel checks the descriptor; the value is there. Its refusal is as good.
            unsafe { libc::write(*bell, (&raw const ONE).cast(), 8) };
        }
    }
}

/// What is added to an eventfd.
static ONE: u64 = 1;

/// Makes a child that does something, and waits for its end.
fn fork_once(work: impl FnOnce()) {
    // SAFETY: the child calls nothing that another thread may have locked.
    match unsafe { libc::fork() } {
        -1 => {}
        0 => {
            work();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        child => {
            // SAFETY: no status is asked for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
}
