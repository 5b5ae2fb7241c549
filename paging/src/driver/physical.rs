//! The physical stretch driver: demand zero, no backing store.
//!
//! In the activation it looks for an unused frame and answers `Retry` where there is
//! none; in a worker it may empty others' frames or ask the frames allocator, and where
//! that brings none the fault has failed.

use super::StretchDriver;
use crate::page_in::{Activation, Outcome};

/// Backs a page with a frame of zeros at its first access. Its pages are never taken:
/// there is nowhere to keep them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Physical;

impl StretchDriver for Physical {
    fn name(&self) -> &'static str {
        "physical"
    }

    fn fault(&self, fault: &mut Activation<'_>) -> Outcome {
        fault.fill()
    }
}
