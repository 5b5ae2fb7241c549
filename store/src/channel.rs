//! One thread's channel to the store: pages in, completions out.

use crate::codec::filled_with;
use crate::completion_queue::CompletionQueue;
use crate::compressed_ram::CompressedRam;
use crate::demotion::{Demotion, HALVES};
use crate::disk_io::DiskIo;
use crate::inner::{HolderStore, StoreCounter, StoreInner};
use crate::io::op::{IoKind, PageSlot, RUN};
use crate::page_index::ClaimSet;
use crate::read::PendingReads;
use crate::swap_file::notes::NO_RING;
use crate::traits::{Channel, Completion, MAX_PENDING, ReadPage, Submitted, Wait, WritePage, page};
use crate::{Checksum, PageHandle, StoreError};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wired::{ForkGuard, PAGE, WiredMemory};

/// A channel. This file has its interface, and its writes; `read` returns pages, `demotion` moves
/// them to disk.
pub(crate) struct StoreChannel {
    pub(crate) store: HolderStore,
    /// The process that made it: the child of a fork has a copy that must not act.
    fork_guard: ForkGuard,
    claims: ClaimSet,
    pub(crate) ram: CompressedRam,
    pub(crate) disk: Option<DiskIo>,
    outgoing: PendingWrites,
    pub(crate) incoming: PendingReads,
    pub(crate) demotion: Option<Demotion>,
    /// Pages were written since the last [`Channel::release_idle`].
    has_written: bool,
    pub(crate) bounce: Option<WiredMemory>,
    done: CompletionQueue,
}

// SAFETY: its pointers are the caller's page memory, promised until completion.
unsafe impl Send for StoreChannel {}

/// Pages to be written to disk that have no operation yet.
struct PendingWrites {
    slots: [PageSlot; RUN],
    sums: [Checksum; RUN],
    len: usize,
}

impl StoreChannel {
    /// Boxed, and never inlined: the stack of a function that makes one has room for 50 KiB, all of
    /// which the compiler touches in front, also where the channel is opened later.
    #[inline(never)]
    pub fn new(inner: Arc<StoreInner>, depth: usize) -> Result<Box<Self>, StoreError> {
        let store = HolderStore::new(inner);
        let fail = |what| {
            move |errno: Errno| StoreError::Channel {
                what,
                errno: errno.raw_os_error(),
            }
        };
        let (mut disk, mut bounce) = (None, None);
        let fork_guard = ForkGuard::new().map_err(fail("its mark"))?;
        if store.is_tiered() {
            let bytes = HALVES * RUN * PAGE;
            bounce = Some(WiredMemory::private(bytes).map_err(fail("its buffer"))?);
        }
        // Last: it has descriptors, which only a channel closes.
        if store.bloks.is_some() {
            disk = Some(DiskIo::new(store.clone(), depth)?);
        }
        store.set_active(store.holder, true);
        if disk.as_ref().is_some_and(|disk| disk.poll_fd().is_none()) {
            store.header.notes().fetch_or(NO_RING, Ordering::Relaxed);
        }
        Ok(Box::new(Self {
            fork_guard,
            claims: ClaimSet::default(),
            ram: CompressedRam::new(store.clone()),
            disk,
            outgoing: PendingWrites {
                slots: [PageSlot::NONE; RUN],
                sums: [Checksum(0); RUN],
                len: 0,
            },
            incoming: PendingReads::new(),
            demotion: None,
            has_written: false,
            bounce,
            done: CompletionQueue::new(),
            store,
        }))
    }

    pub(crate) fn complete_with(
        &mut self,
        token: u64,
        result: Result<Option<PageHandle>, StoreError>,
    ) {
        self.done.push(Completion { token, result });
    }

    /// Completes a page that is stored.
    pub(crate) fn complete_stored(&mut self, handle: u32, token: u64) {
        self.store.count(StoreCounter::Written, 1);
        self.complete_with(token, Ok(PageHandle::new(handle)));
    }

    /// Completes a page that is not stored, and frees its entry.
    pub(crate) fn complete_failed(&mut self, handle: u32, token: u64, error: StoreError) {
        let Self { store, .. } = self;
        store
            .page_index
            .release_claimed(store.holder, store.near(), handle);
        self.complete_with(token, Err(error));
    }

    fn take_entry(&mut self) -> Option<u32> {
        if let Some(handle) = self.claims.take() {
            return Some(handle);
        }
        let Self { store, .. } = self;
        self.claims = store.page_index.claim(store.holder, store.near())?;
        self.claims.take()
    }

