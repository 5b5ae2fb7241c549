//! The revocation in progress, and other messages of the daemon that change the ledger.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: intrusive revocation, the
//! tenant's side.

use super::Session;
use crate::{Revocation, SessionEvent};
use frames::Ledger;
use std::time::Duration;

/// How often the frames that a revocation leaves are counted.
pub(super) const RECLAIM_POLL: Duration = Duration::from_millis(1);

impl Session {
    /// Handles pending messages, without blocking, and returns the events.
    pub fn dispatch(&mut self, ledger: &Ledger) -> Vec<SessionEvent> {
        let events = self.receive();
        for event in &events {
            match event {
                SessionEvent::Revoke(revocation) => self.revocation = Some(*revocation),
                // The next daemon revokes again, with round numbers of its own.
                SessionEvent::Disconnected => {
                    if self.revocation.take().is_some() {
                        ledger.reclaim_to(u32::MAX);
                    }
                    end_lent_priority();
                }
                // No daemon will grant the frames that are missing.
                SessionEvent::Lost(_) => {
                    ledger.set_max_guaranteed(ledger.limit());
                }
                SessionEvent::Unpaged(frames) => {
                    self.unpaged = *frames;
                    self.fit_guarantees(ledger);
                }
                // The next daemon reserves again.
                SessionEvent::Resumed => {
                    self.unpaged = 0;
                    self.fit_guarantees(ledger);
                }
                SessionEvent::Changed { .. } => self.fit_guarantees(ledger),
                _ => {}
            }
        }
        events
    }

    /// Guarantees the ledger's domains the frames of the contract that are not reserved for memory that is not paged.
    fn fit_guarantees(&self, ledger: &Ledger) {
        let g = self.terms.frames.g.saturating_sub(self.unpaged);
        ledger.set_max_guaranteed(g);
    }

    /// Has the domains give back frames for the pending revocation, and reports it as done once few enough are owned.
    pub fn serve_revocation(&mut self, ledger: &Ledger) {
        let Some(Revocation { round, keep, .. }) = self.revocation else {
            return;
        };
        // Requested on each call: processes start and end, and another process may serve the request.
        ledger.reclaim_to(keep);
        if ledger.reclaim_done(keep) {
            self.acknowledge(round);
            self.revocation = None;
        }
        // The revocation stays pending past its deadline: the daemon may have extended it.
    }
}

/// Takes lent priority from the threads of this tree, since no daemon limits its time now.
fn end_lent_priority() {
    let own = rustix::process::getpid();
    host::lent_priority::end_all(host::process_tree::below(own).into_iter().chain([own]));
}
