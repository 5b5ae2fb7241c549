//! A pool of stacks.

use super::idle::IdleWord;
use super::{dead_below, give_back, stack_pointer};
use crate::error::SpaceError;
use crate::registry::{self, FaultResolver, Registration};
use corosensei::Yielder;
use corosensei::stack::{Stack, StackPointer};
use selfpage::{Handled, RegionFault};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use translation::{Access, Capabilities, IoVec, Pagemap, Reservation};
use wired::{Lock, PAGE};

/// Bytes of a name that an overflow's message shows.
const NAME: usize = 48;

/// Stacks that one sweep takes the pages of by one call.
const BATCH: usize = 256;

/// How many copies of the value and of the input the frames below [`StackPool::suspend`] have at most, of each: without
/// optimisation there are 4 of both together.
const VALUES: usize = 4;

/// Stacks of one size.
pub struct StackPool {
    area: Arc<Area>,
    free: Mutex<FreeStacks>,
    capabilities: Capabilities,
    _registration: Registration,
}

#[derive(Default)]
struct FreeStacks {
    /// Used before, and open.
    open: Vec<usize>,
    /// The first that was never used.
    next: usize,
}

/// The addresses of a pool: slots of a guard page and a stack above it.
struct Area {
    base: usize,
    stack_bytes: usize,
    slots: Box<[StackSlot]>,
}

struct StackSlot {
    idle: IdleWord,
    name: Lock<Name>,
}

impl Default for StackSlot {
    fn default() -> Self {
        Self {
            idle: IdleWord::default(),
            name: Lock::new(Name::default()),
        }
    }
}

#[derive(Clone, Copy)]
struct Name {
    bytes: [u8; NAME],
    len: usize,
}

impl Default for Name {
    fn default() -> Self {
        Self {
            bytes: [0; NAME],
            len: 0,
        }
    }
}

/// A pool's addresses, for [`limit_of`]. The others hold while `start` is not zero.
struct AreaWords {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    slot_bytes: AtomicUsize,
}

static AREAS: [AreaWords; registry::MOST] = [const {
    AreaWords {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        slot_bytes: AtomicUsize::new(0),
    }
}; registry::MOST];

/// The lowest address of the pool's stack that `pointer` is in.
pub(super) fn limit_of(pointer: usize) -> Option<usize> {
    AREAS.iter().find_map(|words| {
        let start = words.start.load(Ordering::Acquire);
        let end = words.end.load(Ordering::Acquire);
        // A pool whose stack is in use does not end meanwhile.
        let inside = start != 0 && (start..end).contains(&pointer);
        inside.then(|| {
            let slot = words.slot_bytes.load(Ordering::Acquire);
            start + (pointer - start) / slot * slot + PAGE
        })
    })
}

impl Area {
    fn slot_bytes(&self) -> usize {
        self.stack_bytes + PAGE
    }

    fn stack(&self, index: usize) -> Range<usize> {
        let limit = self.base + index * self.slot_bytes() + PAGE;
        limit..limit + self.stack_bytes
    }

    fn end(&self) -> usize {
        self.base + self.slots.len() * self.slot_bytes()
    }

    fn index_of(&self, addr: usize) -> Option<usize> {
        let inside = (self.base..self.end()).contains(&addr);
        inside.then(|| (addr - self.base) / self.slot_bytes())
    }

    fn report_overflow(&self, index: usize) {
        let name = self.slots[index]
            .name
            .try_lock()
            .map(|name| *name)
            .unwrap_or_default();
        let shown = std::str::from_utf8(&name.bytes[..name.len]).unwrap_or("?");
        let kib = self.stack_bytes >> 10;
        registry::report(format_args!(
            "selfpage: stack overflow: the stack \"{shown}\" has {kib} KiB; give its pool larger stacks\n"
        ));
    }
}

