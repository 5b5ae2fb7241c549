//! Table 1 over the kernel's own primitives: `mprotect` and a SIGSEGV handler.

use super::{MANY, RANGE, batch, shuffled, timed, touch, touch_all};
use crate::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// While it lives, SIGSEGV goes straight to the kernel arm's handler, not through a
/// domain's, which would make the alternative look slow.
struct SegvHandler(libc::sigaction);

impl SegvHandler {
    pub fn new() -> Self {
        // SAFETY: all zeros is a value of this plain structure.
        let mut theirs: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: asks for the action in force, and sets one that differs in the function.
        unsafe {
            libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut theirs);
            let own = libc::sigaction {
                sa_sigaction: on_segv as *const () as usize,
                ..theirs
            };
            libc::sigaction(libc::SIGSEGV, &own, std::ptr::null_mut());
        }
        Self(theirs)
    }
}

impl Drop for SegvHandler {
    fn drop(&mut self) {
        // SAFETY: puts back the action that was in force.
        unsafe { libc::sigaction(libc::SIGSEGV, &self.0, std::ptr::null_mut()) };
    }
}

/// Over `mprotect` and SIGSEGV.
pub struct KernelArm {
    base: usize,
    _memory: WorkerMemory,
}

/// What the kernel arm's handler does: the page it protects next, or none.
static PROTECT_NEXT: AtomicUsize = AtomicUsize::new(0);
static KERNEL_BASE: AtomicUsize = AtomicUsize::new(0);

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn mprotect(addr: usize, pages: usize, rights: i32) {
    let start = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the kernel arm's own memory.
    unsafe { libc::mprotect(start, pages * PAGE, rights) };
}

extern "C" fn on_segv(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's own pointer.
    let page = unsafe { (*info).si_addr() } as usize & !(PAGE - 1);
    let base = KERNEL_BASE.load(Ordering::Relaxed);
    if page < base || page >= base + (MANY + RANGE) * PAGE {
        // Not ours: the access ends the process when it is repeated.
        // SAFETY: resets a disposition.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    mprotect(page, 1, RW);
    let next = PROTECT_NEXT.load(Ordering::Relaxed);
    if next != 0 {
        mprotect(next, 1, libc::PROT_READ);
    }
}

impl KernelArm {
    pub fn new() -> Result<Self> {
        let memory = WorkerMemory::new(&MemoryKind::Anonymous, (MANY + RANGE) as u64, 0)?;
        let base = memory.start().expose_provenance();
        KERNEL_BASE.store(base, Ordering::Relaxed);
        touch_all(base, 0..MANY + RANGE);
        Ok(Self {
            base,
            _memory: memory,
        })
    }

    fn page(&self, n: usize) -> usize {
        self.base + n * PAGE
    }

    fn large(&self) -> usize {
        self.page(MANY)
    }

    pub fn protect_one(&self, rng: &mut fastrand::Rng) -> f64 {
        batch(2, || {
            let page = self.page(rng.usize(..MANY));
            mprotect(page, 1, libc::PROT_READ);
            mprotect(page, 1, RW);
        })
    }

    pub fn protect_range(&self, _: &mut fastrand::Rng) -> f64 {
        batch(2, || {
            mprotect(self.large(), RANGE, libc::PROT_READ);
            mprotect(self.large(), RANGE, RW);
        })
    }

    pub fn idempotent(&self, _: &mut fastrand::Rng) -> f64 {
        batch(1, || mprotect(self.large(), RANGE, RW))
    }

    pub fn trap(&self, _: &mut fastrand::Rng) -> f64 {
        let _handler = SegvHandler::new();
        PROTECT_NEXT.store(0, Ordering::Relaxed);
        mprotect(self.large(), RANGE, libc::PROT_READ);
        timed(RANGE, || touch_all(self.large(), 0..RANGE))
    }

    pub fn appel1(&self, rng: &mut fastrand::Rng) -> f64 {
        let _handler = SegvHandler::new();
        let mut at = rng.usize(..MANY);
        mprotect(self.page(at), 1, libc::PROT_READ);
        let time = batch(1, || {
            let next = (at + 1 + rng.usize(..MANY - 1)) % MANY;
            PROTECT_NEXT.store(self.page(next), Ordering::Relaxed);
            touch(self.page(at));
            at = next;
        });
        PROTECT_NEXT.store(0, Ordering::Relaxed);
        mprotect(self.page(at), 1, RW);
        time
    }

    pub fn appel2(&self, rng: &mut fastrand::Rng) -> f64 {
        let _handler = SegvHandler::new();
        PROTECT_NEXT.store(0, Ordering::Relaxed);
        let order = shuffled(rng);
        timed(RANGE, || {
            mprotect(self.large(), RANGE, libc::PROT_READ);
            touch_all(self.large(), order);
        })
    }
}
