//! Reclaims the frames of processes that end, at once, and their pages and slots as soon as none of their I/O is in
//! flight any more.

use super::Supervisor;
use super::unclaimed::Claims;
use crate::processes::PagedProcess;
use crate::{TreeEvent, fault_limits};
use frames::{DomainId, DomainPhase};
use link::handshake::{SlotIndex, slot_of};
use rustix::process::Pid;
use std::time::Instant;

impl Supervisor {
    /// A process has ended: keeps its totals, reclaims everything else.
    pub(super) fn retire(&mut self, slot: SlotIndex, happened: &mut Vec<TreeEvent>) {
        let Some(member) = self.members.remove(slot) else {
            return;
        };
        self.watched.remove(&member.connection);
        self.watched.remove(&member.pidfd);
        self.shared_memory.end(slot);
        self.past.keep(self.stats_page.block(slot));
        let is_last = self.members.iter().next().is_none();
        if let Some(store) = &mut self.store {
            store.note_peak(is_last);
        }
        let (domain, pid) = (member.domain, member.program);
        let frames = self.drain(domain);
        match member.into_orphaned_memory() {
            // A process that uses the memory may still release pages, under the number of this slot.
            Some(memory) => self.orphaned.push((domain, memory)),
            None => self.take_back_slot(domain),
        }
        // Its parent may fork another child at once.
        self.program_ends.on_ended(slot, pid);
        happened.push(TreeEvent::Left { slot, pid, frames });
    }

    /// Serves memory whose pager has ended, and takes the slots of what is not used any more.
    pub(super) fn serve_orphaned(&mut self) {
        let ended = self
            .orphaned
            .extract_if(.., |(_, memory)| !memory.fail_faults());
        let ended: Vec<_> = ended.map(|(domain, _)| domain).collect();
        ended
            .into_iter()
            .for_each(|domain| self.take_back_slot(domain));
    }

    /// A program begins a new image. The pager process of the one before is ended, and what it
    /// held comes back with its end.
    pub(super) fn end_image_of(&mut self, program: Pid, happened: &mut Vec<TreeEvent>) {
        let Some(slot) = self.members.of(program).map(PagedProcess::slot) else {
            return;
        };
        // Its lifeline, sent before that image ran: unread, it would kill the program with it.
        self.at_member(slot, happened);
        let Some(before) = self.members.get(slot) else {
            return;
        };
        match before.pid == program {
            true => self.retire(slot, happened),
            false => before.end_image(),
        }
    }

    /// Reclaims the frames of a domain, and its pages and slot now or as soon as possible. Returns how
    /// many frames.
    ///
    /// The frames do not wait for the I/O: they count memory that is gone with the process, while a
    /// request may wait for a paging server for any time. What is read arrives in its channel's
    /// memory, which is in no ledger. Of its own memory the kernel keeps only the pages of direct
    /// I/O in flight, so others are given more than is free by no more than the store has under way
    /// for one process, and only until that I/O ends.
    pub(super) fn take_back(&mut self, domain: DomainId) -> u32 {
        let frames = self.drain(domain);
        self.take_back_slot(domain);
        frames
    }

    fn drain(&self, domain: DomainId) -> u32 {
        let frames = self.ledger.stats(domain).map_or(0, |view| view.n);
        self.ledger.drain(domain);
        let slot = slot_of(domain.raw());
        fault_limits::on_ended(&self.stats_page, slot);
        self.stats_page.block(slot).clear();
        frames
    }

    fn take_back_slot(&mut self, domain: DomainId) {
        if !self.try_take_back(domain) {
            self.unfinished.push(domain);
        }
    }

    /// Pages before the slot: once the ledger has that back another process may get it. Not before the last writes have
    /// ended, however long a device takes: they would overwrite another process's pages.
    fn try_take_back(&mut self, domain: DomainId) -> bool {
        let slot = slot_of(domain.raw());
        let store = self.store.as_ref();
        let quiet = self.links.is_quiet(slot) && store.is_none_or(|store| store.is_quiet(slot));
        let free = quiet && store.is_none_or(|store| store.retire(slot));
        if free {
            self.ledger.retire(domain);
        }
        free
    }

    /// Frees the room of the tree's swap file at the end of the tree: another run may begin at once.
    pub fn free_store(&self) {
        if let Some(store) = &self.store {
            store.shared().free_room();
        }
    }

    pub(super) fn finish(&mut self) {
        let mut unfinished = std::mem::take(&mut self.unfinished);
        unfinished.retain(|domain| !self.try_take_back(*domain));
        self.unfinished = unfinished;
    }

    /// Reclaims domains of children that no process can claim any more: those that died between fork and their
    /// first message, or that were never forked.
    pub(super) fn sweep(&mut self) {
        self.swept = Instant::now();
        if !self.accepts_by_name {
            let _ = self.watch_listener();
        }
        self.links.update_fault_cost(&self.stats_page);
        let gone: Vec<DomainId> = self
            .ledger
            .all_stats()
            .filter(|view| self.members.get(slot_of(view.id.raw())).is_none())
            .filter(|view| !self.unfinished.contains(&view.id))
            .filter(|view| view.phase == DomainPhase::Nascent && !view.has_creator)
            .map(|view| view.id)
            .collect();
        let claims = Claims {
            processes: &self.members,
            ledger: &self.ledger_fd,
        };
        for domain in self.unclaimed.never_claimed(gone, &claims) {
            self.take_back(domain);
        }
    }
}
