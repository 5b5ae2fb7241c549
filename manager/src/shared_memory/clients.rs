//! The processes that map objects.

use super::mappings::Mappings;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use translation::ForeignUserfault;

/// The number of a client; no two of a tree ever have the same.
pub type ClientId = u64;

/// The number of a process in the tree's shared tables.
pub type SlotIndex = u16;

/// Faults in a row at one address where nothing is mapped, after which its access fails.
const MOST_STRAYS: u32 = 1000;
/// Faults at one address are in a row where no more time lies between them: a thread that waits there faults again in 10 ms.
const IN_A_ROW: Duration = Duration::from_secs(1);
/// Addresses of which they are counted before old ones are forgotten.
const STRAY_ADDRESSES: usize = 64;

/// One address space.
#[derive(Debug)]
pub struct ObjectClient {
    /// Of the process that has, or had, it.
    pub slot: SlotIndex,
    /// Its faults and events.
    pub uffd: ForeignUserfault,
    /// What it maps.
    pub mappings: Mappings,
    /// By the addresses of faults where it maps nothing.
    strays: BTreeMap<usize, Stray>,
    /// The process has ended or begun another image; another process may use the memory still.
    pub has_left: bool,
}

/// Faults in a row at an address where nothing is mapped.
#[derive(Debug)]
struct Stray {
    count: u32,
    last: Instant,
}

impl ObjectClient {
    /// Counts a fault where this process maps nothing. Returns true if the address does not cease to fault.
    pub fn count_stray(&mut self, addr: usize) -> bool {
        let is_recent = |stray: &Stray| stray.last.elapsed() < IN_A_ROW;
        if self.strays.len() >= STRAY_ADDRESSES && !self.strays.contains_key(&addr) {
            self.strays.retain(|_, stray| is_recent(stray));
        }
        let known = self.strays.remove(&addr).filter(is_recent);
        let count = known.map_or(1, |stray| stray.count + 1);
        let last = Instant::now();
        self.strays.insert(addr, Stray { count, last });
        count > MOST_STRAYS
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Clients {
    all: BTreeMap<ClientId, ObjectClient>,
    next: ClientId,
}

impl Clients {
    /// Adds a client, and returns its number.
    pub fn insert(&mut self, slot: SlotIndex, uffd: ForeignUserfault) -> ClientId {
        let id = self.next;
        self.next += 1;
        let client = ObjectClient {
            slot,
            uffd,
            mappings: Mappings::default(),
            strays: BTreeMap::new(),
            has_left: false,
        };
        self.all.insert(id, client);
        id
    }

    /// The process now in a slot.
    pub fn in_slot(&self, slot: SlotIndex) -> Option<ClientId> {
        let mut present = self.all.iter().filter(|(_, it)| !it.has_left);
        present.find(|(_, it)| it.slot == slot).map(|(id, _)| *id)
    }

    /// A client.
    pub fn get(&self, id: ClientId) -> Option<&ObjectClient> {
        self.all.get(&id)
    }

    /// A client, to be changed.
    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut ObjectClient> {
        self.all.get_mut(&id)
    }

    /// Removes a client.
    pub fn remove(&mut self, id: ClientId) -> Option<ObjectClient> {
        self.all.remove(&id)
    }

    /// All clients.
    pub fn iter(&self) -> impl Iterator<Item = (ClientId, &ObjectClient)> {
        self.all.iter().map(|(id, it)| (*id, it))
    }
}
