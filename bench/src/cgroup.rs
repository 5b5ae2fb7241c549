//! A cgroup of either version: the alternatives' share of memory, and of a disk.

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

    /// The one with the controller that version 1 calls `one` and version 2 `two`.
    fn of(one: &str, two: &str) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let controllers = |root: &Path| {
            std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default()
        };
        Self::among(&mounts, [one, two], controllers)
            .ok_or_else(|| unavailable(format_args!("there is no {one} cgroup controller here")))
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
        self.either("cgroup v1", "cgroup v2")
    }

    /// What version 1 has, or version 2.
    fn either<T>(&self, one: T, two: T) -> T {
        match self {
            Self::One(_) => one,
            Self::Two(_) => two,
        }
    }

    /// Has version 2 keep a controller's account of each cgroup. Fails where it is on already, or
    /// shows when the cgroup is used where it cannot be.
    fn enable(&self, controller: &str) {
        if let Self::Two(root) = self {
            let _ = std::fs::write(root.join("cgroup.subtree_control"), controller);
        }
    }
}

/// A cgroup; removed when dropped.
pub struct Cgroup {
    hierarchy: Hierarchy,
    path: PathBuf,
    _guard: Option<UndoGuard>,
}

impl Cgroup {
    /// With so many bytes of memory.
    pub fn new(cleanup: &CleanupProcess, name: &str, limit: u64) -> Result<Self> {
        let cgroup = Self::unlimited(cleanup, name)?;
        cgroup.set(["memory.limit_in_bytes", "memory.max"], limit)?;
        Ok(cgroup)
    }

    /// That counts memory and does not limit it.
    pub fn unlimited(cleanup: &CleanupProcess, name: &str) -> Result<Self> {
        let hierarchy = Hierarchy::find()?;
        hierarchy.enable("+memory");
        Self::fresh(cleanup, hierarchy, name)
    }

    /// Bytes of memory at the peak: the program's, page tables, and files that it was first to read.
    pub fn peak_bytes(&self) -> Result<u64> {
        let name = self.either("memory.max_usage_in_bytes", "memory.peak");
        let text = std::fs::read_to_string(self.path.join(name))
            .or_unavailable(format_args!("there is no {name} (Linux 5.19)"))?;
        Ok(text.trim().parse()?)
    }

    /// Processes in it that the kernel killed for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let name = self.either("memory.oom_control", "memory.events");
        let text = crate::machine::read(self.path.join(name));
        let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
        text.lines().find_map(count).unwrap_or(0)
    }

    /// For the disk of the programs in this one: in version 2 that is its place, too.
    pub fn for_disk(&self, cleanup: &CleanupProcess, name: &str) -> Result<Self> {
        let hierarchy = Hierarchy::of("blkio", "io")?;
        if let Hierarchy::One(_) = hierarchy {
            return Self::fresh(cleanup, hierarchy, name);
        }
        hierarchy.enable("+io");
        let path = self.path.clone();
        Ok(Self {
            hierarchy,
            path,
            _guard: None,
        })
    }

    /// A fresh one at the root of the hierarchy: under our own it would share our limits,
    /// and version 2 allows no processes beside it.
    fn fresh(cleanup: &CleanupProcess, hierarchy: Hierarchy, name: &str) -> Result<Self> {
        let (Hierarchy::One(root) | Hierarchy::Two(root)) = &hierarchy;
        let path = root.join(format!("selfpage-bench-{}-{name}", std::process::id()));
        let _guard = Some(cleanup.register(UndoAction::Cgroup(path.clone()))?);
        std::fs::create_dir(&path).at_as_root("make the cgroup", &path)?;
        Ok(Self {
            hierarchy,
            path,
            _guard,
        })
    }

    /// Puts a process in. What it has had so far stays charged to where it was: only its
    /// work counts.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.set(["cgroup.procs"; 2], pid)
    }

    /// What version 1 has, or version 2.
    pub fn either<T>(&self, one: T, two: T) -> T {
        self.hierarchy.either(one, two)
    }

    /// Sets what version 1 and version 2 call so.
    pub fn set(&self, [one, two]: [&str; 2], value: impl std::fmt::Display) -> Result<()> {
        let path = self.path.join(self.either(one, two));
        if !path.exists() {
            bail!(unavailable(format_args!(
                "there is no {}: this kernel, or this disk's scheduler, does not offer it",
                path.display()
            )));
        }
        std::fs::write(&path, value.to_string()).at(&format!("write {value} to"), &path)
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
