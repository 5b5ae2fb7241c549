//! The remote client: pages of a tree of processes in the memory of paging servers.
//!
//! *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp, 1991), the client's side. A
//! tree's processes reach it by IO channels, as they reach the daemon's disk: the disk's thread
//! ([`disk::usd`]) takes their requests, schedules them by Atropos, and hands them to a
//! [`disk::usd::Transport`], which speaks to servers.
//!
//! | module | what it is |
//! |---|---|
//! | `objects`, `page_records`, `page_cipher` | the space, cut into paging objects; their copies; versions and hashes of pages; their encryption |
//! | `requests` | what is under way |
//! | `server`, `open_link`, `connector` | one server: permit, what was asked; its connection, and what waits to be sent; the thread that connects to it |
//! | `transport`, `pages`, `send_queue`, `refusals`, `copies` | the transport: links and time; requests of pages; the order in which they are sent; those that are refused; copies of objects |
//! | `reading`, `degraded` | where reads go, also those whose server is late; reads from the other parts of a stripe |
//! | `outage`, `silence` | when a server is given up, and when this host's own network may be out |
//! | `placement`, `placement_refusals`, `permits`, `notices`, `copying` | which servers get copies; objects that none takes in; under which permits; what servers demand of these, and how copies get their pages |
//! | `background` | when these are moved, beside the tree's own pages |
//! | `stripes`, `stripe_gathering`, `stripe_job`, `stripe_code`, `stripe_state` | cold objects on one server each, beside their parities; how they get there; pages of these; their code; what is kept of them |
//! | `broker_link`, `arrival`, `usage`, `progress` | the thread that asks the broker; what arrives from threads; what is reported, and counted |
//! | `process`, `start` | the process, which is a `pageclient`; its first servers |
//! | `client_state`, `restore` | what another process goes on from |
//!
//! Rules:
//! - Processes get no socket, key or heap on their page paths: only an IO channel.
//! - A page read is the page last written, or an error. `objects` and `page_records` have the rules that make it so.
//! - Requests of pages allocate nothing. Objects and permits do, once for each 16 MiB.

mod arrival;
mod background;
mod broker_link;
mod client_state;
mod connector;
mod copies;
mod copying;
mod degraded;
mod notices;
mod objects;
mod open_link;
mod outage;
mod page_cipher;
mod page_records;
mod pages;
mod permits;
mod placement;
mod placement_refusals;
mod process;
mod progress;
mod reading;
mod refusals;
mod requests;
mod restore;
mod send_queue;
mod server;
mod silence;
mod start;
mod stripe_code;
mod stripe_gathering;
mod stripe_job;
mod stripe_state;
mod stripes;
mod transport;
mod usage;
mod waiting;

pub use broker_link::ServerSource;
pub use objects::OBJECT_PAGES;
pub use process::{ClientError, MAX_SERVERS, RemoteConfig, keep, run};
pub use progress::ClientProgress;
