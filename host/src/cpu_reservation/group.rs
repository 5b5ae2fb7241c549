//! Control groups for a tree: made beside or below this process's own, named for the process
//! that stands for the tree, and removed when that process has ended.

use crate::cgroup_membership;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// The prefix of the names of our groups; the owner's process number follows.
const NAME: &str = "selfpage-cpu-";

/// The cpu controller, and the groups below which this process may make groups.
pub(super) struct Controller {
    v1: bool,
    below: Vec<PathBuf>,
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Mount points of control groups: whether of v1, the path, and the options.
fn mounts() -> Vec<(bool, PathBuf, String)> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let v1 = match kind {
            "cgroup" => true,
            "cgroup2" => false,
            _ => return None,
        };
        Some((v1, PathBuf::from(at), options.to_owned()))
    };
    text.lines().filter_map(mount).collect()
}

/// This process's group in the hierarchy that is mounted at `mount`: that of the cpu controller (v1), or the
/// only one (v2).
fn own_group(v1: bool, mount: &Path) -> Result<PathBuf, Errno> {
    let groups = cgroup_membership::own();
    let ours = groups.iter().find(|group| match v1 {
        true => group.is_v1_of("cpu"),
        false => group.is_v2(),
    });
    Ok(ours.ok_or(Errno::NOENT)?.below(mount))
}

impl Controller {
    /// The controller in force: that of v1 where it is mounted, else that of v2.
    pub(super) fn find() -> Result<Self, Errno> {
        let mounts = mounts();
        let has_cpu = |options: &str| options.split(',').any(|name| name == "cpu");
        let v1 = mounts
            .iter()
            .find(|(v1, _, options)| *v1 && has_cpu(options));
        if let Some((_, root, _)) = v1 {
            return Ok(Self {
                v1: true,
                below: vec![own_group(true, root)?],
            });
        }
        let Some((_, root, _)) = mounts.iter().find(|(v1, ..)| !v1) else {
            return Err(Errno::NODEV);
        };
        let own = own_group(false, root)?;
        // A group that has processes does not enable controllers for groups below it, except the root;
        // so the new group is mostly made beside the own one.
        let beside = own.parent().filter(|_| own != *root).map(Path::to_owned);
        let enables_cpu = |path: &PathBuf| {
            let enabled = fs::read_to_string(path.join("cgroup.subtree_control"));
            enabled.is_ok_and(|enabled| enabled.split_whitespace().any(|name| name == "cpu"))
        };
        let below: Vec<_> = [Some(own), beside]
            .into_iter()
            .flatten()
            .filter(enables_cpu)
            .collect();
        match below.is_empty() {
            true => Err(Errno::NODEV),
            false => Ok(Self { v1: false, below }),
        }
    }

    pub(super) fn is_v1(&self) -> bool {
        self.v1
    }
}

/// A group that this process made. Its drop removes it, unless processes still run in it: then
/// [`remove_of`] removes it later.
pub(super) struct Group {
    path: PathBuf,
    processes: OwnedFd,
}

impl Group {
    /// Makes the group named for an owner.
    pub(super) fn make(controller: &Controller, owner: u32) -> Result<Self, Errno> {
        let mut last = Errno::NODEV;
        for below in &controller.below {
            let path = below.join(format!("{NAME}{owner}"));
            let made = fs::create_dir(&path).map_err(errno);
            if let Err(why) = made
                && why != Errno::EXIST
            {
                last = why;
                continue;
            }
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            match open(path.join("cgroup.procs"), flags, Mode::empty()) {
                Ok(processes) => return Ok(Self { path, processes }),
                Err(why) => {
                    let _ = fs::remove_dir(&path);
                    last = why;
                }
            }
        }
        Err(last)
    }

    /// Writes one of the group's files.
    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), Errno> {
        fs::write(self.path.join(file), value).map_err(errno)
    }

    /// Moves the calling process into the group. System calls only.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        rustix::io::write(&self.processes, b"0").map(|_| ())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// All groups of this kind, with their owners.
fn all() -> Vec<(u32, PathBuf)> {
    let Ok(controller) = Controller::find() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for below in &controller.below {
        let Ok(entries) = fs::read_dir(below) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(NAME));
            if let Some(owner) = owner.and_then(|owner| owner.parse().ok()) {
                found.push((owner, entry.path()));
            }
        }
    }
    found
}

/// The groups of an owner.
pub(super) fn of(owner: u32) -> Vec<PathBuf> {
    let groups = all().into_iter().filter(|(of, _)| *of == owner);
    groups.map(|(_, path)| path).collect()
}

/// Removes the groups of an owner whose tree has ended.
pub(super) fn remove_of(owner: u32) {
    of(owner).iter().for_each(|path| remove(path));
}

/// Removes a group, and before it those groups of this kind below it that belong to runs within its
/// tree, which have ended with the tree. A group with processes stays.
fn remove(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}

/// Removes groups whose owner was killed together with all processes that could have removed them. A
/// group with processes stays.
pub(super) fn remove_stale() {
    for (owner, path) in all() {
        if !Path::new(&format!("/proc/{owner}")).exists() {
            remove(&path);
        }
    }
}
