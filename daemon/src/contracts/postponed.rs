//! Requests for contracts that wait until others are released.
//!
//! A tenant's resources are free once its processes have ended and none of its I/O is in flight, a moment after its
//! program has ended. A request that finds too little room in that moment, as that of the next `selfpage run` of a script,
//! may be granted after it. So the request is retried when a tenant is removed, and refused for good when no tenant is
//! being released, or at the first retry after [`MAX_WAIT`].

use crate::refusal::Refusal;
use protocol::ResumeToken;
use protocol::contract_spec::{ContractSpec, FramePlacement};
use std::time::{Duration, Instant};

/// How long a request waits at most.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// A client's request for a contract.
pub(crate) struct JoinRequest {
    /// Its connection.
    pub token: u64,
    pub resume_token: ResumeToken,
    pub name: String,
    pub terms: ContractSpec,
    pub place: Option<FramePlacement>,
    /// When it arrived.
    pub since: Instant,
    /// True if it was checked before.
    pub is_retry: bool,
}

/// The requests that wait, in order of arrival: one for each connection at most.
#[derive(Default)]
pub(crate) struct PostponedJoins(Vec<JoinRequest>);

impl PostponedJoins {
    /// Keeps a request that was refused. Returns false where no release can change the refusal, where the request has
    /// waited too long, or where another request of its connection waits.
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
        let is_kept = is_for_room && is_first && request.since.elapsed() < MAX_WAIT;
        if is_kept {
            self.0.push(JoinRequest {
                is_retry: true,
                ..request
            });
        }
        is_kept
    }

    /// Takes all requests.
    pub fn take(&mut self) -> Vec<JoinRequest> {
        std::mem::take(&mut self.0)
    }
}
