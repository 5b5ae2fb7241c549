//! Domains of children that were forked and have not joined: most children are about to join, some were killed before,
//! and a parent that was killed in its fork had no child. The frames of such a domain are the child's memory, so the
//! domain is reclaimed only when no process is left that can be the child.

use crate::processes::ProcessTable;
use frames::DomainId;
use host::process_tree::{self, Process};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::Pid;

/// The name of a ledger's mapping in /proc.
const LEDGER: &str = "selfpage-ledger";

/// A domain and the processes that can be its child. They are looked up at the second sweep: nearly all children have joined by then.
struct Unclaimed {
    domain: DomainId,
    candidates: Option<Vec<Process>>,
}

/// The domains that no process has claimed yet.
#[derive(Default)]
pub(super) struct UnclaimedDomains(Vec<Unclaimed>);

/// The processes that page, and the ledger that they map.
pub(super) struct Claims<'a> {
    pub processes: &'a ProcessTable,
    pub ledger: &'a OwnedFd,
}

impl UnclaimedDomains {
    /// Returns those of `domains`, which their creators have released, that no process can claim any more.
    pub fn never_claimed(&mut self, domains: Vec<DomainId>, claims: &Claims<'_>) -> Vec<DomainId> {
        let mut known = std::mem::take(&mut self.0);
        known.retain(|unclaimed| domains.contains(&unclaimed.domain));
        // The child existed when its domain was released: later processes are children of other domains.
        let mut now = None;
        for unclaimed in &mut known {
            if unclaimed.candidates.is_none() {
                let now = now.get_or_insert_with(|| claims.candidates());
                unclaimed.candidates.clone_from(now);
            }
            if let Some(candidates) = &mut unclaimed.candidates {
                candidates.retain(|process| claims.is_candidate(*process));
            }
        }
        let is_new = |domain: &DomainId| known.iter().all(|unclaimed| unclaimed.domain != *domain);
        let new: Vec<DomainId> = domains.into_iter().filter(is_new).collect();
        let has_no_candidate = |it: &Unclaimed| it.candidates.as_ref().is_some_and(Vec::is_empty);
        let (never, unclaimed): (Vec<_>, Vec<_>) = known.into_iter().partition(has_no_candidate);
        self.0 = unclaimed;
        self.0.extend(new.into_iter().map(|domain| Unclaimed {
            domain,
            candidates: None,
        }));
        never.iter().map(|unclaimed| unclaimed.domain).collect()
    }
}

impl Claims<'_> {
    /// The processes that can claim a domain; `None` where a shortage of descriptors keeps them unknown: they are looked up again then.
    fn candidates(&self) -> Option<Vec<Process>> {
        let below = process_tree::try_below(rustix::process::getpid()).ok()?;
        let mut processes: Vec<Process> = below.into_iter().map(process_tree::process).collect();
        processes.retain(|process| self.is_candidate(*process));
        Some(processes)
    }

    /// Returns true if a process is a forked child that has not joined: it has its parent's mapping of the
    /// ledger, and is neither a program nor a pager process.
    fn is_candidate(&self, process: Process) -> bool {
        let Some(pid) =
            Pid::from_raw(process.pid as i32).filter(|_| process_tree::is_alive(process))
        else {
            return false;
        };
        let mut members = self.processes.iter();
        members.all(|member| member.pid != pid && member.program != pid) && self.maps_ledger(pid)
    }

    /// Returns true if a process maps the ledger, or has not ended and its mappings cannot be read.
    fn maps_ledger(&self, pid: Pid) -> bool {
        let Ok(ledger) = rustix::fs::fstat(self.ledger) else {
            return true;
        };
        match std::fs::read(format!("/proc/{}/maps", pid.as_raw_nonzero())) {
            Ok(maps) => {
                let maps = String::from_utf8_lossy(&maps);
                let inode = ledger.st_ino.to_string();
                let mut ledgers = maps.lines().filter(|line| line.contains(LEDGER));
                ledgers.any(|line| line.split_whitespace().nth(4) == Some(inode.as_str()))
            }
            Err(error) => !matches!(
                Errno::from_io_error(&error),
                Some(Errno::NOENT | Errno::SRCH)
            ),
        }
    }
}
