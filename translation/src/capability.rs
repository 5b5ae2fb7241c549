//! Features of the running kernel that this process may use.
//!
//! Rule: a newer feature is used only where a trial succeeded ([`crate::probe`]), and each can be
//! switched off, so that its fallback is tested on any kernel.

use std::fmt;
use std::str::FromStr;

/// A feature that some kernels lack or some users may not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Feature {
    /// A fault is delivered as SIGBUS to the faulting thread (`UFFD_FEATURE_SIGBUS`).
    Upcall,
    /// A fault read from the descriptor names its thread (`UFFD_FEATURE_THREAD_ID`).
    ThreadId,
    /// A missing page can be made to fail on access (`UFFDIO_POISON`, Linux 6.6).
    Poison,
    /// Pages move between two mappings without a copy (`UFFDIO_MOVE`, Linux 6.8).
    Move,
    /// The kernel itself resolves and records write-protect faults, of holes too
    /// (`UFFD_FEATURE_WP_ASYNC`, Linux 6.7).
    WpAsync,
    /// One call returns the page states of a range (`PAGEMAP_SCAN`, Linux 6.7).
    PagemapScan,
    /// Scattered ranges discarded with one TLB flush (`process_madvise(MADV_DONTNEED)`
    /// on the process itself, named by `PIDFD_SELF`; Linux 6.14).
    BatchDiscard,
    /// A range leaves registered memory by `mremap(MREMAP_DONTUNMAP)` and the source
    /// stays registered (Linux 5.7).
    Stage,
    /// Faults taken inside system calls can be resolved: the descriptor is not user-mode-only.
    KernelFaults,
}

impl Feature {
    /// Every feature, in the order `doctor` shows them.
    pub const ALL: [Feature; 9] = [
        Feature::Upcall,
        Feature::KernelFaults,
        Feature::Stage,
        Feature::Move,
        Feature::Poison,
        Feature::BatchDiscard,
        Feature::PagemapScan,
        Feature::ThreadId,
        Feature::WpAsync,
    ];

    /// The name used in `SELFPAGE_WITHOUT` and by `doctor`.
    pub const fn name(self) -> &'static str {
        match self {
            Feature::Upcall => "upcall",
            Feature::ThreadId => "thread-id",
            Feature::Poison => "poison",
            Feature::Move => "move",
            Feature::WpAsync => "wp-async",
            Feature::PagemapScan => "pagemap-scan",
            Feature::BatchDiscard => "batch-discard",
            Feature::Stage => "stage",
            Feature::KernelFaults => "kernel-faults",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u8
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An unknown feature name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown kernel feature {0:?}; expected one of upcall, kernel-faults, stage, move, poison, batch-discard, \
     pagemap-scan, thread-id, wp-async"
)]
pub struct UnknownFeature(pub String);

impl FromStr for Feature {
    type Err = UnknownFeature;
    fn from_str(name: &str) -> Result<Self, UnknownFeature> {
        let wanted = name.trim().to_ascii_lowercase().replace('_', "-");
        Self::ALL
            .into_iter()
            .find(|f| f.name() == wanted)
            .ok_or_else(|| UnknownFeature(name.trim().to_owned()))
    }
}

/// A set of [`Feature`]s.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Capabilities {
    bits: u32,
}

impl Capabilities {
    /// No feature at all.
    pub const NONE: Self = Self { bits: 0 };

    /// Returns true if the set contains `feature`.
    pub const fn has(&self, feature: Feature) -> bool {
        self.bits & feature.bit() != 0
    }

    /// The same, with `feature`.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Self {
        Self {
            bits: self.bits | feature.bit(),
        }
    }

    /// The same, without `feature`: as on a kernel that lacks it.
    #[must_use]
    pub const fn without(self, feature: Feature) -> Self {
        Self {
            bits: self.bits & !feature.bit(),
        }
    }

    /// The same, without the comma-separated features of `list`, the value of
    /// `SELFPAGE_WITHOUT`. Empty names are skipped.
    pub fn without_list(self, list: &str) -> Result<Self, UnknownFeature> {
        list.split(',')
            .filter(|name| !name.trim().is_empty())
            .try_fold(self, |c, name| Ok(c.without(name.parse()?)))
    }

    /// The features that both sets have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            bits: self.bits & other.bits,
        }
    }

    /// Without the feature that a pager can start without, as [`Capabilities::probe_fast`] probes.
    #[must_use]
    pub const fn for_start(self) -> Self {
        self.without(Feature::WpAsync)
    }

    /// The bits, for another process of the same program.
    pub const fn bits(&self) -> u32 {
        self.bits
    }

    /// The set of [`Capabilities::bits`].
    pub const fn from_bits(bits: u32) -> Self {
        Self { bits }
    }

    /// Returns true if pages may be evicted. A page that a device is writing to (direct I/O) and
    /// that leaves loses what the device writes later, and only `UFFDIO_MOVE`
    /// detects such a page. So pages may be evicted always while the process cannot do direct I/O;
    /// once it can, only with [`crate::separate_pinned`].
    pub const fn may_evict(&self, direct_io_possible: bool) -> bool {
        !direct_io_possible || self.has(Feature::Move)
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(Feature::ALL.into_iter().filter(|x| self.has(*x)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_found_by_its_name() {
        for feature in Feature::ALL {
            assert_eq!(feature.name().parse(), Ok(feature));
        }
        assert_eq!("Batch_Discard".parse(), Ok(Feature::BatchDiscard));
    }

    #[test]
    fn a_list_switches_features_off_and_an_unknown_name_is_an_error() {
        let all = Feature::ALL
            .into_iter()
            .fold(Capabilities::NONE, Capabilities::with);
        let fewer = all.without_list(" move, poison,,").unwrap();
        assert!(
            !fewer.has(Feature::Move) && !fewer.has(Feature::Poison) && fewer.has(Feature::Stage)
        );
        assert_eq!(all.without_list("mvoe"), Err(UnknownFeature("mvoe".into())));
        assert_eq!(all.without_list(""), Ok(all));
    }

    #[test]
    fn without_move_nothing_is_evicted_once_direct_io_is_possible() {
        let all = Feature::ALL
            .into_iter()
            .fold(Capabilities::NONE, Capabilities::with);
        assert!(all.may_evict(true));
        assert!(!all.without(Feature::Move).may_evict(true));
        assert!(Capabilities::NONE.may_evict(false));
    }
}
