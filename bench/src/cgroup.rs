//! A memory cgroup of either version, for the alternatives' share of memory.

use crate::cleanup::{CleanupProcess, UndoAction};
use crate::prelude::*;

/// Where this machine keeps a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// Version 1, mounted here.
    One(PathBuf),
    /// Version 2, mounted here.
    Two(PathBuf),
}

impl Hierarchy {
    /// The one with the memory controller.
    pub fn find() -> Result<Self> {
        Self::of("memory", "memory")
    }

    /// The one with the controller for disks.
    pub fn of_disks() -> Result<Self> {
        Self::of("blkio", "io")
    }

    /// The one with the controller that version 1 calls `one` and version 2 `two`.
    fn of(one: &str, two: &str) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Self::among(&mounts, [one, two], |root| {
            std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default()
        })
        .ok_or_else(|| unavailable(format!("there is no {one} cgroup controller here")))
    }

    fn among(
        mounts: &str,
        [first, second]: [&str; 2],
        controllers: impl Fn(&Path) -> String,
    ) -> Option<Self> {
        let mut two = None;
        for line in mounts.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[_, path, kind, options, ..] = words.as_slice() else {
                continue;
            };
            let path = PathBuf::from(path);
            if kind == "cgroup" && options.split(',').any(|o| o == first) {
                return Some(Self::One(path));
            }
            if kind == "cgroup2" && controllers(&path).split_whitespace().any(|c| c == second) {
                two = Some(Self::Two(path));
            }
        }
        two
    }

    /// Its name in the report's header.
    pub fn name(&self) -> &'static str {
        match self {
            Self::One(_) => "cgroup v1",
            Self::Two(_) => "cgroup v2",
        }
    }
}

/// A cgroup with a limit; removed when dropped.
pub struct Cgroup {
    path: PathBuf,
    _guard: UndoGuard,
}

impl Cgroup {
    /// A fresh one at the root of the hierarchy: under our own it would share our limits,
    /// and version 2 allows no processes beside it.
    pub fn new(cleanup: &CleanupProcess, name: &str, limit: u64) -> Result<Self> {
        let hierarchy = Hierarchy::find()?;
        let (root, file) = match &hierarchy {
            Hierarchy::One(root) => (root, "memory.limit_in_bytes"),
            Hierarchy::Two(root) => (root, "memory.max"),
        };
        let path = root.join(format!("selfpage-bench-{}-{name}", std::process::id()));
        let guard = cleanup.register(UndoAction::Cgroup(path.clone()))?;
        std::fs::create_dir(&path).doing(format_args!(
            "make the cgroup {} (root can)",
            path.display()
        ))?;
        if let Hierarchy::Two(root) = &hierarchy {
            // Fails where it is on already, or shows in the next line where it cannot be.
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        std::fs::write(path.join(file), limit.to_string())
            .doing(format_args!("limit {} to {limit} bytes", path.display()))?;
        Ok(Self {
            path,
            _guard: guard,
        })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a process in. What it has had so far stays charged to where it was: only its
    /// work counts.
    pub fn add(&self, pid: u32) -> Result<()> {
        std::fs::write(self.path.join("cgroup.procs"), pid.to_string())
            .at("put a process in", &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_found_in_either_version() {
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
        let none = |_: &Path| String::new();
        assert_eq!(
            Hierarchy::among(hybrid, ["memory"; 2], none),
            Some(Hierarchy::One("/sys/fs/cgroup/memory".into()))
        );
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let all = |_: &Path| "cpu memory io".to_owned();
        assert_eq!(
            Hierarchy::among(unified, ["blkio", "io"], all),
            Some(Hierarchy::Two("/sys/fs/cgroup".into()))
        );
        assert_eq!(Hierarchy::among(unified, ["memory"; 2], none), None);
    }
}
