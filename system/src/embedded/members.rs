//! The processes that page now.

use crate::wire::{Slot, slot_of};
use frames::DomainId;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A process that pages.
pub(crate) struct Member {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    pub connection: OwnedFd,
    pub domain: DomainId,
    /// Since when its connection has hung up.
    leaving: Option<Instant>,
}

impl Member {
    /// The process `pid`, which may have ended by now: the pidfd tells.
    pub fn new(connection: OwnedFd, pid: Pid, domain: DomainId) -> std::io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self {
            pid,
            pidfd,
            connection,
            domain,
            leaving: None,
        })
    }

    pub fn slot(&self) -> Slot {
        slot_of(self.domain.raw())
    }
}

/// All of them, by slot.
#[derive(Default)]
pub(crate) struct Members(BTreeMap<Slot, Member>);

impl Members {
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.0.values()
    }

    pub fn get(&self, slot: Slot) -> Option<&Member> {
        self.0.get(&slot)
    }

    pub fn of(&self, pid: Pid) -> Option<&Member> {
        self.iter().find(|member| member.pid == pid)
    }

    pub fn insert(&mut self, member: Member) {
        self.0.insert(member.slot(), member);
    }

    pub fn remove(&mut self, slot: Slot) -> Option<Member> {
        self.0.remove(&slot)
    }

    /// Its connection has hung up: it is ending, or has begun another image.
    pub fn leaving(&mut self, slot: Slot) {
        if let Some(member) = self.0.get_mut(&slot) {
            member.leaving.get_or_insert_with(Instant::now);
        }
    }

    pub fn is_any_leaving(&self) -> bool {
        self.iter().any(|member| member.leaving.is_some())
    }

    /// Those whose connection hung up at least `ago`.
    pub fn left_since(&self, ago: Duration) -> Vec<Slot> {
        let left = |member: &&Member| member.leaving.is_some_and(|since| since.elapsed() >= ago);
        self.iter().filter(left).map(Member::slot).collect()
    }
}