    fn write(&mut self, write: &WritePage) {
        let Some(handle) = self.take_entry() else {
            return self.complete_with(write.token, Err(StoreError::IndexFull));
        };
        // SAFETY: the caller leaves the memory unchanged until completion.
        let contents = unsafe { page(write.from) };
        if let Some(value) = filled_with(contents) {
            self.store
                .page_index
                .publish_filled(handle, value, write.sum);
            return self.complete_stored(handle, write.token);
        }
        if self.store.segments.limit() > 0 {
            let packed = self.ram.codec.compress(contents);
            if packed.is_some() || self.store.bloks.is_none() {
                if self.put_in_ram(handle, contents, packed, write.sum) {
                    return self.complete_stored(handle, write.token);
                }
                if self.store.bloks.is_none() {
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

    /// Queues a page for disk, together with those before it.
    fn send_out(&mut self, slot: PageSlot, sum: Checksum) {
        let out = &mut self.outgoing;
        out.slots[out.len] = slot;
        out.sums[out.len] = sum;
        out.len += 1;
        if out.len == RUN {
            self.flush_outgoing();
        }
    }

    /// Assigns bloks to the queued pages and starts their operations.
    fn flush_outgoing(&mut self) {
        let count = std::mem::take(&mut self.outgoing.len);
        let PendingWrites { slots, sums, .. } = self.outgoing;
        let mut done = 0;
        while done < count {
            let disk = self.disk.as_mut();
            let taken =
                disk.and_then(|disk| disk.take_bloks(&slots[done..count], &sums[done..count]));
            let Some((first, taken)) = taken else { break };
            self.start(IoKind::Write, first, &slots[done..done + taken]);
            done += taken;
        }
        for at in done..count {
            self.on_disk_full(slots[at], sums[at]);
        }
    }

    /// The disk has no room for the page: it may stay in RAM as it is, if RAM has some.
    fn on_disk_full(&mut self, slot: PageSlot, sum: Checksum) {
        // SAFETY: the caller of submit leaves the memory unchanged until completion.
        let contents = unsafe { page(slot.memory) };
        if self.store.has_ram() && self.put_in_ram(slot.handle, contents, None, sum) {
            self.complete_stored(slot.handle, slot.token);
        } else {
            self.complete_failed(slot.handle, slot.token, StoreError::Full);
        }
    }

    /// Starts an operation on adjacent bloks, when one is idle.
    pub(crate) fn start(&mut self, kind: IoKind, first: u32, slots: &[PageSlot]) {
        while let Some(disk) = &mut self.disk {
            if disk.try_start(kind, first, slots) {
                return;
            }
            disk.submit();
            if !self.reap(true) {
                // Unreachable: every operation that is not idle is in flight.
                return;
            }
        }
    }

    pub(crate) fn submit_io(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.submit();
        }
    }

    /// Handles one completion of the disk; with `wait`, sleeps for it. Returns false if there was
    /// none.
    pub(crate) fn reap(&mut self, wait: bool) -> bool {
        let Some(finished) = self.disk.as_mut().and_then(|disk| disk.reap(wait)) else {
            return false;
        };
        let (kind, error) = (finished.kind, finished.error);
        for &(slot, blok) in finished.pages() {
            match kind {
                IoKind::Read | IoKind::Ahead => self.on_read(kind, slot, blok, error),
                IoKind::Write => self.on_written(slot, blok, error),
                IoKind::Demote(half) => self.on_demoted(half, slot, blok, error),
            }
        }
        true
    }

    fn on_written(&mut self, slot: PageSlot, blok: u32, error: Option<i32>) {
        let Some(errno) = error else {
            self.store.page_index.publish(slot.handle);
            return self.complete_stored(slot.handle, slot.token);
        };
        if let Some(bloks) = &self.store.bloks {
            bloks.free(blok, slot.handle);
        }
        let error = StoreError::Io {
            op: crate::DiskOp::Write,
            errno,
            blok,
        };
        self.complete_failed(slot.handle, slot.token, error);
    }

    /// The pager's pages in operations of the disk.
    fn pages_in_io(&self) -> usize {
        self.disk.as_ref().map_or(0, DiskIo::pages)
    }

    /// Drains in-flight I/O and drops the completions.
    fn shut_down(&mut self) {
        while self.pages_in_io() > 0 && self.reap(true) {}
        self.end_demotion();
        self.ram.seal();
        let claims = std::mem::take(&mut self.claims);
        let Self { store, .. } = self;
        store.page_index.unclaim(store.holder, store.near(), claims);
        while let Some(completion) = self.done.pop() {
            // A page whose handle is never delivered.
            if let Ok(Some(handle)) = completion.result {
                self.store.discard(self.store.holder, &[handle]);
            }
        }
        if let Some(disk) = &mut self.disk {
            disk.close();
        }
    }
}

impl Channel for StoreChannel {
    fn submit_write(&mut self, pages: &[WritePage]) -> Result<(), StoreError> {
        if !self.has_room_for(pages.len()) {
            return Err(StoreError::Busy);
        }
        self.has_written = true;
        for page in pages {
            self.write(page);
        }
        self.flush_outgoing();
        self.step_demotion();
        self.submit_io();
        Ok(())
    }

    fn submit_read(&mut self, page: ReadPage) -> Result<Submitted, StoreError> {
        if !self.has_room_for(1) {
            return Err(StoreError::Busy);
        }
        let Some(blok) = self.read_at_once(page.handle, page.into)? else {
            return Ok(Submitted::Done);
        };
        self.start(
            IoKind::Read,
            blok,
            &[PageSlot::new(page.handle.get(), page.into, page.token)],
        );
        self.submit_io();
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
            let sleep = wait == Wait::Yes && self.pages_in_io() > 0;
            let reaped = self.reap(sleep);
            self.step_demotion();
            self.submit_io();
            if !reaped {
                return None;
            }
        }
    }

    fn set_waiter(&mut self, thread: u32) {
        if let Some(disk) = &mut self.disk {
            disk.set_waiter(thread);
        }
    }

    fn should_promote(&mut self, handle: PageHandle, page: &[u8; PAGE]) -> bool {
        self.ram.should_promote(handle, page)
    }

    /// The segment that the channel appends to, where few are free, and the one that it demotes:
    /// a store has fewer segments than a machine has processes.
    fn release_idle(&mut self) {
        if std::mem::take(&mut self.has_written) {
            while self.reap(false) {}
            self.step_demotion();
            self.submit_io();
        } else {
            // A lower limit waits for a claimed segment.
            self.end_demotion();
            self.ram.seal_if_low();
        }
    }

    fn pending(&self) -> usize {
        self.pages_in_io() + self.done.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.disk.as_ref()?.poll_fd()
    }

    fn is_ready(&self) -> bool {
        !self.done.is_empty() || self.disk.as_ref().is_some_and(DiskIo::is_ready)
    }

    fn may_poll(&self) -> bool {
        self.disk.as_ref().is_none_or(DiskIo::may_poll)
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
