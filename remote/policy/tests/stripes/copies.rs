//! Copies of objects, and how one gets its pages from another.

use crate::servers::{Message, PAGES, Page, Purpose, bit};
use crate::world::{OBJECTS, World};
use selfpage_remote_policy::redundancy::ServerSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    pub server: usize,
    pub generation: u64,
    pub is_current: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Object {
    pub copies: Vec<Copy>,
    pub latest: u64,
    pub has_pages: bool,
    pub acknowledged: [u64; PAGES],
    pub lost: [bool; PAGES],
    /// The last write that was begun.
    pub issued: [u64; PAGES],
}

impl Object {
    pub fn current(&self) -> ServerSet {
        let current = self.copies.iter().filter(|copy| copy.is_current);
        current.fold(0, |set, copy| set | bit(copy.server))
    }

    pub fn filling(&self) -> Option<Copy> {
        self.copies.iter().find(|copy| !copy.is_current).copied()
    }

    pub fn forget(&mut self) {
        (self.has_pages, self.acknowledged, self.issued) = (false, [0; PAGES], [0; PAGES]);
        self.lost = [false; PAGES];
    }
}

/// Pages of an object that are copied from another copy.
#[derive(Clone, Debug)]
pub struct CopyJob {
    pub object: usize,
    pub copy: Copy,
    page: usize,
    is_asked: bool,
}

impl CopyJob {
    pub fn is_of(&self, object: usize, server: usize) -> bool {
        (self.object, self.copy.server) == (object, server)
    }

    fn purpose(&self) -> Purpose {
        Purpose::Copy {
            object: self.object,
            to: self.copy.server,
            generation: self.copy.generation,
        }
    }
}

/// Requests the next page of a copy.
pub fn step(world: &mut World) {
    if world.copying.is_none() {
        world.copying = (0..OBJECTS).find_map(|object| {
            let of = &world.objects[object];
            let copy = of.filling().filter(|_| of.current() != 0)?;
            Some(CopyJob {
                object,
                copy,
                page: 0,
                is_asked: false,
            })
        });
    }
    let is_due = |job: &CopyJob| !job.is_asked && world.servers[job.copy.server].is_connected;
    let Some(mut job) = world.copying.clone().filter(is_due) else {
        return;
    };
    let of = &world.objects[job.object];
    let is_up = |copy: &&Copy| copy.is_current && world.servers[copy.server].is_connected;
    let Some(from) = of.copies.iter().find(is_up).copied() else {
        return;
    };
    job.is_asked = true;
    let message = Message {
        server: from.server,
        copy: (job.object, from.generation),
        page: job.page,
        contents: None,
        purpose: job.purpose(),
        reply: None,
    };
    world.copying = Some(job);
    world.messages.push(message);
}

/// A page of a copy was read or written.
pub fn on_reply(world: &mut World, message: &Message, page: Option<Page>) {
    let is_of = |job: &CopyJob| job.purpose() == message.purpose;
    let Some(mut job) = world.copying.clone().filter(is_of) else {
        return;
    };
    let Copy {
        server: to,
        generation,
        ..
    } = job.copy;
    let Some(page) = page else {
        world.copying = None;
        return world.remove_copy(job.object, to);
    };
    if message.contents.is_none() && page != Page::Empty {
        let message = Message {
            server: to,
            copy: (job.object, generation),
            contents: Some(page),
            reply: None,
            ..*message
        };
        return world.messages.push(message);
    }
    (job.page, job.is_asked) = (job.page + 1, false);
    if job.page == PAGES {
        world.copying = None;
        let mut copies = world.objects[job.object].copies.iter_mut();
        if let Some(made) = copies.find(|it| it.generation == generation) {
            made.is_current = true;
        }
        return;
    }
    world.copying = Some(job);
    step(world);
}

/// A server is away: a copy to it begins anew later.
pub fn on_disconnected(world: &mut World, server: usize) {
    if let Some(job) = world.copying.clone() {
        match job.copy.server == server {
            true => world.remove_copy(job.object, server),
            // The page is copied again, unless it is under way elsewhere.
            false => {
                let purpose = job.purpose();
                let is_asked = world.messages.iter().any(|it| it.purpose == purpose);
                world.copying = Some(CopyJob { is_asked, ..job });
            }
        }
    }
}
