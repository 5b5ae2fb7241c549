//! The control group that a tenant's processes came from, and are moved back to.
//!
//! The processes of a tenant that has given its contract back go on running, and must not stay in a
//! group of the daemon's: the next daemon kills what it finds in groups that belong to no tenant.
//! Their original group is recorded on the tenant's group itself, as an extended attribute, since
//! that outlives the daemon. If the original group is removed, the processes move to the root group.

use host::cgroup_membership;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::process::Pid;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The attribute's name. Control groups have user attributes since Linux 5.7.
const ATTRIBUTE: &str = "user.selfpage.origin";
/// Longest path that is recorded.
const MAX_PATH: usize = 4096;

/// How long processes are moved back that go on starting others.
pub(super) const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts to move the processes that are left.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Records on `group`, below `mount`, the group of `leader` before the leader is moved there.
pub(super) fn record(mount: &Path, group: &Path, leader: Pid) {
    let Some(origin) = of(mount, leader).filter(|origin| origin != group) else {
        // The leader is in the group already: an earlier daemon has recorded its origin.
        return;
    };
    // A leader with another contract is in the group of that contract, which has its origin recorded.
    let origin = match origin.parent() == group.parent() {
        true => recorded(&origin).unwrap_or_else(|| mount.into()),
        false => origin,
    };
    // Without the attribute, the processes go to the root group.
    let _ = setxattr(
        group,
        ATTRIBUTE,
        origin.as_os_str().as_bytes(),
        XattrFlags::empty(),
    );
}

/// Moves all processes of `group` back, for at most `limit` while the group does not become empty.
pub(super) fn restore(mount: &Path, group: &Path, limit: Duration) {
    let home = recorded(group).unwrap_or_else(|| mount.into());
    let begin = Instant::now();
    loop {
        let there = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        if there.is_empty() || begin.elapsed() > limit {
            return;
        }
        for pid in there.lines() {
            // This fails where the process has ended or its original group is removed: the root group takes any process.
            if fs::write(home.join("cgroup.procs"), pid).is_err() {
                let _ = fs::write(mount.join("cgroup.procs"), pid);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn recorded(group: &Path) -> Option<PathBuf> {
    let mut bytes = vec![0u8; MAX_PATH];
    let len = getxattr(group, ATTRIBUTE, &mut bytes[..]).ok()?;
    let home = PathBuf::from(OsStr::from_bytes(&bytes[..len]));
    home.join("cgroup.procs").exists().then_some(home)
}

/// The control group (version 2) that a process is in.
fn of(mount: &Path, pid: Pid) -> Option<PathBuf> {
    let groups = cgroup_membership::of(pid);
    let group = groups.iter().find(|group| group.is_v2())?;
    Some(group.below(mount))
}
