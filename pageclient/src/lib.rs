//! The process beside a tree that carries its pages elsewhere: to other machines' memory, or to an object store.
//!
//! A tree's processes reach it by IO channels, as they reach the daemon's disk: the disk's thread ([`disk::usd`]) takes
//! their requests, schedules them, and hands them to a [`disk::usd::Transport`]. What differs is that transport, and what
//! of it outlives the process: a [`PageClient`] has both.
//!
//! | module | what it is |
//! |---|---|
//! | `process` | the process, which opens and closes channels |
//! | `keeper` | its parent, which starts another one |
//! | `kept_header` | the first words of what outlives its processes |
//! | `paging_file` | a local file that has the pages which the transport does not take |
//! | `protocol` | its messages with the supervisor that started it |

mod keeper;
mod kept_header;
mod paging_file;
mod process;
pub mod protocol;

pub use keeper::keep;
pub use kept_header::KeptHeader;
pub use paging_file::PagingFile;
pub use process::{PageClient, ServeError, Serving, serve, start_usd};
