//! What a remote client needs to go on after its process was killed, in memory that outlives it.
//!
//! The memory is shared with the client's keeper ([`pageclient::keep`]), which starts another process with it. It has
//! the client's name, its servers and their permits, the copies of each object, and the records of all pages
//! (`page_records`). What is not here is measured again, or asked for again.
//!
//! | part | is written |
//! |---|---|
//! | a page's record | with each step of its writes |
//! | an object's copies, a word each | before a completion that depends on them, and before a request that names them |
//! | a stripe (`stripe_state`) | likewise: before copies that it makes needless go, and after those that make it needless are there |
//! | a server, twice, of which the later one whose hash is right counts | before a copy that is there |
//!
//! Rule: a process may end between any two stores. Copies that have become current come first, since they may take the
//! place of others; then those that are removed go, then servers, then copies that are new. So what is found is always a
//! state that was true: a copy that is named is at the server's life that is named, and a current one has every write
//! that was acknowledged. An object with pages has a current copy, or a stripe that gives it.

use crate::objects::{CopyState, ObjectCopy, PagingObject};
use crate::page_cipher::KEY;
use crate::process::MAX_SERVERS;
use pageclient::KeptHeader;
use remote_policy::identity::{Generation, HostId, Incarnation};
use remote_wire::control::SealedPermit;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use twox_hash::XxHash3_64;
use wired::{PAGE, WiredMemory};

const WORD: usize = size_of::<u64>();

/// The words of the first page, after those of each client.
const CLIENT: usize = KeptHeader::WORDS;
const CIPHER: usize = 8;

/// Words of a server's entry, of which there are two: its number, the hash, the length, the bytes.
const SERVER_WORDS: usize = 128;
const SERVER_HEAD: usize = 3;
/// Bytes of a server.
const SERVER_BYTES: usize = (SERVER_WORDS - SERVER_HEAD) * WORD;

/// Words of an object: the generation of its latest copy, and its copies.
const OBJECT_WORDS: usize = 8;

/// Words of a stripe: its state, and its members.
const STRIPE_WORDS: usize = 8;

/// A copy's word: that there is one, that it is current, its server, its generation.
const THERE: u64 = 1 << 63;
const CURRENT: u64 = 1 << 62;
const SERVER_AT: u32 = 56;
const GENERATION: u64 = (1 << SERVER_AT) - 1;

/// A server as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedServer {
    /// HOST:PORT.
    pub address: String,
    /// Its host's control port, where a broker named it.
    pub control: Option<SocketAddr>,
    /// Which life of it has the copies.
    pub incarnation: Option<Incarnation>,
    /// The permit there.
    pub permit: Option<SealedPermit>,
}

/// The memory. Its copies share it.
#[derive(Clone)]
pub struct ClientState {
    memory: Arc<WiredMemory>,
    objects: usize,
    stripes: usize,
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

fn store(word: &AtomicU64, value: u64) {
    // A process that is killed has made its stores in this order.
    word.store(value, Ordering::Release);
}

fn word_of(copy: &ObjectCopy) -> u64 {
    let current = match copy.state {
        CopyState::Current => CURRENT,
        CopyState::Creating | CopyState::Copying => 0,
    };
    THERE | current | (copy.server as u64) << SERVER_AT | copy.generation.0 & GENERATION
}

fn server_of(word: u64) -> usize {
    ((word & !(THERE | CURRENT)) >> SERVER_AT) as usize
}

impl ClientState {
    /// The state of a client that has not begun: its space has so many objects, room for so many stripes, and so many
    /// bytes of records.
    pub fn new(objects: usize, stripes: usize, records: usize) -> io::Result<Self> {
        let bytes = Self::records_at_of(objects, stripes) + records;
        let (memory, _) = WiredMemory::shared(bytes, "selfpage-remote")?;
        Ok(Self {
            memory: Arc::new(memory),
            objects,
            stripes,
        })
    }

