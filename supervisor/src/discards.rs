//! `madvise` calls by the executed file itself that discard private memory: they stop at the tree's filter
//! ([`host::seccomp`]), since the kernel discards resident pages only.
//!
//! The supervisor posts the addresses to the caller's pager and lets the call continue once the pager
//! has dropped its stored copies: like a fault, the call waits for its own pager, for as long as
//! that takes. A child of `vfork`, or of `clone` with CLONE_VM, waits for the pager of the program whose memory it
//! shares. A call of a program without a pager continues at once. The Go runtime makes such calls, and relies on the
//! memory being zeros afterwards.
//!
//! MADV_GUARD_INSTALL fails in a program with a pager, as it does through the preload library's `madvise`: an eviction
//! would move the kernel's guard marker into the pager's own memory, whose use is a SIGSEGV then.

use crate::Supervisor;
use frames::DomainId;
use host::process_tree;
use host::seccomp::{GUARD_INSTALL, Listener};
use link::handshake::slot_of;
use rustix::process::Pid;
use std::ops::Range;
use std::time::{Duration, Instant};
use wired::{DiscardRequest, PAGE};

/// Bounds of the pause between two checks of a call: a running pager is done within some 30 us.
const PAUSE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(100)];

/// A call that waits for its pager.
struct PendingDiscard {
    /// The call's id.
    id: u64,
    caller: Pid,
    range: Range<usize>,
    /// True for MADV_GUARD_INSTALL.
    is_guard: bool,
    since: Instant,
    /// The pager that has the request.
    posted: Option<DomainId>,
}

/// The calls that wait, in the order of their arrival.
#[derive(Default)]
pub struct Discards(Vec<PendingDiscard>);

impl Discards {
    /// Takes up a stopped call. Returns false if the call continues at once.
    pub fn take_up(&mut self, call: &libc::seccomp_notif, listener: &Listener) -> bool {
        let [addr, len, advice, ..] = call.data.args.map(|word| word as usize);
        // The kernel refuses any other range, or does nothing.
        let end = len
            .checked_next_multiple_of(PAGE)
            .and_then(|len| addr.checked_add(len));
        let Some(end) = end.filter(|_| len > 0 && addr.is_multiple_of(PAGE)) else {
            return false;
        };
        let caller = Pid::from_raw(call.pid as i32).map(process_tree::process_of);
        let Ok(caller) = caller.transpose() else {
            listener.fail(call.id, libc::EAGAIN);
            return true;
        };
        // Another thread may have got the number before its process was read.
        let Some(caller) = caller.flatten().filter(|_| listener.is_valid(call.id)) else {
            return false;
        };
        self.0.push(PendingDiscard {
            id: call.id,
            caller,
            range: addr..end,
            is_guard: advice as u32 == GUARD_INSTALL,
            since: Instant::now(),
            posted: None,
        });
        true
    }

    /// The time until [`Discards::settle`] is due again: short for a call that has just stopped.
    pub fn due_in(&self) -> Option<Duration> {
        let [least, most] = PAUSE;
        let youngest = self.0.last()?;
        Some((youngest.since.elapsed() / 4).clamp(least, most))
    }

    /// Lets calls continue whose pager is done, or which have no pager, and posts the first request of each other caller.
    pub fn settle(&mut self, listener: &Listener, supervisor: &Supervisor) {
        self.0.retain(|call| {
            // An error: the call waits until the domain can be looked up.
            let Ok(domain) = supervisor.domain_of(call.caller) else {
                return listener.is_valid(call.id);
            };
            if call.is_guard && domain.is_some() {
                listener.fail(call.id, libc::EINVAL);
                return false;
            }
            let is_over = match (domain, call.posted) {
                (None, _) => true,
                (Some(domain), Some(posted)) => {
                    domain == posted && request_to(supervisor, domain).is_done()
                }
                (Some(_), None) => false,
            };
            if is_over {
                listener.resume(call.id);
            }
            // The caller of a waiting call may have been killed, or have begun another image.
            !is_over && listener.is_valid(call.id)
        });
        for n in 0..self.0.len() {
            let (before, after) = self.0.split_at_mut(n);
            let call = &mut after[0];
            let is_first = before.iter().all(|other| other.caller != call.caller);
            let Ok(Some(domain)) = supervisor.domain_of(call.caller) else {
                continue;
            };
            let request = request_to(supervisor, domain);
            // A request whose caller was killed may still be in progress.
            if call.posted.is_none() && is_first && request.is_done() {
                request.post(&call.range);
                call.posted = Some(domain);
                supervisor.wake_evictor(domain);
            }
        }
    }
}

fn request_to(supervisor: &Supervisor, domain: DomainId) -> DiscardRequest<'_> {
    let slot = slot_of(domain.raw());
    supervisor.stats_page().block(slot).discards()
}
