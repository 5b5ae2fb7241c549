//! What the kernel says a tree takes, sampled.
//!
//! Rule: sampling costs less than a hundredth of a processor. Walking a process's page
//! tables takes about 12 us a resident megabyte, so the pause between two samples is a
//! hundred times what the last one took, and no less than a tenth of a second. What
//! counts is processor time: the walk also waits for evictions, which costs nobody.

use crate::board::Figure;
use crate::server::System;
use crate::tree;
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// The first sample comes soon, and the pauses double from there: most programs are short.
const FIRST: Duration = Duration::from_millis(5);
/// The least pause in the long run.
const LEAST: Duration = Duration::from_millis(100);
/// The longest: a peak shorter than this may be missed.
const MOST: Duration = Duration::from_secs(5);
/// One part in so many of a processor.
const SHARE: u32 = 100;

/// The library that is a pager, by its file's name.
const LIBRARY: &str = "/libselfpage_preload.so";

/// The memory of a tree at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Live processes.
    pub processes: u64,
    /// Anonymous memory, pages shared after a fork counted once (sum of Pss_Anon).
    pub anonymous: u64,
    /// Of that, what no pager answers for: neither stretches nor, in [`Sampler::worst`],
    /// pagers' own.
    pub unpaged: u64,
    /// The pagers' own memory, the most seen; known in [`Sampler::worst`] only.
    pub pagers: u64,
    /// Bytes of stretches that hold something, resident or stored: at least so many.
    pub held: u64,
    /// Shared memory mapped, the store's and the tables' included (sum of Pss_Shmem).
    pub shared: u64,
}

impl Sample {
    /// Of all anonymous memory in use, resident or stored, the share no pager answers for.
    pub fn unpaged_share(&self) -> f64 {
        match self.unpaged + self.held {
            0 => 0.0,
            all => self.unpaged as f64 / all as f64,
        }
    }
}

/// Samples a tree, and keeps the highest.
pub struct Sampler {
    next: Instant,
    pause: Duration,
    samples: u64,
    spent: Duration,
    peak: Sample,
    worst: Sample,
    /// The most that was unpaged with the pagers' own memory.
    most: u64,
    /// The most that was the pagers' own.
    pagers: u64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self {
            next: Instant::now() + FIRST,
            pause: FIRST,
            samples: 0,
            spent: Duration::ZERO,
            peak: Sample::default(),
            worst: Sample::default(),
            most: 0,
            pagers: 0,
        }
    }
}

impl Sampler {
    /// How long until the next sample is due.
    pub fn due_in(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Takes a sample of everything below this process, if one is due.
    pub fn sample_if_due(&mut self, system: &System) {
        if self.due_in().is_zero() {
            self.sample(system);
        }
    }

    /// Takes a sample of everything below this process.
    pub fn sample(&mut self, system: &System) {
        let begin = processor_time();
        let pids = tree::below(rustix::process::getpid());
        let mut sample = take(system, &pids);
        // Dearer to find out, so only where it matters.
        if sample.unpaged > self.most {
            self.most = sample.unpaged;
            // A page may be resident and stored at once, so what is stored is a lower bound.
            sample.held = sample.held.max(stored(system));
            let members = pids.iter().filter(|pid| system.slot_of(**pid).is_some());
            sample.pagers = members.map(|pid| pagers_own(*pid)).sum();
            self.pagers = self.pagers.max(sample.pagers);
            sample.unpaged = sample.unpaged.saturating_sub(sample.pagers);
            if sample.unpaged > self.worst.unpaged {
                self.worst = sample;
            }
        }
        if sample.anonymous > self.peak.anonymous {
            self.peak = sample;
        }
        let cost = processor_time().saturating_sub(begin);
        self.samples += 1;
        self.spent += cost;
        self.pause = (self.pause * 2).min(LEAST).max(cost * SHARE).min(MOST);
        self.next = Instant::now() + self.pause;
    }

    /// The sample with the most anonymous memory.
    pub fn peak(&self) -> Sample {
        self.peak
    }

    /// The sample with the most unpaged memory.
    pub fn worst(&self) -> Sample {
        Sample {
            pagers: self.pagers,
            ..self.worst
        }
    }

    /// Samples taken, and the processor time that took.
    pub fn effort(&self) -> (u64, Duration) {
        (self.samples, self.spent)
    }
}

fn processor_time() -> Duration {
    Duration::from_nanos(wired::clock::thread_time().unwrap_or(0))
}

fn take(system: &System, pids: &[Pid]) -> Sample {
    let mut all = Sample::default();
    for pid in pids {
        let Some((anonymous, shared)) = rollup(*pid) else {
            continue;
        };
        all.processes += 1;
        all.anonymous += anonymous;
        all.shared += shared;
        let Some(slot) = system.slot_of(*pid) else {
            all.unpaged += anonymous;
            continue;
        };
        let block = system.board().block(slot);
        let resident = block
            .get(Figure::ResidentPages)
            .saturating_mul(wired::PAGE as u64);
        all.unpaged += anonymous.saturating_sub(resident);
        all.held += resident;
    }
    all
}

/// Bytes of pages that are stored.
fn stored(system: &System) -> u64 {
    use store::Store;
    let usage = system
        .store()
        .map(|store| store.usage())
        .unwrap_or_default();
    (usage.pages_ram + usage.pages_filled + usage.pages_disk) * wired::PAGE as u64
}

/// Pss_Anon and Pss_Shmem of a process, in bytes. None where it has gone, or is not ours
/// to look at.
pub(crate) fn rollup(pid: Pid) -> Option<(u64, u64)> {
    let text =
        std::fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero())).ok()?;
    Some((
        field(&text, "Pss_Anon:")?,
        field(&text, "Pss_Shmem:").unwrap_or(0),
    ))
}

