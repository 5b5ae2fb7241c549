//! The host's own demand for memory.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 2.3: a server serves its own host first. Rule: what the
//! host has available beyond a threshold may become pages; under pressure the server lends nothing more and
//! shrinks a step at a time, since pressure follows a change only after seconds. The kernel's pressure counts a
//! task that waits for memory of its own control group, too, however much the host has: so it is heeded only while
//! little is available. What the control groups of this process leave it bounds it as the host's memory does: the
//! kernel ends a process, with all pages, where its group is full.

use crate::config::HostThresholds;
use host::group_memory;
use host::procfs::field;
use wired::PAGE;

/// Under pressure the server shrinks by one part in so many, each second.
const SHRINK_PARTS: u64 = 32;

/// Pressure is heeded while less than so many times what the host keeps is available.
const PLENTY: u64 = 4;

/// What the server keeps available in its control group for itself: the connections of some seconds, as many as twenty
/// with full buffers.
const KEEP_IN_GROUP: u64 = 16 << 20;

/// What the kernel says of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HostMemory {
    /// MemAvailable, in bytes; `None` where it is not known.
    pub available: Option<u64>,
    /// What the control groups of this process leave it, in bytes; `None` where they have no limit.
    pub in_group: Option<u64>,
    /// `some avg10` of the pressure on memory; `None` where the kernel does not measure it.
    pub pressure: Option<f64>,
}

impl HostMemory {
    /// Measures.
    pub fn measure() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            available: field(&read("/proc/meminfo"), "MemAvailable:"),
            in_group: group_memory::available(),
            pressure: some_avg10(&read("/proc/pressure/memory")),
        }
    }

    /// Frames of `frames` that the server may own, where `resident` have memory now; `None` where it is not known.
    pub fn spare_frames(
        &self,
        thresholds: HostThresholds,
        frames: u64,
        resident: u64,
    ) -> Option<u64> {
        let available = self.available?;
        let page = PAGE as u64;
        let wanted = |available: u64, kept: u64| match available.checked_sub(kept) {
            Some(spare) => resident + spare / page,
            None => resident.saturating_sub((kept - available) / page),
        };
        let in_group = self
            .in_group
            .map_or(frames, |rest| wanted(rest, KEEP_IN_GROUP));
        let wanted = wanted(available, thresholds.keep_available).min(in_group);
        let is_pressed = available < thresholds.keep_available.saturating_mul(PLENTY)
            && self
                .pressure
                .is_some_and(|percent| percent > thresholds.pressure_percent);
        let most = match is_pressed {
            true => resident - resident / SHRINK_PARTS,
            false => frames,
        };
        Some(wanted.min(most).min(frames))
    }
}

fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let field = line
        .split(' ')
        .find_map(|part| part.strip_prefix("avg10="))?;
    field.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLDS: HostThresholds = HostThresholds {
        keep_available: 100 * PAGE as u64,
        pressure_percent: 10.0,
    };

    fn host(available_pages: u64, pressure: f64) -> HostMemory {
        HostMemory {
            available: Some(available_pages * PAGE as u64),
            in_group: None,
            pressure: Some(pressure),
        }
    }

    #[test]
    fn the_host_keeps_what_is_available_below_the_threshold() {
        let spare = |host: HostMemory| host.spare_frames(THRESHOLDS, 1000, 320).unwrap();
        assert_eq!(spare(host(5000, 0.0)), 1000);
        assert_eq!(spare(host(300, 0.0)), 520);
        assert_eq!(spare(host(40, 0.0)), 260);
        assert_eq!(spare(host(399, 11.0)), 310);
        assert_eq!(spare(host(400, 11.0)), 620);
        assert_eq!(spare(host(40, 11.0)), 260);
    }

    #[test]
    fn a_control_group_leaves_the_server_what_it_needs_itself() {
        let spare = |rest: u64| {
            let host = HostMemory {
                in_group: Some(rest),
                ..host(5000, 0.0)
            };
            host.spare_frames(THRESHOLDS, 1000, 320).unwrap()
        };
        assert_eq!(spare(u64::MAX), 1000);
        assert_eq!(spare(KEEP_IN_GROUP + 40 * PAGE as u64), 360);
        assert_eq!(spare(KEEP_IN_GROUP - 40 * PAGE as u64), 280);
        assert_eq!(spare(0), 0);
    }

    #[test]
    fn a_measurement_that_failed_says_nothing_of_the_host() {
        let unknown = HostMemory {
            available: None,
            in_group: None,
            pressure: None,
        };
        assert_eq!(unknown.spare_frames(THRESHOLDS, 1000, 320), None);
    }

    #[test]
    fn the_kernels_pressure_is_read() {
        let text = "some avg10=1.25 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.50 avg60=0.00\n";
        assert_eq!(some_avg10(text), Some(1.25));
        assert_eq!(some_avg10(""), None);
    }
}
