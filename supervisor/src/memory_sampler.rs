//! Samples the memory of a tree, as the kernel counts it.
//!
//! Rule: sampling costs less than a hundredth of a processor. Walking a process's page
//! tables takes about 12 us a resident megabyte, so the pause between two samples is a
//! hundred times the processor time of the last one, and no less than a tenth of a second. (The walk also
//! waits for evictions, which takes no processor time.)
//!
//! A walk may take a second (80 GB), so a thread of the sampler's own takes the samples: the
//! supervisor's loop only starts them.

use crate::program_ends::{ProgramEnds, Readable};
use host::process_tree;
use host::procfs::{field, rollup};
use link::MAX_PROCESSES;
use link::handshake::SlotIndex;
use link::stats_page::StatsPage;
use rustix::fd::OwnedFd;
use rustix::io;
use rustix::process::Pid;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::{Occupancy, SharedStore};
use wired::Counter;

/// The pause before the first sample; the pauses double from there, since most programs are short.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The shortest pause in the long run.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Sampling takes one part in this many of a processor.
const PROCESSOR_PARTS: u32 = 100;

/// The end of the preload library's path.
const LIBRARY: &str = "/libselfpage_preload.so";

/// The memory of a tree at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Live processes.
    pub processes: u64,
    /// Anonymous memory, pages shared after a fork counted once (sum of Pss_Anon).
    pub anonymous: u64,
    /// The part of it that no pager accounts for: neither in stretches nor, in [`Samples::worst`],
    /// the pagers' own.
    pub unpaged: u64,
    /// The peak of the pagers' own memory; known in [`Samples::worst`] only.
    pub pagers: u64,
    /// Shared memory mapped, the store's and the tables' included (sum of Pss_Shmem).
    pub shared: u64,
}

/// The results of the samples so far.
#[derive(Clone, Copy, Debug)]
pub struct Samples {
    /// The sample with the most anonymous memory.
    pub peak: Sample,
    /// The sample with the most unpaged memory, and the peak of the pagers' own memory.
    pub worst: Sample,
    /// The most that each tier of the store held.
    pub store: Occupancy,
    /// Samples taken.
    pub taken: u64,
    /// The processor time of the samples.
    pub spent: Duration,
    next: Instant,
    pause: Duration,
    is_running: bool,
    /// The peak of unpaged memory together with the pagers' own.
    peak_unpaged: u64,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            peak: Sample::default(),
            worst: Sample::default(),
            store: Occupancy::default(),
            taken: 0,
            spent: Duration::ZERO,
            next: Instant::now() + FIRST_PAUSE,
            pause: FIRST_PAUSE,
            is_running: false,
            peak_unpaged: 0,
        }
    }
}

/// The sources that a sample reads beside /proc.
pub struct Observed {
    stats_page: StatsPage,
    store: Option<SharedStore>,
    program_ends: Arc<ProgramEnds>,
}

impl Observed {
    pub(crate) fn attach(
        stats_fd: &OwnedFd,
        store: Option<SharedStore>,
        program_ends: &Arc<ProgramEnds>,
    ) -> io::Result<Self> {
        Ok(Self {
            stats_page: StatsPage::attach(stats_fd, MAX_PROCESSES)?,
            store,
            program_ends: Arc::clone(program_ends),
        })
    }
}

/// The processes that page, by slot.
type Members = Vec<(SlotIndex, Pid)>;

/// Samples a tree in a thread of its own, and keeps the peaks.
pub struct Sampler {
    samples: Arc<Mutex<Samples>>,
    /// `None` where no thread could be started: then no samples are taken.
    requests: Option<SyncSender<Members>>,
}

impl Sampler {
    /// Starts the thread.
    pub fn start(observed: Observed) -> Self {
        let samples = Arc::new(Mutex::new(Samples::default()));
        let (requests, requested) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("selfpage-sample".into())
            .spawn({
                let samples = samples.clone();
                move || {
                    requested
                        .iter()
                        .for_each(|members| sample(&observed, &members, &samples))
                }
            });
        Self {
            samples,
            requests: thread.is_ok().then_some(requests),
        }
    }

    /// The time until the next sample is due.
    pub fn due_in(&self) -> Duration {
        let samples = self.samples();
        match samples.is_running || self.requests.is_none() {
            true => MIN_PAUSE,
            false => samples.next.saturating_duration_since(Instant::now()),
        }
    }