/// Anonymous memory of a process that is its pager's own, in bytes, pages shared after a
/// fork counted once: what [`wired::Region`] marks, and the library's data.
fn pagers_own(pid: Pid) -> u64 {
    std::fs::read_to_string(format!("/proc/{}/smaps", pid.as_raw_nonzero()))
        .map_or(0, |text| marked(&text))
}

/// Bytes of the mappings that are a pager's own, in the text of smaps. The mark is *not in
/// core dumps* (`dd`). A program's own mapping may bear it too, and is then a stretch (`um`,
/// registered) or has a name.
fn marked(smaps: &str) -> u64 {
    let (mut name, mut share, mut anonymous, mut all) = ("", 0, 0, 0);
    for line in smaps.lines() {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        match key {
            "Pss:" => share = field(line, key).unwrap_or(0),
            "Anonymous:" => anonymous = field(line, key).unwrap_or(0),
            "VmFlags:" => {
                let has = |flag| rest.split(' ').any(|word| word == flag);
                if name.ends_with(LIBRARY) || name.is_empty() && has("dd") && !has("um") {
                    // The library's code is shared, and a share, too, but not anonymous.
                    all += share.min(anonymous);
                }
            }
            // The first line of a mapping: addresses, rights, offset, device, inode, name.
            _ if !key.ends_with(':') => {
                name = rest.splitn(5, ' ').nth(4).unwrap_or("").trim();
            }
            _ => {}
        }
    }
    all
}

pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_figures_are_read() {
        let memory = vec![1u8; 8 << 20];
        let (anonymous, _) = rollup(rustix::process::getpid()).unwrap();
        // Tests beside this one fork: as long as their children live each has its part of it.
        assert!(anonymous >= memory.len() as u64 / 8);
        assert_eq!(
            field("Pss_Anon:        12 kB\nPss:  3 kB\n", "Pss:"),
            Some(3072)
        );
        assert_eq!(field("nothing", "Pss:"), None);
    }

    #[test]
    fn a_pagers_own_memory_is_told_from_the_programs() {
        let mapping = |name: &str, flags: &str| {
            format!(
                "7f00-7f08 rw-p 00000000 00:00 0    {name}\nPss: 8 kB\nAnonymous: 12 kB\nVmFlags: {flags} \n"
            )
        };
        let count = |name: &str, flags: &str| marked(&mapping(name, flags));
        assert_eq!(count("", "rd wr nr dd nh"), 8 << 10);
        assert_eq!(count("/opt/lib/libselfpage_preload.so", "rd wr"), 8 << 10);
        for (name, flags) in [
            ("", "rd wr nr nh"),
            ("", "rd wr um dd"),
            ("[heap]", "rd dd"),
        ] {
            assert_eq!(count(name, flags), 0, "{name} {flags}");
        }
        let both = mapping("", "rd dd") + &mapping("/lib/libc.so.6", "rd");
        assert_eq!(marked(&both), 8 << 10);
    }

    #[test]
    fn the_kernel_shows_the_mark() {
        let own = wired::Region::private(1 << 20).unwrap();
        let words = own.slice::<std::sync::atomic::AtomicU64>(0, (1 << 20) / 8);
        let before = pagers_own(rustix::process::getpid());
        words
            .iter()
            .for_each(|word| word.store(1, std::sync::atomic::Ordering::Relaxed));
        assert!(pagers_own(rustix::process::getpid()) >= before + own.len() as u64);
    }

    #[test]
    fn the_share_counts_what_is_stored_too() {
        let sample = Sample {
            unpaged: 10,
            held: 90,
            ..Sample::default()
        };
        assert!((sample.unpaged_share() - 0.1).abs() < 1e-9);
        assert_eq!(Sample::default().unpaged_share(), 0.0);
    }
}
