//! How well a clip was played, by a rule that no player can bend: frame n is due n frame
//! times after the first, is never skipped, and no delay moves what is due later. Players'
//! own counts are of no use: their clocks slip with them, so that a clip that stands still
//! for half of every second has no frame dropped.
//!
//! Pure functions of the delays. Ko and Yoo (RAPHA), section 5, figure 11: "deadline miss",
//! "miss rate", "average delay".

use crate::prelude::*;

/// How late each frame was, in microseconds: from when it was due to when it was there.
/// Below zero for one that was there before.
pub type Lateness = [i64];

/// The figures of a clip's delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quality {
    /// Frames of the clip.
    pub frames: u64,
    /// Those that were not there when they were due.
    pub missed: u64,
    /// The most of them that followed each other.
    pub longest_run: u64,
    /// Milliseconds of delay, over all frames: one that was there in time has none.
    pub mean_ms: f64,
    /// Milliseconds of delay, over those that were missed.
    pub mean_late_ms: f64,
    /// Milliseconds of the longest delay.
    pub max_ms: f64,
}

impl Quality {
    /// Of a clip's delays.
    pub fn of(lateness: &Lateness) -> Self {
        let late = || lateness.iter().copied().filter(|us| *us > 0);
        let (frames, missed) = (lateness.len() as u64, late().count() as u64);
        let total_ms = late().map(|us| us as f64 / 1e3).fold(0.0, |a, b| a + b);
        let over = |count: u64| total_ms / count.max(1) as f64;
        Self {
            frames,
            missed,
            longest_run: longest_run(lateness),
            mean_ms: over(frames),
            mean_late_ms: over(missed),
            max_ms: late().max().unwrap_or(0) as f64 / 1e3,
        }
    }

    /// The part that was missed, of 100.
    pub fn missed_percent(&self) -> f64 {
        100.0 * self.missed as f64 / self.frames.max(1) as f64
    }
}

fn longest_run(lateness: &Lateness) -> u64 {
    let in_time = |us: &i64| *us <= 0;
    let runs = lateness.split(in_time).map(<[i64]>::len);
    runs.max().unwrap_or(0) as u64
}

/// When a frame is due, from when the first one is.
pub fn due(frame: u64, per_second: u32) -> Duration {
    Duration::from_nanos((u128::from(frame) * 1_000_000_000 / u128::from(per_second)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_that_is_there_just_when_it_is_due_is_not_missed() {
        let quality = Quality::of(&[-5000, 0, 1]);
        assert_eq!((quality.frames, quality.missed), (3, 1));
        assert_eq!(quality.max_ms, 0.001);
    }

    #[test]
    fn delays_are_taken_over_all_frames_and_over_the_late_ones() {
        let quality = Quality::of(&[-33_000, 2_000, 4_000, -1, 12_000, -33_000]);
        assert_eq!(quality.missed_percent(), 50.0);
        assert_eq!(quality.longest_run, 2);
        assert_eq!((quality.mean_ms, quality.mean_late_ms), (3.0, 6.0));
        assert_eq!(quality.max_ms, 12.0);
    }

    #[test]
    fn a_clip_without_frames_or_without_misses_has_no_delay() {
        assert_eq!(Quality::of(&[]), Quality::default());
        let played = Quality::of(&[-1; 9]);
        assert_eq!((played.missed, played.mean_late_ms), (0, 0.0));
    }

    #[test]
    fn what_is_due_does_not_drift() {
        assert_eq!(due(0, 30), Duration::ZERO);
        assert_eq!(due(1, 30), Duration::from_nanos(33_333_333));
        assert_eq!(due(90_000, 30), Duration::from_secs(3000));
    }

    proptest! {
        #[test]
        fn the_figures_agree_with_each_other(delays in prop::collection::vec(-40_000i64..400_000, 0..200)) {
            let quality = Quality::of(&delays);
            prop_assert!(quality.longest_run <= quality.missed);
            prop_assert!(quality.missed <= quality.frames);
            prop_assert_eq!(quality.missed == 0, quality.longest_run == 0);
            prop_assert!(quality.mean_ms <= quality.mean_late_ms + 1e-9);
            prop_assert!(quality.mean_late_ms <= quality.max_ms + 1e-9);
            let total = quality.mean_ms * quality.frames as f64;
            prop_assert!((total - quality.mean_late_ms * quality.missed as f64).abs() < 1e-3);
        }

        #[test]
        fn a_run_is_as_long_as_the_misses_that_follow_each_other(before in 0usize..9, run in 1usize..50, after in 0usize..9) {
            let delays = [vec![-1; before], vec![7; run], vec![0; after]].concat();
            prop_assert_eq!(Quality::of(&delays).longest_run, run as u64);
        }
    }
}
