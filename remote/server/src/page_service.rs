//! Serves requests of pages: checks, permit arithmetic, memory.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 3.4. Rule: a request is refused before
//! it changes anything, and nothing here allocates unless a request is refused.

use crate::objects::{ObjectTable, PagingObject};
use crate::page_memory::{PageMemory, Wait};
use crate::permit_issuer::PermitIssuer;
use crate::refusal::Refusal;
use disk::atropos::{ClientId, TransactionDesc};
use disk::cost_model::{Op, OpCost};
use disk::time::Nanos;
use remote_policy::capacity::ObjectError;
use remote_policy::identity::{Incarnation, ObjectId};
use remote_policy::migration::Version;
use remote_policy::permit::PermitId;
use remote_wire::{FrameWriter, Header, Kind, Status};
use std::collections::BTreeSet;
use wired::PAGE;

/// The cost of a request to the server: what it takes away from others on the processor and the
/// link (`cargo run --release -p selfpage-remote-server --example load` measures the rates that
/// this is fitted to).
const COST: OpCost = OpCost {
    base: Nanos(2_000),
    per_kib: Nanos(500),
};

/// What a page of a discard costs, in bytes moved.
const DISCARDED_BYTES: u32 = 64;

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

/// The pages, objects and permits of a server.
pub(crate) struct PageService {
    pub memory: PageMemory,
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
        if header.generation > object.generation {
            let text = format!(
                "{} has generation {} here, the request knows {}: it was moved to another server",
                object.id, object.generation.0, header.generation.0
            );
            return Err(Refusal::new(Status::Generation, text));
        }
        let end = header.page.0.checked_add(header.pages.into());
        if end.is_none_or(|end| end > object.pages) {
            let text = format!(
                "pages {} to {} of {}, which has {}",
                header.page.0,
                u128::from(header.page.0) + u128::from(header.pages),
                object.id,
                object.pages
            );
            return Err(Refusal::new(Status::Invalid, text));
        }
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

    /// Reads pages into a reply, for which there is room.
    ///
    /// # Errors
    /// The reply of a request that is not served.
    pub fn read(
        &mut self,
        from: Incarnation,
        header: &Header,
        reply: &mut FrameWriter,
    ) -> Result<(), Refusal> {
        let (slot, _) = self.object(from, header.object)?;
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
                match found.and_then(|id| memory.read(id)) {
                    Some(bytes) => page.copy_from_slice(bytes),
                    None => page.fill(0),
                }
            }
        });
        pushed.map_err(no_room)
    }

    /// Writes pages, whole or not at all.
    ///
    /// # Errors
    /// The reply of a request that is not served.
    pub fn write(
        &mut self,
        from: Incarnation,
        header: &Header,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let (slot, _) = self.object(from, header.object)?;
        let pages = header.page.0..header.page.0 + u64::from(header.pages);
        let is_new = |page: &u64| self.memory.find(slot, *page).is_none();
        let new_pages = pages.clone().filter(is_new).count() as u64;
        let now = self.issuer.now();
        self.issuer
            .capacity_mut()
            .write(header.object, new_pages, now)?;
        if let Some(object) = self.objects.get_mut(slot) {
            object.written += new_pages;
        }
        for (page, bytes) in pages.zip(body.as_chunks::<PAGE>().0) {
            self.memory
                .write(slot, page, header.version, bytes)
                .map_err(must_wait)?;
        }
        Ok(())
    }

    /// Frees pages.
    ///
    /// # Errors
    /// The reply of a request that is not served.
    pub fn discard(&mut self, from: Incarnation, header: &Header) -> Result<(), Refusal> {
        let (slot, _) = self.object(from, header.object)?;
        let mut discarded = 0;
        for page in header.page.0..header.page.0 + u64::from(header.pages) {
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

    /// Ends an object and frees its pages.
    pub fn terminate(&mut self, id: ObjectId) {
        self.issuer.capacity_mut().terminate(id);
        self.remove(id);
    }

    /// Frees the pages of an object that the capacity does not know any more.
    pub fn remove(&mut self, id: ObjectId) {
        if let Some(slot) = self.objects.remove(id) {
            self.memory.discard_object(slot);
        }
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

fn job_of(header: &Header) -> TransactionDesc {
    let pages = u32::from(header.pages);
    let (op, bytes) = match header.kind {
        Kind::Read => (Op::Read, pages * PAGE as u32),
        Kind::Write => (Op::Write, pages * PAGE as u32),
        _ => (Op::Write, pages * DISCARDED_BYTES),
    };
    TransactionDesc {
        op,
        bytes,
        cost: COST.cost(bytes),
        tag: 0,
    }
}

fn no_room(_: remote_wire::NoRoom) -> Refusal {
    Refusal::new(Status::Busy, "too many replies are unread: read them first")
}

fn must_wait(wait: Wait) -> Refusal {
    let text = match wait {
        Wait::Busy => "the page is being written to the disk: send the request again",
        Wait::NoFrame => "the server has no frame left: send the request again later",
    };
    Refusal::new(Status::Busy, text)
}
