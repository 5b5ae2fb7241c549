//! The arms: each is a way to have a program that must answer beside one that pages hard.

use crate::prelude::*;

/// A way to keep two programs apart; its description stands in the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Arm {
    /// `selfpage run --system --ram 0`: frames and disk time by contract
    System,
    /// the same, and the neighbour has slack time, too
    SystemExtra,
    /// `selfpage run --system`: as `system`, with compressed RAM in the frames
    SystemRam,
    /// `selfpage run` with a store of its own: frames by contract, the disk as it comes
    Run,
    /// kernel swap, a memory cgroup each
    Swap,
    /// half of the memory for zram (lz4) before kernel swap, a memory cgroup each of the other half
    SwapZram,
    /// kernel swap, a memory cgroup each, the neighbour's requests throttled to its share
    SwapThrottle,
    /// kernel swap, a memory cgroup each, BFQ with weights in proportion to the shares
    SwapBfq,
}

impl Arm {
    /// Whether a figure of this arm is compared with one of `other`: ours with those of the kernel's
    /// that have as much compressed RAM.
    pub fn is_compared_with(self, other: Self) -> bool {
        match self {
            Self::System | Self::SystemExtra => {
                matches!(
                    other,
                    Self::Run | Self::Swap | Self::SwapThrottle | Self::SwapBfq
                )
            }
            Self::SystemRam => other == Self::SwapZram,
            _ => false,
        }
    }
}
