//! The keeper of a client: starts another process where the client's is killed.
//!
//! The keeper is the parent of the client's process, and has what must outlive it: the state that a [`PageClient`] goes
//! on from, the doorbell of all channels, and the socket to the supervisor, so that this one does not close. A new process
//! goes on from the state and sends [`ClientEvent::Ready`](crate::protocol::ClientEvent::Ready) again; the supervisor
//! hands it the channels, whose requests are in shared memory. Programs wait meanwhile.
//!
//! Rule: the keeper does nothing else, so that it does not end by what ends the client, and prints nothing while it keeps:
//! standard error may be a stopped terminal. Where the keeper is killed alone the client goes on, and the program ends with
//! the client; where a client ends at each start, the keeper ends.

use crate::process::{PageClient, ServeError, call, serve};
use host::restart_policy::{RestartPolicy, describe_end, wait_for_child};
use logging::LineQueue;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// How long lines of the log are waited for at the end.
const LOG_PATIENCE: Duration = Duration::from_secs(1);

/// Serves the supervisor at `socket` until it is gone, in another process, and in a further one where that one ends.
/// `begin` is called at the start of each process, and of this one: what keeps memory in RAM is not inherited.
///
/// # Errors
/// Of `make`, which makes what outlives the processes, or of this process, which has one thread.
pub fn keep<C: PageClient>(
    make: impl FnOnce() -> Result<C, C::Error>,
    socket: &OwnedFd,
    begin: impl Fn(),
) -> Result<bool, C::Error> {
    begin();
    let client = make()?;
    let mut policy = RestartPolicy::default();
    let mut former_end = None;
    loop {
        let (started, served) = (Instant::now(), client.header().served());
        // SAFETY: this process has one thread, so the child may go on as it likes.
        let child = match unsafe { libc::fork() } {
            -1 => {
                let errno = Errno::from_io_error(&std::io::Error::last_os_error());
                let failed: ServeError = call("fork")(errno.unwrap_or(Errno::AGAIN));
                return Err(failed.into());
            }
            0 => {
                begin();
                std::process::exit(i32::from(
                    serve_and_log(&client, socket, former_end).is_err(),
                ));
            }
            child => child,
        };
        let status = Pid::from_raw(child).and_then(wait_for_child);
        if status.and_then(|status| status.exit_status()) == Some(0) {
            return Ok(true);
        }
        let pause = policy.on_end(started.elapsed(), client.header().served() != served);
        let Some(pause) = pause.filter(|_| client.header().served() > 0) else {
            return Ok(false);
        };
        former_end = Some(describe_end(status));
        std::thread::sleep(pause);
    }
}

/// Serves in a process of its own, whose lines never block what carries pages.
fn serve_and_log<C: PageClient>(
    client: &C,
    socket: &OwnedFd,
    former_end: Option<String>,
) -> Result<(), C::Error> {
    let _log = LineQueue::start(LOG_PATIENCE);
    if let Some(end) = former_end {
        let name = C::NAME;
        tracing::warn!("the {name} was ended ({end}): another one goes on with its pages");
    }
    serve(client, socket)
}
