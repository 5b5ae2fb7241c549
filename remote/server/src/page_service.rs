//! Serves requests of pages: checks, permit arithmetic, memory.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.4. Rule: a request is refused before
//! it changes anything, and nothing here allocates unless a request is refused.

use crate::disk_io::{DiskIo, Transfer};
use crate::objects::{ObjectTable, PagingObject};
use crate::page_index::PageId;
use crate::page_memory::{Location, PageMemory};
use crate::pending::{PendingTable, UNASKED};
use crate::permit_issuer::PermitIssuer;
use crate::refusal::Refusal;
use crate::request_cost::job_of;
use disk::atropos::{ClientId, TransactionDesc};
use remote_policy::capacity::ObjectError;
use remote_policy::identity::{Incarnation, ObjectId, Version};
use remote_policy::permit::PermitId;
use remote_wire::{FrameWriter, Header, Kind, Status};
use std::collections::BTreeSet;
use wired::PAGE;

/// Pages that are stored again at once: half of what the disk writes at once, so that requests go on.
const RETRIES: u32 = 64;
/// Frames that are looked at for the next of them: some hundred microseconds.
const SEARCH: u32 = 16_384;

/// Pages of removed objects that are freed in a turn: some ten microseconds, up to a hundred where they lie apart.
const FREED_AT_ONCE: u32 = 256;

/// The sender of a request.
pub(crate) struct Requester<'a> {
    /// The client.
    pub client: Incarnation,
    /// Permits that were presented on the connection.
    pub presented: &'a BTreeSet<PermitId>,
}

/// A request that may be served in its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    /// Whose turn.
    pub scheduled: ClientId,
    /// What it costs.
    pub job: TransactionDesc,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It is served.
    Done,
    /// It waits for operations of the disk, its own that were `started` or others'.
    Waits { started: u32 },
    /// It has changed nothing and is to be looked at again when the disk has completed something.
    Blocked,
}

/// The pages, objects and permits of a server.
pub(crate) struct PageService {
    /// Before the memory, so that it is dropped first: its operations use the frames.
    pub disk: Option<DiskIo>,
    pub memory: PageMemory,
    pub pending: PendingTable,
    pub objects: ObjectTable,
    pub issuer: PermitIssuer,
}

impl PageService {
    /// Checks a request of pages and returns its place in the schedule.
    ///
    /// # Errors
    /// The reply of a request that is not served.
    pub fn admit(&self, from: &Requester<'_>, header: &Header) -> Result<Admitted, Refusal> {
        let (_, object) = self.object(from.client, header.object)?;
        if !from.presented.contains(&object.permit) {
            let text = format!("{} was not presented on this connection", object.permit);
            return Err(Refusal::new(Status::NoPermit, text));
        }
        object.check(header)?;
        if header.kind == Kind::Write && header.version == Version(0) {
            return Err(Refusal::new(
                Status::Invalid,
                "a write of version 0: versions begin at 1",
            ));
        }
        let void = || Refusal::from(ObjectError::NoPermit(object.permit));
        let scheduled = self.issuer.scheduled(object.permit).ok_or_else(void)?;
        let job = job_of(header);
        Ok(Admitted { scheduled, job })
    }

    /// Bytes that the reply's body has.
    pub fn reply_body(header: &Header) -> usize {
        match header.kind {
            Kind::Read => usize::from(header.pages) * (8 + PAGE),
            _ => 0,
        }
    }

    /// Reads pages into a reply, for which there is room, if all are in frames; else starts to load them for the pending
    /// request `number`.
    ///
    /// # Errors
    /// The reply of a request that is not served.
    pub fn read(
        &mut self,
        from: Incarnation,
        header: &Header,
        number: u32,
        reply: &mut FrameWriter,
    ) -> Result<Progress, Refusal> {
        let slot = self.slot_of(from, header)?;
        match self.load(slot, header, number)? {
            Progress::Done => {}
            waits => return Ok(waits),
        }
        let now = self.issuer.now();
        self.issuer.capacity_mut().read(header.object, now)?;
        let count = usize::from(header.pages);
        let head = header.reply(Kind::ReadReply);
        let memory = &mut self.memory;
        let pushed = reply.push_with(&head, Self::reply_body(header), |body| {
            let (versions, pages) = body.split_at_mut(count * 8);
            for (at, page) in pages.chunks_exact_mut(PAGE).enumerate() {
                let found = memory.find(slot, header.page.0 + at as u64);
                let version = found.map_or(Version(0), |id| memory.version(id));
                versions[at * 8..][..8].copy_from_slice(&version.0.to_le_bytes());
                // All that are written are in frames: `load` has seen to it.
                match found.and_then(|id| memory.read(id)) {
                    Some(bytes) => page.copy_from_slice(bytes),
                    None => page.fill(0),
                }
            }
        });
        pushed.map(|()| Progress::Done).map_err(no_room)
    }

