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
    /// A process has ended: adds its counters to the totals, and reclaims its resources.
    pub(super) fn retire(&mut self, slot: SlotIndex, events: &mut Vec<TreeEvent>) {
        let Some(member) = self.members.remove(slot) else {
            return;
        };
        self.watched.remove(&member.connection);
        self.watched.remove(&member.pidfd);
        self.shared_memory.end(slot);
        self.finished.keep(self.stats_page.block(slot));
        let is_last = self.members.iter().next().is_none();
        if let Some(store) = &mut self.store {
            store.note_peak(is_last);
        }
        let (domain, pid) = (member.domain, member.program);
        let frames = self.drain(domain);
        match member.into_orphaned_memory() {
            // A process that uses the memory may still release pages by the number of this slot.
            Some(memory) => self.orphaned.push((domain, memory)),
            None => self.reclaim_slot(domain),
        }
        // Its parent may fork another child at once.
        self.program_ends.on_ended(slot, pid);
        events.push(TreeEvent::Left { slot, pid, frames });
    }

    /// Fails faults in memory whose pager has ended, and reclaims the slots of memory that is not used any more.
    pub(super) fn serve_orphaned(&mut self) {
        let ended = self
            .orphaned
            .extract_if(.., |(_, memory)| !memory.fail_faults());
        let ended: Vec<_> = ended.map(|(domain, _)| domain).collect();
        ended
            .into_iter()
            .for_each(|domain| self.reclaim_slot(domain));
    }

    /// A program begins a new image: ends the pager process of the previous image, whose resources are
    /// reclaimed after that.
    pub(super) fn end_previous_image(&mut self, program: Pid, events: &mut Vec<TreeEvent>) {
        let Some(slot) = self.members.of(program).map(PagedProcess::slot) else {
            return;
        };
        // Receives its lifeline, which was sent before that image ran: an unread one would kill the program.
        self.on_member(slot, events);
        let Some(before) = self.members.get(slot) else {
            return;
        };
        match before.pid == program {
            true => self.retire(slot, events),
            false => before.end_image(),
        }
    }

    /// Reclaims the frames of a domain, and its pages and slot now or as soon as possible. Returns the
    /// number of frames.
    ///
    /// The frames do not wait for the I/O: they count memory that the process's end has freed, while a
    /// request may wait for a paging server for any time. Data that is read arrives in the channel's
    /// memory, which no ledger counts. Of the process's memory the kernel keeps only the pages of direct
    /// I/O in flight. So others get more frames than are free by at most the I/O that the store has in
    /// flight for one process, and only until that I/O ends.
    pub(super) fn reclaim(&mut self, domain: DomainId) -> u32 {
        let frames = self.drain(domain);
        self.reclaim_slot(domain);
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

    fn reclaim_slot(&mut self, domain: DomainId) {
        if !self.try_reclaim_slot(domain) {
            self.unfinished.push(domain);
        }
    }

    /// Reclaims the pages before the slot: once the ledger has the slot another process may get it. Not before the last
    /// writes have ended, however long a device takes: they would overwrite another process's pages.
    fn try_reclaim_slot(&mut self, domain: DomainId) -> bool {
        let slot = slot_of(domain.raw());
        let store = self.store.as_ref();
        let is_quiet = self.links.is_quiet(slot) && store.is_none_or(|store| store.is_quiet(slot));
        let is_reclaimed = is_quiet && store.is_none_or(|store| store.retire(slot));
        if is_reclaimed {
            self.ledger.retire(domain);
        }
        is_reclaimed
    }

    /// Frees the room of the tree's swap file at the end of the tree, since another run may begin at once.
    pub fn free_store(&self) {
        if let Some(store) = &self.store {
            store.shared().free_room();
        }
    }

    pub(super) fn retry_unfinished(&mut self) {
        let mut unfinished = std::mem::take(&mut self.unfinished);
        unfinished.retain(|domain| !self.try_reclaim_slot(*domain));
        self.unfinished = unfinished;
    }

    /// Reclaims domains of children that no process can claim any more: the child died between fork and its
    /// first message, or was never forked.
    pub(super) fn sweep(&mut self) {
        self.swept = Instant::now();
        if !self.accepts_by_name {
            let _ = self.watch_listener();
        }
        self.links.update_fault_cost(&self.stats_page);
        let released: Vec<DomainId> = self
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
        for domain in self.unclaimed.never_claimed(released, &claims) {
            self.reclaim(domain);
        }
    }
}
