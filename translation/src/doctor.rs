//! What an operator is told: what works here, what is chosen, and what mends the rest.

use crate::capability::{Capabilities, Feature, UnmapMethod};
use crate::probe::{Lack, Obtained, Probe};
use rustix::io::Errno;
use std::fmt;

/// A [`Probe`] as text, and what is chosen from it.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was found.
    pub probe: Probe,
    /// What is used: the same, less what the operator switched off.
    pub used: Capabilities,
    /// `vm.max_map_count`, where it can be read: a process may have so many mappings, and
    /// each staging slot is one.
    pub max_mappings: Option<u64>,
}

/// Linux's default; fewer are noted.
const MAPPINGS_WANTED: u64 = 65_530;

impl Report {
    /// Probes, and leaves out what `without` names (the value of `SELFPAGE_WITHOUT`).
    pub fn gather(without: &str) -> Result<Self, crate::UnknownFeature> {
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

    /// Whether a linked program can page itself (upcall).
    pub fn linked_programs_page(&self) -> bool {
        self.used.has(Feature::Upcall)
    }

    /// Whether unmodified programs can be paged (`selfpage run`).
    pub fn unmodified_programs_page(&self) -> bool {
        self.used.has(Feature::KernelFaults)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {}", self.probe.kernel)?;
        let how = match self.probe.obtained {
            Obtained::Syscall => "by userfaultfd(2)",
            Obtained::Device => "by /dev/userfaultfd",
            Obtained::UserModeOnly => "by userfaultfd(2), user mode only",
            Obtained::Nothing => "not at all",
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
        if let Some(count) = self.max_mappings.filter(|count| *count < MAPPINGS_WANTED) {
            writeln!(
                f,
                "\nvm.max_map_count is {count}: staging needs a mapping for each slot"
            )?;
            writeln!(f, "  mend: sysctl -w vm.max_map_count=262144")?;
        }
        for lack in &self.probe.lacks {
            writeln!(f, "\n{} is missing: {}", lack.feature, lack.reason)?;
            writeln!(f, "  so: {}", lack.consequence)?;
            writeln!(f, "  mend: {}", lack.mend)?;
        }
        Ok(())
    }
}

impl Report {
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
                used.unmap_method() == UnmapMethod::Stage,
                "eviction: staged ranges (mremap)",
                "eviction: write-protect, copy out, discard",
            ),
            pick(
                used.may_evict(true),
                "direct I/O: pinned pages are told apart (move) and stay",
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
            pick(
                used.has(Feature::ProtectionKeys),
                "protection domains: per process, per thread with keys",
                "protection domains: per process only",
            ),
        ]
    }
}

/// What is said of a feature whose trial failed with `errno`.
pub(crate) fn lack(feature: Feature, errno: Errno) -> Lack {
    let (consequence, mend) = texts(feature, errno);
    Lack {
        feature,
        reason: reason(feature, errno),
        mend: mend.to_owned(),
        consequence,
    }
}

fn reason(feature: Feature, errno: Errno) -> String {
    match errno {
        Errno::INVAL | Errno::NOSPC if feature == Feature::ProtectionKeys => {
            "the processor has none, or all are taken".into()
        }
        Errno::PROTO => {
            "the kernel accepts the call but its effect is not what it should be".into()
        }
        Errno::NOSYS => "this kernel does not have it".into(),
        other => format!("the trial failed: {other}"),
    }
}

fn texts(feature: Feature, errno: Errno) -> (&'static str, &'static str) {
    let denied = matches!(errno, Errno::PERM | Errno::ACCESS);
    match feature {
        Feature::Upcall => (
            "linked programs cannot page themselves",
            "a kernel of 5.11 or later with CONFIG_USERFAULTFD=y; in a container: --security-opt seccomp=unconfined",
        ),
        Feature::KernelFaults => (
            "unmodified programs cannot be paged: a system call given a missing page would fail",
            "as root: sysctl -w vm.unprivileged_userfaultfd=1   (or: chmod 666 /dev/userfaultfd); to stay: \
             echo vm.unprivileged_userfaultfd=1 > /etc/sysctl.d/70-selfpage.conf",
        ),
        Feature::Stage => (
            "pages are evicted by write-protecting, copying and discarding: slower, and never once a program can do \
             direct I/O",
            "a kernel of 5.7 or later",
        ),
        Feature::Move => (
            "once a program can do direct I/O nothing of it is evicted any more",
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
        Feature::WpUnpopulated => (
            "holes cannot be tracked for writing",
            "a kernel of 6.4 or later",
        ),
        Feature::WpAsync => (
            "dirty pages are told by checksum only, which is the default anyway",
            "a kernel of 6.7 or later",
        ),
        Feature::ProtectionKeys => (
            "rights hold per process, not per thread",
            "a processor with memory protection keys (grep -w ospke /proc/cpuinfo); nothing else does it",
        ),
        Feature::EventFork if denied => (
            "children that bypass the library's fork handlers are not paged",
            "run it as root; a linked program also: setcap cap_sys_ptrace+ep on its file",
        ),
        Feature::EventFork => (
            "children that bypass the library's fork handlers are not paged",
            "a kernel of 4.11 or later",
        ),
        Feature::PerfPageFaultSignal if denied => (
            "no fault limit for pages that are not paged here",
            "sysctl -w kernel.perf_event_paranoid=1",
        ),
        Feature::PerfPageFaultSignal => (
            "no fault limit for pages that are not paged here",
            "a kernel of 5.13 or later",
        ),
    }
}