impl FaultResolver for Area {
    fn resolve(&self, fault: &RegionFault) -> Option<Handled> {
        let index = self.index_of(fault.addr)?;
        if fault.addr < self.stack(index).start {
            self.report_overflow(index);
        }
        Some(Handled::Default)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        for words in &AREAS {
            if words.start.load(Ordering::Acquire) == self.base {
                words.start.store(0, Ordering::Release);
                words.taken.store(false, Ordering::Release);
            }
        }
        let reservation = Reservation {
            addr: self.base,
            len: self.end() - self.base,
        };
        // SAFETY: the stacks keep their pool, so none is in use.
        let _ = unsafe { translation::unmap_reservation(reservation) };
    }
}

impl StackPool {
    /// Reserves addresses for `count` stacks of `stack_bytes` bytes each (two pages at least),
    /// without memory. Each stack that was used counts twice towards `vm.max_map_count`.
    ///
    /// # Errors
    /// [`SpaceError::Unaligned`], [`SpaceError::StackPool`], [`SpaceError::Overlap`] without the
    /// addresses, [`SpaceError::TooMany`], [`SpaceError::HandlerTaken`].
    pub fn new(stack_bytes: usize, count: usize) -> Result<Arc<Self>, SpaceError> {
        crate::object::aligned("stack size", stack_bytes as u64)?;
        if stack_bytes < 2 * PAGE || count == 0 {
            return Err(SpaceError::StackPool {
                bytes: stack_bytes,
                count,
            });
        }
        let bytes = stack_bytes.saturating_add(PAGE).saturating_mul(count);
        let reservation = translation::reserve(None, bytes, false)?;
        let area = Arc::new(Area {
            base: reservation.addr,
            stack_bytes,
            slots: (0..count).map(|_| StackSlot::default()).collect(),
        });
        let registration = registry::register(area.clone())?;
        let place = AREAS
            .iter()
            .find(|words| !words.taken.swap(true, Ordering::AcqRel));
        let Some(words) = place else {
            return Err(SpaceError::TooMany(registry::MOST));
        };
        words.end.store(area.end(), Ordering::Release);
        words.slot_bytes.store(area.slot_bytes(), Ordering::Release);
        words.start.store(area.base, Ordering::Release);
        Ok(Arc::new(Self {
            area,
            free: Mutex::default(),
            capabilities: Capabilities::probe_fast(),
            _registration: registration,
        }))
    }

