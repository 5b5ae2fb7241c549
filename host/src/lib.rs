//! Linux's interfaces to processes: control groups, /proc, reservations of processor time, the seccomp
//! filter of a tree, and sockets that pass descriptors.
//!
//! Rule: the modules that a preloaded library uses, between vfork and exec or in a fork's child,
//! allocate nothing: [`seqpacket`], [`elf_check`], [`seccomp::call`].

pub mod address_spaces;
pub mod boot;
pub mod cgroup_membership;
pub mod cpu_reservation;
pub mod descriptor_limit;
pub mod direct_io;
pub mod elf_check;
pub mod epoll_set;
pub mod fd_reaper;
pub mod fd_store;
pub mod group_memory;
pub mod killed_process;
pub mod lent_priority;
pub mod process_tree;
pub mod procfs;
pub mod restart_policy;
pub mod seccomp;
pub mod seqpacket;
pub mod signals;
pub mod socket_reaper;
pub mod systemd;
mod unpageable;
pub mod wiring;

pub use elf_check::{pageable, pageable_with_ids_reset};
pub use unpageable::Unpageable;

/// The error (errno) of this thread's last call of the C library.
pub fn last_errno() -> rustix::io::Errno {
    let error = std::io::Error::last_os_error();
    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
}
