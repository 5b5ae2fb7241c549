//! A budget of page-table pages that the VTLBs of several processes share.
//!
//! The paper bounds the page-table pages of all address spaces together (3.1, figure 6): its kernel
//! recycles the page of any of them. Linux lets no process hide another one's mapping, so here each
//! space gives back its own pages. A budget is shared memory with a *place* for each space:
//!
//! - Each place is guaranteed six pages, in use or not. The other pages are the *pool*.
//! - A space takes a page from the pool where there is one. Where the pool is dry it recycles its own
//!   oldest entry, and waits for no other space.
//! - It then requests a page of the space whose oldest entry is the oldest of all, if that is twice
//!   as old as its own ([`choose_donor`]) and no request to it is unanswered. A thread of that space
//!   gives the entry back (`revocation.rs`), also while the program sleeps. What comes back is for
//!   the next miss.
//!
//! So spaces that miss at one rate keep their shares, and an idle one is left its six pages.
//!
//! Rules: a place has one writer of its count, its space. A page is taken only if the sum of all
//! counts, with that page already in it, is within the pool; so the sum of what is taken never
//! exceeds it. A count of a process that was killed is no part of the sum: the kernel marks the
//! owner's word when the process ends. A stopped process keeps what it took, and the other spaces
//! have their six pages and the rest of the pool. Spaces of a budget trust each other's counts: a
//! wrong count costs page tables or misses, never contents.

use crate::error::SpaceError;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use wired::{Plain, WiredMemory};

/// Pages that each space has for misses, whatever pins and other spaces have: an instruction that needs
/// more than there are starts again for ever. It may need six: it, what it loads and what it stores
/// may each lie in two ranges.
pub(crate) const GUARANTEED: usize = 6;

/// The most spaces of a budget: a miss that takes a page reads a cache line for each.
const MOST_SPACES: usize = 256;

/// `oldest` of a space that has nothing to give back.
pub(crate) const NOTHING: u64 = u64::MAX;

/// The kernel sets it in an owner's word when the owner ends.
const OWNER_DIED: u32 = 0x4000_0000;

const MAGIC: u32 = u32::from_le_bytes(*b"VTLB");

#[repr(C, align(64))]
struct BudgetHeader {
    magic: AtomicU32,
    pages: AtomicU32,
    spaces: AtomicU32,
}

/// A space's place in a budget.
#[repr(C, align(64))]
pub(crate) struct Place {
    /// The thread that answers the space's revocations: its id while it lives, 0 in a free place.
    pub(crate) owner: AtomicU32,
    /// Pages beyond the guaranteed ones; counts while the owner lives.
    pub(crate) taken: AtomicU32,
    /// Pages that other spaces request; a futex of the owner's.
    pub(crate) requested: AtomicU32,
    /// When the oldest entry that the space can give back was entered, by [`wired::clock`].
    pub(crate) oldest: AtomicU64,
}

// SAFETY: words of atomics.
unsafe impl Plain for BudgetHeader {}
// SAFETY: words of atomics.
unsafe impl Plain for Place {}

impl Place {
    pub(crate) fn is_owned(&self) -> bool {
        let owner = self.owner.load(Ordering::SeqCst);
        owner != 0 && owner & OWNER_DIED == 0
    }

