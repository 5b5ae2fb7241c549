//! The thread by which a space has its place in a shared budget, and answers what others request.
//!
//! No process can hide another one's mappings, and a program that sleeps has no misses in which to
//! give entries back. So each space of a budget has a thread that sleeps until a page is requested
//! of it. The place is that thread's: the kernel marks the owner's word when the thread ends
//! (`set_robust_list(2)`), by whatever end of the process, `kill -9` and `exec` too. A child of a
//! `fork` does not have the thread, and so not the place.

use crate::budget_member::BudgetMember;
use crate::core::Core;
use crate::error::SpaceError;
use crate::service_thread;
use crate::vtlb_budget::{Place, VtlbBudget};
use rustix::io::Errno;
use rustix::process::Pid;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use wired::futex;

/// The thread. Dropping it frees the place; a child of a fork, which has no such thread, does not.
pub(crate) struct RevocationThread {
    budget: VtlbBudget,
    place: usize,
    stop: Arc<AtomicBool>,
    core: Option<SyncSender<Weak<Core>>>,
    thread: Option<JoinHandle<()>>,
}

impl RevocationThread {
    /// Takes a place in the budget. Requests are answered from [`RevocationThread::serve`] on.
    pub(crate) fn start(budget: &VtlbBudget) -> Result<(Self, BudgetMember), SpaceError> {
        wired::clock::prepare();
        let (owned, place) = sync_channel(1);
        let (core, served) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, stopped) = (budget.clone(), stop.clone());
        let work = move || run(&of_thread, &owned, &served, &stopped);
        let thread = service_thread::spawn("selfpage-vtlb", work)?;
        // The thread sends once. Where it cannot, it has ended without a place.
        let place = place.recv().unwrap_or(Err(SpaceError::BudgetFull {
            spaces: budget.spaces(),
        }))?;
        let this = Self {
            budget: budget.clone(),
            place,
            stop,
            core: Some(core),
            thread: Some(thread),
        };
        Ok((this, BudgetMember::new(budget.clone(), place)))
    }

    /// Answers requests with entries of `core`.
    pub(crate) fn serve(&mut self, core: &Arc<Core>) {
        if let Some(sender) = self.core.take() {
            // The thread waits for it.
            let _ = sender.send(Arc::downgrade(core));
        }
    }
}

impl Drop for RevocationThread {
    fn drop(&mut self) {
        self.core = None;
        self.stop.store(true, Ordering::SeqCst);
        let word = &self.budget.places()[self.place].requested;
        word.fetch_max(1, Ordering::SeqCst);
        futex::wake_all(word);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(
    budget: &VtlbBudget,
    owned: &SyncSender<Result<usize, SpaceError>>,
    served: &Receiver<Weak<Core>>,
    stop: &AtomicBool,
) {
    let list = pin!(RobustList::default());
    let list = list.as_ref().get_ref();
    let place = list.register().and_then(|()| own_place(budget, list));
    let index = match place {
        Ok(index) => index,
        Err(error) => return drop(owned.send(Err(error))),
    };
    let _ = owned.send(Ok(index));
    let place = &budget.places()[index];
    if let Ok(core) = served.recv() {
        answer_requests(place, &core, stop);
    }
    place.leave();
}

/// Takes the first place that has no live owner.
fn own_place(budget: &VtlbBudget, list: &RobustList) -> Result<usize, SpaceError> {
    let id = Pid::as_raw(Some(rustix::thread::gettid())) as u32;
    let mut places = budget.places().iter();
    places
        .position(|place| {
            // Before the word is this thread's, so that no end of it comes in between.
            list.name(&place.owner);
            place.try_own(id)
        })
        .ok_or(SpaceError::BudgetFull {
            spaces: budget.spaces(),
        })
}

fn answer_requests(place: &Place, core: &Weak<Core>, stop: &AtomicBool) {
    loop {
        futex::wait(&place.requested, 0, None);
        let requested = place.requested.swap(0, Ordering::SeqCst);
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let Some(core) = core.upgrade() else { return };
        if requested > 0 {
            core.with_vtlb(|vtlb| vtlb.give_back(requested));
        }
    }
}

/// What the kernel reads when the thread ends (`struct robust_list_head`), with one entry.
#[repr(C)]
struct RobustList {
    first: std::sync::atomic::AtomicPtr<u8>,
    /// From the entry to its word, in bytes.
    offset: std::sync::atomic::AtomicIsize,
    pending: usize,
    /// The entry: a pointer to the next one, or to the list.
    entry: std::sync::atomic::AtomicPtr<u8>,
    /// The kernel has its address.
    _pinned: std::marker::PhantomPinned,
}

/// Bytes of `struct robust_list_head`.
const HEAD: usize = 24;

impl Default for RobustList {
    fn default() -> Self {
        Self {
            first: Default::default(),
            offset: Default::default(),
            pending: 0,
            entry: Default::default(),
            _pinned: std::marker::PhantomPinned,
        }
    }
}

impl RobustList {
    fn head(&self) -> *mut u8 {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Takes the place of the C library's list, which this thread has nothing on. The kernel reads it
    /// at the thread's end, unless it was dropped before.
    fn register(&self) -> Result<(), SpaceError> {
        self.first.store(self.head(), Ordering::Relaxed);
        // SAFETY: the list is as the kernel expects it, and does not move; its drop has the kernel forget it.
        let set = unsafe { libc::syscall(libc::SYS_set_robust_list, self.head(), HEAD) };
        if set == 0 {
            return Ok(());
        }
        let errno = Errno::from_io_error(&std::io::Error::last_os_error());
        Err(SpaceError::system("set_robust_list")(
            errno.unwrap_or(Errno::NOSYS),
        ))
    }

    /// Has the kernel mark `word` at the thread's end, if the word is the thread's id then.
    fn name(&self, word: &AtomicU32) {
        let entry = self.entry.as_ptr();
        let offset = word.as_ptr().addr() as isize - entry.addr() as isize;
        self.offset.store(offset, Ordering::Relaxed);
        self.entry.store(self.head(), Ordering::Relaxed);
        self.first.store(entry.cast(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }
}

impl Drop for RobustList {
    fn drop(&mut self) {
        // SAFETY: this thread has no other list.
        unsafe { libc::syscall(libc::SYS_set_robust_list, std::ptr::null::<u8>(), HEAD) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of the calling thread that the kernel has.
    fn kernels_list() -> *mut u8 {
        let (mut head, mut bytes) = (std::ptr::null_mut::<u8>(), 0usize);
        // SAFETY: stores to the two words.
        let got = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &mut head, &mut bytes) };
        assert_eq!(got, 0);
        head
    }

    #[test]
    fn the_kernel_forgets_a_list_that_ends_before_its_thread() {
        let thread = std::thread::spawn(|| {
            {
                let list = pin!(RobustList::default());
                list.as_ref().get_ref().register().unwrap();
                assert_eq!(kernels_list(), list.as_ref().get_ref().head());
            }
            assert!(kernels_list().is_null());
        });
        thread.join().unwrap();
    }
}
