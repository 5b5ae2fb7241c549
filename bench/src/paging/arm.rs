//! The arms: each is a way to have more data than memory. A new one is a variant of
//! [`Arm`] and its line in [`Arm::needs`].

use crate::prelude::*;
use selfpage::EntryKind;

/// A way to have more data than memory; its description stands in the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Arm {
    /// linked program, upcalls, compressed RAM
    LinkedRam,
    /// linked program, upcalls, disk
    LinkedDisk,
    /// linked program, upcalls, compressed RAM for half of the data, disk for the rest
    LinkedBoth,
    /// linked program, upcalls, compressed RAM, frames of 2 MiB
    LinkedHuge,
    /// linked program, handler threads, compressed RAM
    ThreadRam,
    /// linked program, handler threads, disk
    ThreadDisk,
    /// linked program, handler threads, compressed RAM for half of the data, disk for the rest
    ThreadBoth,
    /// unmodified program under `selfpage run`, compressed RAM
    RunRam,
    /// unmodified program under `selfpage run`, disk
    RunDisk,
    /// unmodified program under `selfpage run`, compressed RAM for half of the data, disk for the rest
    RunBoth,
    /// as run-ram, the data in shared memory, which the memory manager pages from outside the program
    SharedRam,
    /// as run-disk, the data in shared memory, which the memory manager pages from outside the program
    SharedDisk,
    /// kernel swap on zram with lz4, vm.page-cluster as it is here
    SwapZram,
    /// kernel swap on zram with lz4, vm.page-cluster 0: no read-ahead, zram's best for random accesses
    SwapZramSingle,
    /// kernel swap on a file
    SwapFile,
    /// shared mapping of a file
    Mmap,
    /// shared mapping of a file with MADV_RANDOM
    MmapRandom,
    /// direct reads and writes, 1 MiB in order and 4 KiB otherwise, one at a time for each thread
    Device,
    /// everything in memory
    Resident,
}

/// Where ours keeps pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Compressed RAM.
    Ram,
    /// A file.
    Disk,
    /// Compressed RAM for half of the data, then a file.
    Both,
}

/// Where the kernel swaps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapMedium {
    /// A file.
    File,
    /// zram with lz4; with vm.page-cluster set to this.
    Zram(Option<u32>),
}

/// What an arm's work needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendNeeds {
    /// A domain in the worker.
    Linked(EntryKind, Medium),
    /// The same with upcalls, by frames of 2 MiB.
    Huge(Medium),
    /// `selfpage run` in front of the worker.
    Run(Medium),
    /// The same, with shared memory.
    RunShared(Medium),
    /// A cgroup and swap.
    Swap(SwapMedium),
    /// A cgroup and a file.
    Mapped {
        /// With MADV_RANDOM.
        random: bool,
    },
    /// A file.
    Device,
    /// Nothing.
    Resident,
}

impl Arm {
    /// What it needs.
    pub fn needs(self) -> BackendNeeds {
        use EntryKind::{Thread, Upcall};
        use Medium::{Both, Disk, Ram};
        match self {
            Self::LinkedRam => BackendNeeds::Linked(Upcall, Ram),
            Self::LinkedDisk => BackendNeeds::Linked(Upcall, Disk),
            Self::LinkedBoth => BackendNeeds::Linked(Upcall, Both),
            Self::LinkedHuge => BackendNeeds::Huge(Ram),
            Self::ThreadRam => BackendNeeds::Linked(Thread, Ram),
            Self::ThreadDisk => BackendNeeds::Linked(Thread, Disk),
            Self::ThreadBoth => BackendNeeds::Linked(Thread, Both),
            Self::RunRam => BackendNeeds::Run(Ram),
            Self::RunDisk => BackendNeeds::Run(Disk),
            Self::RunBoth => BackendNeeds::Run(Both),
            Self::SharedRam => BackendNeeds::RunShared(Ram),
            Self::SharedDisk => BackendNeeds::RunShared(Disk),
            Self::SwapZram => BackendNeeds::Swap(SwapMedium::Zram(None)),
            Self::SwapZramSingle => BackendNeeds::Swap(SwapMedium::Zram(Some(0))),
            Self::SwapFile => BackendNeeds::Swap(SwapMedium::File),
            Self::Mmap => BackendNeeds::Mapped { random: false },
            Self::MmapRandom => BackendNeeds::Mapped { random: true },
            Self::Device => BackendNeeds::Device,
            Self::Resident => BackendNeeds::Resident,
        }
    }

    /// Returns true if it is ours.
    pub fn ours(self) -> bool {
        self.medium().is_some()
    }

    fn medium(self) -> Option<Medium> {
        match self.needs() {
            BackendNeeds::Linked(_, medium)
            | BackendNeeds::Huge(medium)
            | BackendNeeds::Run(medium)
            | BackendNeeds::RunShared(medium) => Some(medium),
            _ => None,
        }
    }

    /// Those it is compared with, on the same medium; huge frames with small ones, too.
    pub fn rivals(self) -> &'static [Self] {
        match self.medium() {
            _ if self == Self::LinkedHuge => &[Self::LinkedRam, Self::SwapZram],
            // Table 7-1 of the memory manager's paper: outside the program and inside.
            _ if self == Self::SharedRam => &[Self::RunRam, Self::SwapZram],
            _ if self == Self::SharedDisk => &[Self::RunDisk, Self::SwapFile],
            Some(Medium::Ram) => &[Self::SwapZram, Self::SwapZramSingle],
            Some(Medium::Disk) => &[Self::SwapFile, Self::MmapRandom, Self::Device],
            Some(Medium::Both) => &[Self::SwapZram, Self::SwapFile],
            None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_has_a_name_a_description_and_a_way_of_its_own() {
        for arm in Arm::value_variants() {
            assert_eq!(Arm::from_str(&arm.name(), false), Ok(*arm));
            assert!(!arm.about().is_empty(), "{arm:?}");
            let same = Arm::value_variants()
                .iter()
                .filter(|a| a.needs() == arm.needs());
            assert_eq!(same.count(), 1, "{arm:?}");
        }
    }

    #[test]
    fn only_our_arms_are_compared_with_the_alternatives() {
        for arm in Arm::value_variants() {
            assert_eq!(arm.ours(), !arm.rivals().is_empty());
            let with_ours = [Arm::LinkedHuge, Arm::SharedRam, Arm::SharedDisk].contains(arm);
            let theirs = |rival: &Arm| !rival.ours() || with_ours;
            assert!(arm.rivals().iter().all(theirs));
        }
    }
}
