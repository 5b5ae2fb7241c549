//! The organizer's side of a move: it decides, and knows where requests go.

use super::{Generation, MoveMessage};
use crate::identity::{HostId, Incarnation};

/// Uncopied pages below which the source is frozen: copying them takes about as long as the
/// messages of the handover.
const FREEZE_BELOW_PAGES: u64 = 8;

/// Reports of progress after which the source is frozen all the same: the client writes as fast
/// as pages are copied.
const FREEZE_AFTER_REPORTS: u32 = 100_000;

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MovePhase {
    /// The destination is to create an empty copy.
    Creating,
    /// The source copies and serves.
    Copying,
    /// The source stops to serve and copies the rest.
    Freezing,
    /// The destination is to serve.
    HandingOver,
    /// The source is to serve again.
    Thawing,
    /// The outcome is decided; the other copy is to be discarded.
    Discarding,
    /// Nothing remains to be done.
    Ended,
}

/// What a move comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveOutcome {
    /// The destination has the copy.
    Moved,
    /// The source has it as before.
    Kept,
    /// The source died with it.
    SourceLost,
}

/// Where the client's requests for the copy go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// To a server, stamped with the generation.
    To {
        /// The server.
        server: HostId,
        /// The stamp.
        generation: Generation,
    },
    /// They wait for the next event of the move.
    Deferred,
    /// To another copy of the object: this one is lost.
    Lost,
}

/// A message to one of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MoveSend {
    /// The server.
    pub to: HostId,
    /// The message.
    pub message: MoveMessage,
}

/// A move of one copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    source: HostId,
    destination: HostId,
    /// The incarnation of the destination that receives the pages.
    receiver: Option<Incarnation>,
    /// The generation that requests are stamped with at present.
    bound: Generation,
    target: Generation,
    phase: MovePhase,
    outcome: Option<MoveOutcome>,
    has_frozen: bool,
    source_died: bool,
    destination_died: bool,
    reports: u32,
}

impl Move {
    /// Begins to move the copy of generation `bound`. The generations of all moves of an object
    /// are to rise: the next one begins with [`Move::latest`].
    pub fn new(source: HostId, destination: HostId, bound: Generation, latest: Generation) -> Self {
        Self {
            source,
            destination,
            receiver: None,
            bound,
            target: latest.max(bound).next(),
            phase: MovePhase::Creating,
            outcome: None,
            has_frozen: false,
            source_died: false,
            destination_died: false,
            reports: 0,
        }
    }

    /// How far it is.
    pub fn phase(&self) -> MovePhase {
        self.phase
    }

    /// Its outcome, once decided.
    pub fn outcome(&self) -> Option<MoveOutcome> {
        self.outcome
    }

    /// The highest generation that it used.
    pub fn latest(&self) -> Generation {
        self.target.next()
    }

    /// Where requests go now.
    pub fn route(&self) -> Route {
        let generation = self.bound;
        let source = Route::To {
            server: self.source,
            generation,
        };
        match (self.outcome, self.phase) {
            (Some(MoveOutcome::Moved), _) => Route::To {
                server: self.destination,
                generation,
            },
            (Some(MoveOutcome::Kept), _) => source,
            (Some(MoveOutcome::SourceLost), _) => Route::Lost,
            (None, MovePhase::Creating | MovePhase::Copying) => source,
            (None, _) if !self.has_frozen => source,
            (None, _) => Route::Deferred,
        }
    }

    /// The message that the move waits to be answered. To be sent after each event, and again
    /// while no answer comes.
    pub fn message(&self) -> Option<MoveSend> {
        let target = self.target;
        let (to, message) = match (self.phase, self.receiver) {
            (MovePhase::Creating, _) => (self.destination, MoveMessage::Create { target }),
            (MovePhase::Copying, Some(destination)) => (
                self.source,
                MoveMessage::Forward {
                    target,
                    destination,
                },
            ),
            (MovePhase::Freezing, _) => (self.source, MoveMessage::Freeze { target }),
            (MovePhase::HandingOver, Some(destination)) => (
                self.destination,
                MoveMessage::Own {
                    target,
                    destination,
                },
            ),
            (MovePhase::Thawing, _) => {
                let generation = self.latest();
                (self.source, MoveMessage::Thaw { generation })
            }
            (MovePhase::Discarding, _) => self.discard(),
            // Neither phase is entered before the destination is known.
            (MovePhase::Copying | MovePhase::HandingOver, None) | (MovePhase::Ended, _) => {
                return None;
            }
        };
        Some(MoveSend { to, message })
    }

