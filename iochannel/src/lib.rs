//! IO channels: how a client's requests reach the user-safe disk, and its answers come back.
//!
//! The FIFO buffering of *Self-Paging in the Nemesis Operating System* (OSDI 1999), section
//! 6.7, between the domain that pages and the process that schedules the disk. A channel is
//! one piece of shared memory: two FIFOs of slot numbers, the request slots, and page
//! buffers that the device reads and writes directly. Each side sleeps on a bell, and is
//! rung only when its word in the memory says that it sleeps.
//!
//! What a request is lies in its slot, whose state word is the one truth:
//!
//! | state | meaning | set by |
//! |---|---|---|
//! | free | nobody's | the client, when it has heard the answer |
//! | submitted, with its place in the FIFO | the server's to serve | the client |
//! | done, with the result | the client's to hear | the server |
//!
//! The FIFOs only say where to look. So a server may be killed at any instruction: its
//! successor finds what is submitted and serves it, again perhaps, which harms nobody, since
//! reads and writes of pages say the same thing twice until the client hears of them; and it
//! tells again of what is done. The client waits, and notices nothing else.
//!
//! The memory is a sealed memfd of the server's, so that its size is certain. A page of it is
//! taken from the kernel when it is first touched, by the client that writes or by the device
//! that reads, hence on the server's account at most: 2 MiB a channel.
//!
//! Rules: a [`Server`] believes nothing it reads. It reads a word once, judges the copy, and
//! acts on that; a client can spoil its own channel and nothing else. A [`Client`] is on the
//! page path: it allocates nothing, takes no lock, makes raw system calls only, and touches
//! wired memory.

// The model uses only the words of the protocol.
#![cfg_attr(all(test, loom), allow(dead_code))]

mod alarm;
mod asking;
mod bits;
mod fifo;
mod request;
mod serving;
mod shape;
mod slot;
mod word;
mod words;

#[cfg(all(test, loom))]
mod interleavings;

// What maps memory is real memory, which loom cannot explore.
#[cfg(not(all(test, loom)))]
mod bell;
#[cfg(not(all(test, loom)))]
mod client;
#[cfg(not(all(test, loom)))]
mod error;
#[cfg(not(all(test, loom)))]
mod memory;
#[cfg(not(all(test, loom)))]
#[cfg(not(all(test, loom)))]
mod pool;
#[cfg(not(all(test, loom)))]
mod server;

pub use request::{Corrupt, Op, Piece, Request};
pub use shape::{BadShape, MAX_PAGES, MAX_SLOTS, RUN, Shape};

#[cfg(not(all(test, loom)))]
pub use bell::Doorbell;
#[cfg(not(all(test, loom)))]
pub use client::Client;
#[cfg(not(all(test, loom)))]
pub use error::ChannelError;
#[cfg(not(all(test, loom)))]
#[cfg(not(all(test, loom)))]
pub use server::{Ends, Server, create};
