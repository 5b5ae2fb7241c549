//! A server's copy of a paging object, while it serves and while it moves.

use super::{Generation, MoveMessage, PageNumber, Version};
use crate::identity::{HostId, Incarnation};
use std::collections::BTreeMap;

/// What a copy is to requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CopyRole {
    /// It serves.
    Serving,
    /// It serves, and its pages are copied elsewhere.
    Copying(OutgoingCopy),
    /// It has stopped to serve, and the rest of its pages are copied.
    Frozen(OutgoingCopy),
    /// Its pages arrive from elsewhere.
    Receiving,
    /// Its pages are gone: another server has them.
    Forwarding {
        /// The other server.
        to: HostId,
    },
}

/// An attempt to move a copy elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutgoingCopy {
    target: Generation,
    destination: Incarnation,
    /// Versions of pages that the destination does not have.
    uncopied: BTreeMap<PageNumber, Version>,
}

/// A server's decision on a request for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Serve it: the page's version here, after the write if it is one. A write that is not newer
    /// than the page is a copy of an earlier one and changes nothing.
    Serve(Version),
    /// The object is being handed over: the client sends it again when its organizer says where.
    Retry,
    /// Send it on, stamped with the generation that the object has there.
    Forward {
        /// The server.
        to: HostId,
        /// The generation there.
        generation: Generation,
    },
    /// The copy is older than the request: the object is elsewhere.
    Stale,
}

/// A copy of an object at a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectCopy {
    server: Incarnation,
    generation: Generation,
    role: CopyRole,
    versions: BTreeMap<PageNumber, Version>,
}

impl ObjectCopy {
    /// A new object's copy.
    pub fn new(server: Incarnation, generation: Generation) -> Self {
        Self {
            server,
            generation,
            role: CopyRole::Serving,
            versions: BTreeMap::new(),
        }
    }

    /// Its role.
    pub fn role(&self) -> &CopyRole {
        &self.role
    }

    /// Its generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The version of a page; zero if it was never written.
    pub fn version(&self, page: PageNumber) -> Version {
        self.versions.get(&page).copied().unwrap_or_default()
    }

    /// Returns true if it serves requests.
    pub fn is_serving(&self) -> bool {
        matches!(self.role, CopyRole::Serving | CopyRole::Copying(_))
    }

    /// A client reads a page.
    pub fn on_read(&self, page: PageNumber, stamp: Generation) -> Admission {
        self.redirected(stamp)
            .unwrap_or_else(|| Admission::Serve(self.version(page)))
    }

    /// A client writes a page.
    pub fn on_write(&mut self, page: PageNumber, version: Version, stamp: Generation) -> Admission {
        if let Some(elsewhere) = self.redirected(stamp) {
            return elsewhere;
        }
        if version > self.version(page) {
            self.versions.insert(page, version);
            if let CopyRole::Copying(outgoing) = &mut self.role {
                outgoing.uncopied.insert(page, version);
            }
        }
        Admission::Serve(self.version(page))
    }

    fn redirected(&self, stamp: Generation) -> Option<Admission> {
        let generation = self.generation;
        match self.role {
            _ if stamp > generation => Some(Admission::Stale),
            CopyRole::Serving | CopyRole::Copying(_) => None,
            CopyRole::Frozen(_) | CopyRole::Receiving => Some(Admission::Retry),
            CopyRole::Forwarding { to } => Some(Admission::Forward { to, generation }),
        }
    }

