//! The program's paged address space: the map, and the memory that must match it.
//!
//! Rule: map and memory change together under one lock, with signals blocked: a handler
//! that calls `mmap` must not meet its own thread's lock. Threads that resolve faults
//! never take it (see [`crate::allocated`]).

use crate::mappings::{Kind, Locked, Mappings, Origin, Piece, Span, Traits, What, alignment};
use crate::{allocated, pager, pager_process, raw};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use wired::{HUGE_RANGE, PAGE, PiGuard, PiLock};

/// Access an arena's free addresses have in the kernel.
pub const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Addresses reserved at a time where nothing limits them. Reserving costs nothing but
/// address space, of which there are 128 TiB; the tables behind it are sparse.
const ARENA: usize = 4 << 30;

/// The least worth reserving.
const SMALLEST_ARENA: usize = 1 << 20;

/// Reservations larger than this are left to the kernel: their page table of words alone
/// would be 64 GiB of address space.
const LARGEST: usize = 32 << 40;

/// A mapping elsewhere than in an arena is adopted from this size on. Smaller ones
/// would cost more in bookkeeping than paging them gives back.
pub const WORTH_ADOPTING: usize = 64 << 10;

/// Before the constructor, or not under `selfpage run`.
const PASSIVE: u8 = 0;
/// Memory is emulated and paged.
const ACTIVE: u8 = 1;

static STAGE: AtomicU8 = AtomicU8::new(PASSIVE);
static SPACE: PiLock<Space> = PiLock::new(Space::new());
static ARENA_SIZE: AtomicUsize = AtomicUsize::new(ARENA);

/// Bytes of private anonymous memory that went to the kernel unpaged, ever.
pub static UNPAGED: AtomicU64 = AtomicU64::new(0);

/// Map and memory together.
pub struct Space {
    /// The program's mappings.
    pub map: Mappings,
    /// The emulated program break.
    pub brk: crate::brk::Break,
}

/// Exclusive use of the space.
pub struct Held {
    space: PiGuard<'static, Space>,
    // After the guard: fields are dropped in order.
    _quiet: raw::Quiet,
}

impl std::ops::Deref for Held {
    type Target = Space;
    fn deref(&self) -> &Space {
        &self.space
    }
}

impl std::ops::DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Space {
        &mut self.space
    }
}

/// Returns true if memory is emulated.
pub fn active() -> bool {
    // What libraries map for the pager's own threads is the pager's: those run while a fork
    // holds the space.
    STAGE.load(Ordering::Acquire) == ACTIVE && !pager_process::is_pager()
}

/// [`active`], for the functions of local.c.
#[unsafe(no_mangle)]
extern "C" fn selfpage_in_program() -> std::ffi::c_int {
    active().into()
}

/// Starts the emulation of memory.
pub fn activate() {
    STAGE.store(ACTIVE, Ordering::Release);
}

/// The space, for one caller at a time.
pub fn hold() -> Held {
    let quiet = raw::Quiet::new();
    Held {
        space: SPACE.lock(),
        _quiet: quiet,
    }
}

/// Chooses the size of arenas by what the process may map.
pub fn fit_arenas(limit: Option<usize>, strict_overcommit: bool) {
    let mut size = ARENA;
    if let Some(limit) = limit {
        // Room for a second arena, and the program's files, stacks and libraries.
        size = size.min((limit / 4).next_multiple_of(HUGE_RANGE));
    }
    if strict_overcommit {
        // MAP_NORESERVE does not count there: every reserved byte is committed.
        size = size.min(64 << 20);
    }
    ARENA_SIZE.store(size.max(SMALLEST_ARENA), Ordering::Relaxed);
}

impl Space {
    const fn new() -> Self {
        Self {
            map: Mappings::new(),
            brk: crate::brk::Break::new(),
        }
    }

    /// Free addresses for `len` bytes, in a further arena if need be.
    pub fn place(&mut self, len: usize) -> Option<usize> {
        if len > LARGEST {
            return None;
        }
        let align = alignment(len);
        self.map.place(len, align).or_else(|| {
            self.grow(len)?;
            self.map.place(len, align)
        })
    }

    /// A further arena that holds `len` bytes.
    pub fn grow(&mut self, len: usize) -> Option<()> {
        let least = len
            .checked_add(HUGE_RANGE)?
            .checked_next_multiple_of(HUGE_RANGE)?;
        let mut size = ARENA_SIZE.load(Ordering::Relaxed).max(least);
        loop {
            if let Ok(span) = pager::reserve(size)
                && allocated::add(&span).is_ok()
            {
                self.map.add_reserved(span);
                return Some(());
            }
            if size == least {
                return None;
            }
            size = (size / 2).next_multiple_of(HUGE_RANGE).max(least);
        }
    }

    /// Makes free or given-up addresses of arenas mapped with access `prot`.
    pub fn open(&mut self, span: &Span, prot: c_int) {
        allocated::mark(span, true);
        allocated::reopen(span);
        if pager::plain() {
            protect(span, RW);
        }
        if prot != RW {
            protect_paged(span, prot);
        }
        self.map.set(span.clone(), Traits::paged(prot));
    }

