//! The closing line of `run`, and its warnings.

use super::Report;
use std::fmt::Write as _;
use wired::units::size;
use wired::{Counter, PAGE};

/// Above this share of unpaged memory `run` warns.
const UNPAGED_WARNING: f64 = 0.10;

/// No warning below this size: most of a small program is its data, stacks and loader, which
/// are not worth paging.
const UNPAGED_LEAST: u64 = 4 << 20;

impl Report {
    /// The summary in one line.
    pub(super) fn line(&self) -> String {
        if self.nested {
            return format!(
                "selfpage: ran in the contract of the `selfpage run` around it, which has the figures; {:.2} s",
                self.seconds
            );
        }
        let frames = size(self.frames_bytes);
        let mut line = match self.processes {
            0 => format!("selfpage: {frames} of frames; nothing was paged"),
            _ => self.paged(&frames),
        };
        // Sampled, so a short program has no figure; and most memory of a small one is never
        // paged, which needs no warning.
        if self.memory.unpaged > UNPAGED_LEAST {
            let _ = write!(line, "; not paged {}", size(self.memory.unpaged));
        }
        let shared = self.unpaged_shared();
        if shared > UNPAGED_LEAST {
            let _ = write!(line, "; {} of shared memory not paged", size(shared));
        }
        let _ = write!(line, "; {:.2} s", self.seconds);
        line
    }

    /// Bytes of shared memory that was mapped and is not paged.
    fn unpaged_shared(&self) -> u64 {
        self.counter(Counter::UnpagedSharedPages) * PAGE as u64
    }

    /// What the paging took.
    fn paged(&self, frames: &str) -> String {
        let figure = |counter| self.counter(counter);
        let (processes, faults) = (self.processes, figure(Counter::Faults));
        let held = self.frames_peak_bytes;
        let mut line = format!(
            "selfpage: held {} of {frames} of frames at most",
            size(held)
        );
        // Those that are resident and have no stored copy are not known.
        let unlimited = self.store_peak.pages * PAGE as u64;
        if unlimited > held {
            let _ = write!(line, ", and at least {} without the limit", size(unlimited));
        }
        let plural = if processes == 1 { "" } else { "es" };
        let _ = write!(line, "; {processes} process{plural}, {faults} page faults");
        let is_over = |tier| self.store.contains(tier);
        let from_store = match (is_over("remote:"), is_over("opendal:"), is_over("disk:")) {
            (true, _, false) => "from other machines",
            (true, _, true) => "from other machines and disk",
            (false, true, false) => "from the object store",
            (false, true, true) => "from the object store and disk",
            (false, false, _) => "from disk",
        };
        let kinds = [
            (Counter::CompressedHits, "from compressed RAM"),
            (Counter::DiskReads, from_store),
            (Counter::ReadaheadHits, "from readahead"),
        ];
        let parts: Vec<_> = kinds
            .iter()
            .filter(|(kind, _)| figure(*kind) > 0)
            .map(|(kind, name)| format!("{} {name}", figure(*kind)))
            .collect();
        if !parts.is_empty() {
            let _ = write!(line, " ({})", parts.join(", "));
        }
        if figure(Counter::Written) > 0 {
            let _ = write!(line, "; {} pages written", figure(Counter::Written));
        }
        let seconds = |counter| figure(counter) as f64 / 1e6;
        let times = [
            (seconds(Counter::FaultTimeUs), "in these faults"),
            (
                seconds(Counter::DiskWaitUs) + seconds(Counter::FrameWaitUs),
                "of that in waits for the store's I/O and for frames",
            ),
            (seconds(Counter::ThrottledUs), "asleep over the fault rate"),
        ];
        let parts: Vec<_> = times
            .iter()
            .filter(|(time, _)| *time >= 0.005)
            .map(|(time, name)| format!("{time:.2} s {name}"))
            .collect();
        if !parts.is_empty() {
            let _ = write!(line, "; its threads spent {}", parts.join(", "));
        }
        line
    }

    /// Warnings for the user.
    pub(super) fn warning(&self) -> Option<String> {
        let lost = self.counter(Counter::UnreadablePages);
        if lost > 0 {
            return Some(format!(
                "{lost} {} found a page that could not be read back from the store, or no room for it; the program got an \
                 error (SIGBUS) at each",
                if lost == 1 { "access" } else { "accesses" }
            ));
        }
        let shared = self.unpaged_shared();
        if shared > UNPAGED_LEAST {
            return Some(format!(
                "{} of shared memory was mapped that is not paged, so `--frames` does not limit it: a tree has as many paged ranges \
                 of shared memory as a quarter of `ulimit -n`, 4096 at most, and none after direct I/O; raise the limit, or have \
                 the program map fewer and larger ranges",
                size(shared)
            ));
        }
        let much = !self.nested
            && self.memory.unpaged_share > UNPAGED_WARNING
            && self.memory.unpaged > UNPAGED_LEAST;
        much.then(|| {
            format!(
                "{} of anonymous memory ({:.0} %) was not paged, so {}: static programs, \
                 stacks, static arrays of libraries that `dlopen` loads, written pages of mapped files, memory that programs \
                 map by instructions of their own (sanitizers, Rust's rustix), or memory from before the pager came in",
                size(self.memory.unpaged),
                self.memory.unpaged_share * 100.0,
                match self.has_daemon {
                    true => "it takes frames of the contract from pages",
                    false => "`--frames` does not limit it",
                }
            )
        })
    }
}
