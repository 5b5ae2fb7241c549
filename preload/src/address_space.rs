//! The program's paged address space: the map, and the memory that must match it.
//!
//! Rule: map and memory change together under one lock, with signals blocked: a handler
//! that calls `mmap` must not meet its own thread's lock. Threads that resolve faults
//! never take it (see [`crate::mapped_bitmap`]).

mod kernel;

use crate::cancellation::CancellationDisabled;
use crate::raw_syscall::{SignalsBlocked, SyscallResult, error, is_error, syscall6};
use crate::vma_map::{
    AddrRange, ArenaOrigin, Lookup, MappedRange, MappingAttrs, MappingKind, MlockState, VmaMap,
    alignment,
};
use crate::{mapped_bitmap, paged_memory, pager_process};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use wired::{HUGE_RANGE, PiGuard, PiLock};

pub use kernel::{
    ADDRESSES, advise, is_beyond_addresses, map, page_range, protect, protect_paged, split_off,
    unmap,
};

/// Access an arena's free addresses have in the kernel.
pub const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Addresses reserved at a time where nothing limits them. Reserving costs nothing but
/// address space, of which there are 128 TiB; the tables behind it are sparse.
const ARENA: usize = 4 << 30;

/// The least worth reserving.
const MIN_ARENA: usize = 1 << 20;

/// Reservations larger than this are left to the kernel: their page table of words alone
/// would be 64 GiB of address space.
const MAX_MAPPING: usize = 32 << 40;

/// A mapping elsewhere than in an arena is adopted from this size on. Smaller ones
/// would cost more in bookkeeping than paging them gives back.
pub const WORTH_ADOPTING: usize = 64 << 10;

/// Before the constructor, or not under `selfpage run`.
const PASSIVE: u8 = 0;
/// Memory is emulated and paged.
const ACTIVE: u8 = 1;

static STAGE: AtomicU8 = AtomicU8::new(PASSIVE);
static SPACE: PiLock<AddressSpace> = PiLock::new(AddressSpace::new());
static ARENA_SIZE: AtomicUsize = AtomicUsize::new(ARENA);

/// Map and memory together.
pub struct AddressSpace {
    /// The program's mappings.
    pub map: VmaMap,
    /// The emulated program break.
    pub brk: crate::brk::ProgramBreak,
    /// Shared memory of the tree.
    pub shared: crate::shared_memory::SharedSpans,
}

/// Exclusive use of the space.
pub struct AddressSpaceGuard {
    space: PiGuard<'static, AddressSpace>,
    // After the guard: fields are dropped in order.
    _uncancelled: CancellationDisabled,
    // Last: a handler may leave the call by a jump.
    _signals: SignalsBlocked,
}

impl std::ops::Deref for AddressSpaceGuard {
    type Target = AddressSpace;
    fn deref(&self) -> &AddressSpace {
        &self.space
    }
}

impl std::ops::DerefMut for AddressSpaceGuard {
    fn deref_mut(&mut self) -> &mut AddressSpace {
        &mut self.space
    }
}

/// Returns true if memory is emulated.
pub fn is_active() -> bool {
    // What libraries map for the pager's own threads is the pager's: those run while a fork
    // holds the space.
    STAGE.load(Ordering::Acquire) == ACTIVE && !pager_process::is_pager()
}

/// [`is_active`], for the functions of local.c.
#[unsafe(no_mangle)]
extern "C" fn selfpage_in_program() -> std::ffi::c_int {
    is_active().into()
}

/// Starts the emulation of memory.
pub fn activate() {
    STAGE.store(ACTIVE, Ordering::Release);
}

