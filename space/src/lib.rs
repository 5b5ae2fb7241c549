//! Address spaces and memory objects: the interfaces of *The Rialto Virtual Memory System* (Draves,
//! Odinak, Cutshall 1997).
//!
//! A linked program reserves addresses and commits memory apart from each other, maps memory
//! objects that it shares with other processes, reads the memory of clients that it does not trust,
//! bounds the page tables of large mappings, and gives back stacks that are idle.
//!
//! | paper | here |
//! |---|---|
//! | IAddressSpace (2.1, figure 1) | [`AddressSpace`]; sections, auto-commit, alloc-zero: [`CommitFlags`] |
//! | the space of another process (2.1) | [`AddressSpace::serve`], [`RemoteSpace`] |
//! | committed pages, their erasure (2.1) | [`Backing`]: stretches of a [`selfpage::Domain`] |
//! | IMemoryObject, restricted views (2.2) | [`MemoryObject`] |
//! | external pagers, which the paper leaves open (2.2) | [`ObjectPager`], [`PagedMemory`] |
//! | asymmetric copy-on-write (2.2) | [`MapFlags::copy_on_write`] |
//! | no-exception mappings, scratch pages (2.2, 3.4.1) | [`ClientView`] |
//! | GetPhysicalAddress, counting locks (2.3) | [`AddressSpace::pin`] |
//! | VTLB (3.1), VTLBMiss | `vtlb.rs`; the fault handler calls `Core::resolve` |
//! | one bound for the page tables of all processes (figure 6) | [`VtlbBudget`] |
//! | hybrid locking (3.2.2) | `core.rs` |
//! | growing stacks, probes, recycled pages (3.4.2) | [`stack`] |
//!
//! Addresses, sizes and offsets are in bytes and multiples of the page size, 4 KiB. Errors are
//! [`SpaceError`]s. Operations on a reserved range are not failure-atomic:
//! [`AddressSpace::deallocate`] cleans up after each of them, and can be repeated.
//!
//! There is no second fault path: faults of committed memory are the domain's, those of mapped
//! objects come by the same signal handlers ([`selfpage::set_region_handler`]), and those of paged
//! objects are their pager's. So a system call
//! that is given an address of a mapped object which is not entered fails with `EFAULT`, as it does
//! for a stretch: pin buffers of system calls.

mod address_space;
mod anchor;
mod backing;
mod budget_member;
mod client_view;
mod core;
mod error;
mod fault_record;
mod flags;
mod held_times;
mod local_file;
mod mapping;
mod object;
mod object_pager;
mod operations;
mod page_bits;
mod page_limit;
mod paged_memory;
mod pager_member;
mod pager_protocol;
mod pin;
mod recycling_turn;
mod region;
mod registry;
mod remote_space;
mod revocation;
mod saved_copies;
mod service_thread;
mod space_protocol;
mod space_server;
pub mod stack;
mod state;
mod tree;
mod used_pages;
mod vtlb;
mod vtlb_budget;
mod vtlb_entries;
mod vtlb_stats;

pub use address_space::{AddressSpace, AllocationInformation, MemoryStatus};
pub use backing::{Backing, CommitStats};
pub use client_view::{ClientCall, ClientFault, ClientView, OutOfBounds};
pub use core::LockTimes;
pub use error::SpaceError;
pub use flags::{CommitFlags, MapFlags};
pub use held_times::SectionTimes;
pub use object::MemoryObject;
pub use object_pager::ObjectPager;
pub use paged_memory::PagedMemory;
pub use pin::PinnedRange;
pub use region::{RegionInfo, RegionState};
pub use remote_space::RemoteSpace;
pub use selfpage::Rights;
pub use space_protocol::RemoteSpaceError;
pub use vtlb_budget::{VtlbBound, VtlbBudget};
pub use vtlb_stats::VtlbStats;