    /// Starts a sample of everything below this process, if one is due. Does not wait for it.
    pub fn sample_if_due(&self, members: impl Iterator<Item = (SlotIndex, Pid)>) {
        let Some(requests) = &self.requests else {
            return;
        };
        if self.samples().is_running || !self.due_in().is_zero() {
            return;
        }
        self.samples().is_running = requests.try_send(members.collect()).is_ok();
    }

    /// The results so far.
    pub fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a sample of everything below this process.
fn sample(observed: &Observed, members: &Members, samples: &Mutex<Samples>) {
    let begin = processor_time();
    let below = || process_tree::below(rustix::process::getpid());
    let pids = observed.program_ends.read(Readable::All, below);
    let mut sample = take(observed, members, &pids, |_| None);
    let locked = || samples.lock().unwrap_or_else(PoisonError::into_inner);
    let peak = locked().peak_unpaged;
    let is_peak = sample.unpaged > peak;
    let unpaged = sample.unpaged;
    // Reading the mappings is dear, so it is done for peaks only.
    if is_peak {
        // Both figures of a process are read together, since pagers take and give back their own memory.
        sample = take(observed, members, &pids, MappedAnonymous::read);
    }
    let store = observed.store.as_ref();
    let occupied = store.map(SharedStore::occupancy).unwrap_or_default();
    let cost = processor_time().saturating_sub(begin);
    let mut all = locked();
    if is_peak {
        all.peak_unpaged = unpaged;
        let pagers = all.worst.pagers.max(sample.pagers);
        if sample.unpaged > all.worst.unpaged {
            all.worst = sample;
        }
        all.worst.pagers = pagers;
    }
    if sample.anonymous > all.peak.anonymous {
        all.peak = sample;
    }
    all.store = all.store.max(occupied);
    all.taken += 1;
    all.spent += cost;
    all.pause = (all.pause * 2).min(MIN_PAUSE).max(cost * PROCESSOR_PARTS);
    all.next = Instant::now() + all.pause;
    all.is_running = false;
}

fn processor_time() -> Duration {
    Duration::from_nanos(wired::clock::thread_time().unwrap_or(0))
}

fn slot_of(members: &Members, pid: Pid) -> Option<SlotIndex> {
    let member = members.iter().find(|(_, member)| *member == pid);
    member.map(|(slot, _)| *slot)
}

/// Returns true if a process is a program's pager. By its name, since a pager process that has just started
/// has not joined yet.
fn is_pager(pid: &Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
        .is_ok_and(|name| name.trim_end() == "selfpage-pager")
}

/// Adds up the memory of the processes. `mapped` reads the memory in the mappings of a process, or returns
/// `None` for a first estimate.
fn take(
    observed: &Observed,
    members: &Members,
    pids: &[Pid],
    mapped: impl Fn(Pid) -> Option<MappedAnonymous>,
) -> Sample {
    let mut all = Sample::default();
    // A pager process shares its program's memory, which is counted with the program.
    for pid in pids.iter().filter(|pid| !is_pager(pid)) {
        let slot = slot_of(members, *pid);
        // Any other process may be the trampoline of a starting pager, which runs in its program's memory.
        let of = slot.map_or(Readable::All, |_| Readable::Process(*pid));
        let add = || add(&mut all, observed, slot, *pid, &mapped);
        observed.program_ends.read(of, add);
    }
    all
}

/// Adds the memory of one process.
fn add(
    all: &mut Sample,
    observed: &Observed,
    slot: Option<SlotIndex>,
    pid: Pid,
    mapped: impl Fn(Pid) -> Option<MappedAnonymous>,
) {
    if slot.is_none() && shares_paged_memory(pid) {
        return;
    }
    let in_frames = || slot.map_or(0, |slot| resident(observed, slot));
    let before = in_frames();
    let Ok(Some(memory)) = rollup(pid) else {
        return;
    };
    all.processes += 1;
    all.anonymous += memory.anonymous;
    all.shared += memory.shared;
    if slot.is_none() {
        // A child that is about to join still shares its pages with its parent.
        all.unpaged += memory.anonymous.min(memory.private);
        return;
    }
    // Pages that are evicted meanwhile count as paged.
    let resident = before.max(in_frames());
    let Some(mapped) = mapped(pid) else {
        all.unpaged += memory.anonymous.saturating_sub(resident);
        return;
    };
    all.pagers += mapped.pagers;
    // A page that moves during the kernel's walk (evicted behind it, brought in before it) counts
    // twice as anonymous. It is in registered memory both times.
    let beyond_frames = memory.anonymous.saturating_sub(resident + mapped.pagers);
    all.unpaged += beyond_frames.min(mapped.unregistered);
}

/// Bytes of a process's frames.
fn resident(observed: &Observed, slot: SlotIndex) -> u64 {
    let block = observed.stats_page.block(slot);
    let pages = block.get(Counter::ResidentPages);
    pages.saturating_mul(wired::PAGE as u64)
}

/// Returns true if a process without a pager of its own runs in the memory of a paged process: a child of
/// `vfork`. That memory is counted already.
fn shares_paged_memory(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{}/smaps", pid.as_raw_nonzero()))
        .is_ok_and(|text| text.lines().any(is_registered))
}

/// Returns true for the flags line of smaps of a mapping that is registered with a userfaultfd.
fn is_registered(line: &str) -> bool {
    line.strip_prefix("VmFlags:")
        .is_some_and(|flags| flags.split(' ').any(|flag| flag == "um"))
}

/// Anonymous memory of a process by its mappings, in bytes, pages shared after a fork counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MappedAnonymous {
    /// The pager's own: mappings that [`wired::WiredMemory`] marks, and the library's data.
    pagers: u64,
    /// The program's, in mappings that no userfaultfd is registered for.
    unregistered: u64,
}

