//! Where pages go: a direct file or the system's disk, compressed RAM, a tier of both.
//!
//! The backing store of *Self-Paging in the Nemesis Operating System* (OSDI 1999), section
//! 6.6: bloks allocated first fit from a bitmap, written and read by the domain that faults
//! and by nobody for it. What is added here: pages are compressed into RAM first, every
//! page carries a 128-bit checksum from write to read, and one store is shared by a whole
//! tree of processes, any of which may be killed at any instruction.
//!
//! A stored page is named by a [`PageHandle`], an index into a catalogue that every process of
//! the tree maps. The catalogue entry is the one place that says where the page lies;
//! bitmaps and counters beside it are hints that heal.
//!
//! Rule: what [`Channel`] and [`Store::discard`] do is on the page path. They allocate
//! nothing, take no lock that a killed process could keep, and touch wired memory only.

mod backoff;
mod blok;
mod channel;
mod checksum;
mod codec;
mod compressed_ram;
mod config;
mod demotion;
mod disk_backing;
mod disk_io;
mod disk_transport;
mod error;
mod fault_injection;
mod growth;
mod handle;
mod inner;
mod intent_log;
mod io;
mod layout;
mod location;
mod page_index;
mod read;
mod recovery;
mod ref_bitmap;
mod search_hint;
mod segment;
mod segment_stats;
mod shared;
mod swap_file;
mod traits;

pub use checksum::Checksum;
pub use config::{Bytes, ConfigError, DiskConfig, DiskLocation, StoreConfig, parse_size};
pub use disk_transport::DiskTransport;
pub use error::{DiskOp, PageLocation, SetupError, StoreError};
pub use fault_injection::{FaultPlan, InjectedFault};
pub use handle::{HolderId, PageHandle};
pub use shared::SharedStore;
pub use traits::{
    Channel, Completion, MAX_PENDING, Occupancy, ReadPage, Store, Submitted, Usage, Wait, WritePage,
};
