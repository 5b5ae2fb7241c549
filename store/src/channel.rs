//! One thread's channel to the store: pages in, completions out.

use crate::codec::{Codec, filled_with};
use crate::demotion::{DEMOTE_OPS, Demotion, HALVES};
use crate::inner::{StatsShard, StoreCounter, StoreInner};
use crate::io::op::{IoKind, IoOp, PageSlot, RUN};
use crate::io::{IoEngine, MAX_OPS};
use crate::page_index::ClaimSet;
use crate::read::PendingReads;
use crate::segment::OpenSegment;
use crate::swap_file::notes::NO_RING;
use crate::traits::{Channel, Completion, MAX_PENDING, ReadPage, Submitted, Wait, WritePage, page};
use crate::{Checksum, HolderId, PageHandle, StoreError};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wired::{ForkGuard, PAGE, WiredMemory};

/// A channel. This file has its interface; `compressed_ram` places pages in RAM, `read` returns
/// them, `demotion` moves them to disk, `disk_io` runs operations on the disk.
pub(crate) struct StoreChannel {
    pub(crate) inner: Arc<StoreInner>,
    pub(crate) holder: HolderId,
    pub(crate) shard: StatsShard,
    /// The process that made it: the child of a fork has a copy that must not act.
    fork_guard: ForkGuard,
    pub(crate) claims: ClaimSet,
    pub(crate) open: Option<OpenSegment>,
    pub(crate) codec: Codec,
    pub(crate) engine: Option<IoEngine>,
    /// Operations that have been in use, with room for all.
    pub(crate) ops: Vec<IoOp>,
    /// Idle operations, as bits: `demote_ops` for demotion, then those for the pager's pages.
    pub(crate) idle_ops: [u64; MAX_OPS / 64],
    pub(crate) demote_ops: usize,
    /// The pager's pages in operations.
    pub(crate) in_ops: usize,
    pub(crate) outgoing: PendingWrites,
    pub(crate) incoming: PendingReads,
    /// Blok after the last run on disk: the next run goes there if it is free.
    pub(crate) near: Option<u32>,
    pub(crate) demotion: Option<Demotion>,
    pub(crate) bounce: Option<WiredMemory>,
    done: CompletionQueue,
}

// SAFETY: its pointers are the caller's page memory, promised until completion.
unsafe impl Send for StoreChannel {}

/// Pages to be written to disk that have no operation yet.
pub(crate) struct PendingWrites {
    pub slots: [PageSlot; RUN],
    pub sums: [Checksum; RUN],
    pub len: usize,
}

/// Completions not yet fetched, with room for all that may be pending. It restarts at its beginning
/// whenever it is empty, so that it touches no more memory than it needs.
struct CompletionQueue(VecDeque<Completion>);

impl CompletionQueue {
    fn new() -> Self {
        Self(VecDeque::with_capacity(MAX_PENDING))
    }

    fn push(&mut self, completion: Completion) {
        debug_assert!(self.0.len() < MAX_PENDING);
        self.0.push_back(completion);
    }

    fn pop(&mut self) -> Option<Completion> {
        let completion = self.0.pop_front();
        if self.0.is_empty() {
            self.0.clear();
        }
        completion
    }
}

impl StoreChannel {
    pub fn new(inner: Arc<StoreInner>, depth: usize) -> Result<Self, StoreError> {
        let depth = depth.clamp(1, 128);
        let holder = inner.holder.load(Ordering::Acquire);
        let tiered = inner.has_ram() && inner.bloks.is_some();
        let fail = |what| {
            move |errno: Errno| StoreError::Channel {
                what,
                errno: errno.raw_os_error(),
            }
        };
        let (mut engine, mut count, mut bounce) = (None, 0, None);
        let demote_ops = if tiered { DEMOTE_OPS } else { 0 };
        if inner.bloks.is_some() {
            count = depth + demote_ops;
            engine = Some(inner.backing.engine(count, inner.header.inject())?);
        }
        if tiered {
            let bytes = HALVES * RUN * PAGE;
            bounce = Some(WiredMemory::private(bytes).map_err(fail("its buffer"))?);
        }
        let mut idle_ops = [0; MAX_OPS / 64];
        (0..count).for_each(|op| idle_ops[op / 64] |= 1 << (op % 64));
        inner.set_active(holder, true);
        if engine.as_ref().is_some_and(IoEngine::is_synchronous) {
            inner.header.notes().fetch_or(NO_RING, Ordering::Relaxed);
        }
        Ok(Self {
            shard: inner.shard(),
            inner,
            holder,
            fork_guard: ForkGuard::new().map_err(fail("its mark"))?,
            claims: ClaimSet::default(),
            open: None,
            codec: Codec::new(),
            engine,
            ops: Vec::with_capacity(count),
            idle_ops,
            demote_ops,
            in_ops: 0,
            outgoing: PendingWrites {
                slots: [PageSlot::new(0, std::ptr::null_mut(), 0); RUN],
                sums: [Checksum(0); RUN],
                len: 0,
            },
            incoming: PendingReads::new(),
            near: None,
            demotion: None,
            bounce,
            done: CompletionQueue::new(),
        })
    }

    pub(crate) fn complete_with(
        &mut self,
        token: u64,
        result: Result<Option<PageHandle>, StoreError>,
    ) {
        self.done.push(Completion { token, result });
    }

