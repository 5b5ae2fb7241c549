//! The nailed stretch driver: frames at bind time, never faults.

use super::StretchDriver;
use crate::fault_outcome::{FaultError, FillOutcome};
use crate::page_in::Activation;

/// Backs a stretch with frames when it is bound, for good.
#[derive(Debug, Default, Clone, Copy)]
pub struct Nailed;

impl StretchDriver for Nailed {
    fn name(&self) -> &'static str {
        "nailed"
    }

    fn fills_at_bind(&self) -> bool {
        true
    }

    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        if fault.at_bind() {
            return fault.fill();
        }
        match fault.state().state() {
            crate::page::State::Resident => fault.fill(),
            _ => FillOutcome::Failure(FaultError::NeverFaults),
        }
    }
}
