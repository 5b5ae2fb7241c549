//! The revocation in progress, and what else the daemon's messages change in the ledger.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: intrusive revocation, the
//! tenant's side.

use super::Session;
use crate::{Revocation, SessionEvent};
use frames::Ledger;
use std::time::Duration;

/// How often frames that are to be given back are counted.
pub(super) const RECLAIM_POLL: Duration = Duration::from_millis(1);

impl Session {
    /// Handles pending messages, without blocking, and returns the events.
    pub fn dispatch(&mut self, ledger: &Ledger) -> Vec<SessionEvent> {
        let events = self.receive();
        for event in &events {
            match event {
                SessionEvent::Revoke(revocation) => self.revocation = Some(*revocation),
                // The next daemon revokes anew, and counts its rounds anew.
                SessionEvent::Disconnected => {
                    if self.revocation.take().is_some() {
                        ledger.reclaim_to(u32::MAX);
                    }
                    end_lent_priority();
                }
                // No daemon will grant what is missing.
                SessionEvent::Lost(_) => {
                    ledger.set_max_guaranteed(ledger.limit());
                }
                SessionEvent::Unpaged(frames) => {
                    self.unpaged = *frames;
                    self.fit_guarantees(ledger);
                }
                // The next daemon reserves anew.
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

    /// The ledger's domains have what the contract guarantees beside memory that is not paged.
    fn fit_guarantees(&self, ledger: &Ledger) {
        let g = self.terms.frames.g.saturating_sub(self.unpaged);
        ledger.set_max_guaranteed(g);
    }

    /// Has frames given back until there are few enough, and reports the revocation as done then.
    pub fn shed(&mut self, ledger: &Ledger) {
        let Some(Revocation { round, keep, .. }) = self.revocation else {
            return;
        };
        // Requested each time: processes come and go, and another process may serve it.
        ledger.reclaim_to(keep);
        if ledger.reclaim_done(keep) {
            self.acknowledge(round);
            self.revocation = None;
        }
        // Past the deadline, too: the daemon may have extended it.
    }
}

/// No daemon measures any more how long the threads of this tree come first.
fn end_lent_priority() {
    let own = rustix::process::getpid();
    host::lent_priority::end_all(host::process_tree::below(own).into_iter().chain([own]));
}