    fn discard(&self) -> (HostId, MoveMessage) {
        if self.outcome == Some(MoveOutcome::Moved) {
            let generation = self.target;
            let forward_to = Some(self.destination);
            return (
                self.source,
                MoveMessage::Discard {
                    generation,
                    forward_to,
                },
            );
        }
        let generation = self.latest();
        let forward_to = None;
        (
            self.destination,
            MoveMessage::Discard {
                generation,
                forward_to,
            },
        )
    }

    /// A server has answered.
    pub fn on_message(&mut self, from: HostId, message: MoveMessage) {
        let current = self.target;
        match (self.phase, message) {
            (
                MovePhase::Creating,
                MoveMessage::Created {
                    target,
                    destination,
                },
            ) if target == current && from == self.destination => {
                self.receiver = Some(destination);
                self.phase = MovePhase::Copying;
            }
            (
                MovePhase::Copying,
                MoveMessage::Progress {
                    target,
                    uncopied_pages,
                },
            ) if target == current => {
                self.reports = self.reports.saturating_add(1);
                if uncopied_pages < FREEZE_BELOW_PAGES || self.reports >= FREEZE_AFTER_REPORTS {
                    self.has_frozen = true;
                    self.phase = MovePhase::Freezing;
                }
            }
            (MovePhase::Freezing, MoveMessage::Drained { target }) if target == current => {
                self.phase = MovePhase::HandingOver;
            }
            (MovePhase::HandingOver, MoveMessage::Owned { target }) if target == current => {
                self.bound = current;
                self.decide(MoveOutcome::Moved);
            }
            (MovePhase::Thawing, MoveMessage::Thawed { generation })
                if generation == self.latest() =>
            {
                self.bound = generation;
                self.decide(MoveOutcome::Kept);
            }
            (MovePhase::Discarding, MoveMessage::Discarded { .. }) => self.on_discarded(from),
            (_, MoveMessage::Gone { generation })
                if generation == current || generation == self.latest() =>
            {
                self.on_died(from);
            }
            _ => {}
        }
    }

    /// A server's incarnation has ended with its copy, or its lease has. A server that only does
    /// not answer may still have the copy: then the move waits.
    pub fn on_died(&mut self, server: HostId) {
        if server == self.source {
            self.source_died = true;
        } else if server == self.destination {
            self.destination_died = true;
        }
        match self.phase {
            MovePhase::Discarding => self.on_discarded(server),
            MovePhase::Ended => {}
            // All pages have arrived: the source is not needed any more.
            MovePhase::HandingOver if !self.destination_died => {}
            _ if self.source_died => self.decide(MoveOutcome::SourceLost),
            MovePhase::Thawing => {}
            _ => self.phase = MovePhase::Thawing,
        }
    }

    /// The organizer gives the move up: the object was not worth it, or the destination is slow.
    /// Once the handover has begun it goes on, since the destination may serve already.
    pub fn cancel(&mut self) {
        if matches!(
            self.phase,
            MovePhase::Creating | MovePhase::Copying | MovePhase::Freezing
        ) {
            self.phase = MovePhase::Thawing;
        }
    }

    fn decide(&mut self, outcome: MoveOutcome) {
        self.outcome = Some(outcome);
        let other_died = match outcome {
            MoveOutcome::Moved => self.source_died,
            MoveOutcome::Kept | MoveOutcome::SourceLost => self.destination_died,
        };
        self.phase = if other_died {
            MovePhase::Ended
        } else {
            MovePhase::Discarding
        };
    }

    fn on_discarded(&mut self, from: HostId) {
        if from == self.discard().0 {
            self.phase = MovePhase::Ended;
        }
    }
}