    /// Starts to load what is on the disk alone.
    fn load(&mut self, slot: u32, header: &Header, number: u32) -> Result<Progress, Refusal> {
        let (mut started, mut waits) = (0, false);
        for page in pages_of(header) {
            let Some(id) = self.memory.find(slot, page) else {
                continue;
            };
            match self.memory.location(id) {
                Location::Frame => self.memory.touch(id),
                Location::Arriving => waits = true,
                Location::Disk => match self.start_load(id, number) {
                    true => started += 1,
                    false => waits = true,
                },
            }
        }
        match (started, waits) {
            (0, false) => Ok(Progress::Done),
            (0, true) if self.is_disk_idle() => Err(no_frame()),
            _ => Ok(Progress::Waits { started }),
        }
    }

    /// Returns true if the disk loads the page now; false if that has to wait.
    fn start_load(&mut self, id: PageId, number: u32) -> bool {
        let Some(disk) = self.disk.as_mut() else {
            return false;
        };
        if !disk.has_room(Transfer::Load, 1) {
            return false;
        }
        let Ok(frame) = self.memory.start_load(id) else {
            return false;
        };
        // SAFETY: the page is busy until the load completes, so that its frame stays and is not read.
        unsafe { disk.start(Transfer::Load, id, frame, number) };
        true
    }

    /// Writes pages, whole or not at all, and starts to store them for the pending request `number`.
    ///
    /// # Errors
    /// The reply of a request that is not served.
    pub fn write(
        &mut self,
        from: Incarnation,
        header: &Header,
        body: &[u8],
        number: u32,
    ) -> Result<Progress, Refusal> {
        let slot = self.slot_of(from, header)?;
        let is_new = |page: &u64| self.memory.find(slot, *page).is_none();
        let new_pages = pages_of(header).filter(is_new).count() as u64;
        if new_pages > self.memory.room().into() {
            // The permits do not count removed pages any more.
            self.objects.free_pages(&mut self.memory, new_pages as u32);
        }
        let frames = self.frames_needed(slot, header);
        // Pages that were discarded while the disk had them keep their places for a moment more.
        let has_places = self.disk.is_none() || self.has_places(new_pages);
        if self.must_wait(header) || !has_places || self.memory.reserve(frames).is_err() {
            return match self.is_disk_idle() {
                true => Err(no_frame()),
                false => Ok(Progress::Blocked),
            };
        }
        let now = self.issuer.now();
        self.issuer
            .capacity_mut()
            .write(header.object, new_pages, now)?;
        if let Some(object) = self.objects.get_mut(slot) {
            object.written += new_pages;
        }
        let mut started = 0;
        for (page, bytes) in pages_of(header).zip(body.as_chunks::<PAGE>().0) {
            let written = self.memory.write(slot, page, header.version, bytes);
            // Neither happens: both were checked above.
            let id = written.map_err(|_| no_frame())?;
            started += u32::from(self.start_store(id, number));
        }
        match started {
            0 => Ok(Progress::Done),
            started => Ok(Progress::Waits { started }),
        }
    }

    /// Starts to store a page that the disk lacks. Returns false where it has it, or there is no disk.
    fn start_store(&mut self, id: PageId, number: u32) -> bool {
        let Some(disk) = self.disk.as_mut() else {
            return false;
        };
        let Some(frame) = self.memory.start_store(id) else {
            return false;
        };
        // SAFETY: the page is busy until the store completes, so that its frame stays and is not written.
        unsafe { disk.start(Transfer::Store, id, frame, number) };
        true
    }

    /// Stores pages again that the disk failed to store, as many as it has room for in a part of its places.
    pub fn store_again(&mut self) {
        for _ in 0..RETRIES {
            let has_room = |disk: &DiskIo| disk.has_room(Transfer::Store, 1);
            if !self.disk.as_ref().is_some_and(has_room) {
                return;
            }
            let Some(id) = self.memory.next_unstored(SEARCH) else {
                return;
            };
            self.start_store(id, UNASKED);
        }
    }

