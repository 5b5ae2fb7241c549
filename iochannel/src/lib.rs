//! IO channels: the path of a client's requests to the user-safe disk, and of its completions.
//!
//! The FIFO buffering of *Self-Paging in the Nemesis Operating System* (OSDI 1999), section 6.7,
//! between the domain that pages and the process that schedules the disk. A channel is shared
//! memory: two FIFOs of slot numbers, the request slots, and page buffers that the device reads
//! and writes directly. Each side sleeps on a file descriptor, and is rung only when its word in
//! the memory shows that it sleeps.
//!
//! A request is in its slot, whose state word is authoritative:
//!
//! | state | meaning | set by |
//! |---|---|---|
//! | free | unused | the client, when it has reaped the completion |
//! | submitted, with its position in the FIFO | to be served by the server | the client |
//! | done, with the result | to be reaped by the client | the server |
//!
//! The FIFOs are only hints where to look. So a server may be killed at any instruction: its
//! successor finds the submitted slots and serves them, some perhaps twice, which is harmless,
//! since reads and writes of pages are idempotent until the client reaps them; and it publishes
//! done slots again. The client waits, and notices nothing else.
//!
//! A client that drops its end with nothing in flight puts one last number, which names no slot: the
//! server, or its successor, closes the channel when it reads that number.
//!
//! The memory is a memfd that the server made and sealed, so that its size is certain. Its pages
//! are allocated when they are first touched, by the client that writes or by the device that
//! reads, hence charged to the server in the worst case: 2 MiB a channel.
//!
//! Rules: a [`ChannelServer`] trusts nothing it reads. It reads a word once, validates the copy,
//! and acts on that; a client can corrupt its own channel and nothing else. A [`ChannelClient`] is
//! on the page path: it allocates nothing, takes no lock, makes raw system calls only, and touches
//! wired memory.

// The model uses the protocol's words only.
#![cfg_attr(all(test, loom), allow(dead_code))]

mod atomics;
mod bitset;
mod fifo;
mod geometry;
mod need_wakeup;
mod request;
mod service_queue;
mod shared_words;
mod slot;
mod submission_queue;

#[cfg(all(test, loom))]
mod interleavings;

// These modules map real memory, which loom cannot explore.
#[cfg(not(all(test, loom)))]
mod buffer_pool;
#[cfg(not(all(test, loom)))]
mod client;
#[cfg(not(all(test, loom)))]
mod doorbell;
#[cfg(not(all(test, loom)))]
mod error;
#[cfg(not(all(test, loom)))]
mod memory;
#[cfg(not(all(test, loom)))]
mod server;
#[cfg(not(all(test, loom)))]
mod threads;

pub use bitset::BitSet;
pub use geometry::{ChannelGeometry, GeometryError, MAX_PAGES, MAX_RUN, MAX_SLOTS};
pub use request::{IoVec, Op, ProtocolError, Request};

#[cfg(not(all(test, loom)))]
pub use client::ChannelClient;
#[cfg(not(all(test, loom)))]
pub use doorbell::{Doorbell, holds_descriptors};
#[cfg(not(all(test, loom)))]
pub use error::ChannelError;
#[cfg(not(all(test, loom)))]
pub use server::{ChannelServer, ClientFds, create};
#[cfg(not(all(test, loom)))]
pub use threads::ClaimedThreads;
