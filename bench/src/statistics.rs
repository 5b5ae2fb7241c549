//! Medians, and how far to believe them: pure functions of the figures.
//!
//! Intervals are by bootstrap (B. Efron, *Bootstrap methods: another look at the
//! jackknife*, 1979): the figures are drawn again with replacement, many times, and the
//! middle 95 % of what the drawn ones give is the interval. With five repeats that is
//! nearly their whole range, which is what five repeats can say. The draws are the same
//! every time.

use crate::prelude::*;

/// Times the figures are drawn again: the bounds then move by less than the last digit
/// printed.
const DRAWS: u64 = 2_000;

/// A figure and the interval it lies in with 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Of all figures.
    pub median: f64,
    /// Below it is 2.5 % of what is drawn.
    pub low: f64,
    /// Above it is 2.5 % of what is drawn.
    pub high: f64,
}

impl Estimate {
    /// Of something in proportion to one over this: a rate, of a time.
    pub fn inverted(self, by: f64) -> Self {
        Self {
            median: by / self.median,
            low: by / self.high,
            high: by / self.low,
        }
    }

    /// Of the same in another unit.
    pub fn times(self, by: f64) -> Self {
        Self {
            median: self.median * by,
            low: self.low * by,
            high: self.high * by,
        }
    }
}

/// The middle of the values; none of no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let low = values.get(values.len().saturating_sub(1) / 2)?;
    let high = values.get(values.len() / 2)?;
    Some((low + high) / 2.0)
}

/// Microseconds below which `percent` of times in nanoseconds lie.
pub fn percentile_us(times: &mut [u64], percent: usize) -> f64 {
    times.sort_unstable();
    let at = times.len() * percent / 100;
    times.get(at).map_or(0.0, |ns| *ns as f64 / 1000.0)
}

/// The median of figures.
pub fn of_median(figures: &[f64]) -> Option<Estimate> {
    let draw = |round| median(&drawn(figures, round));
    interval(median(figures)?, (0..DRAWS).filter_map(draw).collect())
}

/// The ratio of two arms' medians. The arms are drawn apart: their runs are interleaved,
/// but no run of one belongs to a certain run of the other.
pub fn of_ratio(ours: &[f64], theirs: &[f64]) -> Option<Estimate> {
    // Nothing over nothing is no figure, not even of one draw.
    let ratio = |a: &[f64], b: &[f64]| Some(median(a)? / median(b)?).filter(|r| !r.is_nan());
    let draw = |round| ratio(&drawn(ours, 2 * round), &drawn(theirs, 2 * round + 1));
    interval(ratio(ours, theirs)?, (0..DRAWS).filter_map(draw).collect())
}

fn drawn(figures: &[f64], round: u64) -> Vec<f64> {
    let count = figures.len() as u64;
    let pick = |i| figures[(mix(mix(round) ^ i) % count) as usize];
    (0..count).map(pick).collect()
}

fn interval(median: f64, mut drawn: Vec<f64>) -> Option<Estimate> {
    drawn.sort_by(f64::total_cmp);
    let last = drawn.len().checked_sub(1)?;
    let at = |part: f64| drawn[(last as f64 * part).round() as usize];
    Some(Estimate {
        median,
        low: at(0.025),
        high: at(0.975),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(of_median(&[]), None);
        assert_eq!(of_ratio(&[1.0], &[]), None);
    }

    #[test]
    fn one_figure_has_no_width_and_says_nothing_of_its_error() {
        let one = of_median(&[7.0]).unwrap();
        assert_eq!((one.low, one.median, one.high), (7.0, 7.0, 7.0));
    }

    #[test]
    fn an_outlier_widens_the_interval_and_leaves_the_median() {
        let calm = of_median(&[10.0, 11.0, 12.0, 13.0, 14.0]).unwrap();
        let wild = of_median(&[10.0, 11.0, 12.0, 13.0, 90.0]).unwrap();
        assert_eq!(calm.median, wild.median);
        assert!(wild.high > calm.high);
    }

    #[test]
    fn the_interval_holds_the_true_median_about_as_often_as_it_says() {
        let held = (0..400).filter(|trial| {
            let uniform = |i| (mix(mix(trial + 9) ^ i) >> 11) as f64 / (1u64 << 53) as f64;
            let figures: Vec<f64> = (0..15).map(uniform).collect();
            let estimate = of_median(&figures).unwrap();
            estimate.low <= 0.5 && 0.5 <= estimate.high
        });
        let part = held.count() as f64 / 400.0;
        assert!((0.90..0.99).contains(&part), "{part}");
    }

    #[test]
    fn a_rate_is_its_time_upside_down() {
        let time = Estimate {
            median: 2.0,
            low: 1.0,
            high: 4.0,
        };
        let rate = time.inverted(4.0);
        assert_eq!((rate.low, rate.median, rate.high), (1.0, 2.0, 4.0));
    }

    proptest! {
        #[test]
        fn the_interval_is_of_the_figures_and_the_same_every_time(
            figures in prop::collection::vec(1.0f64..1000.0, 1..12),
        ) {
            let estimate = of_median(&figures).unwrap();
            prop_assert_eq!(estimate, of_median(&figures).unwrap());
            prop_assert!(estimate.low <= estimate.median && estimate.median <= estimate.high);
            let least = figures.iter().copied().fold(f64::MAX, f64::min);
            prop_assert!(estimate.low >= least);
            let ratio = of_ratio(&figures, &figures).unwrap();
            prop_assert!((ratio.median - 1.0).abs() < 1e-9);
        }
    }
}
