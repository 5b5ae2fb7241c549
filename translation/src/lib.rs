//! The only crate that calls userfaultfd, pagemap and madvise, and counts faults.
//!
//! Nemesis divides translation into a high level that allocates stretches and a low level with
//! three operations that a domain performs for itself, without privilege: *map*, *unmap* and
//! *trans* (Self-Paging in Nemesis, section 6.3). This crate is that low level on Linux, where the
//! page table is reached through userfaultfd ([`Userfault`]), `madvise` and `mremap` ([`unmap`],
//! [`mod@stage`]), `mprotect` ([`protect`]) and `/proc/self/pagemap`
//! ([`pagemap`]).
//!
//! | paper | here |
//! |---|---|
//! | map | [`map`]: [`Userfault::zero`], [`Userfault::copy`], [`Userfault::move_pages`] |
//! | map, of memory objects (Rialto) | [`object_map`] |
//! | unmap | [`unmap`]: one range or a batch; [`mod@stage`]: a whole range at once, contents kept |
//! | trans | [`pagemap`]: [`Pagemap`] |
//! | protection | [`protect`] |
//! | fault notification | [`userfault`]: upcall (SIGBUS on the faulting thread) or thread; [`uffd_msg`] |
//!
//! [`foreign`] is the same for memory of another process, which handed its descriptor over.
//!
//! [`probe`] finds by trial what a kernel and its permissions give, each newer feature can be
//! switched off ([`Capabilities::without`]), and a fallback refuses what it cannot do soundly
//! ([`Capabilities::may_evict`]).
//!
//! Rule: after construction nothing here allocates, locks, or uses thread-local storage. Operations
//! are system calls and nothing else, so that they may run in a signal handler and in a handler
//! thread that is a raw clone. [`probe`] is set-up code and the exception.
//!
//! On `unsafe`: an operation whose effect the kernel confines to missing pages of registered memory
//! is a safe function. One that takes contents, mappings or rights away from any address it is
//! given is `unsafe`.

pub mod access_map;
pub mod capability;
pub mod foreign;
pub mod map;
pub mod message_slot;
pub mod object_map;
pub mod pagemap;
pub mod pinned;
pub mod probe;
pub mod protect;
pub mod register;
pub mod reserve;
pub mod stage;
mod uapi;
pub mod uffd_msg;
pub mod unmap;
pub mod userfault;

pub use access_map::AccessMap;
pub use capability::{Capabilities, Feature, UnknownFeature};
pub use foreign::{ForeignUserfault, Modes, NotUserfault, UffdMessage};
pub use map::{MapError, Wake};
pub use message_slot::MessageSlot;
pub use object_map::{
    Sharing, hide, map_object, map_scratch, move_mapping, populate, prepare_for_pager,
};
pub use pagemap::{Pagemap, Translation};
pub use pinned::{
    RelocateError, SeparateError, relocate, restore_pinned, separate_pinned, separate_pinned_sparse,
};
pub use probe::{MissingFeature, Probe, UffdSource};
pub use protect::{Access, open_access, set_access};
pub use register::{PoisonMethod, TranslationError};
pub use reserve::{
    Reservation, ReserveError, advise_huge, advise_no_huge, renew, reserve, reserve_aligned,
    reserve_apart, reserve_staging, unmap_reservation, unmap_staging,
};
pub use stage::{StageError, StageResult, StagedRange, stage, stage_across_mappings};
pub use uffd_msg::Fault;
pub use unmap::{IoVec, discard, discard_batch};
pub use userfault::{EntryKind, OpenError, Userfault, UserfaultOptions};

/// The error of a failed system call.
pub use rustix::io::Errno;