impl MappedAnonymous {
    /// Reads smaps; `None` if the process has ended.
    fn read(pid: Pid) -> Option<Self> {
        std::fs::read_to_string(format!("/proc/{}/smaps", pid.as_raw_nonzero()))
            .ok()
            .map(|text| Self::of(&text))
    }

    /// Adds up the mappings in the text of smaps. The flag *not in core dumps* (`dd`) marks a pager's own
    /// mappings. A program's mapping that has it too is a stretch (`um`, registered) or has a name. A
    /// reservation of the pager's (`nr`, `nh`) holds standby pages, which are in frames.
    fn of(smaps: &str) -> Self {
        let (mut name, mut share, mut anonymous) = ("", 0, 0);
        let mut all = Self::default();
        for line in smaps.lines() {
            let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "Pss:" => share = field(line, key).unwrap_or(0),
                "Anonymous:" => anonymous = field(line, key).unwrap_or(0),
                "VmFlags:" => {
                    let has = |flag| rest.split(' ').any(|word| word == flag);
                    // The library's code counts in the Pss, but is not anonymous.
                    let bytes = share.min(anonymous);
                    let is_nameless = name.is_empty() && !has("um");
                    if name.ends_with(LIBRARY) || is_nameless && has("dd") {
                        all.pagers += bytes;
                    } else if !(has("um") || is_nameless && has("nr") && has("nh")) {
                        all.unregistered += bytes;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_memory_is_recognised_by_its_flags() {
        assert!(is_registered("VmFlags: rd wr mr mw me ac um sd "));
        assert!(!is_registered("VmFlags: rd wr mr mw me ac sd "));
        assert!(!is_registered("7f00-7f08 rw-p 00000000 00:00 0 um"));
    }

    #[test]
    fn a_pagers_own_memory_is_distinguished_from_the_programs() {
        let mapping = |name: &str, flags: &str| {
            format!(
                "7f00-7f08 rw-p 00000000 00:00 0    {name}\nPss: 8 kB\nAnonymous: 12 kB\nVmFlags: {flags} \n"
            )
        };
        let count = |name: &str, flags: &str| MappedAnonymous::of(&mapping(name, flags)).pagers;
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
        let expected = MappedAnonymous {
            pagers: 8 << 10,
            unregistered: 8 << 10,
        };
        assert_eq!(MappedAnonymous::of(&both), expected);
        let in_frames = mapping("", "rd um") + &mapping("", "rd wr nr nh");
        assert_eq!(MappedAnonymous::of(&in_frames), MappedAnonymous::default());
    }

    #[test]
    fn the_kernel_shows_the_flag_of_wired_memory() {
        let own = wired::WiredMemory::private(1 << 20).unwrap();
        let words = own.slice::<std::sync::atomic::AtomicU64>(0, (1 << 20) / 8);
        let pagers = || {
            let mapped = MappedAnonymous::read(rustix::process::getpid());
            mapped.unwrap_or_default().pagers
        };
        let before = pagers();
        words
            .iter()
            .for_each(|word| word.store(1, std::sync::atomic::Ordering::Relaxed));
        assert!(pagers() >= before + own.len() as u64);
    }
}
