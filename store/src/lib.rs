//! Where pages go: a direct file or the system's disk, compressed RAM, a tier of both.
//!
//! The backing store of *Self-Paging in the Nemesis Operating System* (OSDI 1999), section
//! 6.6: bloks allocated first fit from a bitmap, written and read by the domain that faults
//! and by nobody for it. What is added here: pages are compressed into RAM first, every
//! page carries a 128-bit checksum from write to read, and one store is shared by a whole
//! tree of processes, any of which may be killed at any instruction.
//!
//! A stored page is named by a [`Handle`], an index into a catalogue that every process of
//! the tree maps. The catalogue entry is the one place that says where the page lies;
//! bitmaps and counters beside it are hints that heal.
//!
//! Rule: what [`Channel`] and [`Store::discard`] do is on the page path. They allocate
//! nothing, take no lock that a killed process could keep, and touch wired memory only.

mod api;
mod backing;
mod blok;
mod catalogue;
mod channel;
mod checksum;
mod codec;
mod config;
mod disk;
mod engine;
mod error;
mod growth;
mod handle;
mod hint;
mod holdings;
mod inject;
mod intent;
mod layout;
mod lockword;
mod ops;
mod outlet;
mod parts;
mod place;
mod ram;
mod read;
mod retire;
mod segment;
mod shared;
mod survey;
mod swap;
mod tier;

pub use api::{
    Channel, Completion, MAX_PENDING, Occupied, ReadPage, Store, Submitted, Usage, Wait, WritePage,
};
pub use checksum::Checksum;
pub use config::{Bytes, ConfigError, DiskConfig, DiskPlace, StoreConfig, parse_size};
pub use error::{Op, Place, SetupError, StoreError};
pub use handle::{Handle, Holder};
pub use inject::{Fault, Inject};
pub use outlet::Outlet;
pub use shared::SharedStore;
