//! Configuration of a domain, and its construction.

use super::runtime::{LedgerHandle, OwnedPtr, Runtime};
use super::{Domain, DomainError};
use crate::counters::Counters;
use crate::pager::{FEWEST_FRAMES, Pager, PagerConfig, StderrLog};
use frames::{Contract, Ledger};
use rate::{FaultLimits, SharedLimits};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use store::{HolderId, SharedStore, StoreConfig};
use translation::{Capabilities, EntryKind, Userfault};

/// Whether devices may access the program's stretches by DMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// At any time: before a page is evicted, the pager checks that no device holds it. Needs
    /// `UFFDIO_MOVE` (Linux 6.8); without it nothing is evicted, which the first fault that
    /// finds no frame reports.
    #[default]
    Anytime,
    /// Only into memory that the program has pinned with [`Stretch::pin`](crate::Stretch::pin)
    /// for as long as the device may access it: a promise, and the faster way.
    PinnedOnly,
}

/// Where evicted pages go.
enum StoreSource {
    /// A store to be made.
    New(StoreConfig),
    /// A store that exists already.
    Made(SharedStore),
}

impl StoreSource {
    /// The store, for a domain with this number in it.
    fn open(self, holder: HolderId) -> Result<SharedStore, DomainError> {
        let store = match self {
            Self::New(config) => {
                let (store, _) = SharedStore::create(&config, holder + 1)?;
                store.grow_ahead()?;
                store
            }
            Self::Made(store) => store,
        };
        store.set_holder(holder)?;
        Ok(store)
    }
}

/// Configuration of a domain.
pub struct Builder {
    contract: Contract,
    ledger: Option<Ledger>,
    store: Option<StoreSource>,
    entry: EntryKind,
    direct_io: DirectIo,
    capabilities: Option<Capabilities>,
    concurrent_faults: usize,
    track_dirty: bool,
    fault_rate: FaultLimits,
}

impl Builder {
    /// All by default.
    pub(super) fn new() -> Self {
        Self {
            contract: Contract::from(16_384),
            ledger: None,
            store: None,
            entry: EntryKind::Upcall,
            direct_io: DirectIo::default(),
            capabilities: None,
            concurrent_faults: 32,
            track_dirty: false,
            fault_rate: FaultLimits::default(),
        }
    }

    /// The contract {g, x}, in frames of 4 KiB, or one number for both. 16,384 by default.
    pub fn frames(mut self, contract: impl Into<Contract>) -> Self {
        self.contract = contract.into();
        self
    }

    /// A ledger shared with a supervisor, which may change the domain's limit: for a program
    /// that has its contract from the daemon. A ledger of its own by default.
    pub fn ledger(mut self, ledger: Ledger) -> Self {
        self.ledger = Some(ledger);
        self
    }

    /// The store for evicted pages. None by default: then only nailed, physical and mapped
    /// stretches are available.
    pub fn store(mut self, store: StoreConfig) -> Self {
        self.store = Some(StoreSource::New(store));
        self
    }

    /// The same, for a store that exists already, with room for at least one holder.
    pub fn shared_store(mut self, store: SharedStore) -> Self {
        self.store = Some(StoreSource::Made(store));
        self
    }

    /// How faults arrive: as upcalls by default, without privilege. With handler threads, system
    /// calls, too, can use memory that is paged out.
    pub fn entry(mut self, entry: EntryKind) -> Self {
        self.entry = entry;
        self
    }

    /// The program's promise about direct I/O.
    pub fn direct_io(mut self, direct_io: DirectIo) -> Self {
        self.direct_io = direct_io;
        self
    }

    /// Which kernel features to use; all available ones by default.
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = Some(capabilities);
        self
    }

    /// Faults by upcall that are resolved concurrently, 32 by default; further faults wait.
    pub fn concurrent_faults(mut self, count: usize) -> Self {
        self.concurrent_faults = count.max(1);
        self
    }

    /// Enables the dirty bit of [`Stretch::trans`](crate::Stretch::trans). Costs each first
    /// write to a page that was marked clean a fault inside the kernel (0.8 us).
    pub fn track_dirty(mut self, on: bool) -> Self {
        self.track_dirty = on;
        self
    }

    /// Limits of the domain's fault rate: none by default. See [`Domain::set_fault_rate`].
    pub fn fault_rate(mut self, setting: FaultLimits) -> Self {
        self.fault_rate = setting;
        self
    }

    /// Makes the domain.
    ///
    /// # Errors
    /// [`DomainError`] names the part that failed and what to do.
    pub fn build(self) -> Result<Domain, DomainError> {
        let Contract { g, x } = self.contract;
        if x < FEWEST_FRAMES || g > x {
            return Err(DomainError::TooFewFrames {
                asked: x,
                guaranteed: g,
            });
        }
        let capabilities = self.capabilities.unwrap_or_else(|| match self.track_dirty {
            true => Capabilities::probe().capabilities,
            false => Capabilities::probe_fast(),
        });
        let options = translation::UserfaultOptions {
            user_mode_only: self.entry == EntryKind::Upcall,
            async_write_protect: self.track_dirty,
            ..translation::UserfaultOptions::default()
        };
        let userfault = Userfault::open_with(self.entry, &capabilities, options)?;
        let ledger = match self.ledger {
            Some(ledger) => ledger,
            None => Ledger::create(x, 1)?.0,
        };
        let ledger = OwnedPtr::new(ledger);
        // SAFETY: the ledger is dropped after the pager, which alone uses this.
        let own = unsafe { ledger.get() };
        let id = own.admit(self.contract)?;
        let handle = LedgerHandle { ledger, id };
        let client = own.adopt(id)?;
        let holder = client.id().slot() as HolderId;
        let store = self.store.map(|store| store.open(holder)).transpose()?;
        let store = store.map(OwnedPtr::new);
        let careful = OwnedPtr::new(AtomicU32::new(u32::from(
            self.direct_io == DirectIo::Anytime,
        )));
        let contexts = match self.entry {
            EntryKind::Upcall => self.concurrent_faults,
            EntryKind::Thread => 1,
        };
        // SAFETY: what the pager refers to is dropped after it.
        let (store_of_pager, careful_of_pager) =
            unsafe { (store.as_ref().map(|s| s.get() as _), careful.get()) };
        let pager = OwnedPtr::new(Pager::new(PagerConfig {
            capabilities,
            userfault,
            frames: client,
            total_frames: own.total(),
            store: store_of_pager,
            holder,
            counters: Counters::new(words(wired::Stage::DOMAIN_WORDS)),
            careful: careful_of_pager,
            hooks: &StderrLog,
            contexts,
            limits: limits(),
        })?);
        // SAFETY: dropped with the domain, which is made below.
        unsafe { pager.get() }
            .faults
            .throttle
            .set_limits(self.fault_rate);
        let mut shared = Runtime::new(pager, store, careful, handle)?;
        shared.start(self.entry)?;
        Ok(Domain {
            shared: Arc::new(shared),
        })
    }
}

/// The limits of the domain's faults.
fn limits() -> SharedLimits<'static> {
    let generation = Box::leak(Box::new(AtomicU32::new(0)));
    SharedLimits::new(generation, words(rate::shared_limits::WORDS))
}

/// Words that outlive the domain: handles to its counters may be kept, and a thread may sleep
/// by the limits when it ends.
fn words(count: usize) -> &'static [AtomicU64] {
    Box::leak((0..count).map(|_| AtomicU64::new(0)).collect())
}
