//! Which servers hold copies of which objects, and how each object is used.

use crate::identity::{HostId, ObjectId};
use crate::lru_size::ObjectUse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The objects of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bindings {
    objects: BTreeMap<ObjectId, Binding>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Binding {
    pages: u64,
    last_used: Duration,
    faults: u64,
    servers: BTreeSet<HostId>,
    moving: Option<(HostId, HostId)>,
}

impl Bindings {
    /// Enters an object, if it is new.
    pub fn enter(&mut self, object: ObjectId, pages: u64, now: Duration) {
        let new = Binding {
            pages,
            last_used: now,
            faults: 0,
            servers: BTreeSet::new(),
            moving: None,
        };
        self.objects.entry(object).or_insert(new);
    }

    pub fn servers_of(&self, object: ObjectId) -> impl Iterator<Item = HostId> + '_ {
        let binding = self.objects.get(&object);
        binding
            .into_iter()
            .flat_map(|binding| binding.servers.iter().copied())
    }

    /// The servers where pages are set aside for an object: those of its copies, and where one is
    /// moving to.
    pub fn claimed_servers(&self, object: ObjectId) -> BTreeSet<HostId> {
        let binding = self.objects.get(&object);
        let moving_to = binding.and_then(|binding| binding.moving).map(|(_, to)| to);
        self.servers_of(object).chain(moving_to).collect()
    }

    pub fn pages_of(&self, object: ObjectId) -> u64 {
        self.objects.get(&object).map_or(0, |binding| binding.pages)
    }

    pub fn on_use(&mut self, object: ObjectId, faults: u64, now: Duration) {
        if let Some(binding) = self.objects.get_mut(&object) {
            binding.last_used = now;
            binding.faults += faults;
        }
    }

    /// Raises an object's pages to those written. Returns by how many.
    pub fn grow(&mut self, object: ObjectId, written_pages: u64) -> u64 {
        let Some(binding) = self.objects.get_mut(&object) else {
            return 0;
        };
        let more = written_pages.saturating_sub(binding.pages);
        binding.pages += more;
        more
    }

    pub fn bind(&mut self, object: ObjectId, server: HostId) {
        if let Some(binding) = self.objects.get_mut(&object) {
            binding.servers.insert(server);
        }
    }

    /// Removes a copy. Returns true if there was one.
    pub fn unbind(&mut self, object: ObjectId, server: HostId) -> bool {
        let binding = self.objects.get_mut(&object);
        binding.is_some_and(|binding| binding.servers.remove(&server))
    }

    /// Removes an object. Returns the servers where pages are set aside for it.
    pub fn remove(&mut self, object: ObjectId) -> BTreeSet<HostId> {
        let servers = self.claimed_servers(object);
        self.objects.remove(&object);
        servers
    }

    /// Removes a server. Returns the objects that lost a copy there.
    pub fn remove_server(&mut self, server: HostId) -> Vec<ObjectId> {
        let mut lost = Vec::new();
        for (object, binding) in &mut self.objects {
            if binding.servers.remove(&server) {
                lost.push(*object);
            }
            // A move whose source died may still arrive: the pages were copied, perhaps.
            if binding.moving.is_some_and(|(_, to)| to == server) {
                binding.moving = None;
            }
        }
        lost
    }

    pub fn begin_move(&mut self, object: ObjectId, from: HostId, to: HostId) {
        if let Some(binding) = self.objects.get_mut(&object) {
            binding.moving = Some((from, to));
        }
    }

    /// Ends a move. Returns the server that no longer needs pages for the object, and how many.
    pub fn end_move(&mut self, object: ObjectId, arrived: bool) -> Option<(HostId, u64)> {
        let binding = self.objects.get_mut(&object)?;
        let (from, to) = binding.moving.take()?;
        if !arrived {
            return Some((to, binding.pages));
        }
        binding.servers.insert(to);
        let was_there = binding.servers.remove(&from);
        was_there.then_some((from, binding.pages))
    }

    pub fn is_moving(&self, object: ObjectId) -> bool {
        self.objects
            .get(&object)
            .is_some_and(|binding| binding.moving.is_some())
    }

    pub fn last_used(&self, object: ObjectId) -> Option<Duration> {
        Some(self.objects.get(&object)?.last_used)
    }

    /// How an object is used.
    pub fn use_of(&self, object: ObjectId) -> Option<ObjectUse> {
        let binding = self.objects.get(&object)?;
        Some(ObjectUse {
            object,
            size_pages: binding.pages,
            last_used: binding.last_used,
            faults: binding.faults,
        })
    }

    /// The objects with a copy at a server that stays there so far.
    pub fn at(&self, server: HostId) -> Vec<ObjectUse> {
        let there = |(object, binding): (&ObjectId, &Binding)| {
            let stays = binding.servers.contains(&server) && binding.moving.is_none();
            stays.then_some(ObjectUse {
                object: *object,
                size_pages: binding.pages,
                last_used: binding.last_used,
                faults: binding.faults,
            })
        };
        self.objects.iter().filter_map(there).collect()
    }
}
