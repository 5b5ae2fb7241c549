//! Faults as upcalls: SIGBUS on the faulting thread is the activation.
//!
//! `UFFD_FEATURE_SIGBUS` makes the kernel deliver a fault on a registered missing page as
//! a synchronous SIGBUS. It cannot be told from others by its code (`BUS_ADRERR`, as for
//! a file's end), so a fault is ours by its address; every other SIGBUS and SIGSEGV goes
//! to whoever had the handler before.
//!
//! Rules: the handler allocates nothing, touches no stretch and no thread-local storage,
//! and can be nested (a program's own handler may fault in its turn).

use super::mask;
use crate::counters::Counter;
use crate::evict::NoFrame;
use crate::fill::Outcome;
use crate::pager::Pager;
use crate::stretch::{Fault, FaultKind, Handled};
use std::sync::atomic::{AtomicPtr, Ordering};
use wired::{Lock, PAGE};

/// Domains that one process can have at once.
pub const MOST_DOMAINS: usize = 64;

/// The process's domains, for the handlers. A slot is emptied before its pager goes, and
/// handlers that may still read it are inside the pager's gate.
static DOMAINS: [AtomicPtr<Pager>; MOST_DOMAINS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_DOMAINS];

/// Whether the handlers are installed.
static INSTALLED: Lock<bool> = Lock::new(false);

/// What a fault came to.
enum Verdict {
    /// Repeat the access.
    Resume,
    /// Another domain's, or nobody's.
    NotOurs,
    /// The program is to be told.
    Tell,
}

/// Puts a pager where the handlers find it, and installs them if they are not yet.
/// False where the process has too many domains.
pub(crate) fn attach(pager: &'static Pager) -> std::io::Result<bool> {
    let mut installed = INSTALLED.lock();
    let mine = std::ptr::from_ref(pager).cast_mut();
    let free = DOMAINS.iter().any(|slot| {
        slot.compare_exchange(
            std::ptr::null_mut(),
            mine,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok()
    });
    if free && !*installed {
        mask::install(libc::SIGBUS, on_sigbus)?;
        mask::install(libc::SIGSEGV, on_sigsegv)?;
        *installed = true;
    }
    Ok(free)
}

/// Takes a pager away from the handlers.
pub(crate) fn detach(pager: &Pager) {
    for slot in &DOMAINS {
        let _ = slot.compare_exchange(
            std::ptr::from_ref(pager).cast_mut(),
            std::ptr::null_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}

fn pagers() -> impl Iterator<Item = &'static Pager> {
    // SAFETY: pagers are never freed once attached (a domain that ends leaves a husk).
    DOMAINS
        .iter()
        .filter_map(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() })
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO.
    let (code, addr, write) = unsafe {
        (
            (*info).si_code,
            (*info).si_addr() as usize,
            is_write(context),
        )
    };
    // A SIGBUS that somebody sent has no address of a fault.
    if code > 0 {
        for pager in pagers() {
            match pager.upcall(addr, write) {
                Verdict::Resume => return,
                Verdict::NotOurs => {}
                Verdict::Tell => break,
            }
        }
    }
    // SAFETY: the arguments are the kernel's own.
    unsafe { mask::chain(signal, info, context) };
}

extern "C" fn on_sigsegv(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO.
    let (code, addr, write) = unsafe {
        (
            (*info).si_code,
            (*info).si_addr() as usize,
            is_write(context),
        )
    };
    if code > 0 {
        for pager in pagers() {
            match pager.violation(addr, write) {
                Verdict::Resume => return,
                Verdict::NotOurs => {}
                Verdict::Tell => break,
            }
        }
    }
    // SAFETY: the arguments are the kernel's own.
    unsafe { mask::chain(signal, info, context) };
}

/// Whether the access that faulted was a write: bit 1 of the page-fault error code on
/// x86-64. Elsewhere every access is taken for a write, which only costs the difference
/// between a shared and a private page of zeros.
///
/// # Safety
/// `context` is what the kernel passed to a signal handler.
unsafe fn is_write(context: *mut libc::c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let context: *const libc::ucontext_t = context.cast();
        // SAFETY: the caller's promise.
        unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0 }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = context;
        true
    }
}

/// A number that differs between threads: their stacks do.
fn thread_hint() -> usize {
    let here = 0u8;
    let at = std::ptr::from_ref(&here).addr() >> 14;
    at ^ (at >> 7)
}

impl Pager {
    fn upcall(&'static self, addr: usize, write: bool) -> Verdict {
        let hint = thread_hint();
        let mut held = None;
        let mut counted = false;
        let mut handler_asked = false;
        loop {
            let inside = self.gate.enter(hint);
            let Some(stretch) = self.directory.find(addr) else {
                drop(inside);
                self.put_held(held);
                return Verdict::NotOurs;
            };
            if !counted {
                self.counters.add(Counter::faults, 1);
                counted = true;
            }
            if let (false, Some(handler)) = (handler_asked, stretch.handler(FaultKind::Page)) {
                handler_asked = true;
                drop(inside);
                if handler(&Fault {
                    kind: FaultKind::Page,
                    addr,
                    write,
                }) == Handled::Resume
                {
                    self.put_held(held);
                    return Verdict::Resume;
                }
                continue;
            }
            let outcome = {
                let mut context = self.pool.borrow(hint);
                self.attempt(stretch, addr, write, &mut held, false, &mut context)
            };
            let failure = match outcome {
                Outcome::Success => return Verdict::Resume,
                Outcome::Busy => {
                    let index = stretch.table().index(addr);
                    stretch.table().word(index).wait_settled();
                    continue;
                }
                Outcome::Retry | Outcome::Pending => {
                    let evictable_here = stretch.table().index(addr);
                    drop(inside);
                    match self.obtain_frame(false) {
                        Ok(frame) => {
                            held = Some(frame);
                            continue;
                        }
                        // Only for those who have reads under way.
                        Err(NoFrame::Busy) => continue,
                        Err(NoFrame::Never(failure)) => {
                            let inside = self.gate.enter(hint);
                            if let Some(stretch) = self.directory.find(addr)
                                && self.unstage(stretch, evictable_here)
                            {
                                return Verdict::Resume;
                            }
                            drop(inside);
                            failure
                        }
                    }
                }
                Outcome::Failure(failure) => failure,
            };
            let _inside = self.gate.enter(hint);
            if let Some(stretch) = self.directory.find(addr) {
                self.report(stretch, addr, &failure);
            }
            return Verdict::Tell;
        }
    }

    fn put_held(&self, held: Option<frames::Frame>) {
        if let Some(frame) = held {
            self.put(frame);
        }
    }

    /// A protection fault, or one on no stretch.
    fn violation(&'static self, addr: usize, write: bool) -> Verdict {
        let (kind, handler) = {
            let _inside = self.gate.enter(thread_hint());
            match self.directory.find(addr) {
                Some(stretch) => {
                    self.counters.add(Counter::protection_faults, 1);
                    (
                        FaultKind::Protection,
                        stretch.handler(FaultKind::Protection),
                    )
                }
                None if self.unallocated_handler().is_some() => {
                    self.counters.add(Counter::unallocated_faults, 1);
                    (FaultKind::Unallocated, self.unallocated_handler())
                }
                None => return Verdict::NotOurs,
            }
        };
        match handler.map(|h| h(&Fault { kind, addr, write })) {
            Some(Handled::Resume) => Verdict::Resume,
            Some(Handled::Default) | None => Verdict::Tell,
        }
    }

    /// The page address of a fault.
    pub(crate) fn page_of(addr: usize) -> usize {
        addr & !(PAGE - 1)
    }
}