    pub(crate) fn count(&self, what: StoreCounter, by: u64) {
        self.inner.count(self.holder, self.shard, what, by);
    }

    /// Completes a page that is stored.
    pub(crate) fn complete_stored(&mut self, handle: u32, token: u64) {
        self.count(StoreCounter::Written, 1);
        self.complete_with(token, Ok(PageHandle::new(handle)));
    }

    /// Completes a page that is not stored, and frees its entry.
    pub(crate) fn complete_failed(&mut self, handle: u32, token: u64, error: StoreError) {
        let near = self.shard.near();
        self.inner
            .page_index
            .release_claimed(self.holder, near, handle);
        self.complete_with(token, Err(error));
    }

    fn take_entry(&mut self) -> Option<u32> {
        if let Some(handle) = self.claims.take() {
            return Some(handle);
        }
        self.claims = self
            .inner
            .page_index
            .claim(self.holder, self.shard.near())?;
        self.claims.take()
    }

    fn write(&mut self, write: &WritePage) {
        let Some(handle) = self.take_entry() else {
            return self.complete_with(write.token, Err(StoreError::IndexFull));
        };
        // SAFETY: the caller leaves the memory unchanged until completion.
        let contents = unsafe { page(write.from) };
        if let Some(value) = filled_with(contents) {
            self.inner
                .page_index
                .publish_filled(handle, value, write.sum);
            return self.complete_stored(handle, write.token);
        }
        if self.inner.has_ram() {
            let packed = self.codec.compress(contents);
            if packed.is_some() || self.inner.bloks.is_none() {
                if self.put_in_ram(handle, contents, packed, write.sum) {
                    return self.complete_stored(handle, write.token);
                }
                if self.inner.bloks.is_none() {
                    return self.complete_failed(handle, write.token, StoreError::Full);
                }
            }
        }
        self.send_out(
            PageSlot::new(handle, write.from.cast_mut(), write.token),
            write.sum,
        );
    }

    fn has_room_for(&self, pages: usize) -> bool {
        self.pending() + pages <= MAX_PENDING
    }

    /// Drains in-flight I/O and drops the completions.
    fn shut_down(&mut self) {
        while self.in_ops > 0 && self.reap(true) {}
        self.end_demotion();
        if let Some(open) = self.open.take() {
            self.inner.segments.seal(open);
        }
        let claims = std::mem::take(&mut self.claims);
        let near = self.shard.near();
        self.inner.page_index.unclaim(self.holder, near, claims);
        while let Some(completion) = self.done.pop() {
            // A page whose handle is never delivered.
            if let Ok(Some(handle)) = completion.result {
                self.inner.discard(self.holder, &[handle]);
            }
        }
        if let Some(engine) = &mut self.engine {
            engine.close();
        }
    }
}

impl Channel for StoreChannel {
    fn submit_write(&mut self, pages: &[WritePage]) -> Result<(), StoreError> {
        if !self.has_room_for(pages.len()) {
            return Err(StoreError::Busy);
        }
        for page in pages {
            self.write(page);
        }
        self.flush_outgoing();
        self.step_demotion();
        self.submit_ops();
        Ok(())
    }

    fn submit_read(
        &mut self,
        handle: PageHandle,
        into: *mut u8,
        token: u64,
    ) -> Result<Submitted, StoreError> {
        if !self.has_room_for(1) {
            return Err(StoreError::Busy);
        }
        let Some(blok) = self.read_at_once(handle, into)? else {
            return Ok(Submitted::Done);
        };
        self.start(
            IoKind::Read,
            blok,
            &[PageSlot::new(handle.get(), into, token)],
        );
        self.submit_ops();
        Ok(Submitted::Pending)
    }

    fn submit_read_run(&mut self, run: &[ReadPage]) -> Result<usize, StoreError> {
        if !self.has_room_for(run.len()) {
            return Err(StoreError::Busy);
        }
        Ok(self.read_run(run, IoKind::Read))
    }

    fn submit_read_ahead(&mut self, run: &[ReadPage]) -> Result<usize, StoreError> {
        if !self.has_room_for(run.len()) {
            return Err(StoreError::Busy);
        }
        Ok(self.read_run(run, IoKind::Ahead))
    }

    fn complete(&mut self, wait: Wait) -> Option<Completion> {
        loop {
            if let Some(completion) = self.done.pop() {
                return Some(completion);
            }
            let sleep = wait == Wait::Yes && self.in_ops > 0;
            let reaped = self.reap(sleep);
            self.step_demotion();
            self.submit_ops();
            if !reaped {
                return None;
            }
        }
    }

    fn pending(&self) -> usize {
        self.in_ops + self.done.0.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.engine.as_ref()?.poll_fd()
    }

    fn is_ready(&self) -> bool {
        !self.done.0.is_empty() || self.engine.as_ref().is_some_and(IoEngine::is_ready)
    }
}

impl Drop for StoreChannel {
    fn drop(&mut self) {
        // In a fork's child nothing of this belongs to the process: not the segment, not the
        // entries, not the descriptor of the ring. Only private memory is freed.
        if self.fork_guard.is_same_process() {
            self.shut_down();
        }
    }
}
