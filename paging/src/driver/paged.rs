//! The paged stretch driver: the physical one, with a store.
//!
//! A page that is taken goes to the domain's store and comes back by the next fault. The
//! store allocates its bloks first fit from extents (see `store::blok`).

use super::StretchDriver;
use crate::fault_outcome::FillOutcome;
use crate::page_in::Activation;

/// Backs a stretch with frames and the domain's store.
#[derive(Debug, Default, Clone, Copy)]
pub struct Paged;

impl StretchDriver for Paged {
    fn name(&self) -> &'static str {
        "paged"
    }

    fn evictable(&self) -> bool {
        true
    }

    fn needs_store(&self) -> bool {
        true
    }

    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        fault.fill()
    }
}
