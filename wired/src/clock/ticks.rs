//! The monotonic clock read from the processor's time stamp counter, in half the time.
//!
//! The kernel's own reading orders the counter with the instructions around it, which waits for
//! them, and scales it by the last tick's figures. A fault's check needs no order. So clock and
//! counter are read together now and then, which makes an *anchor*; in between only the counter
//! is read and scaled by the rate that the last two anchors give (`cargo run --release -p rate
//! --example rate_cost` has both clocks).
//!
//! Rules:
//! - The counter is used only where the kernel itself keeps time by it, which means that all
//!   processors have the same counter and that it runs at one rate. [`prepare`] checks that
//!   beforehand, since the check opens a file.
//! - An anchor is valid for [`WINDOW`]. A counter that has jumped, because a virtual machine or a
//!   process was moved, is outside the window, and the clock is read.
//! - No reader waits. A reader that finds the anchor being changed, even by the thread that its
//!   signal handler interrupted, reads the clock. A child forked at that moment always does.

use super::monotonic;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::read;
use std::arch::x86_64::_rdtsc;
use std::ffi::CStr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

/// Nanoseconds for which an anchor is valid. A rate that is wrong by two in ten thousand, as one
/// from two anchors a window apart may be, is 200 ns off by then.
const WINDOW: u64 = 1_000_000;

/// Most ticks between two readings of the counter around one of the clock. With more, something
/// ran in between and the readings do not belong together.
const MAX_GAP: u64 = 512;

/// One part in this many by which a rate may differ from the last; beyond, the counter changed.
const MAX_DRIFT: u64 = 1000;

/// The kernel's current clock source.
const CLOCKSOURCE: &CStr = c"/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// True where the counter may be used.
static ALLOWED: AtomicBool = AtomicBool::new(false);

static ANCHOR: Anchor = Anchor::new();

/// One reading of clock and counter together.
struct Anchor {
    /// Sequence number: odd while the other fields change.
    turn: AtomicU32,
    ticks: AtomicU64,
    nanos: AtomicU64,
    /// Nanoseconds of a tick, times 2^32; zero while unknown.
    scale: AtomicU64,
    /// Ticks for which the anchor is valid; zero where the scale is.
    good: AtomicU64,
}

/// Allows the counter where the kernel keeps time by it.
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
    // SAFETY: reads the counter. PR_SET_TSC, which forbids that, forbids reading the kernel's
    // clock in user space, too.
    unsafe { _rdtsc() }
}

/// Reads the clock and sets the anchor from it.
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

    /// The clock at counter value `ticks`; none outside the anchor's window.
    #[inline]
    fn extrapolate(&self, ticks: u64) -> Option<u64> {
        let turn = self.turn.load(Acquire);
        let passed = ticks.wrapping_sub(self.ticks.load(Relaxed));
        let (nanos, scale) = (self.nanos.load(Relaxed), self.scale.load(Relaxed));
        let good = passed < self.good.load(Relaxed);
        fence(Acquire);
        let whole = turn.is_multiple_of(2) && self.turn.load(Relaxed) == turn;
        // Within the window the product of ticks and scale is far below 2^64.
        (good && whole).then(|| nanos + (passed.wrapping_mul(scale) >> 32))
    }

    /// Sets the anchor, unless another thread is setting it.
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
        // The first anchor, or a clock set back with the process: the old values give no rate.
        let first = was == 0 || nanos.saturating_add(WINDOW) < was;
        // Nearer anchors give too imprecise a rate.
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

/// Nanoseconds of a tick, times 2^32; zero for a rate that no counter has.
fn rate(ticks: u64, nanos: u64) -> u64 {
    let scale = (u128::from(nanos) << 32).checked_div(u128::from(ticks));
    // Counters run at 100 MHz to 40 GHz, at which a window's product is below 2^64.
    let sane = |scale: &u128| (1 << 32) / 40 <= *scale && *scale <= 10 << 32;
    scale.filter(sane).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An anchor with the rate of a 3 GHz counter, set at 10 and 11 ms of the clock.
    fn known() -> Anchor {
        let anchor = Anchor::new();
        anchor.set(5, 9_000_000);
        anchor.set(3_000_005, 10_000_000);
        anchor.set(6_000_005, 11_000_000);
        anchor
    }

    /// The anchor extrapolates to `nanos`, but for rounding.
    fn assert_reads(anchor: &Anchor, ticks: u64, nanos: u64) {
        let said = anchor.extrapolate(ticks).unwrap();
        assert!(said.abs_diff(nanos) <= 1, "{said}, not {nanos}");
    }

    #[test]
    fn the_counter_extrapolates_between_anchors() {
        let anchor = known();
        for ticks in [0, 3, 3000, 2_999_000] {
            assert_reads(&anchor, 6_000_005 + ticks, 11_000_000 + ticks / 3);
        }
    }

    #[test]
    fn one_anchor_gives_no_rate() {
        let anchor = Anchor::new();
        assert_eq!(anchor.extrapolate(0), None);
        // Clock and counter did not start together, so that one anchor gives no rate.
        anchor.set(3_060_000_000_000, 1_000_000_000_000);
        assert_eq!(anchor.extrapolate(3_060_000_000_005), None);
    }

    #[test]
    fn the_rate_is_measured_again_after_the_clock_was_set_back() {
        let anchor = known();
        anchor.set(9_000_005, 5_000_000);
        assert_eq!(anchor.extrapolate(9_000_006), None);
        anchor.set(12_000_005, 6_000_000);
        assert_reads(&anchor, 12_003_005, 6_001_000);
    }

    #[test]
    fn an_anchor_is_invalid_outside_its_window() {
        let anchor = known();
        for ticks in [6_000_004, 0, u64::MAX, 9_000_009] {
            assert_eq!(anchor.extrapolate(ticks), None, "{ticks}");
        }
    }

    #[test]
    fn the_rate_is_measured_again_after_the_counter_jumped_or_changed() {
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
    fn anchors_too_close_together_change_nothing() {
        let anchor = known();
        anchor.set(6_000_305, 11_000_900);
        assert_reads(&anchor, 6_000_305, 11_000_100);
    }

    #[test]
    fn an_anchor_under_change_is_neither_read_nor_set() {
        let anchor = known();
        anchor.turn.fetch_add(1, Relaxed);
        assert_eq!(anchor.extrapolate(6_000_006), None);
        anchor.set(9_000_005, 12_000_000);
        anchor.turn.fetch_add(1, Relaxed);
        assert_eq!(anchor.nanos.load(Relaxed), 11_000_000);
    }
}