/// The space, for one caller at a time.
pub fn lock() -> AddressSpaceGuard {
    let signals = SignalsBlocked::new();
    let uncancelled = CancellationDisabled::new();
    AddressSpaceGuard {
        space: SPACE.lock(),
        _uncancelled: uncancelled,
        _signals: signals,
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
    ARENA_SIZE.store(size.max(MIN_ARENA), Ordering::Relaxed);
}

impl AddressSpace {
    const fn new() -> Self {
        Self {
            map: VmaMap::new(),
            brk: crate::brk::ProgramBreak::new(),
            shared: crate::shared_memory::SharedSpans::new(),
        }
    }

    /// Free addresses for `len` bytes, in a further arena if need be.
    pub fn find_free(&mut self, len: usize) -> Option<usize> {
        if len > MAX_MAPPING {
            return None;
        }
        let align = alignment(len);
        self.map.place(len, align).or_else(|| {
            self.add_arena(len)?;
            self.map.place(len, align)
        })
    }

    /// A further arena that holds `len` bytes.
    pub fn add_arena(&mut self, len: usize) -> Option<()> {
        let least = len
            .checked_add(HUGE_RANGE)?
            .checked_next_multiple_of(HUGE_RANGE)?;
        let usual = ARENA_SIZE.load(Ordering::Relaxed);
        // A mapping longer than an arena may grow further, step by step. Moved to another arena at each step it would use
        // the addresses up, so where nothing limits them its arena has room for twice its length.
        let mut size = match usual {
            ARENA => usual.max(2 * least),
            _ => usual.max(least),
        };
        loop {
            if let Ok(span) = paged_memory::reserve(size)
                && mapped_bitmap::add(&span).is_ok()
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

    /// Makes free or given-up addresses of arenas mapped with access `prot`. Where the kernel has no
    /// mapping left, or refuses memory that can be executed, its error is returned, and they are free.
    pub fn map_in_arena(&mut self, span: &AddrRange, prot: c_int) -> SyscallResult {
        mapped_bitmap::mark(span, true);
        mapped_bitmap::reopen(span);
        let mut answer = 0;
        if paged_memory::is_plain() {
            answer = protect(span, RW);
        }
        if prot != RW && !is_error(answer) {
            answer = protect_paged(span, prot);
        }
        if is_error(answer) {
            // The kernel may have changed a part.
            protect(span, RW);
            self.free(span);
            return answer;
        }
        self.map.set(span.clone(), MappingAttrs::paged(prot));
        0
    }

    /// Empties a piece of an arena and makes it plain and free, or gives it back to the
    /// kernel where it was the program's before. A piece whose access the kernel cannot reset, since
    /// it has no mapping left, stays as it is, and the error is returned.
    pub fn release(&mut self, piece: &MappedRange) -> SyscallResult {
        let span = &piece.span;
        match piece.state {
            Lookup::Outside => return unmap(span),
            Lookup::Free => {}
            Lookup::Used(attrs, ArenaOrigin::Adopted) => {
                let is_paged = attrs.kind == MappingKind::Paged;
                // The mapping is split before contents are given up.
                let answer = match is_paged {
                    true => split_off(span, attrs.prot),
                    false => unmap(span),
                };
                if is_error(answer) {
                    return answer;
                }
                if is_paged {
                    self.unlock_pages(span, attrs);
                    paged_memory::surrender(span);
                    unmap(span);
                }
                self.map.forget(span);
            }
            Lookup::Used(
                MappingAttrs {
                    kind: MappingKind::Foreign,
                    ..
                },
                ArenaOrigin::Reserved | ArenaOrigin::Break,
            ) => match reclaim(span, libc::MAP_FIXED) {
                true => self.free(span),
                false => {
                    unmap(span);
                    self.map.forget(span);
                }
            },
            Lookup::Used(attrs, ArenaOrigin::Reserved | ArenaOrigin::Break) => {
                let answer = self.reset_access(span, attrs);
                if is_error(answer) {
                    return answer;
                }
                self.unlock_pages(span, attrs);
                paged_memory::discard(span);
                self.free(span);
            }
        }
        0
    }

    /// Releases all that is mapped of `span`. Where the kernel has no mapping left to reset the access of
    /// an arena's piece, nothing is released; pieces with a protection key, and mappings outside the
    /// arenas, may be released in part.
    pub fn release_all(&mut self, span: &AddrRange) -> SyscallResult {
        if span.is_empty() {
            return 0;
        }
        let pieces = self.map.lookup(span);
        for (n, piece) in pieces.iter().enumerate() {
            let Lookup::Used(attrs, ArenaOrigin::Reserved | ArenaOrigin::Break) = piece.state
            else {
                continue;
            };
            if pieces.len() == 1 || attrs.kind == MappingKind::Foreign || attrs.prot == RW {
                continue;
            }
            let answer = protect_paged(&piece.span, RW);
            if is_error(answer) {
                for piece in pieces[..=n].iter().rev() {
                    if let Some(attrs) = piece.state.paged() {
                        protect_paged(&piece.span, attrs.prot);
                        self.map.change(&piece.span, |t| t.prot = attrs.prot);
                    }
                }
                return answer;
            }
            self.map.change(&piece.span, |attrs| attrs.prot = RW);
        }
        for piece in self.map.lookup(span) {
            let answer = self.release(&piece);
            if is_error(answer) {
                return answer;
            }
        }
        0
    }

    /// Takes the addresses of a mapping back that the kernel has unmapped or moved away. What another thread was given
    /// there meanwhile stays, and the addresses are no arena's any more.
    pub fn fill_hole(&mut self, piece: &MappedRange) {
        match piece.state {
            Lookup::Used(_, ArenaOrigin::Reserved | ArenaOrigin::Break)
                if reclaim(&piece.span, libc::MAP_FIXED_NOREPLACE) =>
            {
                self.free(&piece.span);
            }
            Lookup::Used(..) => self.map.forget(&piece.span),
            Lookup::Free | Lookup::Outside => {}
        }
    }

    /// Plain memory of an arena is free.
    fn free(&mut self, span: &AddrRange) {
        mapped_bitmap::mark(span, false);
        if paged_memory::is_plain() {
            // No pager closes a free page when it is touched.
            protect(span, libc::PROT_NONE);
        }
        self.map.clear(span);
    }

    /// Empties mapped addresses and gives them access `prot`, as a new mapping over an
    /// old one does.
    pub fn renew(&mut self, piece: &MappedRange, prot: c_int) -> SyscallResult {
        let span = &piece.span;
        match piece.state {
            Lookup::Outside => return 0,
            Lookup::Free => {}
            Lookup::Used(attrs, _) => match attrs.kind {
                MappingKind::Paged => {
                    let answer = self.reset_access(span, attrs);
                    if is_error(answer) {
                        return answer;
                    }
                    self.unlock_pages(span, attrs);
                    paged_memory::discard(span);
                }
                MappingKind::Foreign if !reclaim(span, libc::MAP_FIXED) => {
                    return error(libc::ENOMEM);
                }
                MappingKind::Foreign => {}
            },
        }
        let answer = self.map_in_arena(span, prot);
        if is_error(answer) && matches!(piece.state, Lookup::Used(_, ArenaOrigin::Adopted)) {
            // As after the kernel's own failed MAP_FIXED: a hole.
            paged_memory::surrender(span);
            unmap(span);
            self.map.forget(span);
        }
        answer
    }

    /// The parts of `span` that are paged memory and can be read: what may be nailed.
    pub fn nailable(&self, span: &AddrRange) -> impl Iterator<Item = AddrRange> + use<> {
        self.map.lookup(span).into_iter().filter_map(|piece| {
            let readable = piece.state.paged()?.prot & libc::PROT_READ != 0;
            readable.then_some(piece.span)
        })
    }

    /// Nails for `mlock`. Not all frames: with none left for anything else the program would
    /// stop at its next fault.
    pub fn lock(&mut self, span: &AddrRange) -> bool {
        span.len() <= paged_memory::lockable() && paged_memory::nail(span).is_ok()
    }

    /// Undoes [`AddressSpace::lock`].
    pub fn unlock(&mut self, span: &AddrRange) {
        paged_memory::unnail(span);
    }

    fn unlock_pages(&mut self, span: &AddrRange, attrs: MappingAttrs) {
        if attrs.locked == MlockState::Nailed {
            self.unlock(span);
        }
        crate::pthread::forget_nails(span);
    }

    fn reset_access(&self, span: &AddrRange, attrs: MappingAttrs) -> SyscallResult {
        let answer = if attrs.keyed {
            paged_memory::access_changed(span);
            let args = [span.start, span.len(), RW as usize, 0, 0, 0];
            // SAFETY: the contents are discarded; only the kernel's record changes.
            unsafe { syscall6(libc::SYS_pkey_mprotect, args) }
        } else if attrs.prot != RW {
            protect_paged(span, RW)
        } else {
            // The program may have changed them by a call of its own, which the library did not see.
            protect(span, RW)
        };
        if is_error(answer) {
            // The kernel may have changed a part.
            protect_paged(span, attrs.prot);
        } else if attrs.dont_dump {
            advise(span, libc::MADV_DODUMP);
        }
        answer
    }
}

/// Puts plain memory where something else lay, or nothing (`fixed`), and makes it a stretch again.
fn reclaim(span: &AddrRange, fixed: c_int) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    if is_error(map(span.start, span.len(), RW, flags, -1, 0)) {
        return false;
    }
    let is_adopted = paged_memory::adopt(span).is_ok();
    if !is_adopted {
        unmap(span);
    }
    is_adopted
}
