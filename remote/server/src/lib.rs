//! The paging server: keeps pages of other machines' programs, under permits.
//!
//! *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp, 1991), section 3.4. From the
//! memory upwards:
//!
//! | module | holds |
//! |---|---|
//! | `frame_arena` | frames that the kernel does not page out, given back when they are free |
//! | `page_index` | which pages of which objects are written |
//! | `page_memory` | the pages: versions, frames, what the disk has |
//! | `permit_issuer` | permits, their seals, their places in the schedule: the one owner of the capacity |
//! | `page_service` | requests of pages: checks and permit arithmetic |
//! | `control_requests`, `demands` | control messages; what the capacity demands of clients |
//! | `disk_file`, `disk_io`, `pending` | the disk's file, its operations, requests that wait for them |
//! | `accept`, `handshakes`, `member_watch` | links with keys, made in threads of their own |
//! | `event_loop`, `turn`, `disk_turn` | the thread: sockets, the schedule, sleep |
//!
//! Rules:
//! - One thread serves all requests and owns all state. Other threads reach it by
//!   [`ServerHandle::with_issuer`].
//! - Requests of pages allocate nothing and take no lock. They are scheduled by the contract of their
//!   permit ([`disk::atropos`]), so that a client delays others by its share at most.
//! - A page read is the page last written, or an error. A write that would exceed its permit is
//!   refused; no page is dropped for room.

mod accept;
mod clients;
mod config;
mod connection;
mod connection_table;
mod control_requests;
mod demands;
mod disk_file;
mod disk_io;
mod disk_turn;
mod event_loop;
mod frame_arena;
mod handshakes;
mod host_memory;
mod log_limit;
mod member_watch;
mod objects;
mod page_index;
mod page_memory;
mod page_service;
mod pending;
mod permit_issuer;
mod poller;
mod recent_connection;
mod refusal;
mod request_cost;
mod server;
mod service_times;
mod turn;
mod wired_table;

pub use accept::{Accept, Accepted};
pub use config::{Acceptor, DiskConfig, HostThresholds, ServerConfig};
pub use connection_table::MAX_CONNECTIONS;
pub use handshakes::KeyedAcceptor;
pub use log_limit::LogLimit;
pub use permit_issuer::{MAX_PERMITS, MAX_PERMITS_OF_CLIENT, PermitIssuer};
pub use refusal::Refusal;
pub use server::{Server, ServerHandle, StartError};
