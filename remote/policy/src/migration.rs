//! Migration: the move of one copy of a paging object from one server to another.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, section 3.4: the object is created at the
//! destination, its pages are copied, and it is handed over. The authors hand over Mach ports, with
//! the requests queued in them. Here the client's organizer, which is the only one to route the
//! client's requests, decides ([`Move`]), and each server keeps the state of its copy
//! ([`ObjectCopy`]). Reads and writes go on at the source; they wait only from the freeze to the
//! handover, while the last pages are copied.
//!
//! | phase | source | destination | if the source dies | if the destination dies |
//! |---|---|---|---|---|
//! | creating | serves | none | lost | kept |
//! | copying | serves | receives | lost | kept |
//! | freezing | frozen | receives | lost | kept: thawed |
//! | handing over | frozen, all copied | receives, then serves | moved | kept: thawed |
//! | moved | forwards | serves | moved | lost, as at any time |
//!
//! Rule: a copy is authoritative by its generation. Every attempt and every thaw has a generation of
//! its own, higher than all before, and a copy ignores what is stamped with a lower one. A copy that
//! could have missed a write never serves: the destination serves only once the source was frozen
//! and everything was copied to this very incarnation of it. "Lost" above is this copy's loss, as
//! without a move: the object's other copies remain. A version per page, from its single writer,
//! makes late and repeated writes harmless. `tests/migration_model` checks it.

mod coordinator;
mod copy;

pub use coordinator::{Move, MoveOutcome, MovePhase, MoveSend, Route};
pub use copy::{Admission, CopyRole, ObjectCopy, OutgoingCopy};

use crate::identity::{HostId, Incarnation};
use serde::{Deserialize, Serialize};

/// Which of an object's copies is meant: rises with each attempt to move one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Generation(pub u64);

impl Generation {
    /// The generation after it.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A page's version: the number of its writes, counted by the client.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version(pub u64);

/// A page's number in its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageNumber(pub u64);

/// A message of a move. All but the copies of pages may be sent again at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MoveMessage {
    /// Organizer to destination: create an empty copy that receives pages.
    Create {
        /// The attempt.
        target: Generation,
    },
    /// Destination to organizer: the copy is there.
    Created {
        /// The attempt.
        target: Generation,
        /// The incarnation that it is with.
        destination: Incarnation,
    },
    /// Organizer to source: copy the object's pages, and serve on.
    Forward {
        /// The attempt.
        target: Generation,
        /// To where.
        destination: Incarnation,
    },
    /// Source to destination: a page.
    CopyPage {
        /// The attempt.
        target: Generation,
        /// The incarnation that the copy is for.
        destination: Incarnation,
        /// The page.
        page: PageNumber,
        /// Its version.
        version: Version,
    },
    /// Destination to source: a page has arrived.
    Copied {
        /// The attempt.
        target: Generation,
        /// The page.
        page: PageNumber,
        /// Its version.
        version: Version,
    },
    /// Source to organizer: how far it is.
    Progress {
        /// The attempt.
        target: Generation,
        /// Pages that the destination does not have, or not in their last version.
        uncopied_pages: u64,
    },
    /// Organizer to source: serve no more, and copy the rest.
    Freeze {
        /// The attempt.
        target: Generation,
    },
    /// Source to organizer: it is frozen, and all pages have arrived.
    Drained {
        /// The attempt.
        target: Generation,
    },
    /// Organizer to destination: serve from now on.
    Own {
        /// The attempt, which is the copy's generation from now on.
        target: Generation,
        /// The incarnation that all pages were copied to.
        destination: Incarnation,
    },
    /// Destination to organizer: it serves.
    Owned {
        /// The attempt.
        target: Generation,
    },
    /// Organizer to source: the attempt is over; serve again.
    Thaw {
        /// The copy's generation from now on.
        generation: Generation,
    },
    /// Source to organizer: it serves.
    Thawed {
        /// Its generation.
        generation: Generation,
    },
    /// Organizer to the server whose copy is not needed: free its pages.
    Discard {
        /// The generation of the copy that is authoritative.
        generation: Generation,
        /// Where late requests are to go; `None` if there cannot be any.
        forward_to: Option<HostId>,
    },
    /// The copy's pages are freed.
    Discarded {
        /// As in the request.
        generation: Generation,
    },
    /// A server to the organizer: it has no copy that the message could be for. It restarted, or
    /// never had one.
    Gone {
        /// The generation of the message.
        generation: Generation,
    },
}
