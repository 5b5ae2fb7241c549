//! What the machine has: memory, the limits on it, and a place for state.

use host::group_memory;
use std::ffi::CString;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use supervisor::run::OWN_FAILURE;
use wired::Bytes;

/// Kernel magic of file systems that keep files in memory, unsuitable for a swap file.
const IN_MEMORY: [u64; 2] = [0x0102_1994 /* tmpfs */, 0x8584_58f6 /* ramfs */];

/// The least free space a folder for state must have: a default swap file takes a quarter
/// of what is free, and one of less than 64 MiB is not worth having.
pub const LEAST_FREE: u64 = 256 << 20;

/// What a small tree takes beside its frames: the supervisor, its pagers, libraries, and page tables.
pub const BESIDE_PAGES: u64 = 16 << 20;

/// Memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Total memory of the machine.
    pub total: u64,
    /// Memory available without swapping.
    pub available: u64,
    /// Active swap space.
    pub swap: u64,
    /// The lowest limit of the control groups this process is in.
    pub limit: Option<u64>,
}

impl Memory {
    /// Reads the current values.
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        // Not the available memory: memory that files take is not free.
        let kernel = rustix::system::sysinfo();
        let unit = u64::from(kernel.mem_unit);
        let field = |name| host::procfs::field(&text, name);
        let total = field("MemTotal:").unwrap_or(kernel.totalram as u64 * unit);
        Self {
            total,
            available: field("MemAvailable:").unwrap_or(kernel.freeram as u64 * unit),
            swap: field("SwapTotal:").unwrap_or(kernel.totalswap as u64 * unit),
            limit: group_memory::limit().filter(|limit| *limit < total),
        }
    }

    /// What a tree may take for frames and compressed RAM where a control group limits it: the kernel ends a process
    /// where the group is full.
    pub fn most_paged(&self) -> u64 {
        match self.limit {
            Some(limit) => limit.saturating_sub(BESIDE_PAGES),
            None => self.total,
        }
    }

    /// Upper bound of what a program here can use.
    pub fn most(&self) -> u64 {
        self.limit.unwrap_or(u64::MAX).min(self.total)
    }
}

/// Checks that /proc is mounted. selfpage reads the kernel's record of processes, descriptors and
/// its own file from it.
pub fn check_proc() -> Result<(), String> {
    match Path::new("/proc/self/exe").exists() {
        true => Ok(()),
        false => Err(
            "/proc is not mounted here, and selfpage cannot do without: mount -t proc proc /proc"
                .into(),
        ),
    }
}

/// Lets a write to a pipe without a reader end this process silently, like other programs
/// (`selfpage doctor | head -1`); Rust's runtime makes it an error.
pub fn end_at_closed_pipes() {
    // SAFETY: sets a signal's disposition before anything else runs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Lets a failed print to standard output end this process as any other failure does, where the library
/// panics.
pub fn end_at_full_output() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>();
        match text.filter(|text| text.starts_with("failed printing to stdout")) {
            Some(text) => {
                print_error!("selfpage: {text}");
                std::process::exit(OWN_FAILURE.into())
            }
            None => others(panic),
        }
    }));
}

/// Gives up a CAP_SYS_PTRACE that is this file's (setcap) and not this user's. It would let this
/// process make a userfaultfd that sees faults inside system calls, but not the programs that it
/// runs: a report about them must be true of them.
pub fn give_up_own_privilege() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let privilege = CapabilitySet::SYS_PTRACE;
    let is_inherited = rustix::process::geteuid().is_root()
        || rustix::thread::capability_is_in_ambient_set(privilege).unwrap_or(false);
    if let Ok(mut sets) = capabilities(None)
        && sets.permitted.contains(privilege)
        && !is_inherited
    {
        sets.effective.remove(privilege);
        sets.permitted.remove(privilege);
        let _ = set_capabilities(None, sets);
    }
}

/// Processes that the kernel has killed for want of memory, of all control groups; 0 where it does not say.
pub fn oom_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// Processors that this process may use.
pub fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// The versions of control groups in use, in words.
pub fn control_groups() -> &'static str {
    match (
        Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        Path::new("/sys/fs/cgroup/memory").exists(),
    ) {
        (true, _) => "version 2",
        (false, true) => "version 1 (memory)",
        (false, false) => "none mounted",
    }
}

/// A folder for state, created if needed.
#[derive(Clone, Debug)]
pub struct StateFolder {
    /// The folder's path.
    pub path: PathBuf,
    /// Bytes free to this user.
    pub free: u64,
}

impl StateFolder {
    /// The first of $XDG_STATE_HOME/selfpage, ~/.local/state/selfpage and /var/tmp that is
    /// writable, on a disk and has [`LEAST_FREE`] bytes free. `Err` has the reason that
    /// excludes each.
    pub fn find() -> Result<Self, String> {
        Self::first(Self::candidates(), LEAST_FREE)
    }

    fn first(candidates: Vec<PathBuf>, least: u64) -> Result<Self, String> {
        let mut wrong = Vec::new();
        for path in candidates {
            match Self::open(&path, least) {
                Ok(folder) => return Ok(folder),
                Err(why) => wrong.push(format!("{}: {why}", path.display())),
            }
        }
        Err(wrong.join("; "))
    }

    fn candidates() -> Vec<PathBuf> {
        let absolute = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|p: &PathBuf| p.is_absolute())
        };
        let home = absolute("HOME").map(|home| home.join(".local/state"));
        let state = absolute("XDG_STATE_HOME").or(home);
        state
            .map(|state| state.join("selfpage"))
            .into_iter()
            .chain(["/var/tmp".into()])
            .collect()
    }

    fn open(path: &Path, least: u64) -> Result<Self, String> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|e| e.to_string())?;
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
        rustix::fs::access(
            &name,
            rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
        )
        .map_err(|e| format!("not writable ({e})"))?;
        let kind = rustix::fs::statfs(&name).map_err(|e| e.to_string())?.f_type as u64;
        if IN_MEMORY.contains(&kind) {
            return Err("a file system in memory".into());
        }
        let space = rustix::fs::statvfs(&name).map_err(|e| e.to_string())?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < least {
            return Err(format!("only {} free", Bytes(free >> 20 << 20)));
        }
        Ok(Self {
            path: path.to_owned(),
            free,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_room_is_passed_over_with_the_reason() {
        let full = tempfile::tempdir_in("/var/tmp").unwrap();
        let candidates = vec!["/proc/selfpage".into(), full.path().into()];
        let said = StateFolder::first(candidates, u64::MAX).unwrap_err();
        assert!(
            said.contains("/proc/selfpage: ") && said.contains("free"),
            "{said}"
        );
        let candidates = vec!["/proc/selfpage".into(), full.path().into()];
        assert_eq!(StateFolder::first(candidates, 0).unwrap().path, full.path());
    }
}
