//! What paging servers keep, and the messages on their way to them.

use selfpage_remote_policy::redundancy::ServerSet;
use std::collections::BTreeMap;

pub const PAGES: usize = 2;

/// An object, and the generation of one of its copies.
pub type CopyId = (usize, u64);

/// What a server has as a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Page {
    #[default]
    Empty,
    /// What a write of the program wrote.
    Written(u64),
    /// What the members' pages were when a parity was written, by the number of that write.
    Parity { number: u64, of: [u64; 4] },
}

impl Page {
    fn version(self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Written(version) => version,
            Self::Parity { number, .. } => number,
        }
    }
}

/// A server.
#[derive(Clone, Debug, Default)]
pub struct PagingServer {
    pub is_connected: bool,
    /// It was killed since the client was connected last.
    pub was_killed: bool,
    pub kept: BTreeMap<CopyId, [Page; PAGES]>,
}

impl PagingServer {
    /// Keeps the page of the higher version. Returns false if there is no such copy.
    pub fn write(&mut self, copy: CopyId, at: usize, page: Page) -> bool {
        let Some(pages) = self.kept.get_mut(&copy) else {
            return false;
        };
        if page.version() >= pages[at].version() {
            pages[at] = page;
        }
        true
    }
}

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A read or write of the program, by its number.
    Program(u64),
    /// A part of a stripe's job, of which the numbers are those of its run.
    Job { run: u64, part: usize },
    /// Ordinary copying to a copy.
    Copy {
        object: usize,
        to: usize,
        generation: u64,
    },
}

/// A request on its way to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub server: usize,
    pub copy: CopyId,
    pub page: usize,
    /// What is written; `None` of a read.
    pub contents: Option<Page>,
    pub purpose: Purpose,
    /// The page that was read or written, once the server has the message, and whether it keeps such a copy.
    pub reply: Option<(Page, bool)>,
}

pub fn bit(server: usize) -> ServerSet {
    1 << server
}
