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

/// The server's sources that are no connections.
pub(crate) const LISTENER: u64 = u64::MAX;
pub(crate) const DOORBELL: u64 = u64::MAX - 1;
pub(crate) const DISK: u64 = u64::MAX - 2;

/// A source that a wait found ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// The caller's name for it.
    pub name: u64,
    /// Its peer is gone. The kernel reports that for as long as the source is open, whatever it is watched for.
    pub has_failed: bool,
}

/// What is waited for, and what was found ready.
pub(crate) struct Poller {
    epoll: OwnedFd,
    ready: Vec<Ready>,
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
                let failure = EventFlags::ERR | EventFlags::HUP;
                self.ready.extend(events.iter().map(|event| {
                    let flags = event.flags;
                    Ready {
                        name: event.data.u64(),
                        has_failed: flags.intersects(failure),
                    }
                }));
                Ok(events.len())
            }
            Err(Errno::INTR) => Ok(0),
            Err(why) => Err(why.into()),
        }
    }

    /// What the last wait found ready, each once.
    pub fn next_ready(&mut self) -> Option<Ready> {
        self.ready.pop()
    }
}
