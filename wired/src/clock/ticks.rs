//! The monotonic clock by the processor's time stamp counter, in half the time.
//!
//! The kernel's own reading of it orders the counter with the instructions around, which
//! waits for them, and scales it with the figures of the last tick. A fault's check needs no
//! order. So the clock and the counter are read together once in a while, the *anchor*, and in
//! between the counter alone is, scaled by what the last two anchors say (`cargo run --release
//! -p rate --example rate_cost` has both clocks).
//!
//! Rules:
//! - Only where the kernel itself keeps time by the counter, which says that all processors
//!   have the same and that it goes on at one rate. Whoever wants it asks before
//!   ([`prepare`]): that opens a file.
//! - An anchor is good for [`WINDOW`]. A counter that has jumped, with a virtual machine or a
//!   process that was moved, is beyond that, and the clock is read.
//! - Nobody waits: who finds the anchor being changed, be it by a thread that a signal has
//!   interrupted, reads the clock. A child forked in just that moment does so for good.

use super::monotonic;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::read;
use std::arch::x86_64::_rdtsc;
use std::ffi::CStr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

/// Nanoseconds for which an anchor is good. A rate that is wrong by two in ten thousand, as one
/// from two anchors a window apart may be, makes 200 of them by then.
const WINDOW: u64 = 1_000_000;

/// Ticks between which clock and counter are read together, at most: else something came in
/// between, and the two do not belong together.
const MAX_GAP: u64 = 512;

/// The part of a rate by which the next may differ: beyond, it is another counter's.
const MAX_DRIFT: u64 = 1000;

/// Where the kernel says what it keeps time by.
const CLOCKSOURCE: &CStr = c"/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Whether the counter may be used.
static ALLOWED: AtomicBool = AtomicBool::new(false);

static ANCHOR: Anchor = Anchor::new();

/// What clock and counter were together.
struct Anchor {
    /// Odd while the others change.
    turn: AtomicU32,
    ticks: AtomicU64,
    nanos: AtomicU64,
    /// Nanoseconds of a tick, times 2^32; zero while that is not known.
    scale: AtomicU64,
    /// Ticks for which it is good; zero where the scale is.
    good: AtomicU64,
}

