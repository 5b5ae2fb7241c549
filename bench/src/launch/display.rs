//! The display of the player, in a process of its own: it takes decoded frames from a
//! decoder's pipe and notes when each was there.
//!
//! It holds `ahead` frames: those that are there and not yet due. Where all are held it does
//! not read, so that the decoder is not further ahead than that, one frame of its own, and
//! what a pipe holds (64 KiB). A frame is held until it is due, or until it comes where it
//! comes late; then its place is free. Nothing is skipped, and what is due later stays due
//! (`deadline_misses`).
//!
//! It stands for a device, so it must not be late itself: its memory is locked and populated
//! before it begins, and it has real-time priority where the machine permits that, in all
//! arms alike. The decoder has the resources of the arm.

use super::deadline_misses::due;
use crate::prelude::*;
use crate::process::ends_with_us;
use crate::worker::linger;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Above everything that has no real-time priority; the least that is.
const PRIORITY: i32 = 1;

/// What a display shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DisplayPlan {
    /// Frames that count.
    pub frames: u64,
    /// Bytes of a frame.
    pub bytes: usize,
    /// Frames due in a second.
    pub per_second: u32,
    /// Frames held.
    pub ahead: u64,
}

/// The answer of a display after all measured frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlaybackResult {
    /// How late each was, in microseconds.
    pub lateness_us: Vec<i64>,
    /// Whether the display had real-time priority.
    pub realtime: bool,
}

/// The main function of a display: it goes on playing after its answer, until the parent closes
/// the pipe.
pub fn serve(plan: &DisplayPlan, decoder: &[OsString]) -> Result<()> {
    if plan.ahead == 0 || plan.bytes == 0 || plan.per_second == 0 {
        bail!(
            "a display holds at least one frame, of at least one byte, and some are due each second"
        );
    }
    let mut decoder = start(decoder)?;
    let Some(pipe) = decoder.stdout.take() else {
        bail!("the decoder has no output");
    };
    let mut lateness_us = Vec::with_capacity(plan.frames as usize);
    let mut display = Display::new(plan, pipe);
    lock()?;
    let realtime = prefer();
    display.fill(plan.ahead)?;
    ready()?;
    display.begin();
    for frame in 0..plan.frames {
        lateness_us.push(display.next(frame)?);
    }
    reply(&PlaybackResult {
        lateness_us,
        realtime,
    })?;
    play_on(display, plan.frames)?;
    // Its closed pipe ends it; its exit status does not matter.
    decoder.wait().map(drop).doing("wait for the decoder")
}

fn start(decoder: &[OsString]) -> Result<Child> {
    let [program, arguments @ ..] = decoder else {
        bail!("a display needs a decoder");
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    ends_with_us(&mut command);
    command.spawn().at("start", program)
}

/// Takes frames beyond the measured ones until the parent ends the player.
fn play_on(mut display: Display<impl Read>, from: u64) -> Result<()> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            linger();
            over.store(true, Ordering::Relaxed);
        });
        let mut frame = from;
        while !over.load(Ordering::Relaxed) {
            display.next(frame)?;
            frame += 1;
        }
        Ok(())
    })
}

/// Frames come in on one side and are shown on the other.
struct Display<R> {
    pipe: R,
    per_second: u32,
    ahead: u64,
    /// Where frames are held: one after the other has it.
    places: Vec<Vec<u8>>,
    /// When those that are held have been shown, and their places are free.
    shown: VecDeque<Instant>,
    /// When the first is due.
    begin: Instant,
}

impl<R: Read> Display<R> {
    fn new(plan: &DisplayPlan, pipe: R) -> Self {
        // Written, not just mapped: they are to be there.
        let places = (0..plan.ahead).map(|_| vec![0xff; plan.bytes]).collect();
        Self {
            pipe,
            per_second: plan.per_second,
            ahead: plan.ahead,
            places,
            shown: VecDeque::with_capacity(plan.ahead as usize),
            begin: Instant::now(),
        }
    }

    /// Frames that are there before the first is due.
    fn fill(&mut self, frames: u64) -> Result<()> {
        (0..frames).try_for_each(|frame| self.read(frame))
    }

    fn begin(&mut self) {
        self.begin = Instant::now();
    }

    /// A frame is there: how late, in microseconds.
    fn next(&mut self, frame: u64) -> Result<i64> {
        let due = self.begin + due(frame, self.per_second);
        let there = if frame < self.ahead {
            self.begin
        } else {
            if let Some(free) = self.shown.pop_front() {
                std::thread::sleep(free.saturating_duration_since(Instant::now()));
            }
            self.read(frame)?;
            Instant::now()
        };
        let before = self.shown.back().copied().unwrap_or(self.begin);
        self.shown.push_back(due.max(there).max(before));
        Ok(signed_us(due, there))
    }

    fn read(&mut self, frame: u64) -> Result<()> {
        let place = (frame % self.ahead) as usize;
        self.pipe
            .read_exact(&mut self.places[place])
            .doing(format_args!("read frame {frame} of the decoder"))
    }
}

/// From the one to the other.
fn signed_us(from: Instant, to: Instant) -> i64 {
    let us = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    match to.checked_duration_since(from) {
        // A part of a microsecond late is late.
        Some(late) => us(late + Duration::from_nanos(999)),
        None => -us(from - to),
    }
}

fn lock() -> Result<()> {
    // SAFETY: no memory is touched.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } {
        0 => Ok(()),
        _ => Err(unavailable(format!(
            "the display cannot lock its memory ({}): raise `ulimit -l`, or run as root",
            std::io::Error::last_os_error()
        ))),
    }
}

/// Real-time priority, where it may be had.
fn prefer() -> bool {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the structure is there to be read; zero is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: u32 = 1000;

    fn plan(ahead: u64) -> DisplayPlan {
        DisplayPlan {
            frames: 8,
            bytes: 2,
            per_second: FAST,
            ahead,
        }
    }

    /// A decoder that stands still once, for longer than all frames last.
    struct Halting {
        reads: u64,
        at: u64,
        during: Duration,
    }

    impl Read for Halting {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            if self.reads == self.at {
                std::thread::sleep(self.during);
            }
            self.reads += 1;
            into.fill(1);
            Ok(into.len())
        }
    }

    fn played(ahead: u64, at: u64) -> Vec<i64> {
        let during = Duration::from_millis(20);
        let pipe = Halting {
            reads: 0,
            at,
            during,
        };
        let mut display = Display::new(&plan(ahead), pipe);
        display.fill(ahead).unwrap();
        display.begin();
        (0..8).map(|frame| display.next(frame).unwrap()).collect()
    }

    #[test]
    fn frames_that_are_held_before_the_first_is_due_are_early_by_what_they_are_ahead() {
        assert_eq!(played(4, 99)[..4], [0, -1000, -2000, -3000]);
    }

    #[test]
    fn a_delay_does_not_move_what_is_due_later() {
        // Frame 2 comes 20 ms late or more, and all after it were due meanwhile: each of
        // them is late by less than the one before, since no time passes between them that
        // is not the machine's.
        let lateness = played(1, 2);
        assert!(lateness[2] >= 18_000, "{lateness:?}");
        assert!(lateness[3..].iter().all(|us| *us > 0), "{lateness:?}");
    }

    #[test]
    fn a_sink_that_cannot_hold_a_frame_is_refused() {
        let why = serve(&plan(0), &[]).unwrap_err().to_string();
        assert!(why.contains("at least one frame"), "{why}");
    }
}
