//! The control groups that a process is in, by /proc/PID/cgroup.
//!
//! A process is in one group of each hierarchy: of any number of version 1, each with the
//! controllers that were mounted together, and of the one of version 2, which has no
//! controllers in the file. A line is `number:controllers:path` (cgroups(7)); the path starts
//! at the root of the hierarchy as this process sees it.

use rustix::process::Pid;
use std::fs;
use std::path::{Path, PathBuf};

/// A group that a process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMembership {
    controllers: String,
    path: String,
}

impl CgroupMembership {
    /// Returns true if the hierarchy is that of version 2.
    pub fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }

    /// Returns true if the hierarchy is the one of version 1 that has a controller.
    pub fn is_v1_of(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|name| name == controller)
    }

    /// The group's path in its hierarchy, `/` where it is the root.
    pub fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// The group's folder, where its hierarchy is mounted at `mount`.
    pub fn below(&self, mount: &Path) -> PathBuf {
        mount.join(self.path.trim_start_matches('/'))
    }
}

/// The groups that this process is in; an empty list where the kernel has no control groups.
pub fn own() -> Vec<CgroupMembership> {
    read("self")
}

/// The groups that a process is in; an empty list where it has ended.
pub fn of(process: Pid) -> Vec<CgroupMembership> {
    read(&process.as_raw_nonzero().to_string())
}

fn read(process: &str) -> Vec<CgroupMembership> {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup"));
    parse(&text.unwrap_or_default())
}

fn parse(text: &str) -> Vec<CgroupMembership> {
    let membership = |line: &str| {
        // A path may have colons of its own.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?.into(), fields.next()?.into());
        Some(CgroupMembership { controllers, path })
    };
    text.lines().filter_map(membership).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_group_of_each_hierarchy() {
        let all = parse("5:cpu,cpuacct:/a:b\n1:name=systemd:/user\n0::/user/1.scope\n");
        let [cpu, named, two] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert!(cpu.is_v1_of("cpu") && cpu.is_v1_of("cpuacct") && !cpu.is_v2());
        assert!(!cpu.is_v1_of("cpua") && !named.is_v1_of("cpu") && !named.is_v2());
        assert!(two.is_v2() && !two.is_v1_of("cpu"));
        assert_eq!(cpu.path(), Path::new("/a:b"));
        assert_eq!(two.below(Path::new("/mnt")), Path::new("/mnt/user/1.scope"));
    }

    #[test]
    fn the_root_is_where_the_hierarchy_is_mounted() {
        let all = parse("0::/\n");
        assert_eq!(all[0].below(Path::new("/mnt")), Path::new("/mnt"));
    }

    #[test]
    fn malformed_lines_are_left_out() {
        assert_eq!(parse("\n0:\nnothing"), []);
    }

    #[test]
    fn own_groups_are_those_of_the_own_process_number() {
        assert_eq!(own(), of(rustix::process::getpid()));
    }
}