    /// Returns true if a request has to wait for operations of the disk before it is served.
    pub fn must_wait(&self, header: &Header) -> bool {
        let Some(disk) = &self.disk else {
            return false;
        };
        if header.kind == Kind::Discard {
            return false;
        }
        let is_write = header.kind == Kind::Write;
        let is_full = is_write && !disk.has_room(Transfer::Store, header.pages.into());
        let Some(slot) = self.objects.find(header.object) else {
            return false;
        };
        let is_busy = |page| {
            let found = self.memory.find(slot, page);
            found.is_some_and(|id| self.memory.is_busy(id))
        };
        !self.pending.has_room() || is_full || is_write && pages_of(header).any(is_busy)
    }

    /// Returns true if the disk has places for new pages, or never will have: then it is the permit that has none.
    fn has_places(&self, new_pages: u64) -> bool {
        new_pages <= self.memory.room().into() || self.is_disk_idle()
    }

    /// Frames that a write may take: those of its own pages, too, that making room for the others may reclaim.
    fn frames_needed(&self, slot: u32, header: &Header) -> u32 {
        let may_lack = |page: &u64| {
            let found = self.memory.find(slot, *page);
            found.is_none_or(|id| self.memory.is_reclaimable(id))
        };
        match self.disk {
            Some(_) => pages_of(header).filter(may_lack).count() as u32,
            // The permits' pages and the frames are the same.
            None => 0,
        }
    }

    fn is_disk_idle(&self) -> bool {
        self.disk.as_ref().is_none_or(|disk| disk.in_flight() == 0)
    }

    /// Frees pages.
    ///
    /// # Errors
    /// The reply of a request that is not served.
    pub fn discard(&mut self, from: Incarnation, header: &Header) -> Result<(), Refusal> {
        let slot = self.slot_of(from, header)?;
        let mut discarded = 0;
        for page in pages_of(header) {
            if let Some(id) = self.memory.find(slot, page) {
                self.memory.discard(id);
                discarded += 1;
            }
        }
        if let Some(object) = self.objects.get_mut(slot) {
            object.written -= discarded;
        }
        Ok(self
            .issuer
            .capacity_mut()
            .discard(header.object, discarded)?)
    }

    /// Ends an object. Its pages are freed in the turns that follow.
    pub fn terminate(&mut self, id: ObjectId) {
        self.issuer.capacity_mut().terminate(id);
        self.objects.remove(id);
    }

    /// Removes an object that ended with its permit. One that its client has created again under another since stays.
    pub fn remove_under(&mut self, permit: PermitId, id: ObjectId) {
        let there = self
            .objects
            .find(id)
            .and_then(|slot| self.objects.get(slot));
        if there.is_some_and(|object| object.permit == permit) {
            self.objects.remove(id);
        }
    }

    /// Frees some pages of removed objects.
    pub fn free_removed(&mut self) {
        self.objects.free_pages(&mut self.memory, FREED_AT_ONCE);
    }

    /// The object of a request that was admitted. While it waited another connection of its client may have made another
    /// copy of the object.
    fn slot_of(&self, client: Incarnation, header: &Header) -> Result<u32, Refusal> {
        let (slot, object) = self.object(client, header.object)?;
        object.check(header)?;
        Ok(slot)
    }

    /// A client's object. Another client's does not exist for it.
    pub fn object(
        &self,
        client: Incarnation,
        id: ObjectId,
    ) -> Result<(u32, &PagingObject), Refusal> {
        let missing = || Refusal::from(ObjectError::NoObject(id));
        if id.client != client.host {
            return Err(missing());
        }
        let slot = self.objects.find(id).ok_or_else(missing)?;
        let object = self.objects.get(slot).ok_or_else(missing)?;
        Ok((slot, object))
    }
}

fn no_room(_: remote_wire::NoRoom) -> Refusal {
    Refusal::new(Status::Busy, "too many replies are unread: read them first")
}

fn no_frame() -> Refusal {
    let text = "all frames hold pages that the disk could not take: see the server's log";
    Refusal::new(Status::Disk, text)
}

fn pages_of(header: &Header) -> std::ops::Range<u64> {
    header.page.0..header.page.0 + u64::from(header.pages)
}
