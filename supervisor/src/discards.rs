//! `madvise` by an instruction of the executed file that discards private memory: it stops at the
//! tree's filter ([`host::seccomp`]), since the kernel discards what is resident only.
//!
//! The supervisor posts the addresses to the caller's pager and lets the call go on once the pager
//! has dropped what it stored of them: like a fault, the call waits for its own pager, for as long as
//! that takes. A child of `vfork`, or of `clone` with CLONE_VM, waits for the pager of the program whose memory it
//! shares. A call of a program without a pager goes on at once. The Go runtime calls so, and takes for granted
//! that the memory is zeros then.
//!
//! MADV_GUARD_INSTALL fails in a program with a pager, as the C library's `madvise` has it: an eviction
//! would move the kernel's mark into the pager's own memory, where its use is a SIGSEGV.

use crate::Supervisor;
use frames::DomainId;
use host::process_tree;
use host::seccomp::{GUARD_INSTALL, Listener};
use link::handshake::slot_of;
use rustix::process::Pid;
use std::ops::Range;
use std::time::{Duration, Instant};
use wired::{DiscardRequest, PAGE};

/// Bounds of the pause between two checks of a call: a pager that runs answers within some 30 us.
const PAUSE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(100)];

/// A call that waits for its pager.
struct PendingDiscard {
    /// The call's.
    id: u64,
    caller: Pid,
    range: Range<usize>,
    /// It is MADV_GUARD_INSTALL.
    is_guard: bool,
    since: Instant,
    /// The pager that has the request.
    posted: Option<DomainId>,
}

/// The calls that wait, in their order.
#[derive(Default)]
pub struct Discards(Vec<PendingDiscard>);

impl Discards {
    /// Takes up a call that has stopped. Returns false if it goes on at once.
    pub fn take_up(&mut self, call: &libc::seccomp_notif, listener: &Listener) -> bool {
        let [addr, len, advice, ..] = call.data.args.map(|word| word as usize);
        // Else the kernel refuses it, or does nothing.
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
        // The number may have become another thread's before its process was read.
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

    /// When [`Discards::settle`] is due again: soon for a call that has just stopped.
    pub fn due_in(&self) -> Option<Duration> {
        let [least, most] = PAUSE;
        let youngest = self.0.last()?;
        Some((youngest.since.elapsed() / 4).clamp(least, most))
    }

    /// Lets calls go on whose pager is done, or which have none, and posts those whose turn it is.
    pub fn settle(&mut self, listener: &Listener, supervisor: &Supervisor) {
        self.0.retain(|call| {
            // The call waits until that can be found.
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
            // The caller of any other may have been killed, or have begun another image.
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
            // One whose caller was killed may be under way.
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
