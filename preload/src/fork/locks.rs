//! What holds still around a fork's clone: the C library's files, this library's address space and list of threads,
//! and the pages that both touch.

use super::{ForkKind, libc_data};
use crate::address_space::AddressSpaceGuard;
use crate::pthread::ThreadsGuard;
use crate::vma_map::AddrRange;
use crate::{address_space, paged_memory, pthread};

unsafe extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
    static __libc_single_threaded: u8;
}

/// The locks, and the pages that are nailed meanwhile.
pub struct ForkLocks {
    pub threads: Option<ThreadsGuard>,
    pub space: Option<AddressSpaceGuard>,
    nails: Vec<AddrRange>,
    /// All pages are nailed that are touched.
    pub is_complete: bool,
    stdio: bool,
}

impl ForkLocks {
    /// `written_by_clone`: what the kernel writes for the clone.
    pub fn take(kind: ForkKind, written_by_clone: &[AddrRange]) -> Self {
        let stdio = kind == ForkKind::Library && !single_threaded();
        if stdio {
            // Held until after the clone: a thread that held it while it waited for a
            // page would keep the C library's fork waiting behind the closed gate.
            // SAFETY: the C library's lock for exactly this.
            unsafe { _IO_list_lock() };
        }
        let (nails, is_complete) = libc_data::nail_touched(stdio, written_by_clone);
        Self {
            space: Some(address_space::lock()),
            threads: Some(pthread::hold()),
            nails,
            is_complete,
            stdio,
        }
    }

    /// Releases all; in the `child`, too.
    pub fn release(&mut self, child: bool) {
        drop(self.threads.take());
        drop(self.space.take());
        for span in self.nails.drain(..) {
            paged_memory::unnail(&span);
        }
        if std::mem::take(&mut self.stdio) {
            // SAFETY: locked in `take`; in the child the C library has made it new.
            unsafe {
                match child {
                    true => _IO_list_resetlock(),
                    false => _IO_list_unlock(),
                }
            }
        }
    }
}

fn single_threaded() -> bool {
    // SAFETY: a byte the C library keeps; volatile, since other threads change it.
    unsafe { std::ptr::from_ref(&__libc_single_threaded).read_volatile() != 0 }
}
