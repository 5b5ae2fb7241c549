//! The memory and the threads of a process, by /proc.

use rustix::process::Pid;
use std::io;

/// The threads of a process; empty where it has ended.
pub fn threads(pid: Pid) -> impl Iterator<Item = Pid> {
    let path = format!("/proc/{}/task", pid.as_raw_nonzero());
    let tasks = std::fs::read_dir(path).into_iter().flatten().flatten();
    tasks.filter_map(|task| Pid::from_raw(task.file_name().to_str()?.parse().ok()?))
}

/// The resident memory of a process, in bytes.
pub struct Rollup {
    /// Anonymous memory, pages shared after a fork counted once (Pss_Anon).
    pub anonymous: u64,
    /// Shared memory (Pss_Shmem).
    pub shared: u64,
    /// Written memory that no other process maps (Private_Dirty).
    pub private: u64,
}

/// Reads smaps_rollup; `None` where the process has ended or may not be inspected, and an error where a shortage keeps it unknown.
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

/// RssAnon of a process, in bytes; `None` where it has no memory any more or may not be inspected, and an error where a
/// shortage keeps it unknown.
pub fn anonymous(pid: Pid) -> io::Result<Option<u64>> {
    Ok(read(pid, "status")?.and_then(|status| field(&status, "RssAnon:")))
}

/// Reads a file of a process's; `None` where it cannot be read, and an error for a shortage of descriptors or memory.
fn read(pid: Pid, name: &str) -> io::Result<Option<String>> {
    match std::fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_nonzero())) {
        Ok(text) => Ok(Some(text)),
        Err(why) if is_shortage(&why) => Err(why),
        Err(_) => Ok(None),
    }
}

/// Returns true if a read failed because no descriptor or no memory was free, which shows nothing of the file.
pub fn is_shortage(why: &io::Error) -> bool {
    let code = why.raw_os_error();
    matches!(code, Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// The value in bytes of a field of /proc that is a size.
pub fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_read() {
        let memory = vec![1u8; 8 << 20];
        let rollup = rollup(rustix::process::getpid()).unwrap().unwrap();
        // Concurrent tests fork, and each child that lives has its share of the memory.
        assert!(rollup.anonymous >= memory.len() as u64 / 8);
        assert_eq!(
            field("Pss_Anon:        12 kB\nPss:  3 kB\n", "Pss:"),
            Some(3072)
        );
        assert_eq!(field("nothing", "Pss:"), None);
    }
}
