//! The memory that the control groups of this process allow, in either version of control groups.
//!
//! Rule: a group's limit holds for all groups in it, so the lowest on the way to the root counts. Memory of files
//! counts as available: the kernel reclaims it before it ends a process.

use crate::cgroup_membership::{self, CgroupMembership};
use std::path::{Path, PathBuf};

/// The files of one version.
struct GroupFiles {
    roots: &'static [&'static str],
    limit: &'static str,
    usage: &'static str,
    /// Fields of memory.stat: what it has of files, groups in it included.
    file_fields: [&'static str; 2],
}

const VERSION_1: GroupFiles = GroupFiles {
    roots: &["/sys/fs/cgroup/memory"],
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    file_fields: ["total_inactive_file ", "total_active_file "],
};

const VERSION_2: GroupFiles = GroupFiles {
    roots: &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
    limit: "memory.max",
    usage: "memory.current",
    file_fields: ["inactive_file ", "active_file "],
};

/// The lowest limit, in bytes. Version 1 shows a very high number for no limit.
pub fn limit() -> Option<u64> {
    least_of_own(limit_of)
}

/// The least that one of the groups may still take, in bytes.
pub fn available() -> Option<u64> {
    least_of_own(available_of)
}

fn least_of_own(of: impl Fn(&Path, &GroupFiles) -> Option<u64>) -> Option<u64> {
    let least = |group: &CgroupMembership| {
        let files = match (group.is_v2(), group.is_v1_of("memory")) {
            (true, _) => VERSION_2,
            (_, true) => VERSION_1,
            _ => return None,
        };
        let roots = files.roots.iter().map(Path::new);
        let of = |root: &Path| least(root, group.path(), |folder| of(folder, &files));
        roots.filter_map(of).min()
    };
    cgroup_membership::own().iter().filter_map(least).min()
}

/// The least value of a group and its ancestors.
fn least(root: &Path, group: &Path, of: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
    let inside =
        |folder: &Path| -> PathBuf { root.join(folder.strip_prefix("/").unwrap_or(folder)) };
    group.ancestors().filter_map(|it| of(&inside(it))).min()
}

fn limit_of(folder: &Path, files: &GroupFiles) -> Option<u64> {
    number(&folder.join(files.limit))
}

fn available_of(folder: &Path, files: &GroupFiles) -> Option<u64> {
    let limit = limit_of(folder, files)?;
    let used = number(&folder.join(files.usage))?;
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let field = |name: &&str| -> Option<u64> {
        let value = stat.lines().find_map(|line| line.strip_prefix(name));
        value?.trim().parse().ok()
    };
    let of_files: u64 = files.file_fields.iter().filter_map(field).sum();
    Some(limit.saturating_sub(used.saturating_sub(of_files)))
}

fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_on_the_way_to_the_root_counts_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        let put = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        put("memory.max", "max\n");
        put("a/memory.max", "1000\n");
        put("a/b/memory.max", "2000\n");
        put("a/b/memory.limit_in_bytes", "500\n");
        let lowest = |path: &str, files: &GroupFiles| {
            least(root, Path::new(path), |folder| limit_of(folder, files))
        };
        assert_eq!(lowest("/a/b", &VERSION_2), Some(1000));
        assert_eq!(lowest("/", &VERSION_2), None);
        assert_eq!(lowest("/a/b", &VERSION_1), Some(500));
        let hidden = lowest("/not/seen/from/inside", &VERSION_2);
        assert_eq!(hidden, None, "a container that hides its own path");
    }

    #[test]
    fn available_memory_is_the_rest_of_the_fullest_group_and_its_file_pages() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::fs::create_dir(root.join("a")).unwrap();
        let put = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        let rest =
            |files: &GroupFiles| least(root, Path::new("/a"), |folder| available_of(folder, files));
        put("a/memory.max", "1000\n");
        assert_eq!(rest(&VERSION_2), None, "not known");
        put("a/memory.current", "900\n");
        assert_eq!(rest(&VERSION_2), Some(100));
        put(
            "a/memory.stat",
            "anon 600\ninactive_file 70\nactive_file 30\n",
        );
        assert_eq!(rest(&VERSION_2), Some(200));
        put("memory.max", "5000\n");
        put("memory.current", "4950\n");
        assert_eq!(rest(&VERSION_2), Some(50));
        put("a/memory.limit_in_bytes", "1000\n");
        put("a/memory.usage_in_bytes", "1001\n");
        assert_eq!(rest(&VERSION_1), Some(0));
        put("a/memory.stat", "inactive_file 1\ntotal_inactive_file 70\n");
        assert_eq!(rest(&VERSION_1), Some(69));
    }
}
