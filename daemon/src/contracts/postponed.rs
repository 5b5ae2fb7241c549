//! Requests for contracts that wait until others are released.
//!
//! What a tenant had is free once its processes have ended and none of its I/O is in flight, a moment after its
//! program has. A request that finds too little room in that moment, as of the next `selfpage run` of a script, may be
//! granted after it. So it is checked again when a tenant is removed, and refused for good when none is being released, or
//! at the first look after [`PATIENCE`].

use crate::refusal::Refusal;
use protocol::ResumeToken;
use protocol::contract_spec::{ContractSpec, FramePlacement};
use std::time::{Duration, Instant};

/// How long a request waits at most.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client's request for a contract.
pub(crate) struct JoinRequest {
    /// Its connection.
    pub token: u64,
    pub resume_token: ResumeToken,
    pub name: String,
    pub terms: ContractSpec,
    pub place: Option<FramePlacement>,
    /// When it came.
    pub since: Instant,
    /// It was checked before.
    pub is_retry: bool,
}

/// The requests that wait, in their order: one of a connection.
#[derive(Default)]
pub(crate) struct PostponedJoins(Vec<JoinRequest>);

impl PostponedJoins {
    /// Keeps a request that was refused. Returns false where no release changes that, where it has waited too long,
    /// or another of its connection waits.
    pub fn keep(&mut self, request: JoinRequest, why: &Refusal) -> bool {
        let is_for_room = matches!(
            why,
            Refusal::Frames(_)
                | Refusal::Disk(_)
                | Refusal::SwapRoom(_)
                | Refusal::Reservation(_)
                | Refusal::Policy(_)
                | Refusal::StillLeaving
        );
        let is_first = self.0.iter().all(|other| other.token != request.token);
        let is_kept = is_for_room && is_first && request.since.elapsed() < PATIENCE;
        if is_kept {
            self.0.push(JoinRequest {
                is_retry: true,
                ..request
            });
        }
        is_kept
    }

    /// Takes them all.
    pub fn take(&mut self) -> Vec<JoinRequest> {
        std::mem::take(&mut self.0)
    }
}
