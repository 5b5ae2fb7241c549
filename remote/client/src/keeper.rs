//! The keeper of a remote client: starts another process where the client's is killed.
//!
//! The keeper is the parent of the client's process, and has what must outlive it: the state ([`ClientState`]), the
//! doorbell of all channels, and the socket to the supervisor, so that this one does not close. A new process goes
//! on from the state and sends [`ClientEvent::Ready`](crate::protocol::ClientEvent::Ready) again; the supervisor hands
//! it the channels, whose requests are in shared memory. Programs wait meanwhile.
//!
//! Rule: the keeper does nothing else, so that it does not end by what ends the client. Where the keeper is killed
//! alone the client goes on, and the program ends with the client; where a client ends at each start, the keeper ends.

use crate::process::{ClientError, Kept, RemoteConfig, serve};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};
use std::time::{Duration, Instant};

/// A client that ends sooner than this ended early.
const EARLY: Duration = Duration::from_secs(2);
/// Early ends, one after the other, after which no other is started: as many as with their pauses take as long as
/// programs wait for a page. Of those that did not serve fewer are enough.
const MAX_EARLY: u32 = 24;
const MAX_UNSERVED: u32 = 5;
/// The pause after an early end, for each before it.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the supervisor at `socket` until it is gone, in another process, and in a further one where that one ends.
/// `begin` is called at the start of each process, and of this one: what keeps memory in RAM is not inherited.
///
/// # Errors
/// [`ClientError`], of this process, which has one thread.
pub fn keep(
    config: &RemoteConfig,
    socket: &OwnedFd,
    begin: impl Fn(),
) -> Result<bool, ClientError> {
    begin();
    let kept = Kept::new(config)?;
    let (mut early, mut unserved) = (0, 0);
    loop {
        let (started, served) = (Instant::now(), kept.served());
        // SAFETY: this process has one thread, so the child may go on as it likes.
        let child = match unsafe { libc::fork() } {
            -1 => return Err(ClientError::fork()),
            0 => {
                begin();
                let served = serve(config, &kept, socket);
                std::process::exit(i32::from(served.is_err()));
            }
            child => child,
        };
        let status = wait_for(child);
        if status.and_then(|status| status.exit_status()) == Some(0) {
            return Ok(true);
        }
        unserved = match kept.served() == served {
            true => unserved + 1,
            false => 0,
        };
        early = match started.elapsed() < EARLY {
            true => early + 1,
            false => 0,
        };
        if kept.served() == 0 || unserved >= MAX_UNSERVED || early >= MAX_EARLY {
            return Ok(false);
        }
        tracing::warn!(
            "the remote client was ended ({}): another one goes on with its pages",
            describe(status)
        );
        // The first follows at once.
        std::thread::sleep(PAUSE * early.saturating_sub(1));
    }
}

fn wait_for(child: i32) -> Option<WaitStatus> {
    let child = Pid::from_raw(child)?;
    let waited = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
    waited.ok().flatten().map(|(_, status)| status)
}

fn describe(status: Option<WaitStatus>) -> String {
    let signal = status.and_then(|status| status.terminating_signal());
    match (signal, status.and_then(|status| status.exit_status())) {
        (Some(signal), _) => format!("signal {signal}"),
        (_, Some(code)) => format!("exit status {code}"),
        _ => "no status".to_owned(),
    }
}
