//! Mutexes whose words the kernel changes: those with priority inheritance, and robust ones.
//!
//! The kernel does not wait for a missing page there. It refuses to lock or unlock a mutex of the first kind, and the C
//! library ends the program: it has used the word right before, but a signal's handler may run in between. When a process
//! ends, it marks the robust mutexes that each thread holds by following a list through them, and stops at
//! the first whose page is missing, though others come after it. So the pages of such mutexes are nailed while there are
//! mutexes in them, up to a small part of the frames: each child of a fork has these nails, too, and needs frames for
//! them. [`pthread`](crate::pthread) nails what a thread holds at its end, which has no such bound.

use crate::address_space::{self, AddressSpaceGuard};
use crate::paged_memory;
use crate::pthread::with_record;
use crate::vma_map::AddrRange;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use wired::PAGE;

const SIZE: usize = size_of::<libc::pthread_mutex_t>();

/// Pages that are nailed for mutexes: one in so many frames, and so many at most.
const FRAMES_PER_NAIL: usize = 128;
const MOST_NAILS: usize = 64;

/// How many mutexes have their pages nailed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The mutexes for whose sake pages are nailed. It changes under the space's lock alone.
pub struct NailedMutexes {
    addresses: BTreeSet<usize>,
    pages: usize,
}

impl NailedMutexes {
    pub const fn new() -> Self {
        Self {
            addresses: BTreeSet::new(),
            pages: 0,
        }
    }

    /// The pages of a mutex that are in no other's.
    fn own_pages(&self, mutex: usize) -> impl Iterator<Item = AddrRange> {
        let first = mutex & !(PAGE - 1);
        let pages = (first..mutex + SIZE).step_by(PAGE);
        pages.map(|page| page..page + PAGE).filter(move |page| {
            let mut others = self
                .addresses
                .range(page.start.saturating_sub(SIZE - 1)..page.end);
            others.all(|other| *other == mutex)
        })
    }

    fn is_known(&self, mutex: usize) -> bool {
        self.addresses.contains(&mutex)
    }

    fn remove(&mut self, mutex: usize) {
        if self.addresses.remove(&mutex) {
            let pages: Vec<_> = self.own_pages(mutex).collect();
            pages.iter().for_each(paged_memory::unnail);
            self.pages -= pages.len();
            COUNT.store(self.addresses.len(), Ordering::Release);
        }
    }

    /// Drops the nails in memory that is being unmapped.
    pub fn forget(&mut self, span: &AddrRange) {
        loop {
            let mut inside = self
                .addresses
                .range(span.start.saturating_sub(SIZE - 1)..span.end);
            let Some(&mutex) = inside.next() else { return };
            self.remove(mutex);
        }
    }
}

/// Nails what is not nailed yet of a mutex's pages. Without frames for that, or outside paged memory, nothing is.
fn nail(space: &AddressSpaceGuard, mutex: usize) {
    let (is_known, nailed, pages) = with_record(|record| {
        let mutexes = &record.mutexes;
        let pages: Vec<_> = mutexes.own_pages(mutex).collect();
        (mutexes.is_known(mutex), mutexes.pages, pages)
    });
    let most = (paged_memory::most_frames() / FRAMES_PER_NAIL).min(MOST_NAILS);
    let is_paged = |page: &AddrRange| space.nailable(page).any(|span| span == *page);
    if is_known || nailed + pages.len() > most || !pages.iter().all(is_paged) {
        return;
    }
    for (done, page) in pages.iter().enumerate() {
        if paged_memory::nail(page).is_err() {
            pages[..done].iter().for_each(paged_memory::unnail);
            return;
        }
    }
    with_record(|record| {
        record.mutexes.addresses.insert(mutex);
        record.mutexes.pages += pages.len();
        COUNT.store(record.mutexes.addresses.len(), Ordering::Release);
    });
}

/// Drops the nails in memory whose contents are being discarded. The caller holds the space.
pub fn forget(span: &AddrRange) {
    if COUNT.load(Ordering::Acquire) > 0 {
        with_record(|record| record.mutexes.forget(span));
    }
}

unsafe extern "C" {
    fn pthread_mutexattr_getprotocol(
        attributes: *const libc::pthread_mutexattr_t,
        protocol: *mut c_int,
    ) -> c_int;
    fn pthread_mutexattr_getrobust(
        attributes: *const libc::pthread_mutexattr_t,
        robust: *mut c_int,
    ) -> c_int;
}

/// Returns true if mutexes with these attributes have priority inheritance or are robust.
///
/// # Safety
/// Attributes of the C library's, or null.
unsafe fn is_pi_or_robust(attributes: *const libc::pthread_mutexattr_t) -> bool {
    let (mut protocol, mut robust) = (libc::PTHREAD_PRIO_NONE, libc::PTHREAD_MUTEX_STALLED);
    // SAFETY: the caller's.
    !attributes.is_null()
        && unsafe {
            pthread_mutexattr_getprotocol(attributes, &mut protocol);
            pthread_mutexattr_getrobust(attributes, &mut robust);
            protocol == libc::PTHREAD_PRIO_INHERIT || robust == libc::PTHREAD_MUTEX_ROBUST
        }
}

crate::dlsym::next! {
    /// The C library's own `pthread_mutex_init`.
    fn pthread_mutex_init(mutex: *mut libc::pthread_mutex_t, attributes: *const libc::pthread_mutexattr_t) -> c_int
}

crate::dlsym::next! {
    /// The C library's own `pthread_mutex_destroy`.
    fn pthread_mutex_destroy(mutex: *mut libc::pthread_mutex_t) -> c_int
}

/// Where a mutex's kind is, which is part of the C library's binary interface, and the bits of those with priority
/// inheritance and of robust ones.
const KIND: usize = 16;
const PI_OR_ROBUST: c_int = 32 | 16;

mod exports {
    use super::{KIND, PI_OR_ROBUST, address_space, c_int, is_pi_or_robust, nail, with_record};

    /// `pthread_mutex_init`.
    ///
    /// # Safety
    /// As in C.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn pthread_mutex_init(
        mutex: *mut libc::pthread_mutex_t,
        attributes: *const libc::pthread_mutexattr_t,
    ) -> c_int {
        // SAFETY: the caller's.
        let answer = unsafe { super::pthread_mutex_init(mutex, attributes) };
        // SAFETY: as above.
        if answer == 0 && unsafe { is_pi_or_robust(attributes) } && address_space::is_active() {
            nail(&address_space::lock(), mutex.addr());
        }
        answer
    }

    /// `pthread_mutex_destroy`; of the allocator's locks, too, which are free.
    ///
    /// # Safety
    /// As in C.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn pthread_mutex_destroy(mutex: *mut libc::pthread_mutex_t) -> c_int {
        // Before it is destroyed. SAFETY: the caller's mutex.
        let kind = unsafe { mutex.byte_add(KIND).cast::<c_int>().read() };
        // SAFETY: the caller's.
        let answer = unsafe { super::pthread_mutex_destroy(mutex) };
        if answer == 0 && kind & PI_OR_ROBUST != 0 && address_space::is_active() {
            let _space = address_space::lock();
            with_record(|record| record.mutexes.remove(mutex.addr()));
        }
        answer
    }
}
