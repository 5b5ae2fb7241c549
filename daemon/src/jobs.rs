//! Jobs that take long and run on threads of their own, beside the daemon's loop: killing tenants, measuring their RSS.

use crate::scrub::ScrubDone;
use crate::urgent;
use protocol::TenantNumber;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::RefCell;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// The result of a job.
pub enum JobResult {
    /// A swap file was scrubbed, or why not.
    Scrubbed(TenantNumber, Box<ScrubDone>),
    /// The memory of a killed tenant's processes is freed.
    MemoryFreed(TenantNumber),
    /// A tenant's processes have ended.
    Killed(TenantNumber),
    /// Resident bytes of a tenant that requested to leave, counted exactly, or why they could not be counted.
    LeaveRss(TenantNumber, io::Result<u64>),
    /// The processes of a leaving tenant have left the daemon's control groups.
    Released(TenantNumber),
    /// No I/O of a tenant is in flight any more.
    DiskDrained(TenantNumber),
    /// Resident bytes of a tenant, counted exactly, or why they could not be counted.
    ExactRss(TenantNumber, io::Result<u64>),
}

/// A job, which one thread takes and runs once.
type Job = Arc<Mutex<Option<Box<dyn FnOnce() -> JobResult + Send>>>>;

/// Sends results of jobs to the daemon's loop.
#[derive(Clone)]
pub struct JobSender {
    sender: Sender<JobResult>,
    bell: Arc<OwnedFd>,
}

impl JobSender {
    /// Sends a result.
    pub fn send(&self, done: JobResult) {
        // This fails only when the daemon ends, which has dropped the receiver.
        let _ = self.sender.send(done);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// Starts jobs, and receives their results.
pub struct JobRunner {
    notifier: JobSender,
    receiver: Receiver<JobResult>,
    /// Jobs for which no thread could be started yet.
    waiting: RefCell<Vec<Job>>,
}

impl JobRunner {
    /// A runner without jobs.
    pub fn new() -> rustix::io::Result<Self> {
        let (sender, receiver) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self {
            notifier: JobSender { sender, bell },
            receiver,
            waiting: RefCell::default(),
        })
    }

    /// Starts a job on a thread of its own; where no thread can be started now, at a later [`JobRunner::retry`].
    pub fn start(&self, work: impl FnOnce() -> JobResult + Send + 'static) {
        self.try_start(Arc::new(Mutex::new(Some(Box::new(work)))));
    }

    /// Starts the jobs that wait for a thread.
    pub fn retry(&self) {
        for work in self.waiting.take() {
            self.try_start(work);
        }
    }

    fn try_start(&self, work: Job) {
        let (notifier, own) = (self.notifier.clone(), work.clone());
        let run = move || {
            urgent::leave();
            let taken = own.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(work) = taken {
                notifier.send(work());
            }
        };
        if std::thread::Builder::new().spawn(run).is_err() {
            self.waiting.borrow_mut().push(work);
        }
    }

    /// Adds the result of a job that needed no thread.
    pub fn done(&self, done: JobResult) {
        self.notifier.send(done);
    }

    /// A sender for results of other threads.
    pub fn notifier(&self) -> JobSender {
        self.notifier.clone()
    }

    /// Readable when a job is done.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.notifier.bell.as_fd()
    }

    /// The next result.
    pub fn next(&self) -> Option<JobResult> {
        let next = self.receiver.try_recv().ok();
        if next.is_none() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.notifier.bell, &mut count);
        }
        next.or_else(|| self.receiver.try_recv().ok())
    }
}
