//! What is asked of the store, in its threads, and how it ends.

use crate::page_table::PagePlace;
use crate::segments::SegmentNumber;
use crate::waiting_parts::Lane;
use objectstore::{ObjectError, ObjectStore, Written};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use wired::PAGE;

/// Pages of a part that are read at once, since they are one after the other in a segment.
#[derive(Clone, Copy, Debug)]
pub struct ReadRun {
    /// The index of its part.
    pub part: usize,
    /// First page within the part.
    pub at: usize,
    /// First page within the space.
    pub page: u32,
    pub count: u32,
    /// Where the first one is.
    pub place: PagePlace,
    /// Answers about it that were not believed.
    pub doubts: u32,
}

/// How often a page is asked for again that the store has not, or has with other contents, before it is lost: within
/// two seconds.
const MAX_DOUBTS: u32 = 4;

/// The pause before a page is asked for again whose answer was not believed; each further one is twice as long.
const DOUBT_PAUSE: Duration = Duration::from_millis(50);

impl ReadRun {
    /// Returns true if a page is to be asked for again that is not in this answer as it was written. A store that was
    /// waited for has been asked often enough.
    pub fn is_doubted(&self, answer: &Result<Vec<u8>, ObjectError>) -> bool {
        self.doubts < MAX_DOUBTS && !answer.as_ref().is_err_and(ObjectError::is_late)
    }

    /// One page of it, to be asked for again.
    pub fn again(self, at: usize, page: u32, place: PagePlace) -> Self {
        Self {
            at,
            page,
            count: 1,
            place,
            doubts: self.doubts + 1,
            ..self
        }
    }
}

/// An operation that has ended.
#[derive(Debug)]
pub enum Ended {
    Read(ReadRun, Result<Vec<u8>, ObjectError>),
    Written(SegmentNumber, Result<Written, ObjectError>),
    Deleted(SegmentNumber, Result<(), ObjectError>),
    /// All of a segment was read, to be cleaned.
    ReadToClean(SegmentNumber, Result<Vec<u8>, ObjectError>),
}

impl Ended {
    /// What was answered.
    pub fn lane(&self) -> Lane {
        match self {
            Self::Read(..) | Self::ReadToClean(..) => Lane::Reads,
            Self::Written(..) | Self::Deleted(..) => Lane::Others,
        }
    }

    /// Returns true if it ended by an answer of the store.
    pub fn is_answer(&self) -> bool {
        let error = match self {
            Self::Read(_, result) | Self::ReadToClean(_, result) => result.as_ref().err(),
            Self::Written(_, result) => result.as_ref().err(),
            Self::Deleted(_, result) => result.as_ref().err(),
        };
        !error.is_some_and(ObjectError::is_late)
    }
}

/// The error of a part whose operation has failed.
pub fn errno_of(why: &ObjectError) -> Errno {
    match why {
        why if why.is_full() => Errno::NOSPC,
        // So that the pages of a run are not asked for one by one, of which each would wait as long.
        why if why.is_late() => Errno::TIMEDOUT,
        _ => Errno::IO,
    }
}

/// The way to the store.
pub struct Operations {
    store: ObjectStore,
    folder: String,
    sender: Sender<Ended>,
    receiver: Receiver<Ended>,
    bell: Arc<OwnedFd>,
}

impl Operations {
    /// Objects are in `folder` of the store, which ends with a slash.
    pub fn new(store: ObjectStore, folder: String) -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (sender, receiver) = channel();
        Ok(Self {
            store,
            folder,
            sender,
            receiver,
            bell: Arc::new(eventfd(0, flags)?),
        })
    }

    /// The object of a segment.
    pub fn name(&self, segment: SegmentNumber) -> String {
        format!("{}{}", self.folder, segment.0)
    }

    fn run(&self, operation: impl Future<Output = Ended> + Send + 'static) {
        let (sender, bell) = (self.sender.clone(), Arc::clone(&self.bell));
        self.store.spawn(async move {
            // The transport may have ended meanwhile.
            let _ = sender.send(operation.await);
            let _ = write(&bell, &1u64.to_ne_bytes());
        });
    }

    async fn read_pages(
        store: ObjectStore,
        name: String,
        first: u32,
        count: u32,
    ) -> Result<Vec<u8>, ObjectError> {
        let byte = |page: u32| u64::from(page) * PAGE as u64;
        let bytes = store.read(&name, byte(first)..byte(first + count)).await?;
        Ok(bytes.to_vec())
    }

    pub fn read(&self, run: ReadRun) {
        let (store, name) = (self.store.clone(), self.name(run.place.segment));
        self.run(async move {
            if run.doubts > 0 {
                store.pause(DOUBT_PAUSE * (1 << run.doubts)).await;
            }
            let result = Self::read_pages(store, name, run.place.index, run.count).await;
            Ended::Read(run, result)
        });
    }

    pub fn read_to_clean(&self, segment: SegmentNumber, count: u32) {
        let (store, name) = (self.store.clone(), self.name(segment));
        self.run(async move {
            Ended::ReadToClean(segment, Self::read_pages(store, name, 0, count).await)
        });
    }

    pub fn write(&self, segment: SegmentNumber, bytes: Vec<u8>) {
        let (store, name) = (self.store.clone(), self.name(segment));
        self.run(async move { Ended::Written(segment, store.put(&name, bytes).await) });
    }

    /// Returns true if an attempt of a write was given up that the store may carry out later.
    pub fn may_arrive_later(&self, written: &Result<Written, ObjectError>) -> bool {
        match written {
            Ok(written) => *written == Written::Again,
            Err(why) => why.is_late() && self.store.may_write_late(),
        }
    }

    pub fn delete(&self, segment: SegmentNumber) {
        let (store, name) = (self.store.clone(), self.name(segment));
        self.run(async move { Ended::Deleted(segment, store.delete(&name).await) });
    }

    /// Deletes segments and the folder, which none is written to any more.
    pub fn delete_run(&self, segments: impl Iterator<Item = SegmentNumber>) {
        let names: Vec<String> = segments.map(|segment| self.name(segment)).collect();
        let deleted = self.store.wait(async {
            self.store.delete_all(&names).await?;
            self.store.delete(&self.folder).await
        });
        if let Err(why) = deleted {
            let (folder, url) = (&self.folder, self.store.url());
            tracing::warn!("pages stay in {folder} at {url}, which may be deleted: {why}");
        }
    }

    /// The next operation that has ended.
    pub fn next(&self) -> Option<Ended> {
        if let Ok(ended) = self.receiver.try_recv() {
            return Some(ended);
        }
        let mut count = [0; 8];
        let _ = read(&self.bell, &mut count);
        self.receiver.try_recv().ok()
    }

    /// Likewise, and waits for it.
    pub fn wait(&self, most: Duration) -> Option<Ended> {
        self.receiver.recv_timeout(most).ok()
    }

    /// Readable when an operation has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
