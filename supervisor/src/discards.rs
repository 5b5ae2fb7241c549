//! `madvise` by an instruction of the executed file that discards private memory: it stops at the
//! tree's filter ([`host::seccomp`]), since the kernel discards what is resident only.
//!
//! The supervisor posts the addresses to the caller's pager and lets the call go on once the pager
//! has dropped what it stored of them. A call of a program without a pager goes on at once. The Go
//! runtime calls so, and takes for granted that the memory is zeros then.

use host::process_tree;
use host::seccomp::Listener;
use link::handshake::SlotIndex;
use link::stats_page::StatsPage;
use rustix::process::Pid;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wired::PAGE;

/// Bounds of the pause between two checks of a call: a pager that runs answers within some 30 us.
const PAUSE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(10)];

/// A call that waits for its pager.
struct PendingDiscard {
    /// The call's.
    id: u64,
    slot: SlotIndex,
    /// The program that had the slot when it called.
    program: u32,
    range: Range<usize>,
    since: Instant,
    posted: bool,
}

/// The calls that wait, in their order.
#[derive(Default)]
pub struct Discards(Vec<PendingDiscard>);

impl Discards {
    /// Takes up a call that has stopped. Returns false if no pager has anything of it: it goes on.
    pub fn take_up(&mut self, call: &libc::seccomp_notif, stats_page: &StatsPage) -> bool {
        let [addr, len, ..] = call.data.args.map(|word| word as usize);
        // Else the kernel refuses it, or does nothing.
        let end = len
            .checked_next_multiple_of(PAGE)
            .and_then(|len| addr.checked_add(len));
        let Some(end) = end.filter(|_| len > 0 && addr.is_multiple_of(PAGE)) else {
            return false;
        };
        let program = Pid::from_raw(call.pid as i32).and_then(process_tree::process_of);
        let Some(program) = program.map(|pid| pid.as_raw_nonzero().get() as u32) else {
            return false;
        };
        let mut programs = stats_page.programs().iter();
        let Some(slot) = programs.position(|word| program_in(word) == program) else {
            return false;
        };
        self.0.push(PendingDiscard {
            id: call.id,
            slot: slot as SlotIndex,
            program,
            range: addr..end,
            since: Instant::now(),
            posted: false,
        });
        true
    }

    /// When [`Discards::settle`] is due again: soon for a call that has just stopped.
    pub fn due_in(&self) -> Option<Duration> {
        let [least, most] = PAUSE;
        let youngest = self.0.last()?;
        Some((youngest.since.elapsed() / 4).clamp(least, most))
    }

    /// Lets calls go on whose pager is done or gone, and posts those whose turn it is. `wake` wakes
    /// the pager of a slot.
    pub fn settle(
        &mut self,
        listener: &Listener,
        stats_page: &StatsPage,
        wake: impl Fn(SlotIndex),
    ) {
        self.0.retain(|call| {
            let is_gone =
                program_in(&stats_page.programs()[usize::from(call.slot)]) != call.program;
            let is_over =
                is_gone || call.posted && stats_page.block(call.slot).discards().is_done();
            if is_over {
                listener.resume(call.id);
            }
            !is_over
        });
        for n in 0..self.0.len() {
            let (before, call) = self.0[..=n].split_at_mut(n);
            let [call] = call else { continue };
            if call.posted || before.iter().any(|other| other.slot == call.slot) {
                continue;
            }
            stats_page.block(call.slot).discards().post(&call.range);
            call.posted = true;
            wake(call.slot);
        }
    }
}

fn program_in(word: &std::sync::atomic::AtomicU32) -> u32 {
    word.load(Ordering::Acquire)
}
