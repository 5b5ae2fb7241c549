//! x
pub mod broker;
pub mod capacity;
pub mod election;
pub mod identity;
pub mod latency;
pub mod lease;
pub mod lru_size;
pub mod migration;
pub mod organizer;
pub mod permit;
