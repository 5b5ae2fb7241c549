//! The paper's figures, of the round of each arm whose misses are the median: how often the
//! neighbour faults while it starts (figures 2, 8 and 9), its resident set (3 and 10), the
//! processor it has (4), and how early each frame was (5: "if y-axis value is under 0,
//! deadline miss occurred"). A broken line across is when the neighbour was started.

use super::analysis::Comparison;
use super::arm::Arm;
use super::deadline_misses::due;
use super::run::RunResult;
use super::sampler::UsageSample;
use super::video_clip::PER_SECOND;
use crate::plot::{self, Area, Curve};
use crate::prelude::*;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

/// Pixels.
const SIZE: (u32, u32) = (1280, 860);
const TITLE: u32 = 64;

/// Looks that are one point of a curve: the kernel counts time by hundredths of a second.
const TOGETHER: usize = 4;

/// A point: seconds since the clip began, and a figure.
type Point = (f64, f64);

/// A panel: what it shows, the name of its ordinate, and how a round gives it.
struct CurvePanel {
    title: &'static str,
    unit: &'static str,
    curve: fn(&RunResult) -> Vec<Point>,
    /// Arms without a neighbour have it, too.
    of_all: bool,
}

const PANELS: [CurvePanel; 4] = [
    CurvePanel {
        title: "page faults of the neighbour (figures 2, 8, 9)",
        unit: "faults a second",
        curve: |round| smooth(round, |seen| seen.minor + seen.major),
        of_all: false,
    },
    CurvePanel {
        title: "resident set of the neighbour (figures 3, 10)",
        unit: "MiB",
        curve: |round| smooth(round, |seen| seen.resident),
        of_all: false,
    },
    CurvePanel {
        title: "processor of the neighbour (figure 4)",
        unit: "% of one processor",
        curve: |round| smooth(round, |seen| seen.processor),
        of_all: false,
    },
    CurvePanel {
        title: "how early each frame was (figure 5)",
        unit: "ms; below 0 it was missed",
        curve: early,
        of_all: true,
    },
];

/// A scene, as the text of an SVG file.
pub fn drawn(scene: &Comparison, after: Duration) -> Result<String> {
    plot::draw(SIZE, TITLE, |title, body| {
        entitle(title, scene)?;
        let cells = body.split_evenly((2, 2));
        let mut panels = cells.iter().zip(&PANELS);
        panels.try_for_each(|(cell, panel)| draw(cell, panel, scene, after.as_secs_f64()))
    })
}

fn entitle(area: &Area<'_>, scene: &Comparison) -> Result<()> {
    let what = format!(
        "A launch beside a player: {}, load of {:.2} processors",
        scene.title, scene.load
    );
    plot::write(area, &what, (20, 10), 19)?;
    let drawn = scene.series.iter().filter(|s| s.typical().is_some());
    for (series, x) in drawn.zip((20..).step_by(140)) {
        let swatch = [(x, 44), (x + 14, 50)];
        area.draw(&Rectangle::new(swatch, colour(series.arm).filled()))?;
        plot::write(area, &series.arm.name(), (x + 20, 40), 13)?;
    }
    Ok(())
}

fn draw(cell: &Area<'_>, panel: &CurvePanel, scene: &Comparison, after: f64) -> Result<()> {
    let axes = ["seconds since the clip began", panel.unit];
    let mut chart = plot::curves(cell, panel.title, axes, 1.05, &curves(panel, scene))?;
    let (last, span) = (chart.x_range().end, chart.y_range());
    let across = [(after, span.start), (after, span.end)].into_iter();
    let style = BLACK.mix(0.5).stroke_width(1);
    chart.draw_series([DashedPathElement::new(across, 5, 5, style)])?;
    if span.start < 0.0 {
        let deadline = vec![(0.0, 0.0), (last, 0.0)];
        chart.draw_series([PathElement::new(deadline, BLACK.stroke_width(1))])?;
    }
    Ok(())
}

