//! What holds in every state of the model.

use crate::state::{Server, State};
use selfpage_remote_policy::migration::{MoveOutcome, MovePhase, ObjectCopy, PageNumber, Route};

impl State {
    /// The server whose copy decides what was written, by the organizer's knowledge alone.
    pub fn authority(&self) -> Option<&Server> {
        match self.migration.route() {
            Route::To { server, .. } => Some(&self.servers[(server.0 - 1) as usize]),
            Route::Deferred => {
                // The source, until the destination serves in its place.
                let [source, destination] = &self.servers;
                let is_handing_over = self.migration.phase() == MovePhase::HandingOver;
                Some(if is_handing_over && source.crashed {
                    destination
                } else {
                    source
                })
            }
            Route::Lost => None,
        }
    }

    /// A server that restarted has no copy, or must not serve the one it has.
    pub fn has_all_acknowledged(&self) -> bool {
        let Some(server) = self.authority() else {
            return true;
        };
        let is_written = |page: PageNumber, copy: &ObjectCopy| {
            copy.version(page) >= self.client.acknowledged[page.0 as usize]
        };
        match &server.copy {
            Some(copy) if copy.is_serving() || !server.crashed => {
                self.faults.all_pages().all(|page| is_written(page, copy))
            }
            _ => server.crashed,
        }
    }

    /// Two copies may serve only where one of them has a generation that no request is stamped
    /// with, nor will be.
    pub fn has_one_authority(&self) -> bool {
        let Route::To { generation, .. } = self.migration.route() else {
            return true;
        };
        let is_authoritative = |server: &&Server| {
            let serves = |copy: &ObjectCopy| copy.is_serving() && copy.generation() == generation;
            server.copy.as_ref().is_some_and(serves)
        };
        self.servers.iter().filter(is_authoritative).count() <= 1
    }

    pub fn loses_only_what_died(&self) -> bool {
        match self.migration.outcome() {
            Some(MoveOutcome::SourceLost) => self.servers[0].crashed,
            _ => true,
        }
    }

    /// Without further faults the move ends, and each write and read is answered that a living
    /// copy can answer.
    pub fn ends(&self) -> bool {
        let mut future = self.clone();
        (0..40).any(|_| {
            for index in 0..2 {
                if future.servers[index].crashed {
                    let host = future.servers[index].incarnation.host;
                    future.change_move(|migration| migration.on_died(host));
                }
            }
            future.resend();
            while let Some(sent) = future.network.pop_first() {
                future.deliver(sent);
            }
            future.has_ended()
        })
    }

    pub fn has_ended(&self) -> bool {
        let client = &self.client;
        let answered = client.acknowledged == client.written && client.read.is_none();
        let is_dead = self.authority().is_none_or(|server| server.crashed);
        self.migration.phase() == MovePhase::Ended && (answered || is_dead) && !client.old_read
    }
}
