//! A paging server over loopback sockets.

mod common;
mod disk;
mod hostile;
mod keyed;
mod killed;
mod requests;
