//! Domains whose parent ended before the child of its fork joined: a daemon's parent exits as soon
//! as it has forked. What such a domain holds is the child's memory, so it is taken back only when
//! no process is left that can be the child.

use crate::processes::ProcessTable;
use frames::{DomainId, Process};
use host::process_tree;
use rustix::fd::OwnedFd;
use rustix::process::Pid;
use std::io::ErrorKind;

/// What /proc shows of the mapping of a ledger.
const LEDGER: &str = "selfpage-ledger";

/// A domain and the processes that can be its child.
struct Unclaimed {
    domain: DomainId,
    candidates: Vec<Process>,
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
    /// Returns those of `domains`, whose parents have ended, that no process can claim any more.
    pub fn never_claimed(&mut self, domains: Vec<DomainId>, claims: &Claims<'_>) -> Vec<DomainId> {
        let mut known = std::mem::take(&mut self.0);
        known.retain(|unclaimed| domains.contains(&unclaimed.domain));
        for unclaimed in &mut known {
            unclaimed
                .candidates
                .retain(|process| claims.is_candidate(*process));
        }
        // The child exists before its parent ends: later processes are other domains' children.
        let new = |domain: &&DomainId| known.iter().all(|unclaimed| unclaimed.domain != **domain);
        let new: Vec<DomainId> = domains.iter().filter(new).copied().collect();
        if !new.is_empty() {
            let candidates = claims.candidates();
            known.extend(new.into_iter().map(|domain| Unclaimed {
                domain,
                candidates: candidates.clone(),
            }));
        }
        let (never, unclaimed) = known
            .into_iter()
            .partition(|unclaimed| unclaimed.candidates.is_empty());
        self.0 = unclaimed;
        let never: Vec<Unclaimed> = never;
        never.iter().map(|unclaimed| unclaimed.domain).collect()
    }
}

impl Claims<'_> {
    fn candidates(&self) -> Vec<Process> {
        let below = process_tree::below(rustix::process::getpid());
        let mut processes: Vec<Process> = below.into_iter().map(process_tree::process).collect();
        processes.retain(|process| self.is_candidate(*process));
        processes
    }

    /// Whether a process is a forked child that has not joined: it has its parent's mapping of the
    /// ledger, and is neither a member nor a member's pager process.
    fn is_candidate(&self, process: Process) -> bool {
        let Some(pid) =
            Pid::from_raw(process.pid as i32).filter(|_| process_tree::is_alive(process))
        else {
            return false;
        };
        let mut members = self.processes.iter();
        members.all(|member| member.pid != pid && member.program != pid) && self.maps_ledger(pid)
    }

    /// A process whose mappings may not be read counts as one that maps it.
    fn maps_ledger(&self, pid: Pid) -> bool {
        let Ok(ledger) = rustix::fs::fstat(self.ledger) else {
            return true;
        };
        match std::fs::read_to_string(format!("/proc/{}/maps", pid.as_raw_nonzero())) {
            Ok(maps) => {
                let inode = ledger.st_ino.to_string();
                let mut ledgers = maps.lines().filter(|line| line.contains(LEDGER));
                ledgers.any(|line| line.split_whitespace().nth(4) == Some(inode.as_str()))
            }
            Err(error) => error.kind() == ErrorKind::PermissionDenied,
        }
    }
}
