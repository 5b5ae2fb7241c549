//! The kernel's part of `selfpage doctor`: which features work here, what the pager chooses
//! because of them, and the remedy for each missing feature.

use rustix::io::Errno;
use std::fmt;
use translation::probe::{MissingFeature, Probe, UffdSource};
use translation::{Capabilities, Feature, UnknownFeature};

/// A [`Probe`] and the choices that follow from it; displays as text.
#[derive(Clone, Debug)]
pub struct KernelReport {
    probe: Probe,
    /// The probed features less those that `SELFPAGE_WITHOUT` switches off.
    used: Capabilities,
    /// `vm.max_map_count`, where it can be read: the limit on a process's mappings, of which
    /// each staging slot takes one.
    max_mappings: Option<u64>,
}

/// Linux's default of `vm.max_map_count`; the report warns below it.
const MIN_MAPPINGS: u64 = 65_530;

impl KernelReport {
    /// Probes the kernel and switches off the features that `without` names (the value of
    /// `SELFPAGE_WITHOUT`).
    pub fn gather(without: &str) -> Result<Self, UnknownFeature> {
        let probe = Capabilities::probe();
        let used = probe.capabilities.without_list(without)?;
        let max_mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count")
            .ok()
            .and_then(|n| n.trim().parse().ok());
        Ok(Self {
            probe,
            used,
            max_mappings,
        })
    }

    /// Returns true if a linked program can page itself (upcall).
    fn linked_programs_page(&self) -> bool {
        self.used.has(Feature::Upcall) && self.used.has(Feature::Stage)
    }

    /// Returns true if unmodified programs can be paged (`selfpage run`).
    pub fn unmodified_programs_page(&self) -> bool {
        self.used.has(Feature::KernelFaults) && self.used.has(Feature::Stage)
    }
}

impl fmt::Display for KernelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {}", self.probe.kernel)?;
        let how = match self.probe.source {
            UffdSource::Syscall => "by userfaultfd(2)",
            UffdSource::Device => "by /dev/userfaultfd",
            UffdSource::UserModeOnly => "by userfaultfd(2), user mode only",
            UffdSource::Nothing => "not at all",
        };
        writeln!(f, "userfaultfd: {how}\n")?;
        for feature in Feature::ALL {
            let state = match (self.probe.capabilities.has(feature), self.used.has(feature)) {
                (true, true) => "works",
                (true, false) => "works, switched off by SELFPAGE_WITHOUT",
                (false, _) => "missing",
            };
            writeln!(f, "  {feature:<24}{state}")?;
        }
        writeln!(f, "\nchosen:")?;
        for line in self.choices() {
            writeln!(f, "  {line}")?;
        }
        if let Some(count) = self.max_mappings.filter(|count| *count < MIN_MAPPINGS) {
            writeln!(
                f,
                "\nvm.max_map_count is {count}: staging needs a mapping for each slot"
            )?;
            writeln!(f, "  fix: sysctl -w vm.max_map_count=262144")?;
        }
        for missing in &self.probe.missing {
            let (consequence, remedy) = consequence_and_remedy(missing);
            writeln!(f, "\n{} is missing: {}", missing.feature, reason(missing))?;
            writeln!(f, "  so: {consequence}")?;
            writeln!(f, "  fix: {remedy}")?;
        }
        Ok(())
    }
}

impl KernelReport {
    fn choices(&self) -> Vec<&'static str> {
        let used = self.used;
        let pick = |held: bool, yes, no| if held { yes } else { no };
        vec![
            pick(
                self.linked_programs_page(),
                "linked programs page themselves by upcall, without privilege",
                "linked programs cannot page themselves",
            ),
            pick(
                self.unmodified_programs_page(),
                "unmodified programs run under `selfpage run` (thread entry)",
                "`selfpage run` refuses: faults inside system calls cannot be resolved",
            ),
            pick(
                used.may_evict(true),
                "direct I/O: pinned pages are detected (move) and stay resident",
                "direct I/O: eviction stops for good once a program can do it",
            ),
            pick(
                used.has(Feature::Poison),
                "lost pages: poisoned in place",
                "lost pages: replaced by a mapping of an empty file",
            ),
            pick(
                used.has(Feature::BatchDiscard),
                "discards: in batches",
                "discards: one by one",
            ),
            pick(
                used.has(Feature::PagemapScan),
                "page states: by scan",
                "page states: by reading pagemap",
            ),
        ]
    }
}

