//! A channel that is opened by its first page. A process of a tree has several, and most
//! processes end without a page in the store.

use crate::StoreError;
use crate::channel::StoreChannel;
use crate::inner::StoreInner;
use crate::traits::{Channel, Completion, ReadPage, Submitted, Wait, WritePage};
use rustix::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a channel that could not be opened is not tried again, where no page is lost without it: each attempt may leave
/// one open at the daemon.
pub(crate) const RETRY: Duration = Duration::from_secs(60);

/// A channel, open or not yet. Where it cannot be opened, the page that needs it is refused, and
/// the next after `pause` tries again.
pub(crate) struct OnDemand {
    inner: Arc<StoreInner>,
    depth: usize,
    pause: Duration,
    /// When it could not be opened, and why.
    failed: Option<(Instant, StoreError)>,
    channel: Option<Box<StoreChannel>>,
}

impl OnDemand {
    pub fn new(inner: Arc<StoreInner>, depth: usize, pause: Duration) -> Self {
        Self {
            inner,
            depth,
            pause,
            failed: None,
            channel: None,
        }
    }

    fn open(&mut self) -> Result<&mut StoreChannel, StoreError> {
        if let (None, Some((when, why))) = (&self.channel, &self.failed)
            && when.elapsed() < self.pause
        {
            return Err(*why);
        }
        let channel = match self.channel.take() {
            Some(channel) => channel,
            None => StoreChannel::new(self.inner.clone(), self.depth).inspect_err(|why| {
                self.failed = Some((Instant::now(), *why));
            })?,
        };
        Ok(self.channel.insert(channel))
    }
}

impl Channel for OnDemand {
    fn submit_write(&mut self, pages: &[WritePage]) -> Result<(), StoreError> {
        self.open()?.submit_write(pages)
    }

    fn submit_read(&mut self, page: ReadPage) -> Result<Submitted, StoreError> {
        self.open()?.submit_read(page)
    }

    fn submit_read_run(&mut self, run: &[ReadPage]) -> Result<usize, StoreError> {
        self.open()?.submit_read_run(run)
    }

    fn submit_read_ahead(&mut self, run: &[ReadPage]) -> Result<usize, StoreError> {
        self.open()?.submit_read_ahead(run)
    }

    fn complete(&mut self, wait: Wait) -> Option<Completion> {
        self.channel.as_mut()?.complete(wait)
    }

    fn set_waiter(&mut self, thread: u32) {
        if let Some(channel) = &mut self.channel {
            channel.set_waiter(thread);
        }
    }

    fn release_idle(&mut self) {
        if let Some(channel) = &mut self.channel {
            channel.release_idle();
        }
    }

    fn close_idle(&mut self) {
        if self.pending() == 0 {
            self.channel = None;
        }
    }

    fn is_unopened(&self) -> bool {
        self.channel.is_none()
    }

    fn pending(&self) -> usize {
        self.channel.as_ref().map_or(0, |channel| channel.pending())
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref()?.poll_fd()
    }

    fn is_ready(&self) -> bool {
        self.channel
            .as_ref()
            .is_some_and(|channel| channel.is_ready())
    }

    fn may_poll(&self) -> bool {
        self.channel
            .as_ref()
            .is_none_or(|channel| channel.may_poll())
    }
}