    /// Pages to send to the destination now, again if they were sent before.
    pub fn pages_to_copy(&self) -> impl Iterator<Item = MoveMessage> + '_ {
        let outgoing = match &self.role {
            CopyRole::Copying(outgoing) | CopyRole::Frozen(outgoing) => Some(outgoing),
            _ => None,
        };
        outgoing.into_iter().flat_map(|outgoing| {
            outgoing
                .uncopied
                .iter()
                .map(|(page, version)| MoveMessage::CopyPage {
                    target: outgoing.target,
                    destination: outgoing.destination,
                    page: *page,
                    version: *version,
                })
        })
    }

    /// A message for the copy, or for the server that may have one. Returns the reply.
    pub fn on_message(
        copy: &mut Option<Self>,
        server: Incarnation,
        message: MoveMessage,
    ) -> Option<MoveMessage> {
        match message {
            MoveMessage::Create { target } => Self::on_create(copy, server, target),
            MoveMessage::Discard {
                generation,
                forward_to,
            } => {
                Self::on_discard(copy, generation, forward_to);
                Some(MoveMessage::Discarded { generation })
            }
            MoveMessage::Forward {
                target: generation, ..
            }
            | MoveMessage::Freeze { target: generation }
            | MoveMessage::Own {
                target: generation, ..
            }
            | MoveMessage::Thaw { generation }
                if copy.is_none() =>
            {
                Some(MoveMessage::Gone { generation })
            }
            _ => copy.as_mut()?.on_own_message(message),
        }
    }

    fn on_create(
        copy: &mut Option<Self>,
        server: Incarnation,
        target: Generation,
    ) -> Option<MoveMessage> {
        let there = copy.as_ref().map(Self::generation);
        if there.is_none_or(|generation| generation < target) {
            *copy = Some(Self {
                role: CopyRole::Receiving,
                ..Self::new(server, target)
            });
        } else if there != Some(target) {
            return None;
        }
        let destination = server;
        Some(MoveMessage::Created {
            target,
            destination,
        })
    }

    fn on_discard(copy: &mut Option<Self>, generation: Generation, forward_to: Option<HostId>) {
        let Some(old) = copy.as_mut().filter(|old| old.generation < generation) else {
            return;
        };
        match forward_to {
            Some(to) => {
                old.role = CopyRole::Forwarding { to };
                old.generation = generation;
                old.versions.clear();
            }
            None => *copy = None,
        }
    }

    fn on_own_message(&mut self, message: MoveMessage) -> Option<MoveMessage> {
        match message {
            MoveMessage::Forward {
                target,
                destination,
            } => self.on_forward(target, destination),
            MoveMessage::CopyPage {
                target,
                destination,
                page,
                version,
            } => self.on_copy(target, destination, page, version),
            MoveMessage::Copied {
                target,
                page,
                version,
            } => self.on_copied(target, page, version),
            MoveMessage::Freeze { target } => self.on_freeze(target),
            MoveMessage::Own {
                target,
                destination,
            } => self.on_own(target, destination),
            MoveMessage::Thaw { generation } => self.on_thaw(generation),
            _ => None,
        }
    }

    fn on_forward(&mut self, target: Generation, destination: Incarnation) -> Option<MoveMessage> {
        if let CopyRole::Serving = self.role
            && target > self.generation
        {
            let uncopied = self.versions.clone();
            self.role = CopyRole::Copying(OutgoingCopy {
                target,
                destination,
                uncopied,
            });
        }
        self.progress(target)
    }

    fn on_copy(
        &mut self,
        target: Generation,
        to: Incarnation,
        page: PageNumber,
        version: Version,
    ) -> Option<MoveMessage> {
        let is_expected =
            self.role == CopyRole::Receiving && self.generation == target && to == self.server;
        if !is_expected {
            return None;
        }
        if version > self.version(page) {
            self.versions.insert(page, version);
        }
        Some(MoveMessage::Copied {
            target,
            page,
            version,
        })
    }

    fn on_copied(
        &mut self,
        target: Generation,
        page: PageNumber,
        version: Version,
    ) -> Option<MoveMessage> {
        let (CopyRole::Copying(outgoing) | CopyRole::Frozen(outgoing)) = &mut self.role else {
            return None;
        };
        // A page that was written meanwhile is copied again.
        if outgoing.target == target && outgoing.uncopied.get(&page) == Some(&version) {
            outgoing.uncopied.remove(&page);
        }
        self.progress(target)
    }

    fn on_freeze(&mut self, target: Generation) -> Option<MoveMessage> {
        if let CopyRole::Copying(outgoing) = &self.role
            && outgoing.target == target
        {
            self.role = CopyRole::Frozen(outgoing.clone());
        }
        self.progress(target)
    }

    fn progress(&self, target: Generation) -> Option<MoveMessage> {
        match &self.role {
            CopyRole::Frozen(outgoing)
                if outgoing.target == target && outgoing.uncopied.is_empty() =>
            {
                Some(MoveMessage::Drained { target })
            }
            CopyRole::Copying(outgoing) if outgoing.target == target => {
                Some(MoveMessage::Progress {
                    target,
                    uncopied_pages: outgoing.uncopied.len() as u64,
                })
            }
            _ => None,
        }
    }

    fn on_own(&mut self, target: Generation, destination: Incarnation) -> Option<MoveMessage> {
        if destination != self.server || self.generation < target {
            return Some(MoveMessage::Gone { generation: target });
        }
        if self.generation != target {
            return None;
        }
        if self.role == CopyRole::Receiving {
            self.role = CopyRole::Serving;
        }
        Some(MoveMessage::Owned { target })
    }

    fn on_thaw(&mut self, generation: Generation) -> Option<MoveMessage> {
        let target = match &self.role {
            CopyRole::Copying(outgoing) | CopyRole::Frozen(outgoing) => outgoing.target,
            CopyRole::Serving => self.generation,
            CopyRole::Receiving | CopyRole::Forwarding { .. } => return None,
        };
        if generation > target.max(self.generation) {
            self.generation = generation;
            self.role = CopyRole::Serving;
        }
        (self.generation == generation).then_some(MoveMessage::Thawed { generation })
    }
}
