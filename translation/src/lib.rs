//! The only code that speaks userfaultfd, pagemap and madvise, and counts faults.
//!
//! Nemesis divides translation in a high level that hands out stretches and a low
//! level with three operations a domain performs for itself, without privilege: *map*,
//! *unmap* and *trans* (Self-Paging in Nemesis, section 6.3). This crate is that low
//! level on Linux, where the page table is reached through userfaultfd
//! ([`Userfault`]), `madvise` and `mremap` ([`unmap`], [`mod@stage`]), `mprotect` and
//! protection keys ([`protect`], [`keys`]) and `/proc/self/pagemap` ([`trans`]).
//!
//! | paper | here |
//! |---|---|
//! | map | [`map`]: [`Userfault::zero`], [`Userfault::copy`], [`Userfault::move_pages`] |
//! | unmap | [`unmap`]: one range or a batch; [`mod@stage`]: a whole range at once, contents kept |
//! | trans | [`trans`]: [`Pagemap`] |
//! | protection | [`protect`] and [`keys`] |
//! | fault notification | [`userfault`]: upcall (SIGBUS on the faulting thread) or thread; [`event`]; of what the kernel handles by itself: [`fault_event`] |
//!
//! What a kernel and its permissions really give is found by trial ([`probe`]), each
//! newer feature can be switched off ([`Capabilities::without`]), and what a fallback
//! cannot do soundly it refuses ([`Capabilities::may_evict`]).
//!
//! Rule: after construction nothing here allocates, locks, or uses thread-local
//! storage; operations are system calls and nothing else, so that they may run in a
//! signal handler and in an entry thread that is a raw clone. [`probe`] and [`doctor`]
//! are set-up code and the exception.
//!
//! On `unsafe`: operations whose effect the kernel confines to missing pages of
//! registered memory are safe functions. Those that take contents, mappings or rights
//! away from any address they are given are `unsafe`.

pub mod capability;
pub mod doctor;
pub mod event;
pub mod fault_event;
pub mod keys;
pub mod map;
pub mod pinned;
pub mod poison;
pub mod probe;
pub mod protect;
mod raw;
pub mod register;
pub mod reserve;
pub mod stage;
pub mod trans;
pub mod unmap;
pub mod userfault;

pub use capability::{Capabilities, Feature, UnknownFeature, UnmapMethod};
pub use doctor::Report;
pub use event::Fault;
pub use fault_event::FaultEvent;
pub use keys::{KeyRights, ProtectionKey};
pub use map::{MapError, Wake};
pub use pinned::{
    CarryError, Unseparated, carry, restore_pinned, separate_pinned, separate_pinned_sparse,
};
pub use poison::PoisonMethod;
pub use probe::{Lack, Obtained, Probe};
pub use protect::{Access, open_access, set_access};
pub use register::TranslationError;
pub use reserve::{
    Reservation, ReserveError, advise_huge, advise_no_huge, renew, reserve, reserve_aligned,
    reserve_staging, unmap_reservation, unmap_staging,
};
pub use stage::{StageError, StagePiece, Staged, stage, stage_by_copy, stage_pieces};
pub use trans::{Pagemap, Translation};
pub use unmap::{Piece, discard, discard_batch};
pub use userfault::{EntryKind, OpenError, Options, Userfault};

/// The kernel's answer to a call that failed.
pub use rustix::io::Errno;