    fn objects_at() -> usize {
        PAGE + MAX_SERVERS * 2 * SERVER_WORDS * WORD
    }

    fn stripes_at_of(objects: usize) -> usize {
        Self::objects_at() + objects * OBJECT_WORDS * WORD
    }

    fn records_at_of(objects: usize, stripes: usize) -> usize {
        let end = Self::stripes_at_of(objects) + stripes * STRIPE_WORDS * WORD;
        end.next_multiple_of(PAGE)
    }

    /// The memory, and where the records of pages are in it.
    pub fn records(&self) -> (Arc<WiredMemory>, usize) {
        let at = Self::records_at_of(self.objects, self.stripes);
        (Arc::clone(&self.memory), at)
    }

    fn header(&self) -> &[AtomicU64] {
        self.memory.slice(0, PAGE / WORD)
    }

    /// The words of each client.
    pub fn kept_header(&self) -> KeptHeader<'_> {
        KeptHeader::at(self.header())
    }

    /// The client's name, which its permits are for.
    pub fn client(&self) -> Incarnation {
        let words = &self.header()[CLIENT..];
        Incarnation {
            host: HostId(load(&words[0])),
            boot: u128::from(load(&words[1])) << 64 | u128::from(load(&words[2])),
            start_ticks: load(&words[3]),
        }
    }

    /// Sets the client's name.
    pub fn set_client(&self, client: Incarnation) {
        let words = &self.header()[CLIENT..];
        store(&words[0], client.host.0);
        store(&words[1], (client.boot >> 64) as u64);
        store(&words[2], client.boot as u64);
        store(&words[3], client.start_ticks);
    }

    /// The key of encrypted pages.
    pub fn key(&self) -> [u8; KEY] {
        let mut key = [0; KEY];
        let words = &self.header()[CIPHER..];
        let parts = key.as_chunks_mut::<WORD>().0.iter_mut().zip(words);
        parts.for_each(|(bytes, word)| *bytes = load(word).to_le_bytes());
        key
    }

    /// Sets that key.
    pub fn set_key(&self, key: &[u8; KEY]) {
        let words = &self.header()[CIPHER..];
        let parts = key.as_chunks::<WORD>().0.iter().zip(words);
        parts.for_each(|(bytes, word)| store(word, u64::from_le_bytes(*bytes)));
    }

    fn server_words(&self, server: usize, entry: usize) -> &[AtomicU64] {
        let at = PAGE + (server * 2 + entry) * SERVER_WORDS * WORD;
        self.memory.slice(at, SERVER_WORDS)
    }

    /// Writes a server over that of its two entries that does not count: an earlier process may have ended while it wrote
    /// the one with the higher number. Returns false if its name is too long to be kept.
    pub fn save_server(&self, server: usize, saved: &SavedServer) -> bool {
        let mut bytes = [0; SERVER_BYTES];
        let Ok(used) = postcard::to_slice(saved, &mut bytes).map(|used| used.len()) else {
            return false;
        };
        let number = |entry| load(&self.server_words(server, entry)[0]);
        let (first, second) = (number(0), number(1));
        let kept = self.latest_entry(server).map(|(number, _)| number);
        let words = self.server_words(server, usize::from(kept == Some(first)));
        let next = first.max(second) + 1;
        store(&words[0], next);
        store(&words[1], hash(next, &bytes[..used]));
        store(&words[2], used as u64);
        let parts = bytes.as_chunks::<WORD>().0.iter();
        let parts = parts.zip(&words[SERVER_HEAD..]);
        parts.for_each(|(bytes, word)| store(word, u64::from_le_bytes(*bytes)));
        true
    }