fn curves(panel: &CurvePanel, scene: &Comparison) -> Vec<Curve> {
    let shown = |arm: Arm| panel.of_all || arm.launches();
    let of = scene.series.iter().filter(|series| shown(series.arm));
    of.filter_map(|series| {
        Some(Curve {
            name: series.arm.name(),
            colour: colour(series.arm),
            dashed: false,
            points: (panel.curve)(series.typical()?),
        })
    })
    .collect()
}

fn smooth(round: &RunResult, value: fn(&UsageSample) -> f64) -> Vec<Point> {
    let mean = |seen: &[UsageSample]| {
        let sum: f64 = seen.iter().map(value).sum();
        Some((seen.last()?.at, sum / seen.len() as f64))
    };
    round.seen.chunks(TOGETHER).filter_map(mean).collect()
}

fn early(round: &RunResult) -> Vec<Point> {
    let frames = round.lateness_us.iter().zip(0..);
    frames
        .map(|(us, n)| (due(n, PER_SECOND).as_secs_f64(), -(*us as f64) / 1e3))
        .collect()
}

/// The same in all pictures, and distinct under colour blindness.
fn colour(arm: Arm) -> RGBColor {
    match arm {
        Arm::Alone => RGBColor(150, 150, 150),
        Arm::Stock => RGBColor(213, 94, 0),
        Arm::Swap => RGBColor(204, 121, 167),
        Arm::Ours => RGBColor(86, 180, 233),
        Arm::OursLimited => RGBColor(0, 60, 140),
        Arm::OursReserved => RGBColor(0, 158, 115),
        Arm::OursPaced => RGBColor(200, 170, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::analysis::Series;
    use super::super::deadline_misses::Quality;
    use super::*;
    use serde_json::Value;

    fn round(lateness_us: Vec<i64>) -> RunResult {
        let seen = |n: u64| UsageSample {
            at: n as f64 / 20.0,
            minor: 100.0,
            major: n as f64,
            processor: 50.0,
            busy: 80.0,
            resident: n as f64,
        };
        RunResult {
            quality: Quality::of(&lateness_us),
            lateness_us,
            launch: Some(1.0),
            seen: (0..40).map(seen).collect(),
            counters: [Value::Null, Value::Null],
            result: String::new(),
            realtime: true,
        }
    }

    fn scene(series: Vec<Series>) -> Comparison {
        Comparison {
            title: "python, read-ahead 1".into(),
            neighbour: "python".into(),
            ahead: 1,
            load: 1.25,
            series,
        }
    }

    #[test]
    fn a_picture_names_every_arm_that_ran_and_every_figure() {
        let series = |arm, runs| Series {
            arm,
            runs,
            failure: None,
        };
        let picture = drawn(
            &scene(vec![
                series(Arm::Stock, vec![round(vec![-1000, 30_000])]),
                series(Arm::OursLimited, vec![round(vec![-1000; 2])]),
                series(Arm::Swap, Vec::new()),
            ]),
            Duration::from_secs(1),
        )
        .unwrap();
        for words in ["stock", "ours-limited", "figures 2, 8, 9", "figure 5"] {
            assert!(picture.contains(words), "{words}");
        }
        assert!(!picture.contains(">\nswap"), "it did not run");
        assert!(picture.contains("1.25 processors"));
    }

    #[test]
    fn a_frame_that_is_late_is_drawn_below_zero() {
        let points = early(&round(vec![-2000, 5000]));
        assert_eq!(points.iter().map(|p| p.1).collect::<Vec<_>>(), [2.0, -5.0]);
    }

    #[test]
    fn several_looks_are_one_point() {
        let points = smooth(&round(Vec::new()), |seen| seen.resident);
        assert_eq!(points.len(), 10);
        assert_eq!(points[0], (0.15, 1.5));
    }

    #[test]
    fn a_picture_of_nothing_can_be_drawn() {
        assert!(drawn(&scene(Vec::new()), Duration::ZERO).is_ok());
    }
}
