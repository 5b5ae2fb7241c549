//! Why a request is refused: a status, and words.

use remote_policy::capacity::{AllocateError, ObjectError};
use remote_wire::Status;

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// For programs.
    pub status: Status,
    /// For people.
    pub text: String,
}

impl Refusal {
    /// A refusal with its text.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }
}

impl From<AllocateError> for Refusal {
    fn from(why: AllocateError) -> Self {
        let status = match why {
            AllocateError::Epoch(_) => Status::Epoch,
            AllocateError::Pages { .. }
            | AllocateError::Time { .. }
            | AllocateError::Permits { .. } => Status::NoPages,
            AllocateError::NoPermit(_) | AllocateError::Ended(_) | AllocateError::Leased { .. } => {
                Status::NoPermit
            }
            AllocateError::Contract(_)
            | AllocateError::LongContract(_)
            | AllocateError::Written { .. } => Status::Invalid,
        };
        Self::new(status, why.to_string())
    }
}

impl From<ObjectError> for Refusal {
    fn from(why: ObjectError) -> Self {
        let status = match why {
            ObjectError::NoPermit(_) | ObjectError::NotCovered { .. } => Status::NoPermit,
            ObjectError::NoObject(_) => Status::NoObject,
            ObjectError::Full { .. } | ObjectError::Objects { .. } => Status::Full,
        };
        Self::new(status, why.to_string())
    }
}
