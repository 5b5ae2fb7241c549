//! The memory and the threads of a process, by /proc.

use rustix::process::Pid;
use std::io;

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

/// None where the process has gone, or may not be looked at; an error where that is not known.
pub fn rollup(pid: Pid) -> io::Result<Option<Rollup>> {
    let of_text = |text: String| {
        Some(Rollup {
            anonymous: field(&text, "Pss_Anon:")?,
            shared: field(&text, "Pss_Shmem:").unwrap_or(0),
            private: field(&text, "Private_Dirty:").unwrap_or(0),
        })
    };
    Ok(read(pid, "smaps_rollup")?.and_then(of_text))
}

/// RssAnon of a process, in bytes: none where it has no memory any more, or may not be looked at; an error where
/// that is not known.
pub fn anonymous(pid: Pid) -> io::Result<Option<u64>> {
    Ok(read(pid, "status")?.and_then(|status| field(&status, "RssAnon:")))
}

/// A file of a process's, where it can be read; an error where there was nothing to read it by.
fn read(pid: Pid, name: &str) -> io::Result<Option<String>> {
    match std::fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_nonzero())) {
        Ok(text) => Ok(Some(text)),
        Err(why) if is_shortage(&why) => Err(why),
        Err(_) => Ok(None),
    }
}

/// Returns true if a failure shows nothing of what was to be read: no descriptor was free for it, or no memory.
pub fn is_shortage(why: &io::Error) -> bool {
    let code = why.raw_os_error();
    matches!(code, Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
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
        let rollup = rollup(rustix::process::getpid()).unwrap().unwrap();
        // Tests beside this one fork: as long as their children live each has its part of it.
        assert!(rollup.anonymous >= memory.len() as u64 / 8);
        assert_eq!(
            field("Pss_Anon:        12 kB\nPss:  3 kB\n", "Pss:"),
            Some(3072)
        );
        assert_eq!(field("nothing", "Pss:"), None);
    }
}
