//! Waits for sockets, the disk and other threads, by epoll.

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Events of one wait.
const EVENTS: usize = 64;

/// What is waited for, and what was found ready.
pub(crate) struct Poller {
    epoll: OwnedFd,
    ready: Vec<u64>,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            ready: Vec::with_capacity(EVENTS),
        })
    }

    /// Waits for input of a source from now on, under the caller's name for it.
    pub fn add(&self, source: impl AsFd, name: u64) -> io::Result<()> {
        let data = EventData::new_u64(name);
        Ok(epoll::add(&self.epoll, source, data, EventFlags::IN)?)
    }

    /// Waits for `input` and `output` of a source that was added.
    pub fn set(&self, source: impl AsFd, name: u64, input: bool, output: bool) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, input);
        flags.set(EventFlags::OUT, output);
        let data = EventData::new_u64(name);
        Ok(epoll::modify(&self.epoll, source, data, flags)?)
    }

    /// Waits for a source no more.
    pub fn remove(&self, source: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, source)?)
    }

    /// Waits until something is ready. Returns how many sources are.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        self.ready.clear();
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok((events, _)) => {
                self.ready
                    .extend(events.iter().map(|event| event.data.u64()));
                Ok(events.len())
            }
            Err(Errno::INTR) => Ok(0),
            Err(why) => Err(why.into()),
        }
    }

    /// The names of what the last wait found ready, each once.
    pub fn next_ready(&mut self) -> Option<u64> {
        self.ready.pop()
    }
}
