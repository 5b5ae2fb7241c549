//! Errors of making or changing a domain or a stretch.

use crate::entry::registry;
use crate::fault_outcome::FaultError;
use crate::page::State;
use crate::pager::FEWEST_FRAMES;
use crate::rights::Denied;
use crate::stretch_index::MOST_STRETCHES;
use frames::Frame;
use store::{SetupError, StoreError};
use translation::TranslationError;

/// Why a domain could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// A contract that cannot work.
    #[error(
        "{asked} frames are asked for (guaranteed {guaranteed}); a domain needs at least {FEWEST_FRAMES}: two for an instruction across two pages, one for a page on its way out, one for a page on its way in"
    )]
    TooFewFrames {
        /// The limit asked for.
        asked: u32,
        /// The guarantee asked for.
        guaranteed: u32,
    },
    /// The kernel or the permissions do not allow userfaultfd.
    #[error(transparent)]
    Userfault(#[from] translation::OpenError),
    /// No address space.
    #[error(transparent)]
    Translation(#[from] translation::ReserveError),
    /// A stretch could not be registered.
    #[error(transparent)]
    Register(#[from] TranslationError),
    /// No memory for tables.
    #[error("no memory for the domain's tables: {0}")]
    Memory(rustix::io::Errno),
    /// The frames' ledger.
    #[error(transparent)]
    Ledger(#[from] frames::LedgerError),
    /// The contract was refused.
    #[error(transparent)]
    Refused(#[from] frames::AdmissionError),
    /// The store could not be made.
    #[error(transparent)]
    Store(#[from] SetupError),
    /// A channel to the store could not be made.
    #[error("no channel to the store: {0}")]
    Channel(#[from] StoreError),
    /// Signal handlers or threads could not be started.
    #[error("the upcall or the handler threads could not be started: {0}")]
    Entry(#[from] std::io::Error),
    /// Too many domains.
    #[error(
        "the process has {} domains with upcalls already, the most there can be",
        registry::MOST_DOMAINS
    )]
    TooManyDomains,
}

/// Why a stretch could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum StretchError {
    /// An empty stretch.
    #[error("a stretch of no bytes was asked for")]
    Empty,
    /// No address space.
    #[error(transparent)]
    Reserve(#[from] translation::ReserveError),
    /// Too many stretches.
    #[error("the domain has {MOST_STRETCHES} stretches, the most there can be")]
    TooMany,
    /// No memory for the page table.
    #[error("no memory for the page table of a stretch of {pages} pages: {errno}")]
    Table {
        /// Pages it was for.
        pages: usize,
        /// The kernel's error.
        errno: rustix::io::Errno,
    },
    /// The kernel refused.
    #[error(transparent)]
    Translation(#[from] TranslationError),
    /// Bound already.
    #[error("the stretch is bound to a stretch driver already, and a binding is for life")]
    Bound,
    /// A paged driver without a store.
    #[error(
        "the {driver} driver puts pages in the domain's store, and the domain has none: build it with one"
    )]
    NoStore {
        /// The driver asked for.
        driver: &'static str,
    },
    /// A driver that backs a shorter stretch.
    #[error("the {driver} driver backs {backed} pages, and the stretch has {pages}")]
    TooLong {
        /// The driver asked for.
        driver: &'static str,
        /// Pages that it backs.
        backed: usize,
        /// Pages of the stretch.
        pages: usize,
    },
    /// A driver that keeps nothing that is written.
    #[error(
        "the {driver} driver keeps nothing that the program writes: its file was mapped for reading"
    )]
    ReadOnly {
        /// The stretch's driver.
        driver: &'static str,
    },
    /// Not enough frames to nail.
    #[error(
        "{pages} pages are to stay resident, and only {had} could be given frames of the {limit} the contract allows"
    )]
    Frames {
        /// Pages to nail.
        pages: usize,
        /// Pages nailed before frames ran out.
        had: usize,
        /// The contract's limit.
        limit: u32,
    },
    /// No frames of 2 MiB.
    #[error("frames of 2 MiB are not to be had: {0}")]
    NoHugeFrames(String),
    /// Recorded already.
    #[error("the stretch's faults are being recorded already; end that first")]
    Recording,
    /// A thread of the domain could not be started.
    #[error("the domain's prefetching thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The domain is the parent's.
    #[error(
        "the domain is that of the process that this one was forked from, and its pages are that process's; build a domain in the child"
    )]
    Forked,
    /// The caller lacks a right.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Not a frame that the program has taken.
    #[error(
        "frame {0:?} is not one that was taken from this domain and neither mapped nor put back since"
    )]
    NotYourFrame(Frame),
    /// Outside the stretch.
    #[error("page {page} is asked for of a stretch of {pages} pages")]
    Outside {
        /// The page asked for.
        page: usize,
        /// Pages there are.
        pages: usize,
    },
    /// The page is mapped although it must not be, or the reverse.
    #[error("page {page} is {state:?}: {wanted}")]
    State {
        /// The page.
        page: usize,
        /// Its state.
        state: State,
        /// The state required.
        wanted: &'static str,
    },
    /// A page that must stay where it is.
    #[error(
        "page {page} is pinned, or its stretch is nailed, so that it keeps its contents; drop the pin first"
    )]
    Pinned {
        /// The first such page.
        page: usize,
    },
    /// Another thread is filling the page.
    #[error("page {page} is being brought in by another thread; try again when it has it")]
    InOthersHands {
        /// The page.
        page: usize,
    },
    /// A page could not be brought in or written back.
    #[error("page {page}: {why}")]
    Page {
        /// The page.
        page: usize,
        /// Why.
        why: FaultError,
    },
}
