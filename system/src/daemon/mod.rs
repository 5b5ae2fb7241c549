//! The system domain as a daemon.

pub mod access;
pub mod config;
pub mod enforce;
pub mod systemd;