    /// Makes a free place, or that of a dead owner, the owner's.
    pub(crate) fn try_own(&self, owner: u32) -> bool {
        let seen = self.owner.load(Ordering::SeqCst);
        let free = seen == 0 || seen & OWNER_DIED != 0;
        let owned = free
            && self
                .owner
                .compare_exchange(seen, owner, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok();
        if owned {
            // Until here the last owner's count is a part of the sum, which is only too high.
            self.clear();
        }
        owned
    }

    /// Frees the owner's place.
    pub(crate) fn leave(&self) {
        self.clear();
        self.owner.store(0, Ordering::SeqCst);
    }

    fn clear(&self) {
        self.oldest.store(NOTHING, Ordering::SeqCst);
        self.requested.store(0, Ordering::SeqCst);
        self.taken.store(0, Ordering::SeqCst);
    }
}

/// A number of page-table pages for the VTLBs of several spaces, mostly of different processes.
/// Clones are the same budget.
///
/// A process makes it, and hands its descriptor to others ([`VtlbBudget::as_fd`],
/// [`VtlbBudget::from_descriptor`]) or forks; each gives it to
/// [`AddressSpace::new`](crate::AddressSpace::new) in place of a number. Six pages for each of
/// `spaces` are set aside. What a space has beyond them changes with its misses.
#[derive(Clone)]
pub struct VtlbBudget {
    shared: Arc<Shared>,
}

struct Shared {
    memory: WiredMemory,
    descriptor: OwnedFd,
    pages: usize,
    spaces: usize,
}

impl VtlbBudget {
    /// A budget of `pages` page-table pages for at most `spaces` spaces (1 to 256).
    ///
    /// # Errors
    /// [`SpaceError::Budget`] for fewer than six pages a space, more than 4096 in all, or no
    /// spaces; the kernel's error.
    pub fn create(pages: usize, spaces: usize) -> Result<Self, SpaceError> {
        check(pages, spaces)?;
        let (memory, descriptor) = WiredMemory::shared(bytes(spaces), "selfpage-vtlb-budget")
            .map_err(SpaceError::system("memfd_create"))?;
        let header = &memory.slice::<BudgetHeader>(0, 1)[0];
        header.pages.store(pages as u32, Ordering::Relaxed);
        header.spaces.store(spaces as u32, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(Self::of(memory, descriptor, pages, spaces))
    }

    /// The budget behind a descriptor that another process made.
    ///
    /// # Errors
    /// [`SpaceError::Foreign`] for any other descriptor; the kernel's error.
    pub fn from_descriptor(descriptor: OwnedFd) -> Result<Self, SpaceError> {
        const OTHER: SpaceError = SpaceError::Foreign("it is not a VTLB budget");
        let seals = fcntl_get_seals(&descriptor).map_err(|_| OTHER)?;
        let stat = fstat(&descriptor).map_err(SpaceError::system("fstat"))?;
        let len = stat.st_size as usize;
        let fits = (bytes(1)..=bytes(MOST_SPACES).next_multiple_of(wired::PAGE)).contains(&len);
        if !seals.contains(SealFlags::SHRINK) || !fits {
            return Err(OTHER);
        }
        let memory = WiredMemory::attach(&descriptor, len)
            .map_err(SpaceError::system("mapping a budget"))?;
        let header = &memory.slice::<BudgetHeader>(0, 1)[0];
        let word = |word: &AtomicU32| word.load(Ordering::Acquire);
        if word(&header.magic) != MAGIC {
            return Err(OTHER);
        }
        let (pages, spaces) = (word(&header.pages) as usize, word(&header.spaces) as usize);
        check(pages, spaces).map_err(|_| OTHER)?;
        if bytes(spaces) > len {
            return Err(OTHER);
        }
        Ok(Self::of(memory, descriptor, pages, spaces))
    }

    fn of(memory: WiredMemory, descriptor: OwnedFd, pages: usize, spaces: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                memory,
                descriptor,
                pages,
                spaces,
            }),
        }
    }

    /// The descriptor, for another process.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.descriptor.as_fd()
    }

    /// Page-table pages in all.
    pub fn pages(&self) -> usize {
        self.shared.pages
    }

    /// The most spaces.
    pub fn spaces(&self) -> usize {
        self.shared.spaces
    }

    /// Pages that are in no place's guarantee.
    pub(crate) fn pool(&self) -> usize {
        self.pages() - GUARANTEED * self.spaces()
    }

    pub(crate) fn places(&self) -> &[Place] {
        let shared = &self.shared;
        shared
            .memory
            .slice::<Place>(size_of::<BudgetHeader>(), shared.spaces)
    }

    /// Pages that live spaces have taken from the pool.
    pub(crate) fn taken(&self) -> u64 {
        self.places()
            .iter()
            .filter(|place| place.is_owned())
            .map(|place| u64::from(place.taken.load(Ordering::SeqCst)))
            .sum()
    }
}

fn bytes(spaces: usize) -> usize {
    size_of::<BudgetHeader>() + spaces * size_of::<Place>()
}

fn check(pages: usize, spaces: usize) -> Result<(), SpaceError> {
    let holds = (1..=MOST_SPACES).contains(&spaces)
        && (GUARANTEED * spaces..=crate::vtlb::MOST_PAGES).contains(&pages);
    holds
        .then_some(())
        .ok_or(SpaceError::Budget { pages, spaces })
}

/// The bound of a space's VTLB, in page-table pages.
pub enum VtlbBound {
    /// The space's own: 6 to 4096.
    Pages(usize),
    /// Shared with other spaces.
    Budget(VtlbBudget),
}

impl From<usize> for VtlbBound {
    fn from(pages: usize) -> Self {
        Self::Pages(pages)
    }
}

impl From<&VtlbBudget> for VtlbBound {
    fn from(budget: &VtlbBudget) -> Self {
        Self::Budget(budget.clone())
    }
}

/// The space to request a page of: that with the oldest entry of `others` (place, when entered),
/// where it is more than twice as old as the requesting space's own oldest entry, which it recycles.
pub(crate) fn choose_donor(
    now: u64,
    own: Option<u64>,
    others: impl Iterator<Item = (usize, u64)>,
) -> Option<usize> {
    let (place, entered) = others
        .filter(|(_, entered)| *entered != NOTHING)
        .min_by_key(|(_, entered)| *entered)?;
    let age = |entered| now.saturating_sub(entered);
    own.is_none_or(|own| age(entered) / 2 > age(own))
        .then_some(place)
}
