//! The object that takes the written pages of one client: the default memory manager's.
//!
//! It keeps them in a store of this client's own, so that no client can fill another's, and reads and
//! writes a disk in the client's own turns.

use crate::client_record::ClientRecord;
use crate::disk_turns::DiskClient;
use crate::memory_object::{DataReply, MemoryObject, PageName, WritableObject};
use crate::page_table::{PageState, UNIT, state_in};
use disk::cost_model::Op;
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use store::{
    Channel, Checksum, Completion, PageHandle, ReadPage, SetupError, SharedStore, Store,
    StoreConfig, StoreError, Submitted, Wait, WritePage,
};
use wired::{PAGE, WiredMemory};

/// Reads and writes in flight.
const DEPTH: usize = 32;

/// A bit for each copy of a page.
#[derive(Default)]
struct CopySet(Vec<u64>);

impl CopySet {
    fn insert(&mut self, copy: PageHandle) {
        let at = copy.get() as usize;
        if self.0.len() <= at / 64 {
            self.0.resize(at / 64 + 1, 0);
        }
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn has(&self, copy: PageHandle) -> bool {
        let at = copy.get() as usize;
        self.0
            .get(at / 64)
            .is_some_and(|word| word >> (at % 64) & 1 != 0)
    }
}

/// A store and one thread's channel to it.
pub struct PagingObject {
    store: SharedStore,
    channel: Box<dyn Channel>,
    turns: Option<DiskClient>,
    page: WiredMemory,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Its memory or its file.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Its channel.
    #[error(transparent)]
    Channel(#[from] StoreError),
    /// The page that is read into.
    #[error("a buffer of the store: {0}")]
    Buffer(#[from] rustix::io::Errno),
}

impl PagingObject {
    /// Creates the object with a store of its own, and returns the store's descriptors; `turns` schedules its disk.
    pub fn create(
        config: &StoreConfig,
        turns: Option<DiskClient>,
    ) -> Result<(Self, Vec<OwnedFd>), CreateError> {
        let (store, fds) = SharedStore::create(config, 1)?;
        Ok((Self::over(store, config, turns)?, fds))
    }

    /// Goes on with a store whose manager was killed: with the copies that the record names. A page whose copy the
    /// store does not have is lost.
    pub fn resume(
        config: &StoreConfig,
        fds: Vec<OwnedFd>,
        turns: Option<DiskClient>,
        record: &ClientRecord,
    ) -> Result<Self, CreateError> {
        let mut copies = CopySet::default();
        let words = record.pages().iter();
        let handle = |word: &AtomicU32| state_in(word.load(Ordering::Acquire)).handle();
        words
            .filter_map(handle)
            .for_each(|copy| copies.insert(copy));
        let store = SharedStore::resume(config, fds, &|copy| copies.has(copy))?;
        for word in record.pages() {
            if handle(word).is_some_and(|copy| !store.is_held(copy)) {
                tracing::error!("a page of client {} is lost", record.number());
                word.store(PageState::Lost.pack(), Ordering::Release);
            }
        }
        Self::over(store, config, turns)
    }

    fn over(
        store: SharedStore,
        config: &StoreConfig,
        turns: Option<DiskClient>,
    ) -> Result<Self, CreateError> {
        store.grow_ahead()?;
        Ok(Self {
            channel: store.channel(DEPTH)?,
            store,
            turns: turns.filter(|_| config.disk.is_some()),
            page: WiredMemory::private(PAGE)?,
        })
    }

    /// Bytes of memory that the stored pages take.
    pub fn ram_used(&self) -> u64 {
        self.store.occupancy().ram
    }

    fn read(&mut self, handle: PageHandle) -> Result<(), StoreError> {
        let page = ReadPage {
            handle,
            into: self.page.as_ptr(),
            token: 0,
        };
        match self.channel.submit_read(page)? {
            Submitted::Done => Ok(()),
            Submitted::Pending => match self.channel.complete(Wait::Yes) {
                Some(Completion { result, .. }) => result.map(drop),
                None => Err(StoreError::Busy),
            },
        }
    }
}

impl MemoryObject for PagingObject {
    fn data_request(&mut self, page: PageName, _: usize) -> DataReply {
        let Some(handle) = page.copy else {
            return DataReply::Unavailable;
        };
        let turns = self.turns.take();
        let outcome = match &turns {
            Some(turns) if self.store.is_on_disk(handle) => {
                turns.transact(Op::Read, PAGE as u32, || self.read(handle))
            }
            _ => self.read(handle),
        };
        self.turns = turns;
        match outcome {
            Ok(()) => DataReply::Provided(self.page.as_ptr()),
            Err(why) => DataReply::Error(why),
        }
    }
}

impl WritableObject for PagingObject {
    fn data_write(
        &mut self,
        pages: &[WritePage],
        done: &mut dyn FnMut(usize, Result<PageHandle, StoreError>),
    ) {
        let channel = &mut self.channel;
        let mut write = || {
            for (part, pages) in pages.chunks(UNIT).enumerate() {
                if let Err(why) = channel.submit_write(pages) {
                    (0..pages.len()).for_each(|page| done(part * UNIT + page, Err(why)));
                }
                while let Some(it) = channel.complete(Wait::Yes) {
                    let handle = it.result.map(|handle| handle.ok_or(StoreError::Busy));
                    done(it.token as usize, handle.flatten());
                }
            }
        };
        match &self.turns {
            Some(turns) => turns.transact(Op::Write, (pages.len() * PAGE) as u32, write),
            None => write(),
        }
    }

    fn release(&mut self, copy: PageHandle) {
        self.store.discard(0, &[copy]);
    }

    fn is_copy(&self, copy: PageHandle, page: &[u8; PAGE]) -> bool {
        Store::checksum(&self.store, copy) == Checksum::of(page)
    }
}
