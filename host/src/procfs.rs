//! The memory and the threads of a process, by /proc.

use rustix::process::Pid;

/// The threads of a process; none where it is gone.
pub fn threads(pid: Pid) -> impl Iterator<Item = Pid> {
    let path = format!("/proc/{}/task", pid.as_raw_nonzero());
    let tasks = std::fs::read_dir(path).into_iter().flatten().flatten();
    tasks.filter_map(|task| Pid::from_raw(task.file_name().to_str()?.parse().ok()?))
}

/// What a process has resident, in bytes.
pub struct Rollup {
    /// Anonymous memory, pages shared after a fork counted once (Pss_Anon).
    pub anonymous: u64,
    /// Shared memory (Pss_Shmem).
    pub shared: u64,
    /// Written memory that no other process maps (Private_Dirty).
    pub private: u64,
}

/// None where the process has gone, or may not be looked at.
pub fn rollup(pid: Pid) -> Option<Rollup> {
    let text =
        std::fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero())).ok()?;
    Some(Rollup {
        anonymous: field(&text, "Pss_Anon:")?,
        shared: field(&text, "Pss_Shmem:").unwrap_or(0),
        private: field(&text, "Private_Dirty:").unwrap_or(0),
    })
}

/// RssAnon of a process, in bytes.
pub fn anonymous(pid: Pid) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    field(&status, "RssAnon:")
}

/// The field of a text of /proc that is a size, in bytes.
pub fn field(text: &str, name: &str) -> Option<u64> {
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
        let rollup = rollup(rustix::process::getpid()).unwrap();
        // Tests beside this one fork: as long as their children live each has its part of it.
        assert!(rollup.anonymous >= memory.len() as u64 / 8);
        assert_eq!(
            field("Pss_Anon:        12 kB\nPss:  3 kB\n", "Pss:"),
            Some(3072)
        );
        assert_eq!(field("nothing", "Pss:"), None);
    }
}
