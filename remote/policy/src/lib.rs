//! x
pub mod broker;
pub mod capacity;
pub mod election;
pub mod identity;
pub mod lease;
pub mod lru_size;
pub mod permit;
