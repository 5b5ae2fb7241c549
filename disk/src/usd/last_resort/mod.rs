//! The last resort: a local paging file beside a transport that is slow or fails.
//!
//! *Moving the Default Memory Manager out of the Mach Kernel*: other memory managers cannot be assumed to be timely or
//! reliable, so the default one takes the pages that are in transit to them, and no memory waits for them.
//!
//! | file | what it is |
//! |---|---|
//! | `places` | where each blok's contents are, in memory that outlives the process |
//! | `health` | deadlines, and which writes go to the file at once |
//! | `page_file` | pages of the file, by io_uring |
//! | `late` | parts that wait for an inner transport that does not answer |
//! | `readers` | slots that are read while their bloks leave them |
//! | `part` | a part that is in flight: its pages, and what they wait for |
//! | `transport` | the transport that has both |
//!
//! Rules:
//! - A blok's contents are at one place. A write changes the place after its page is there and before it completes.
//! - An inner transport orders the writes of a blok: one that was given up has no effect on what a later one wrote.

mod health;
mod late;
mod page_file;
mod part;
mod places;
mod readers;
mod transport;

pub use health::{InnerHealth, WRITE_DEADLINE};
pub use places::{BlokPlace, Places, PlacesSize, SlotId};
pub use transport::LastResort;

use super::client::{MOST_WAITING, WINDOW};
use iochannel::MAX_RUN;

/// Most parts in flight.
const PARTS: usize = WINDOW + MOST_WAITING;

/// Slots beside those of a full file: as many as pages are written at once, each of which has one slot more than its blok at most.
pub const SPARE_SLOTS: u32 = (WINDOW * MAX_RUN) as u32;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