    fn entry_of(&self, server: usize, entry: usize) -> Option<(u64, SavedServer)> {
        let words = self.server_words(server, entry);
        let (number, used) = (load(&words[0]), load(&words[2]) as usize);
        let mut bytes = [0; SERVER_BYTES];
        let parts = bytes.as_chunks_mut::<WORD>().0.iter_mut();
        let parts = parts.zip(&words[SERVER_HEAD..]);
        parts.for_each(|(bytes, word)| *bytes = load(word).to_le_bytes());
        let bytes = bytes.get(..used)?;
        let is_whole = number > 0 && load(&words[1]) == hash(number, bytes);
        Some((
            number,
            postcard::from_bytes(bytes).ok().filter(|_| is_whole)?,
        ))
    }

    /// The entry of a server that counts.
    fn latest_entry(&self, server: usize) -> Option<(u64, SavedServer)> {
        let entries = (0..2).filter_map(|entry| self.entry_of(server, entry));
        entries.max_by_key(|(number, _)| *number)
    }

    /// The servers, in the order of their indexes.
    pub fn servers(&self) -> Vec<SavedServer> {
        (0..MAX_SERVERS)
            .map_while(|server| self.latest_entry(server))
            .map(|(_, saved)| saved)
            .collect()
    }

    /// The words of a stripe.
    pub fn stripe_words(&self, stripe: usize) -> &[AtomicU64] {
        let at = Self::stripes_at_of(self.objects) + stripe * STRIPE_WORDS * WORD;
        self.memory.slice(at, STRIPE_WORDS)
    }

    fn object_words(&self, object: usize) -> &[AtomicU64] {
        let at = Self::objects_at() + object * OBJECT_WORDS * WORD;
        self.memory.slice(at, OBJECT_WORDS)
    }

    /// Notes of copies that are there that they are current now: one of them may take the place of another that is
    /// removed next.
    pub fn promote_copies(&self, number: usize, object: &PagingObject) {
        for word in &self.object_words(number)[1..] {
            let saved = load(word);
            let is_current = |copy: &&ObjectCopy| word_of(copy) == saved | CURRENT;
            if saved != 0
                && let Some(copy) = object.copies.iter().find(is_current)
            {
                store(word, word_of(copy));
            }
        }
    }

    /// Removes the copies that an object does not have any more.
    pub fn remove_copies(&self, number: usize, object: &PagingObject) {
        for word in &self.object_words(number)[1..] {
            let saved = load(word);
            let is_same = |copy: &ObjectCopy| {
                copy.server == server_of(saved) && copy.generation.0 == saved & GENERATION
            };
            if saved != 0 && !object.copies.iter().any(is_same) {
                store(word, 0);
            }
        }
    }

    /// Writes the copies of an object, of which those that are gone were removed. One beyond the room for them is
    /// left out, and is made again where the client is started again.
    pub fn save_copies(&self, number: usize, object: &PagingObject) {
        let [latest, words @ ..] = self.object_words(number) else {
            return;
        };
        if load(latest) != object.latest.0 {
            store(latest, object.latest.0);
        }
        for copy in &object.copies {
            let is_own = |word: &&AtomicU64| {
                let saved = load(word);
                saved != 0 && server_of(saved) == copy.server
            };
            let own = words.iter().find(is_own);
            let place = own.or_else(|| words.iter().find(|word| load(word) == 0));
            if let Some(place) = place.filter(|word| load(word) != word_of(copy)) {
                store(place, word_of(copy));
            }
        }
    }

    /// The generation of an object's latest copy, and its current copies.
    pub fn object(&self, number: usize) -> (Generation, Vec<ObjectCopy>) {
        let words = self.object_words(number);
        let saved = words[1..].iter().map(load);
        let current = saved.filter(|word| word & (THERE | CURRENT) == THERE | CURRENT);
        let copies = current.map(|word| ObjectCopy {
            server: server_of(word),
            state: CopyState::Current,
            is_leaving: false,
            generation: Generation(word & GENERATION),
        });
        (Generation(load(&words[0])), copies.collect())
    }

    /// Has all stores before this one made before those after it, of completions and of requests.
    pub fn settle(&self) {
        fence(Ordering::Release);
    }
}

fn hash(number: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(number, bytes)
}

#[cfg(test)]
mod tests;
