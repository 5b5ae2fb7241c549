//! Control groups for a tree: made beside or below this process's own, named for the process
//! that stands for the tree, removed when it has ended.

use crate::cgroup_membership;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// What the names of our groups begin with; the owner's process number follows.
const NAME: &str = "selfpage-cpu-";

/// The cpu controller, and where groups of this process's may be made.
pub(super) struct Controller {
    v1: bool,
    below: Vec<PathBuf>,
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Mount points of control groups: their kind, where, and the options.
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

/// This process's group in a hierarchy mounted there: of the cpu controller (v1), or the one
/// (v2).
fn own_group(v1: bool, mount: &Path) -> Result<PathBuf, Errno> {
    let groups = cgroup_membership::own();
    let ours = groups.iter().find(|group| match v1 {
        true => group.is_v1_of("cpu"),
        false => group.is_v2(),
    });
    Ok(ours.ok_or(Errno::NOENT)?.below(mount))
}

impl Controller {
    /// The one that is in force: v1 where the cpu controller is mounted so, else v2.
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
        // A group that has processes gives its controllers to no group below it, the root
        // excepted; so beside the own one is the place mostly.
        let beside = own.parent().filter(|_| own != *root).map(Path::to_owned);
        let gives = |path: &PathBuf| {
            let given = fs::read_to_string(path.join("cgroup.subtree_control"));
            given.is_ok_and(|given| given.split_whitespace().any(|name| name == "cpu"))
        };
        let below: Vec<_> = [Some(own), beside]
            .into_iter()
            .flatten()
            .filter(gives)
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

/// A group of ours. It is removed when dropped, unless it was entered and something runs in
/// it still: then by [`remove_of`].
pub(super) struct Group {
    path: PathBuf,
    processes: OwnedFd,
}

impl Group {
    /// Makes the group of an owner.
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

    /// Sets one of its files.
    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), Errno> {
        fs::write(self.path.join(file), value).map_err(errno)
    }

    /// Moves the calling process in. System calls only.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        rustix::io::write(&self.processes, b"0").map(|_| ())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// The groups there are, with their owners.
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

/// Removes a group, and before it those of ours below it: of runs within its tree, which have
/// ended with it. One in which something runs stays.
fn remove(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}

/// Removes groups whose owner was killed together with all who could have removed them. One
/// in which something runs stays.
pub(super) fn remove_stale() {
    for (owner, path) in all() {
        if !Path::new(&format!("/proc/{owner}")).exists() {
            remove(&path);
        }
    }
}