    /// Empties a piece of an arena and makes it plain and free, or gives it back to the
    /// kernel where it was the program's before.
    pub fn release(&mut self, piece: &Piece) {
        let span = &piece.span;
        match piece.what {
            What::Outside => {
                unmap(span);
            }
            What::Free => {}
            What::Used(traits, Origin::Adopted) => {
                if traits.kind == Kind::Paged {
                    self.loosen(span, traits);
                    pager::surrender(span);
                }
                unmap(span);
                self.map.forget(span);
            }
            What::Used(
                Traits {
                    kind: Kind::Foreign,
                    ..
                },
                Origin::Reserved,
            ) => match take_back(span) {
                true => {
                    allocated::mark(span, false);
                    if pager::plain() {
                        protect(span, libc::PROT_NONE);
                    }
                    self.map.clear(span);
                }
                false => {
                    unmap(span);
                    self.map.forget(span);
                }
            },
            What::Used(traits, Origin::Reserved) => {
                self.loosen(span, traits);
                allocated::mark(span, false);
                pager::discard(span);
                self.plain_access(span, traits);
                if pager::plain() {
                    // No pager closes a free page when it is touched.
                    protect(span, libc::PROT_NONE);
                }
                self.map.clear(span);
            }
        }
    }

    /// Empties mapped addresses and gives them access `prot`, as a new mapping over an
    /// old one does.
    pub fn renew(&mut self, piece: &Piece, prot: c_int) -> raw::Answer {
        let span = &piece.span;
        match piece.what {
            What::Outside => return 0,
            What::Free => self.open(span, prot),
            What::Used(traits, _) => {
                match traits.kind {
                    Kind::Paged => {
                        self.loosen(span, traits);
                        pager::discard(span);
                        self.plain_access(span, traits);
                    }
                    Kind::Foreign if !take_back(span) => return raw::error(libc::ENOMEM),
                    Kind::Foreign => {}
                }
                self.open(span, prot);
            }
        }
        0
    }

    /// The parts of `span` that are paged memory and can be read: what may be nailed.
    pub fn nailable(&self, span: &Span) -> impl Iterator<Item = Span> + use<> {
        self.map
            .pieces(span)
            .into_iter()
            .filter_map(|piece| match piece.what {
                What::Used(
                    Traits {
                        kind: Kind::Paged,
                        prot,
                        ..
                    },
                    _,
                ) if prot & libc::PROT_READ != 0 => Some(piece.span),
                _ => None,
            })
    }

    /// Nails for `mlock`. Not all frames: with none left for anything else the program would
    /// stop at its next fault.
    pub fn lock(&mut self, span: &Span) -> bool {
        span.len() <= pager::lockable() && pager::nail(span).is_ok()
    }

    /// Undoes [`Space::lock`].
    pub fn unlock(&mut self, span: &Span) {
        pager::unnail(span);
    }

    fn loosen(&mut self, span: &Span, traits: Traits) {
        if traits.locked == Locked::Nailed {
            self.unlock(span);
        }
        crate::pthread::forget_nails(span);
    }

    fn plain_access(&self, span: &Span, traits: Traits) {
        if traits.keyed {
            pager::access_changed(span);
            let args = [span.start, span.len(), RW as usize, 0, 0, 0];
            // SAFETY: the contents are discarded; only the kernel's record changes.
            unsafe { raw::call(libc::SYS_pkey_mprotect, args) };
        } else if traits.prot != RW {
            protect_paged(span, RW);
        }
    }
}

/// The kernel's mprotect.
pub fn protect(span: &Span, prot: c_int) -> raw::Answer {
    // SAFETY: the caller changes the access of memory it was asked to change.
    unsafe { raw::call3(libc::SYS_mprotect, span.start, span.len(), prot as usize) }
}

/// The kernel's mprotect over paged memory. The evictor learns of it first: it reads what it
/// takes right after this.
pub fn protect_paged(span: &Span, prot: c_int) -> raw::Answer {
    pager::access_changed(span);
    protect(span, prot)
}

/// The kernel's munmap.
pub fn unmap(span: &Span) -> raw::Answer {
    // SAFETY: the program asked for exactly this.
    unsafe { raw::call3(libc::SYS_munmap, span.start, span.len(), 0) }
}

/// The kernel's mmap.
pub fn map(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> raw::Answer {
    let args = [
        addr,
        len,
        prot as usize,
        flags as usize,
        fd as usize,
        offset as usize,
    ];
    // SAFETY: the program asked for exactly this.
    unsafe { raw::call(libc::SYS_mmap, args) }
}

/// Puts plain memory where something else lay, and makes it a stretch again.
fn take_back(span: &Span) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    !raw::failed(map(span.start, span.len(), RW, flags, -1, 0)) && pager::adopt(span).is_ok()
}

/// `addr` and `len` as a span of whole pages; `None` where it does not fit.
pub fn span(addr: usize, len: usize) -> Option<Span> {
    let end = addr.checked_add(len.checked_next_multiple_of(PAGE)?)?;
    Some(addr..end)
}
