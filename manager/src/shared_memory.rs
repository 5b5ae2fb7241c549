//! Shared memory of a process tree: memory objects that several processes map, under the tree's contract.
//!
//! Memory that processes share cannot carry its own pager: no process may evict what another one has
//! mapped. So the tree's shared anonymous mappings are memory objects (*Moving the Default Memory Manager
//! out of the Mach Kernel*, section 3): each a memfd, mapped by its clients, of which every one hands over a
//! userfaultfd. One thread (`pager`) answers all their faults.
//!
//! | part | holds |
//! |---|---|
//! | `pager` | the loop: messages, requests, revocations; all of the following |
//! | `fault`, `reads`, `evict` | how a page comes in, from the store, and how a unit leaves |
//! | `removal` | pages out of a memfd, with what they hold at that moment |
//! | `mapped_objects`, `placement` | the objects and the processes that map them: what is done in one mapping, or in all; by which contents come in |
//! | [`clients`], [`mappings`] | the processes, and the pages of objects that each maps where |
//! | `object_memory`, `locks` | what memory an object may have; pages that are not evicted |
//! | [`object`], [`streams`], [`pairs`], `reuse` | where the contents of each page are; faults in order; what comes back together, and soon |
//! | [`slots`], [`fetches`] | pages on their way to the store, and back |
//! | [`frames`] | the frames of the objects' domain in the tree's ledger |
//! | [`requests`], `start` | what the supervisor asks for; how it starts the pager |
//!
//! **A fault** on a page that no process has in the page cache arrives as a message of the faulting process.
//! The page comes in by a copy into that process's mapping, which puts it into the object; all others map it
//! without a fault of ours. **An eviction** removes a unit's pages from the memfd, which takes them out of every
//! mapping, and then reads what they held: no store is lost, and no mapping has to be write-protected first. All of it is one
//! turn of the loop, so no fault and no new mapping comes in between. Contents wait in
//! slots until the store has them, which writes up to 32 pages at once.
//!
//! **Contract.** The objects are one domain of the tree's ledger (*Self-Paging in the Nemesis Operating
//! System*, section 6.2): their frames are owned, limited, counted and revoked as those of a process are.
//! Replacement is the pagers' own, by units of 16 pages; a page that comes back before half of the memory was replaced makes its unit
//! warm.
//!
//! **Ahead of faults.** Behind a stream of faults in order the next window is read into buffers. A page there has no frame until a
//! fault takes it. The two halves of 8 KiB that left together come back together, as long as trials show that they are used so.
//!
//! **Huge pages.** A hole clears a part of a huge page in place, while the pipe holds it. So the preload library advises each mapping
//! against huge pages, and the kernel makes none (MADV_COLLAPSE fails).
//!
//! **Cost.** A fault of a program on another processor costs what it takes to wake that: 25 us with compressed RAM, of
//! which the pager waits for none, since it polls for the next fault before it sleeps (57 us without). On one
//! processor it is 10 us. (`selfpage bench paging --data 128 --frames 27 --passes random-read --arms
//! shared-ram,run-ram`, alone and under `taskset -c 0`; Linux 6.18, 2 processors.) To follow the faulting thread to its processor, by its
//! stat file once in 16 faults, gained nothing: 31 us, since the kernel moves the thread that is woken away.
//!
//! **Linked programs** have objects by `space::ObjectPager`, which has no tree: a process that maps an object of
//! another one's names it by its inode ([`Request::Attach`]). Whether it maps the object the kernel does not tell: contents come in by
//! the mapping of the process that shared the object (`placement`).
//!
//! **Events.** The userfaultfd reports what its owner unmaps and moves. All messages are read before a fault
//! is answered, and an operation that the kernel defers (EAGAIN: an event is unread) is tried again
//! after the next messages. A request waits until its client's memory does not change: an event may be late, and would
//! be taken for one of memory that the client has mapped at the same addresses since. No read waits, and a client that clears O_NONBLOCK
//! of its userfaultfd again is dropped: poll reports that at all times. A discarded mapping (MADV_DONTNEED) keeps the contents of shared memory;
//! [`requests::Change::Discard`] ends them (MADV_REMOVE), and removes each page once: no other process writes in between what would be lost.
//!
//! **Forks.** What a child inherits is kept for it before the kernel makes it ([`pending_children`]): its parent may be killed before
//! the child joins.
//!
//! **Pins.** The kernel may hold pages for direct I/O, and there is no way to ask for whom it holds a page of a
//! memfd. Once a tree is careful ([`SharedMemoryParts::careful`]) nothing of the shared memory is evicted.
//!
//! Units: bytes where a name ends so, pages of 4 KiB else. Errors: a page that the store cannot return is
//! poisoned, so that its access fails (SIGBUS); so is one for which no frame came for 30 s (1 s
//! after another that failed so, while none has come since).

pub mod clients;
mod evict;
pub mod fetches;
pub mod frames;
pub mod locks;
mod mapped_objects;
pub mod mappings;
pub mod object;
mod object_memory;
mod pager;
mod pager_loop;
pub mod pairs;
pub mod pending_children;
mod placement;
mod reads;
mod removal;
pub mod requests;
mod reuse;
pub mod slots;
mod start;
pub mod streams;

pub use pager::CHANNEL_DEPTH;
pub use requests::{Change, Mailbox, Request, Responder};
pub use start::{SharedMemoryParts, start};

/// Pages of a unit, which one eviction takes: no more than a pipe holds by default. Pages of
/// shared memory are in use here and there, and a unit that is four times as large holds four times as many
/// that are not (`selfpage bench programs --only postgres`).
pub const UNIT: usize = 16;

/// The least shared mapping worth an object.
pub const LEAST_BYTES: usize = UNIT * wired::PAGE;
