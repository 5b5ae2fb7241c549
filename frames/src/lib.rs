//! Contracts for frames: the allocator, its RamTab and the frame stacks of its domains.
//!
//! From *Self-Paging in the Nemesis Operating System*, sections 6.2 and 6.3. Every domain has a
//! contract {g, x} and pages within the frames it owns; other domains may use its unused frames;
//! a domain below its g can have back what others own above theirs.
//!
//! Linux gives a program no physical frames, so a frame is a numbered unit of quota. Every page
//! that is resident, staged or nailed holds one, hence resident memory never exceeds the
//! ledger's frames.
//!
//! There are two levels: the processes of one tree share a [`Ledger`] and need no allocator
//! process; the [`allocator`] decides over all tenants of a machine, each of which has a ledger
//! whose limit the allocator's daemon moves by a [`LimitControl`].
//!
//! Rule of the ledger: it consists of words in shared memory, each changed by compare-and-swap,
//! and the truth is the RamTab alone. Any process may be killed at any instruction; the supervisor
//! then calls [`Ledger::retire`] and nothing is lost. The crate has no clock and no I/O but the
//! eventfd of [`Ledger::set_bell`]; the supervisor keeps the deadlines.
//!
//! ```
//! use frames::{Contract, Ledger, State};
//!
//! let (ledger, _descriptor) = Ledger::create(1024, 8)?;
//! let domain = ledger.admit(Contract { g: 64, x: 512 })?;
//! let client = ledger.adopt(domain)?;
//! let frame = client.take().expect("a guaranteed frame");
//! client.mark(frame, State::Standby)?;
//! client.put(frame)?;
//! assert_eq!((client.n(), client.unused()), (1, 1));
//! assert_eq!(ledger.retire(domain), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod acquire;
pub mod allocator;
mod contract;
mod domain;
mod domain_frames;
mod frame_set;
mod layout;
mod ledger;
mod limit_control;
mod limit_word;
mod millis;
mod nailed;
mod page_age;
mod pressure;
mod ramtab;
mod recount;
mod retire;
mod revocation;
mod stats;

pub use contract::{AdmissionError, Contract, fair_share, tree};
pub use domain::{DomainId, DomainPhase};
pub use domain_frames::{DomainFrames, InsufficientFrames, LedgerMisuse};
pub use ledger::{Ledger, LedgerError};
pub use limit_control::{LimitControl, LimitControlError};
pub use millis::Millis;
pub use page_age::PageAge;
pub use ramtab::{Frame, State};
pub use stats::DomainStats;