    /// A stack that is not in use; overflows are reported by `name`, of which 48 bytes are kept.
    ///
    /// # Errors
    /// [`SpaceError::NoStack`] where all are in use, [`SpaceError::Translation`] with too many
    /// mappings (`vm.max_map_count`).
    pub fn take(self: &Arc<Self>, name: &str) -> Result<GrowableStack, SpaceError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match free.open.pop() {
            Some(index) => index,
            None if free.next < self.area.slots.len() => {
                let stack = self.area.stack(free.next);
                // SAFETY: reserved addresses that no code uses.
                unsafe { translation::set_access(stack.start, stack.len(), Access::READ_WRITE) }?;
                free.next += 1;
                free.next - 1
            }
            None => return Err(SpaceError::NoStack(self.area.slots.len())),
        };
        drop(free);
        let cut = (0..=name.len().min(NAME))
            .rev()
            .find(|at| name.is_char_boundary(*at));
        let len = cut.unwrap_or(0);
        let mut bytes = [0; NAME];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        *self.area.slots[index].name.lock() = Name { bytes, len };
        Ok(GrowableStack {
            pool: self.clone(),
            index,
        })
    }

    /// Suspends the running coroutine. Until it is resumed a sweep may take the pages below its
    /// stack pointer, if it is a [`StackCoroutine`](super::StackCoroutine).
    pub fn suspend<Input, Yield>(&self, yielder: &Yielder<Input, Yield>, value: Yield) -> Input {
        let pointer = stack_pointer();
        let index = self.area.index_of(pointer);
        // The yielder lies on its coroutine's first stack: a stack further on waits for none.
        let first = self.area.index_of(std::ptr::from_ref(yielder).addr());
        if let Some(index) = index
            && first == Some(index)
        {
            // The margin has room for small values only.
            let values = VALUES * (size_of::<Yield>() + size_of::<Input>());
            self.area.slots[index].idle.note(pointer - values);
        }
        yielder.suspend(value)
    }

    /// Takes the dead pages of all stacks that wait and were not swept since. Returns how many
    /// stacks it swept.
    pub fn sweep(&self) -> usize {
        let mut claimed = Vec::with_capacity(BATCH);
        let mut swept = 0;
        for (index, slot) in self.area.slots.iter().enumerate() {
            if let Some(pointer) = slot.idle.claim() {
                claimed.push((index, dead_below(pointer)));
            }
            if claimed.len() == BATCH {
                swept += self.discard(&mut claimed);
            }
        }
        swept + self.discard(&mut claimed)
    }

    fn discard(&self, claimed: &mut Vec<(usize, usize)>) -> usize {
        let dead = claimed.iter().map(|(index, end)| {
            let addr = self.area.stack(*index).start;
            IoVec {
                addr,
                len: end.saturating_sub(addr),
            }
        });
        let dead: Vec<_> = dead.filter(|piece| piece.len > 0).collect();
        // SAFETY: below the stack pointers and their margins nothing is alive, and the stacks wait
        // until their claims end.
        let batch = unsafe { translation::discard_batch(&dead, &self.capabilities) };
        if batch.is_err() {
            for piece in &dead {
                // SAFETY: as above.
                let _ = unsafe { give_back(piece.addr, piece.len) };
            }
        }
        for (index, _) in claimed.iter() {
            self.area.slots[*index].idle.swept();
        }
        let count = claimed.len();
        claimed.clear();
        count
    }
}

/// The word of a stack's slot.
pub(super) struct SlotWord {
    area: Arc<Area>,
    index: usize,
}

impl SlotWord {
    pub(super) fn get(&self) -> &IdleWord {
        &self.area.slots[self.index].idle
    }
}

/// A stack of a pool; dropping it gives its pages and its addresses back.
pub struct GrowableStack {
    pool: Arc<StackPool>,
    index: usize,
}

impl GrowableStack {
    /// Its addresses, the guard page not included.
    pub fn range(&self) -> Range<usize> {
        self.pool.area.stack(self.index)
    }

    pub(super) fn word(&self) -> SlotWord {
        SlotWord {
            area: self.pool.area.clone(),
            index: self.index,
        }
    }

    /// Pages that it has in memory now.
    ///
    /// # Errors
    /// The kernel's error where /proc cannot be read.
    pub fn resident_pages(&self) -> Result<usize, SpaceError> {
        let range = self.range();
        let read = SpaceError::system("reading /proc/self/pagemap");
        let pagemap = Pagemap::open(&self.pool.capabilities).map_err(&read)?;
        let mut bitmap = vec![0; (range.len() / PAGE).div_ceil(64)];
        pagemap
            .present_pages(range.start, range.len(), &mut bitmap)
            .map_err(&read)
    }
}

// SAFETY: the stack has a guard page below it and two pages at least.
unsafe impl Stack for GrowableStack {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.range().end).expect("a stack is not at address zero")
    }

    fn limit(&self) -> StackPointer {
        StackPointer::new(self.range().start - PAGE).expect("a stack is not at address zero")
    }
}

impl Drop for GrowableStack {
    fn drop(&mut self) {
        let range = self.range();
        self.pool.area.slots[self.index].idle.resume();
        // SAFETY: no code runs on the stack any more.
        unsafe {
            if give_back(range.start, range.len()).is_err() {
                // The next owner sees nothing of this one.
                let first = std::ptr::with_exposed_provenance_mut::<u8>(range.start);
                first.write_bytes(0, range.len());
            }
        }
        let mut free = self
            .pool
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        free.open.push(self.index);
    }
}
