//! What a domain and its stretches share, and the threads that serve it.

use super::operation::Operation;
use super::taken_frames::TakenFrames;
use super::{DomainError, StretchError};
use crate::entry::thread::HandlerThread;
use crate::entry::{registry, signals};
use crate::pager::Pager;
use crate::prefetch::Prefetcher;
use frames::{DomainId, Ledger};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::SharedStore;
use translation::EntryKind;
use wired::ForkGuard;

/// Starts a thread of the pager's, which no signal of the program ever interrupts.
fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            signals::block_all_here();
            work();
        })
}

fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return vec![0];
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

fn pin_to(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // It works unpinned, too, only slower: a cpuset may have changed meanwhile.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// A heap value to which others keep plain references. The order of drops is explicit: the
/// fields of [`Runtime`] are dropped in the order they are declared, the pager before what it
/// refers to.
pub(super) struct OwnedPtr<T: 'static>(std::ptr::NonNull<T>);

// SAFETY: owns its value.
unsafe impl<T: Send> Send for OwnedPtr<T> {}
// SAFETY: hands out shared references only.
unsafe impl<T: Sync> Sync for OwnedPtr<T> {}

impl<T> OwnedPtr<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::ptr::NonNull::from(Box::leak(Box::new(value))))
    }

    /// # Safety
    /// The reference must not be used after this is dropped.
    pub(super) unsafe fn get(&self) -> &'static T {
        // SAFETY: allocated by `new`; the caller's promise bounds its use.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for OwnedPtr<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, dropped once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Ends the domain's threads.
struct StopSignal {
    flag: AtomicBool,
    event: OwnedFd,
}

/// What a domain and its stretches share; dropping the last of them ends it.
pub(super) struct Runtime {
    pub(super) prefetch: Arc<Prefetcher>,
    /// The prefetcher's thread, started at the first hint.
    prefetching: Mutex<Option<std::thread::JoinHandle<()>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
    stop: Arc<StopSignal>,
    /// A child of a fork has no part in the domain: the ledger, the store and the userfaultfd are its parent's, and
    /// what it did to them would befall the parent's pages.
    fork_guard: ForkGuard,
    pub(super) taken: TakenFrames,
    pub(super) next_id: AtomicU32,
    pager: OwnedPtr<Pager>,
    pub(super) store: Option<OwnedPtr<SharedStore>>,
    _careful: OwnedPtr<AtomicU32>,
    _ledger: LedgerHandle,
}

/// The ledger, and the domain's place in it, which is released last: other processes may read
/// the ledger, and then count on the domain's frames.
pub(super) struct LedgerHandle {
    pub(super) ledger: OwnedPtr<Ledger>,
    pub(super) id: DomainId,
}

impl Drop for LedgerHandle {
    fn drop(&mut self) {
        // SAFETY: for as long as this is borrowed.
        unsafe { self.ledger.get() }.retire(self.id);
    }
}

impl Runtime {
    /// For a domain whose threads do not run yet.
    pub(super) fn new(
        pager: OwnedPtr<Pager>,
        store: Option<OwnedPtr<SharedStore>>,
        careful: OwnedPtr<AtomicU32>,
        handle: LedgerHandle,
    ) -> std::io::Result<Self> {
        // SAFETY: for as long as this is borrowed.
        let taken = TakenFrames::new(unsafe { handle.ledger.get() }.total())?;
        let fork_guard = ForkGuard::new()?;
        let stop = Arc::new(StopSignal {
            flag: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        Ok(Self {
            prefetch: Arc::default(),
            prefetching: Mutex::new(None),
            threads: Vec::new(),
            stop,
            fork_guard,
            taken,
            next_id: AtomicU32::new(1),
            pager,
            store,
            _careful: careful,
            _ledger: handle,
        })
    }

    pub(super) fn pager(&self) -> &Pager {
        // SAFETY: for as long as this is borrowed.
        unsafe { self.pager.get() }
    }

    /// The pager, for an operation that the program requests.
    ///
    /// # Errors
    /// [`StretchError::Forked`] in a child of the process that made the domain.
    pub(super) fn operate(&self) -> Result<Operation<'_>, StretchError> {
        Ok(Operation::new(self.own_pager()?))
    }

    /// The pager, to look something up.
    ///
    /// # Errors
    /// As for [`Runtime::operate`].
    pub(super) fn own_pager(&self) -> Result<&Pager, StretchError> {
        match self.is_same_process() {
            true => Ok(self.pager()),
            false => Err(StretchError::Forked),
        }
    }

    /// Returns false in a child of the process that made the domain.
    pub(super) fn is_same_process(&self) -> bool {
        self.fork_guard.is_same_process()
    }

    /// The prefetcher, with its thread running.
    pub(super) fn prefetcher(&self) -> std::io::Result<&Prefetcher> {
        let mut thread = self
            .prefetching
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            // SAFETY: the thread is joined before the pager goes.
            let pager = unsafe { self.pager.get() };
            let prefetch = self.prefetch.clone();
            *thread = Some(spawn("selfpage-fetch", move || prefetch.serve(pager))?);
        }
        Ok(&self.prefetch)
    }

    /// Starts the handler threads and the evictor's.
    pub(super) fn start(&mut self, entry: EntryKind) -> Result<(), DomainError> {
        // SAFETY: the threads are joined, and the handlers detached, before the pager goes.
        let pager = unsafe { self.pager.get() };
        let stop = self.stop.clone();
        self.threads.push(spawn("selfpage-evict", move || {
            evict_in_background(pager, &stop)
        })?);
        if entry == EntryKind::Upcall {
            // SAFETY: as above.
            return match unsafe { registry::attach(pager) }? {
                true => Ok(()),
                false => Err(DomainError::TooManyDomains),
            };
        }
        for cpu in allowed_cpus() {
            let mut handler = HandlerThread::new(pager, cpu)?;
            let stop = self.stop.clone();
            self.threads.push(spawn("selfpage-handle", move || {
                pin_to(cpu);
                handler.serve(pager, Some(stop.event.as_fd()), &mut || {
                    stop.flag.load(Ordering::Acquire)
                });
            })?);
        }
        Ok(())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.prefetch.stop();
        let prefetching = self.prefetching.get_mut();
        if let Some(thread) = prefetching.unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
        self.stop.flag.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.stop.event, &1u64.to_ne_bytes());
        registry::detach(self.pager());
        self.pager().frames.wake_evictor();
        for thread in self.threads.drain(..) {
            // A pager thread that panicked has ended the process already.
            let _ = thread.join();
        }
    }
}

fn evict_in_background(pager: &Pager, stop: &StopSignal) {
    while !stop.flag.load(Ordering::Acquire) {
        let seq = pager.frames.client().bell_seq();
        pager.maintain_watermark();
        pager
            .frames
            .client()
            .wait_bell(seq, Some(Duration::from_millis(50)));
    }
}
