//! The processes below one, as /proc tells.

use rustix::process::Pid;

/// Whether `pid` is `ancestor` or below it. A process whose parent ended is below its
/// nearest subreaper.
pub fn descends(pid: Pid, ancestor: Pid) -> bool {
    let mut at = Some(pid);
    while let Some(pid) = at {
        if pid == ancestor {
            return true;
        }
        at = parent(pid);
    }
    false
}

/// The parent of a process; `None` for the first, and for one that has gone.
pub fn parent(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    Stat::parse(&stat)?.parent
}

/// What /proc/PID/stat says.
pub struct Stat {
    /// One letter: R, S, D, T, t, Z, X.
    pub state: u8,
    /// Its parent.
    pub parent: Option<Pid>,
}

impl Stat {
    fn parse(stat: &[u8]) -> Option<Self> {
        // The name stands in brackets and may hold brackets and spaces itself.
        let after = stat.iter().rposition(|b| *b == b')')? + 1;
        let mut words = stat
            .get(after..)?
            .split(|b| *b == b' ')
            .filter(|w| !w.is_empty());
        let state = *words.next()?.first()?;
        let parent = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        Some(Self {
            state,
            parent: Pid::from_raw(parent),
        })
    }

    /// Of a process that exists.
    pub fn of(pid: Pid) -> Option<Self> {
        Self::parse(&std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
    }
}