/// Why `feature` is missing, what fails without it and how to get it, in one line.
pub fn explain(missing: &MissingFeature) -> String {
    let (consequence, remedy) = consequence_and_remedy(missing);
    format!("{consequence} ({}). To fix it: {remedy}", reason(missing))
}

fn reason(missing: &MissingFeature) -> String {
    match missing.errno {
        Errno::PROTO => "the kernel accepts the call but its effect is wrong".into(),
        Errno::NOSYS => "this kernel does not have it".into(),
        other => format!("the trial failed: {other}"),
    }
}

fn consequence_and_remedy(missing: &MissingFeature) -> (&'static str, &'static str) {
    match missing.feature {
        Feature::Upcall => (
            "linked programs cannot page themselves",
            "a kernel of 5.11 or later with CONFIG_USERFAULTFD=y; in a container: --security-opt seccomp=unconfined",
        ),
        Feature::KernelFaults => (
            "unmodified programs cannot be paged: a system call given a missing page would fail",
            "as root: sysctl -w vm.unprivileged_userfaultfd=1   (or: chmod 666 /dev/userfaultfd); to stay: \
             echo vm.unprivileged_userfaultfd=1 > /etc/sysctl.d/70-selfpage.conf",
        ),
        Feature::Stage => ("no program can be paged", "a kernel of 5.7 or later"),
        Feature::Move => (
            "once a program can do direct I/O, none of its pages are evicted",
            "a kernel of 6.8 or later (Debian 12: apt install -t bookworm-backports linux-image-amd64)",
        ),
        Feature::Poison => (
            "a lost page costs a mapping of its own",
            "a kernel of 6.6 or later",
        ),
        Feature::BatchDiscard => (
            "each discarded range flushes the TLB by itself",
            "a kernel of 6.14 or later",
        ),
        Feature::PagemapScan => (
            "page states are read page by page, and dirty pages are not known",
            "a kernel of 6.7 or later",
        ),
        Feature::ThreadId => (
            "faults do not name their thread",
            "a kernel of 4.14 or later",
        ),
        Feature::WpAsync => (
            "dirty pages are found by checksum only, which is the default anyway",
            "a kernel of 6.7 or later",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(feature: Feature, errno: Errno) -> MissingFeature {
        MissingFeature { feature, errno }
    }

    #[test]
    fn each_missing_feature_has_a_reason_a_consequence_and_a_remedy() {
        for feature in Feature::ALL {
            for errno in [Errno::PERM, Errno::NOSYS, Errno::PROTO, Errno::INVAL] {
                let missing = missing(feature, errno);
                let (consequence, remedy) = consequence_and_remedy(&missing);
                assert!(!reason(&missing).is_empty());
                assert!(!consequence.is_empty() && !remedy.is_empty());
            }
        }
        let denied = |feature| explain(&missing(feature, Errno::PERM));
        assert!(denied(Feature::KernelFaults).contains("sysctl -w vm.unprivileged_userfaultfd=1"));
        assert!(denied(Feature::Upcall).contains("seccomp=unconfined"));
    }

    #[test]
    fn the_report_shows_what_was_switched_off() {
        let report = KernelReport::gather("move,poison").unwrap();
        assert!(!report.used.has(Feature::Move) && !report.used.has(Feature::Poison));
        let text = report.to_string();
        if report.probe.capabilities.has(Feature::Move) {
            assert!(text.contains("switched off by SELFPAGE_WITHOUT"));
        }
        assert!(text.contains("eviction stops for good"));
        let unknown = KernelReport::gather("no-such-thing").unwrap_err();
        assert!(unknown.to_string().contains("no-such-thing"));
    }

    #[test]
    fn no_program_pages_without_userfaultfd() {
        let report = KernelReport {
            probe: Probe {
                capabilities: Capabilities::NONE,
                kernel: "6.1".into(),
                source: UffdSource::Nothing,
                missing: Feature::ALL
                    .map(|feature| missing(feature, Errno::PERM))
                    .into(),
            },
            used: Capabilities::NONE,
            max_mappings: None,
        };
        assert!(!report.linked_programs_page() && !report.unmodified_programs_page());
        assert!(report.to_string().contains("seccomp=unconfined"));
    }
}
