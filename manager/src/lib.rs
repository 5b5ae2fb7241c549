//! The memory manager: a pager outside its clients, for memory that cannot carry its own pager.
//!
//! *Moving the Default Memory Manager out of the Mach Kernel* (Golub and Draves, USENIX Mach Symposium 1991):
//! a user task answers the page faults of other tasks' memory objects, wired, so that it never waits for
//! itself. Here the objects are the memories of microVMs restored from a snapshot, and memfds; a client hands
//! its userfaultfd over on a UNIX socket ([`peer`], [`handoff`]).
//!
//! | paper | here |
//! |---|---|
//! | memory object; data request, provided, unavailable, error, write (3) | [`memory_object`] |
//! | memory object of a file | [`snapshot::Snapshot`] |
//! | temporary memory object, default memory manager (3, 5) | [`paging_object::PagingObject`], over a store of the client's own |
//! | create, terminate | a hand-off ([`peer::Peer`]) that is admitted, and the end of the address space |
//! | the kernel's half: faults, replacement | [`client::HandlerThread`] |
//! | wired memory and threads (4, 5.4) | [`wire_pager`]: mlockall, PR_SET_IO_FLUSHER, oom_score_adj |
//!
//! **Contracts.** Each client has its own handler thread and userfaultfd, so there is no queue of all
//! clients' faults. It has frames, kept by evicting into a store of its own; and turns of the disk, which
//! Atropos schedules for all clients ([`disk_turns`]). Replacement is the pager's (`selfpage::ScanResistant`)
//! by units of 64 pages, with the last evicted units as the standby list ([`standby`]).
//!
//! **Kinds of memory** ([`client_memory`]). What this kernel permits a handler was measured first
//! (`cargo run --release -p translation --example foreign_modes`; Linux 6.18, 2 processors of an AMD EPYC,
//! beside other work):
//!
//! | | private | memfd, shared | private mapping of a memfd |
//! |---|---|---|---|
//! | registering write protection and minor faults from outside | the first | both | both |
//! | fault by COPY; by ZEROPAGE; by CONTINUE | 5 to 17; 5; - us | 7; 5 to 28; 15 us | 18; 4; 5 us |
//! | eviction | none: `process_madvise(MADV_DONTNEED)` is EINVAL | hole punched: 1.0 us a page, 0.3 in runs of 64 | none |
//! | clean pages shared by clones | none | none | all (CONTINUE maps the page cache) |
//! | write-protecting 16 MiB; a store to a protected page | 0.5 ms; 4.8 us | 0.5 ms; 4.6 us | 0.5 ms; 4 to 20 us |
//!
//! A fault costs the lower figure where client and manager run on one processor. So frames are enforced for a
//! memfd, and refused for private memory that is larger; clones share through [`client_memory::SharedCache`].
//!
//! **Costs** (`cargo run -p manager --example manager_costs`, the same machine beside other work, a client that
//! touches 64 MiB in order): a fault on the snapshot 12 us; in a quarter of the frames 39 us a page with
//! compressed RAM, 189 us with a disk, of which nothing is read ahead. The manager takes 688 kB at rest and
//! 242 kB for each client of 64 MiB.
//!
//! **Order.** All events are read before a fault is answered ([`client`]), and the kernel defers an answer
//! while an event is unread, so a page that was discarded reads zero whatever is in flight.
//!
//! **Working sets** ([`recording`]): the pages that the first guest faults on are recorded beside the snapshot
//! and brought in, sorted and in runs, for the next.
//!
//! **Saves** ([`save`], `client/saving.rs`): write protection fixes the moment, pages are saved between faults.
//!
//! **Restart** ([`keeper`], [`client_record`], `client/resume.rs`): a manager that is killed is followed by another, and
//! clients lose nothing. The kernel does not repeat an event that was read, so messages are read into memory that
//! outlives the reader. Where systemd has a descriptor store for the service, they lose nothing when the keeper is killed,
//! too ([`kept_service`], [`former_service`]).
//!
//! **Shared memory** of a process tree ([`shared_memory`]) is served likewise, by one thread of the supervisor's.
//!
//! Not built: shared memory with a descriptor or a name (memfds, POSIX and System V shared memory), remote and object-store
//! snapshots, a boot image, eviction ahead of need, several handler threads for one client.
//!
//! Units: pages are 4 KiB or, for huge pages, 2 MiB; frames are 4 KiB. Errors: a refused hand-off is logged
//! with its reason and the connection closed; a lost page is poisoned, so that its access fails (SIGBUS).

mod admission;
mod arrivals;
pub mod client;
pub mod client_memory;
pub mod client_record;
pub mod commands;
pub mod control;
pub mod counters;
pub mod disk_turns;
pub mod former_service;
pub mod handoff;
pub mod keeper;
pub mod keeper_link;
mod kept_place;
pub mod kept_service;
mod manager_process;
pub mod manager_record;
mod manager_state;
pub mod memory_object;
pub mod page_table;
pub mod paging_object;
pub mod peer;
mod pending_handoffs;
pub mod recording;
pub mod save;
pub mod server;
pub mod shared_memory;
pub mod snapshot;
pub mod sockets;
pub mod standby;
pub mod stored_name;
mod unreadable;

pub use admission::AdmissionRefusal;
pub use host::wiring::wire_pager;
pub use manager_state::ClientEntry;
