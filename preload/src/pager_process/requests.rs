//! Requests of the program's threads to the supervisor. A thread of the pager process makes them, by its own connection:
//! a program's thread may have no free descriptor, and a filter may refuse it the calls.
//!
//! The thread starts with the first request, since most programs make none.

use super::connection;
use super::threads::{self, ThreadRole};
use crate::process_pager;
use crate::raw_syscall::SignalsBlocked;
use crate::shared_memory::ProgramRequest;
use std::sync::atomic::{AtomicBool, Ordering};
use wired::Mailbox;

static REQUESTS: Mailbox<ProgramRequest> = Mailbox::new();

/// The thread is started.
static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// Has a request made. Returns true if it is done.
pub fn make(request: ProgramRequest) -> bool {
    let Some(pager) = process_pager::get() else {
        return false;
    };
    let _signals = SignalsBlocked::new();
    let sender = REQUESTS.lock();
    let is_started = IS_STARTED.load(Ordering::Acquire) || pager.process.run(start) != FAILED;
    IS_STARTED.store(is_started, Ordering::Release);
    let wake = || match is_started {
        true => REQUESTS.wake(),
        // Without room for another thread the evictor's makes it.
        false => {
            pager.process.run(serve_pending);
        }
    };
    REQUESTS.send(&sender, request, wake, super::end_if_gone) != FAILED
}

/// The result of a request that is not done.
const FAILED: u32 = 1;

/// Starts the thread, by a thread of the pager process.
fn start() -> u32 {
    match threads::start(ThreadRole::Requester as usize) {
        Ok(()) => 0,
        Err(_) => FAILED,
    }
}

/// Makes the request that is pending.
fn serve_pending() -> u32 {
    REQUESTS.handle(|request| {
        let made = connection().is_some_and(|connection| request.make(connection));
        if made { 0 } else { FAILED }
    });
    0
}

/// The thread's work.
pub fn serve() -> ! {
    loop {
        REQUESTS.wait();
        serve_pending();
    }
}

/// In the child of a fork, which has no such thread yet.
pub fn forget() {
    REQUESTS.reset_after_fork();
    IS_STARTED.store(false, Ordering::Release);
}
