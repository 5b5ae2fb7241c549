//! The configuration in force: without it a figure has no meaning.

use crate::cgroup::Hierarchy;
use crate::prelude::*;
use host::procfs::field;
use std::os::unix::fs::MetadataExt;

/// What the figures were taken on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// The processor's own name.
    pub processor: String,
    /// Processors this process may use.
    pub processors: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The setting of transparent huge pages.
    pub huge_pages: String,
    /// vm.swappiness.
    pub swappiness: String,
    /// vm.page-cluster: kernel swap reads 2 to this power pages at once.
    pub page_cluster: String,
    /// Which cgroup version has the memory controller.
    pub cgroup: String,
    /// File system and device of the folder used.
    pub disk: String,
    /// How that device's requests are queued.
    pub queue: String,
    /// Load average at the start: other work on the machine.
    pub load: String,
}

impl Machine {
    /// As it is now, for an experiment whose files are in `folder`.
    pub fn now(folder: &Path) -> Self {
        let cpu = read("/proc/cpuinfo");
        let model = |line: &'_ str| {
            Some(
                line.strip_prefix("model name")?
                    .split_once(": ")?
                    .1
                    .to_owned(),
            )
        };
        let memory = read("/proc/meminfo");
        Self {
            kernel: read("/proc/sys/kernel/osrelease"),
            processor: cpu.lines().find_map(model).unwrap_or_default(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: field(&memory, "MemTotal:").unwrap_or(0),
            huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            swappiness: read("/proc/sys/vm/swappiness"),
            page_cluster: read("/proc/sys/vm/page-cluster"),
            cgroup: Hierarchy::find().map_or_else(|e| e.to_string(), |h| h.name().to_owned()),
            disk: disk(folder),
            queue: queue(folder),
            load: load(),
        }
    }

    /// The lines of a report's header.
    pub fn lines(&self) -> [String; 3] {
        [
            format!(
                "Linux {}, {} x {}, {} MiB; load {}",
                self.kernel,
                self.processors,
                self.processor,
                self.memory_bytes >> 20,
                self.load
            ),
            format!(
                "huge pages {}, vm.swappiness {}, vm.page-cluster {}, {}",
                self.huge_pages, self.swappiness, self.page_cluster, self.cgroup
            ),
            format!("files in {}; {}", self.disk, self.queue),
        ]
    }
}

/// What the kernel counts of this process or its children.
pub fn usage(of: libc::c_int) -> libc::rusage {
    // SAFETY: all zeros is a value of this plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is there to be written.
    unsafe { libc::getrusage(of, &mut usage) };
    usage
}

/// Processor time of all children that have ended, and of their children.
pub fn processor_time() -> Duration {
    let usage = usage(libc::RUSAGE_CHILDREN);
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// The load average over a minute, now.
pub fn load() -> String {
    let text = read("/proc/loadavg");
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// A file of the kernel's, without the white space around it; nothing where it is not.
pub fn read(path: impl AsRef<Path>) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// The bracketed one of several words.
pub fn chosen(words: &str) -> String {
    words.split(['[', ']']).nth(1).unwrap_or(words).to_owned()
}

/// The mount that holds a folder: the longest that is a prefix of its true path.
fn disk(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mounts = procfs::mounts().unwrap_or_default().into_iter();
    let holds = mounts.filter(|mount| folder.starts_with(&mount.fs_file));
    let best = holds.max_by_key(|mount| mount.fs_file.len());
    let name = |mount: procfs::MountEntry| format!("{} ({})", mount.fs_spec, mount.fs_vfstype);
    let on = best.map_or_else(|| "an unknown file system".into(), name);
    format!("{} on {on}", folder.display())
}

/// The whole disk that holds a folder, in /sys: requests are queued and counted there, not on its
/// partitions.
pub fn disk_of(folder: &Path) -> Option<PathBuf> {
    let device = std::fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let own = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let disks = [own.clone(), own.join("..")];
    disks.into_iter().find(|disk| disk.join("queue").is_dir())
}

/// The queue of the device that holds a folder.
fn queue(folder: &Path) -> String {
    let Some(disk) = disk_of(folder) else {
        return "no block device's queue".into();
    };
    let setting = |name: &str| read(disk.join("queue").join(name));
    format!(
        "scheduler {}, read-ahead {} KiB, {} requests",
        chosen(&setting("scheduler")),
        setting("read_ahead_kb"),
        setting("nr_requests")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_one_of_several_settings_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen("none"), "none");
    }
}
