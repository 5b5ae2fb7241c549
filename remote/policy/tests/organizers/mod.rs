//! An organizer of tests, and what it is asked for.

use crate::common::{incarnation, object, slack};
use selfpage_remote_policy::broker::Refusal;
use selfpage_remote_policy::identity::ObjectId;
use selfpage_remote_policy::organizer::{Organizer, OrganizerAction};
use std::collections::BTreeSet;
use std::time::Duration;

pub const CLIENT: u64 = 7;
pub const REFUSED: Refusal = Refusal::Pages {
    asked: 1,
    most: 0,
    servers: 1,
};

pub fn organizer() -> Organizer {
    Organizer::new(incarnation(CLIENT, 0), slack())
}

pub fn paging_object(number: u64) -> ObjectId {
    object(CLIENT, number)
}

pub fn place(organizer: &mut Organizer, number: u64, pages: u64, now: Duration) -> OrganizerAction {
    organizer.place(paging_object(number), pages, &BTreeSet::new(), now)
}