/// Allows the counter, where it can be had.
pub(super) fn prepare() {
    let mut text = [0; 16];
    let source = open(CLOCKSOURCE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let len = source.and_then(|source| read(&source, &mut text));
    let tsc = len.is_ok_and(|len| text[..len].trim_ascii() == b"tsc");
    ALLOWED.store(tsc, Relaxed);
}

/// Nanoseconds of the monotonic clock.
#[inline]
pub(super) fn now() -> u64 {
    match ANCHOR.extrapolate(counter()) {
        Some(nanos) => nanos,
        None => read_and_anchor(),
    }
}

#[inline]
fn counter() -> u64 {
    // SAFETY: reads the counter. Where that is forbidden (PR_SET_TSC), reading the kernel's
    // clock by it is, too.
    unsafe { _rdtsc() }
}

/// Reads the clock, and sets the anchor by it.
#[cold]
fn read_and_anchor() -> u64 {
    if !ALLOWED.load(Relaxed) {
        return monotonic();
    }
    let before = counter();
    let nanos = monotonic();
    let between = counter().wrapping_sub(before);
    if between < MAX_GAP {
        ANCHOR.set(before.wrapping_add(between / 2), nanos);
    }
    nanos
}

impl Anchor {
    const fn new() -> Self {
        Self {
            turn: AtomicU32::new(0),
            ticks: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            scale: AtomicU64::new(0),
            good: AtomicU64::new(0),
        }
    }

    /// What the clock is when the counter is `ticks`, if that can be said.
    #[inline]
    fn extrapolate(&self, ticks: u64) -> Option<u64> {
        let turn = self.turn.load(Acquire);
        let passed = ticks.wrapping_sub(self.ticks.load(Relaxed));
        let (nanos, scale) = (self.nanos.load(Relaxed), self.scale.load(Relaxed));
        let good = passed < self.good.load(Relaxed);
        fence(Acquire);
        let whole = turn.is_multiple_of(2) && self.turn.load(Relaxed) == turn;
        // A good anchor's ticks and scale make far less than 2^64.
        (good && whole).then(|| nanos + (passed.wrapping_mul(scale) >> 32))
    }

    /// The clock and the counter are this together.
    fn set(&self, ticks: u64, nanos: u64) {
        let turn = self.turn.load(Relaxed);
        let mine = turn.is_multiple_of(2)
            && self
                .turn
                .compare_exchange(turn, turn.wrapping_add(1), Acquire, Relaxed)
                .is_ok();
        if !mine {
            return;
        }
        fence(Release);
        let was = self.nanos.load(Relaxed);
        let passed = ticks.wrapping_sub(self.ticks.load(Relaxed));
        // The first, or of a clock that was set back with the process: what it was says nothing.
        let first = was == 0 || nanos.saturating_add(WINDOW) < was;
        // Nearer anchors say too little of the rate.
        if first || nanos.saturating_sub(was) >= WINDOW {
            let scale = rate(passed, nanos.saturating_sub(was));
            let known = self.scale.load(Relaxed);
            let steady = !first && (known == 0 || scale.abs_diff(known) <= known / MAX_DRIFT);
            let scale = if steady { scale } else { 0 };
            self.scale.store(scale, Relaxed);
            let good = (u128::from(WINDOW) << 32).checked_div(u128::from(scale));
            self.good.store(good.unwrap_or(0) as u64, Relaxed);
            self.ticks.store(ticks, Relaxed);
            self.nanos.store(nanos, Relaxed);
        }
        self.turn.store(turn.wrapping_add(2), Release);
    }
}

/// Nanoseconds of a tick, times 2^32; zero for what no counter does.
fn rate(ticks: u64, nanos: u64) -> u64 {
    let scale = (u128::from(nanos) << 32).checked_div(u128::from(ticks));
    // A counter has 100 MHz to 40 GHz, at which a window's product is below 2^64.
    let sane = |scale: &u128| (1 << 32) / 40 <= *scale && *scale <= 10 << 32;
    scale.filter(sane).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An anchor that knows a counter of 3 GHz, set at 10 and 11 ms of the clock.
    fn known() -> Anchor {
        let anchor = Anchor::new();
        anchor.set(5, 9_000_000);
        anchor.set(3_000_005, 10_000_000);
        anchor.set(6_000_005, 11_000_000);
        anchor
    }

    /// It says that the clock is this, but for what is rounded.
    fn assert_reads(anchor: &Anchor, ticks: u64, nanos: u64) {
        let said = anchor.extrapolate(ticks).unwrap();
        assert!(said.abs_diff(nanos) <= 1, "{said}, not {nanos}");
    }

    #[test]
    fn between_anchors_the_counter_tells_the_time() {
        let anchor = known();
        for ticks in [0, 3, 3000, 2_999_000] {
            assert_reads(&anchor, 6_000_005 + ticks, 11_000_000 + ticks / 3);
        }
    }

    #[test]
    fn nothing_is_said_before_the_rate_is_known() {
        let anchor = Anchor::new();
        assert_eq!(anchor.extrapolate(0), None);
        // Clock and counter did not begin together, so that one anchor says nothing.
        anchor.set(3_060_000_000_000, 1_000_000_000_000);
        assert_eq!(anchor.extrapolate(3_060_000_000_005), None);
    }

    #[test]
    fn a_clock_that_was_set_back_is_learned_anew() {
        let anchor = known();
        anchor.set(9_000_005, 5_000_000);
        assert_eq!(anchor.extrapolate(9_000_006), None);
        anchor.set(12_000_005, 6_000_000);
        assert_reads(&anchor, 12_003_005, 6_001_000);
    }

    #[test]
    fn nothing_is_said_beyond_the_window_or_before_the_anchor() {
        let anchor = known();
        for ticks in [6_000_004, 0, u64::MAX, 9_000_009] {
            assert_eq!(anchor.extrapolate(ticks), None, "{ticks}");
        }
    }

    #[test]
    fn a_counter_that_jumped_or_became_another_is_learned_anew() {
        let anchor = known();
        // Back to zero, while the clock goes on.
        anchor.set(100, 12_000_000);
        assert_eq!(anchor.extrapolate(200), None);
        // 2 GHz now.
        anchor.set(2_000_100, 13_000_000);
        assert_reads(&anchor, 2_002_100, 13_001_000);
        // Another jump in the rate, not noticed as one in the counter.
        anchor.set(5_000_100, 14_000_000);
        assert_eq!(anchor.extrapolate(5_000_200), None);
    }

    #[test]
    fn anchors_too_near_change_nothing() {
        let anchor = known();
        anchor.set(6_000_305, 11_000_900);
        assert_reads(&anchor, 6_000_305, 11_000_100);
    }

    #[test]
    fn who_finds_it_being_changed_reads_the_clock_and_who_comes_to_change_it_leaves() {
        let anchor = known();
        anchor.turn.fetch_add(1, Relaxed);
        assert_eq!(anchor.extrapolate(6_000_006), None);
        anchor.set(9_000_005, 12_000_000);
        anchor.turn.fetch_add(1, Relaxed);
        assert_eq!(anchor.nanos.load(Relaxed), 11_000_000);
    }
}
