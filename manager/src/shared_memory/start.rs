//! The start of the pager: its threads, and what they work with.

use super::clients::SlotIndex;
use super::frames::ObjectFrames;
use super::pager::{PagerError, SharedPager};
use super::pager_loop::PagerLoop;
use super::requests::Mailbox;
use frames::{DomainId, Ledger};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{self, Errno};
use std::time::Duration;
use store::SharedStore;
use wired::Counter;

/// What the pager works with.
pub struct SharedMemoryParts {
    /// The tree's ledger; under the daemon one that rings it.
    pub ledger: Ledger,
    /// The domain that was admitted and adopted for the objects.
    pub domain: DomainId,
    /// The tree's store, attached as the domain's holder, with its transport if it needs one.
    pub store: SharedStore,
    /// Returns true once the kernel may hold pages of the tree; from then on nothing is evicted.
    pub careful: Box<dyn Fn() -> bool + Send>,
    /// Counts for the process in a slot; slot 0 is the tree.
    pub count: Box<dyn Fn(SlotIndex, Counter, u64) + Send>,
}

/// Starts the pager and the thread that hears the ledger's bell for it.
pub fn start(parts: SharedMemoryParts) -> io::Result<Mailbox> {
    let mailbox = Mailbox::new()?;
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.into());
        let spawned = thread.spawn(run);
        spawned.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
    };
    // As long as the supervisor.
    let ledger: &'static Ledger = Box::leak(Box::new(parts.ledger));
    let frames = ledger.client(parts.domain).map_err(|_| Errno::SRCH)?;
    let rung = mailbox.clone();
    spawn(
        "selfpage-bell",
        Box::new(move || {
            loop {
                let seq = frames.bell_seq();
                if frames.demanded() + frames.trimmed() > 0 {
                    rung.ring();
                }
                frames.wait_bell(seq, Some(Duration::from_secs(1)));
            }
        }),
    )?;
    let (store, careful, count) = (parts.store, parts.careful, parts.count);
    let requests = mailbox.clone();
    spawn(
        "selfpage-shared",
        Box::new(move || {
            let frames = ObjectFrames::new(frames);
            let pager = |events| SharedPager::new(events, frames, store, careful, count);
            match PagerLoop::new(requests.clone(), pager) {
                Ok(pager) => pager.run(),
                Err(why) => {
                    tracing::warn!("shared memory is not paged: {why}");
                    refuse_all(&requests, &why);
                }
            }
        }),
    )?;
    Ok(mailbox)
}

/// Refuses requests for as long as the supervisor lives.
fn refuse_all(requests: &Mailbox, why: &PagerError) {
    loop {
        while let Some(request) = requests.receive() {
            request.refuse(&why.to_string());
        }
        let mut fds = [PollFd::from_borrowed_fd(requests.bell(), PollFlags::IN)];
        let _ = poll(&mut fds, None);
        requests.hear();
    }
}
