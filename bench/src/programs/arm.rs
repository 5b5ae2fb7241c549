//! The arms: each is a way to run a program in less memory than it takes. A new one is a variant
//! of [`MemoryArm`], and is set up in `trial.rs`.
//!
//! Every arm has a memory cgroup, whose peak is printed. A cgroup does not count what zram holds, so
//! `ours-ram` has its compressed pages beyond the limit, too, and both print the sum. In all other
//! arms the kernel enforces the limit on everything: the program, our pager processes, page tables
//! and compressed pages.

use crate::prelude::*;

/// A way to run a program in less memory than it takes; its description stands in the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryArm {
    /// all the memory that it takes
    Alone,
    /// all the memory that it takes, mimalloc in place of the C library's allocator, as `run` has it
    AloneMimalloc,
    /// kernel swap on zram with lz4, whose compressed pages are beyond the limit
    Zram,
    /// kernel swap on a file
    Swap,
    /// `selfpage run`, compressed RAM, which is beyond the limit as zram's is
    OursRam,
    /// `selfpage run`, up to half of the frames for compressed pages, disk for the rest
    OursBoth,
    /// `selfpage run`, disk
    OursDisk,
    /// `selfpage run --system`: a contract with the daemon, up to half of the frames for compressed pages, disk
    OursContract,
}

impl MemoryArm {
    /// The arms that are compared by default.
    pub const USUAL: [Self; 7] = [
        Self::Alone,
        Self::Zram,
        Self::Swap,
        Self::OursRam,
        Self::OursBoth,
        Self::OursDisk,
        Self::OursContract,
    ];

    /// The arms of a quick look: without the daemon, which measures the disk first.
    pub const QUICK: [Self; 5] = [
        Self::Alone,
        Self::Zram,
        Self::Swap,
        Self::OursRam,
        Self::OursDisk,
    ];

    /// Returns true if the program runs under `selfpage run`.
    pub fn is_ours(self) -> bool {
        self.rival().is_some()
    }

    /// The kernel's arm that it is judged by: the one whose pages go where its own go.
    pub fn rival(self) -> Option<Self> {
        match self {
            Self::OursRam => Some(Self::Zram),
            Self::OursBoth | Self::OursDisk | Self::OursContract => Some(Self::Swap),
            Self::Alone | Self::AloneMimalloc | Self::Zram | Self::Swap => None,
        }
    }
}

/// Bytes of a limit for everything of ours but frames and compressed pages: the supervisor, its
/// guard, a pager process with its tables for each process that pages, and what of the program is no
/// anonymous memory. SQLite with 47 MiB of frames, as much compressed RAM and 219 MiB on disk took 14 MiB
/// (the peak of its cgroup); a kernel that finds two less ends it.
fn reserve(processes: u64) -> u64 {
    (10 << 20) + processes * (6 << 20)
}

/// What a program has beside its frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpaged {
    /// Processes that page at a time.
    pub processes: u64,
    /// Bytes that it writes in memory that is not paged: private pages of mapped files.
    pub bytes: u64,
}

/// The parts of a limit in an arm of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySplit {
    /// Bytes of frames.
    pub frames: u64,
    /// Bytes of compressed pages at most: beside the frames with [`MemoryArm::OursRam`], else part of them.
    pub ram: u64,
}

impl MemorySplit {
    /// Of `limit` bytes, for a program of `bytes` bytes in so many processes at a time.
    pub fn of(arm: MemoryArm, limit: u64, bytes: u64, unpaged: Unpaged) -> Result<Self> {
        let own = reserve(unpaged.processes) + unpaged.bytes;
        let left = limit.saturating_sub(own);
        if left < MIN_FRAMES {
            bail!(unavailable(format_args!(
                "of {} MiB the pager processes and what is not paged take {}: more data does (--mib)",
                limit >> 20,
                own >> 20
            )));
        }
        let ram = match arm {
            MemoryArm::OursRam => bytes * 3 / 2,
            MemoryArm::OursBoth | MemoryArm::OursContract => left / 2,
            _ => 0,
        };
        Ok(Self { frames: left, ram })
    }
}

/// Fewer frames than these bytes hold make no pager: every stream would bring in one page a fault.
const MIN_FRAMES: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_has_a_name_and_a_description() {
        for arm in MemoryArm::value_variants() {
            assert_eq!(MemoryArm::from_str(&arm.name(), false), Ok(*arm));
            assert!(!arm.about().is_empty(), "{arm:?}");
        }
    }

    #[test]
    fn only_our_arms_are_judged_and_only_by_the_kernels() {
        for arm in MemoryArm::value_variants() {
            assert_eq!(arm.is_ours(), arm.name().starts_with("ours"));
            assert!(arm.rival().is_none_or(|rival| !rival.is_ours()));
        }
    }

    #[test]
    fn what_is_within_a_limit_is_no_more_than_the_limit() {
        let (limit, bytes) = (64 << 20, 256 << 20);
        let unpaged = Unpaged {
            processes: 1,
            bytes: 4 << 20,
        };
        for arm in MemoryArm::USUAL.into_iter().filter(|arm| arm.is_ours()) {
            let split = MemorySplit::of(arm, limit, bytes, unpaged).unwrap();
            assert_eq!(split.frames + reserve(1) + unpaged.bytes, limit, "{arm:?}");
        }
        let refused = MemorySplit::of(MemoryArm::OursContract, 8 << 20, bytes, unpaged);
        assert!(refused.unwrap_err().to_string().contains("--mib"));
    }
}
