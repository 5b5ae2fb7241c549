//! A paging server over loopback sockets.

mod common;
mod disk;
mod hostile;
mod killed;
mod requests;
