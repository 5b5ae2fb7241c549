//! The backing store: a swap file or the daemon's disk, compressed RAM, or a tier of both.
//!
//! The backing store of *Self-Paging in the Nemesis Operating System* (OSDI 1999), section 6.6:
//! bloks allocated first fit from a bitmap, written and read by the domain that faults and by no
//! other. Additions: pages are compressed into RAM first, every page carries a 128-bit checksum
//! from write to read, and one store is shared by a whole tree of processes, any of which may be
//! killed at any instruction.
//!
//! A [`PageHandle`] identifies a stored page: an entry of the page index that every process of the
//! tree maps. The entry alone states where the page lies; bitmaps and counters beside it are hints
//! that are repaired.
//!
//! Rule: [`Channel`] and [`Store::discard`] are on the page path. They allocate nothing, take no
//! lock that a killed process could keep, and touch wired memory only.

mod backoff;
mod blok;
mod channel;
mod checksum;
mod codec;
mod completion_queue;
mod compressed_ram;
mod config;
mod config_error;
mod demotion;
mod disk_backing;
mod disk_io;
mod disk_transport;
mod error;
mod fork;
mod growth;
mod handle;
mod inner;
mod intent_log;
mod io;
mod layout;
mod location;
mod on_demand;
mod page_index;
mod ram_resizer;
mod ram_sizing;
mod read;
mod recovery;
mod ref_bitmap;
mod resume;
mod search_hint;
mod segment;
mod segment_stats;
mod shared;
mod swap_file;
mod traits;
mod usage;

pub use checksum::Checksum;
pub use config::{DiskConfig, DiskLocation, MIN_RAM, StoreConfig};
pub use config_error::ConfigError;
pub use disk_transport::DiskTransport;
pub use error::{DiskOp, PageLocation, SetupError, StoreError};
pub use handle::{HolderId, PageHandle};
pub use io::fault_injection::{FaultPlan, InjectedFault};
pub use ram_resizer::RamResizer;
pub use ram_sizing::{RamSizing, RamUse};
pub use shared::SharedStore;
pub use traits::{Channel, Completion, MAX_PENDING, ReadPage, Store, Submitted, Wait, WritePage};
pub use usage::{Occupancy, Usage, UsageFigure};
