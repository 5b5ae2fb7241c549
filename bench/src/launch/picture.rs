//! The paper's figures, of the round of each arm whose misses are the median: how often the
//! neighbour faults while it starts (figures 2, 8 and 9), its resident set (3 and 10), the
//! processor it has (4), and how early each frame was (5: "if y-axis value is under 0,
//! deadline miss occurred"). A broken line across is when the neighbour was started.

use super::arm::Arm;
use super::clip::PER_SECOND;
use super::judge::Scene;
use super::lateness::due;
use super::round::Round;
use super::sampler::Seen;
use crate::ExperimentError;
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use std::path::Path;
use std::time::Duration;

/// Pixels.
const SIZE: (u32, u32) = (1280, 860);
const TITLE: u32 = 64;

/// Looks that are one point of a curve: the kernel counts time by hundredths of a second.
const TOGETHER: usize = 4;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure = Box<dyn std::error::Error>;

/// A point: seconds since the clip began, and a figure.
type Point = (f64, f64);

/// A panel: what it shows, the name of its ordinate, and how a round gives it.
struct Panel {
    title: &'static str,
    unit: &'static str,
    curve: fn(&Round) -> Vec<Point>,
    /// Arms without a neighbour have it, too.
    of_all: bool,
}

const PANELS: [Panel; 4] = [
    Panel {
        title: "page faults of the neighbour (figures 2, 8, 9)",
        unit: "faults a second",
        curve: |round| smooth(round, |seen| seen.minor + seen.major),
        of_all: false,
    },
    Panel {
        title: "resident set of the neighbour (figures 3, 10)",
        unit: "MiB",
        curve: |round| smooth(round, |seen| seen.resident),
        of_all: false,
    },
    Panel {
        title: "processor of the neighbour (figure 4)",
        unit: "% of one processor",
        curve: |round| smooth(round, |seen| seen.processor),
        of_all: false,
    },
    Panel {
        title: "how early each frame was (figure 5)",
        unit: "ms; below 0 it was missed",
        curve: early,
        of_all: true,
    },
];

/// Draws a scene into a file.
pub fn save(scene: &Scene, after: Duration, path: &Path) -> Result<(), ExperimentError> {
    let failed = |failure: Failure| ExperimentError::System {
        doing: format!("draw {}", path.display()),
        source: std::io::Error::other(failure.to_string()),
    };
    let picture = drawn(scene, after).map_err(failed)?;
    std::fs::write(path, picture).map_err(|e| failed(e.into()))
}

/// A scene, as the text of an SVG file.
pub fn drawn(scene: &Scene, after: Duration) -> Result<String, Failure> {
    let mut picture = String::new();
    {
        let root = SVGBackend::with_string(&mut picture, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, body) = root.split_vertically(TITLE);
        entitle(&title, scene)?;
        for (cell, panel) in body.split_evenly((2, 2)).iter().zip(&PANELS) {
            draw(cell, panel, scene, after.as_secs_f64())?;
        }
        root.present()?;
    }
    Ok(picture)
}

fn entitle(area: &Area<'_>, scene: &Scene) -> Result<(), Failure> {
    let what = format!(
        "A launch beside a player: {}, load of {:.2} processors",
        scene.title, scene.load
    );
    area.draw(&Text::new(what, (20, 10), ("sans-serif", 19)))?;
    let mut x = 20;
    for series in scene
        .series
        .iter()
        .filter(|series| series.typical().is_some())
    {
        let name = series.arm.name();
        let swatch = [(x, 44), (x + 14, 50)];
        area.draw(&Rectangle::new(swatch, colour(series.arm).filled()))?;
        area.draw(&Text::new(name, (x + 20, 40), ("sans-serif", 13)))?;
        x += 140;
    }
    Ok(())
}

fn draw(cell: &Area<'_>, panel: &Panel, scene: &Scene, after: f64) -> Result<(), Failure> {
    let curves = curves(panel, scene);
    let points = || curves.iter().flat_map(|(_, points)| points);
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let most = points().map(|point| point.1).fold(1.0, f64::max) * 1.05;
    let least = points().map(|point| point.1).fold(0.0, f64::min) * 1.05;
    let mut chart = ChartBuilder::on(cell)
        .caption(panel.title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..last, least..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("seconds since the clip began")
        .y_desc(panel.unit)
        .draw()?;
    for (arm, points) in curves {
        let style = colour(arm).stroke_width(1);
        chart.draw_series([PathElement::new(points, style)])?;
    }
    let across = [(after, least), (after, most)].into_iter();
    let style = BLACK.mix(0.5).stroke_width(1);
    chart.draw_series([DashedPathElement::new(across, 5, 5, style)])?;
    if least < 0.0 {
        let deadline = vec![(0.0, 0.0), (last, 0.0)];
        chart.draw_series([PathElement::new(deadline, BLACK.stroke_width(1))])?;
    }
    Ok(())
}

fn curves(panel: &Panel, scene: &Scene) -> Vec<(Arm, Vec<Point>)> {
    let shown = |arm: Arm| panel.of_all || arm.launches();
    let of = scene.series.iter().filter(|series| shown(series.arm));
    of.filter_map(|series| Some((series.arm, (panel.curve)(series.typical()?))))
        .collect()
}

fn smooth(round: &Round, value: fn(&Seen) -> f64) -> Vec<Point> {
    let mean = |seen: &[Seen]| {
        let sum: f64 = seen.iter().map(value).sum();
        Some((seen.last()?.at, sum / seen.len() as f64))
    };
    round.seen.chunks(TOGETHER).filter_map(mean).collect()
}

fn early(round: &Round) -> Vec<Point> {
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
    use super::super::judge::Series;
    use super::super::lateness::Quality;
    use super::*;
    use serde_json::Value;

    fn round(lateness_us: Vec<i64>) -> Round {
        let seen = |n: u64| Seen {
            at: n as f64 / 20.0,
            minor: 100.0,
            major: n as f64,
            processor: 50.0,
            busy: 80.0,
            resident: n as f64,
        };
        Round {
            quality: Quality::of(&lateness_us),
            lateness_us,
            launch: Some(1.0),
            seen: (0..40).map(seen).collect(),
            counters: [Value::Null, Value::Null],
            result: String::new(),
            realtime: true,
        }
    }

    fn scene(series: Vec<Series>) -> Scene {
        Scene {
            title: "python, read-ahead 1".into(),
            neighbour: "python".into(),
            ahead: 1,
            load: 1.25,
            series,
        }
    }

    #[test]
    fn a_picture_names_every_arm_that_ran_and_every_figure() {
        let series = |arm, rounds| Series {
            arm,
            rounds,
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
