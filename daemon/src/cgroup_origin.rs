//! The control group that a tenant's processes came from, and go back to.
//!
//! A contract that is given back leaves processes behind, which are not to stay in a group of
//! the daemon's: the next daemon ends what it finds in groups of tenants that there are not.
//! Where they came from is noted on the group itself, as an attribute, since that outlives the
//! daemon. If the original group is gone, the process moves to the root group.

use host::cgroup_membership;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::process::Pid;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The attribute. Control groups have such since Linux 5.7.
const ATTRIBUTE: &str = "user.selfpage.origin";
/// Longest path that is noted.
const LONGEST: usize = 4096;

/// How long to follow processes that start others without end.
pub(super) const LAST: Duration = Duration::from_secs(10);
/// How often.
const LOOK: Duration = Duration::from_millis(1);

/// Notes on `group`, below `mount`, where `leader` is before it is put there.
pub(super) fn note(mount: &Path, group: &Path, leader: Pid) {
    let Some(origin) = of(mount, leader).filter(|origin| origin != group) else {
        // It is there already: an earlier daemon noted it.
        return;
    };
    // One that has another contract here came from where it came from with that.
    let origin = match origin.parent() == group.parent() {
        true => noted(&origin).unwrap_or_else(|| mount.into()),
        false => origin,
    };
    // Without it, it goes to the root.
    let _ = setxattr(
        group,
        ATTRIBUTE,
        origin.as_os_str().as_bytes(),
        XattrFlags::empty(),
    );
}

/// Puts all processes of `group` back; for at most so long while it does not become empty.
pub(super) fn restore(mount: &Path, group: &Path, limit: Duration) {
    let home = noted(group).unwrap_or_else(|| mount.into());
    let begin = Instant::now();
    loop {
        let there = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        if there.is_empty() || begin.elapsed() > limit {
            return;
        }
        for pid in there.lines() {
            // On failure the process or its original group is gone: the root takes any process.
            if fs::write(home.join("cgroup.procs"), pid).is_err() {
                let _ = fs::write(mount.join("cgroup.procs"), pid);
            }
        }
        std::thread::sleep(LOOK);
    }
}

fn noted(group: &Path) -> Option<PathBuf> {
    let mut bytes = vec![0u8; LONGEST];
    let len = getxattr(group, ATTRIBUTE, &mut bytes[..]).ok()?;
    let home = PathBuf::from(OsStr::from_bytes(&bytes[..len]));
    home.join("cgroup.procs").exists().then_some(home)
}

/// The group a process is in, of version 2.
fn of(mount: &Path, pid: Pid) -> Option<PathBuf> {
    let groups = cgroup_membership::of(pid);
    let group = groups.iter().find(|group| group.is_v2())?;
    Some(group.below(mount))
}
