//! The physical stretch driver: demand zero, no backing store.
//!
//! In the activation it takes an unused frame and returns `Retry` if there is none. Before the
//! retry the thread evicts other pages or calls the frames allocator, and if that yields no
//! frame the fault has failed.

use super::StretchDriver;
use crate::fault_outcome::FillOutcome;
use crate::page_in::Activation;

/// Backs a page with a frame of zeros at its first access. Its pages are never evicted: there
/// is no place to keep them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Physical;

impl StretchDriver for Physical {
    fn name(&self) -> &'static str {
        "physical"
    }

    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        fault.fill()
    }
}
