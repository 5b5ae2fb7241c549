//! Self-paging for a Linux program.
//!
//! A *domain* holds a contract for frames and deals with its own page faults. It
//! allocates *stretches* of virtual addresses and binds each to a *stretch driver*,
//! which answers the stretch's faults with the domain's frames: by zeros, from the
//! domain's store, from a file, or not at all because everything is there.
//! (*Self-Paging in the Nemesis Operating System*, Hand 1999, sections 5 and 6.)
//!
//! ```no_run
//! use selfpage::{Domain, Paged, StoreConfig};
//!
//! let domain = Domain::builder()
//!     .frames(16_384) // 64 MiB
//!     .store("ram:256M+disk:/var/tmp/swap,size=1G".parse::<StoreConfig>()?)
//!     .build()?;
//! let stretch = domain.allocate(512 << 20)?;
//! stretch.bind(Paged)?;
//! // SAFETY: no other code uses the stretch's memory.
//! let bytes = unsafe { stretch.bytes_mut() };
//! bytes[0] = 1;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod contents;
mod counters;
mod deferred_wake;
mod domain;
mod driver;
#[doc(hidden)]
pub mod embedding;
mod entry;
mod evict;
mod fault_around;
mod fault_context;
mod fault_outcome;
mod fork_cell;
mod frame_source;
mod freeze_gate;
mod huge;
mod log;
mod mm;
mod page;
mod page_in;
mod page_table;
mod pager;
mod populate;
mod prefetch;
mod readahead;
mod replacement;
mod resolve;
mod rights;
mod standby;
mod stored_pages;
mod stream_detector;
mod streams;
mod stretch;
mod stretch_index;
mod throttle;
mod transfer;
mod vma_split;
mod working_set;

pub use counters::{Counter, Counters};
pub use domain::{Builder, DirectIo, Domain, DomainError, Pin, Stretch, StretchError, Trans};
pub use driver::{CleanOutcome, Mapped, MappedError, Nailed, Paged, Physical, StretchDriver};
pub use entry::set_region_handler;
pub use fault_outcome::{FaultError, FillOutcome, FillPhase};
pub use frames::{Contract, Frame, Ledger};
pub use page::{PageState, State};
pub use page_in::Activation;
pub use pager::{FEWEST_FRAMES, Hooks, StderrLog};
pub use rate::{FaultLimits, SharedLimits};
pub use replacement::{Key, Replacement, ScanResistant};
pub use rights::{Denied, Rights};
pub use store::{SharedStore, StoreConfig, StoreError};
pub use stretch::{Fault, FaultKind, Handled, Handler, RegionFault, RegionHandler};
pub use stretch_index::MOST_STRETCHES;
pub use translation::{Capabilities, EntryKind, Feature};
pub use working_set::{WorkingSet, WorkingSetError};
