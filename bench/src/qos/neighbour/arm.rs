//! The arms: each is a way to have a program that must answer beside one that pages hard.

use crate::prelude::*;

/// A way to keep two programs apart; its description stands in the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Arm {
    /// `selfpage run --system`: frames and disk time by contract
    System,
    /// `selfpage run` with a store of its own: frames by contract, the disk as it comes
    Run,
    /// kernel swap, a memory cgroup each
    Swap,
    /// kernel swap, a memory cgroup each, the neighbour's requests throttled to its share
    SwapThrottle,
    /// kernel swap, a memory cgroup each, BFQ with weights in proportion to the shares
    SwapBfq,
}
