//! What takes long, done beside the daemon's loop: ending tenants, counting their memory.

use super::scrub::Wiped;
use super::urgent;
use crate::protocol::TenantNumber;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// What was done.
pub enum Done {
    /// A swap file can be given out, or why not.
    Wiped(TenantNumber, Box<Wiped>),
    /// The processes of a tenant that is killed have no memory any more.
    Emptied(TenantNumber),
    /// A tenant's processes have ended.
    Killed(TenantNumber),
    /// Bytes that one who wants to leave has resident, counted for that.
    Weighed(TenantNumber, u64),
    /// The processes of one who leaves are in no group of ours any more.
    Released(TenantNumber),
    /// Nothing of a tenant's is in flight any more.
    Left(TenantNumber),
    /// Bytes a tenant has resident, counted exactly.
    Counted(TenantNumber, u64),
}

/// Work that is done once, by whichever thread is had for it.
type Work = Arc<Mutex<Option<Box<dyn FnOnce() -> Done + Send>>>>;

/// Where it is said what was done.
#[derive(Clone)]
pub struct Teller {
    sender: Sender<Done>,
    bell: Arc<OwnedFd>,
}

impl Teller {
    /// Says that something was done.
    pub fn tell(&self, done: Done) {
        // The daemon ends: nobody needs to know.
        let _ = self.sender.send(done);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// Errands under way.
pub struct Errands {
    teller: Teller,
    receiver: Receiver<Done>,
    /// Those that no thread could be had for.
    late: RefCell<Vec<Work>>,
}

impl Errands {
    /// None under way.
    pub fn new() -> rustix::io::Result<Self> {
        let (sender, receiver) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self {
            teller: Teller { sender, bell },
            receiver,
            late: RefCell::default(),
        })
    }

    /// Starts one on a thread of its own; later, where none can be had now.
    pub fn start(&self, work: impl FnOnce() -> Done + Send + 'static) {
        self.try_start(Arc::new(Mutex::new(Some(Box::new(work)))));
    }

    /// Starts those that no thread could be had for.
    pub fn retry(&self) {
        for work in self.late.take() {
            self.try_start(work);
        }
    }

    fn try_start(&self, work: Work) {
        let (teller, own) = (self.teller.clone(), work.clone());
        let run = move || {
            urgent::leave();
            let taken = own.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(work) = taken {
                teller.tell(work());
            }
        };
        if std::thread::Builder::new().spawn(run).is_err() {
            self.late.borrow_mut().push(work);
        }
    }

    /// One that needs nothing to be done.
    pub fn done(&self, done: Done) {
        self.teller.tell(done);
    }

    /// Where others say what they did.
    pub fn teller(&self) -> Teller {
        self.teller.clone()
    }

    /// Readable when one is done.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.teller.bell.as_fd()
    }

    /// The next that is done.
    pub fn next(&self) -> Option<Done> {
        let next = self.receiver.try_recv().ok();
        if next.is_none() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.teller.bell, &mut count);
        }
        next.or_else(|| self.receiver.try_recv().ok())
    }
}
