//! A report as a picture: for each pass the time a page of every arm, with its interval.
//! Points on a logarithmic scale: the arms are apart by factors, and a bar would begin
//! nowhere.

use crate::ExperimentError;
use crate::arm::Arm;
use crate::pass::Pass;
use crate::report::Report;
use crate::statistics::Estimate;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;
use std::path::Path;

/// Pixels.
const WIDTH: u32 = 1100;
const LINE: u32 = 10;
const MORE: u32 = 8;
const MARGINS: u32 = 90;
const TITLE: u32 = 60;
const COLUMNS: u32 = 2;
const NAMES: u32 = 130;

/// Told apart without colour sight, too (the set of Okabe and Ito); one for each number of
/// threads.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];

/// A point of a panel.
struct Point {
    row: usize,
    colour: usize,
    ours: bool,
    ns: Estimate,
}

/// A pass with its points.
struct Panel {
    pass: Pass,
    points: Vec<Point>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Failure = Box<dyn std::error::Error>;

/// Draws the times into a file.
pub fn save(report: &Report, path: &Path) -> Result<(), ExperimentError> {
    let failed = |failure: Failure| ExperimentError::System {
        doing: format!("draw {}", path.display()),
        source: std::io::Error::other(failure.to_string()),
    };
    let picture = drawn(report).map_err(failed)?;
    std::fs::write(path, picture).map_err(|e| failed(e.into()))
}

/// The picture, as the text of an SVG file.
pub fn drawn(report: &Report) -> Result<String, Failure> {
    let names = names(report);
    let panels = panels(report, &names);
    let rows = (panels.len() as u32).div_ceil(COLUMNS).max(1);
    let line = LINE + MORE * report.threads().len() as u32;
    let panel = names.len() as u32 * line + MARGINS;
    let mut picture = String::new();
    {
        let backend = SVGBackend::with_string(&mut picture, (WIDTH, TITLE + rows * panel));
        let root = backend.into_drawing_area();
        root.fill(&WHITE)?;
        let (title, body) = root.split_vertically(TITLE);
        entitle(&title, report)?;
        let cells = body.split_evenly((rows as usize, COLUMNS as usize));
        for (cell, panel) in cells.iter().zip(&panels) {
            draw(cell, panel, &names)?;
        }
        root.present()?;
    }
    Ok(picture)
}

/// The arms that ran, in their order.
fn names(report: &Report) -> Vec<String> {
    let ran = |arm: &&Arm| {
        let mut with = report.series.iter().filter(|s| s.arm == **arm);
        with.any(|series| !series.runs.is_empty())
    };
    Arm::all()
        .iter()
        .filter(ran)
        .map(|arm| arm.name())
        .collect()
}

fn panels(report: &Report, names: &[String]) -> Vec<Panel> {
    let threads = report.threads();
    let panel = |pass| {
        let point = |series: &crate::report::Series| {
            Some(Point {
                row: names.iter().position(|n| *n == series.arm.name())?,
                colour: threads.iter().position(|n| *n == series.threads)?,
                ours: series.arm.ours(),
                ns: series.time(pass)?,
            })
        };
        Panel {
            pass,
            points: report.series.iter().filter_map(point).collect(),
        }
    };
    let all = Pass::ALL.into_iter().map(panel);
    all.filter(|panel| !panel.points.is_empty()).collect()
}

fn entitle(area: &Area, report: &Report) -> Result<(), Failure> {
    let (data, frames) = (report.data_bytes >> 20, report.frames_bytes >> 20);
    let what = format!("Time a page: {data} MiB of data over {frames} MiB of memory");
    area.draw(&Text::new(what, (20, 8), ("sans-serif", 20)))?;
    let how = format!(
        "medians of {} runs, 95 % intervals; less is better; full circles are ours",
        report.repeats
    );
    area.draw(&Text::new(how, (20, 36), ("sans-serif", 13)))?;
    let mut x = 620;
    for (k, threads) in report.threads().iter().enumerate() {
        let colour = COLOURS[k % COLOURS.len()];
        let label = format!("{threads} thread{}", if *threads == 1 { "" } else { "s" });
        area.draw(&Circle::new((x, 43), 4, colour.filled()))?;
        area.draw(&Text::new(label, (x + 9, 36), ("sans-serif", 13)))?;
        x += 95;
    }
    Ok(())
}

fn draw(cell: &Area, panel: &Panel, names: &[String]) -> Result<(), Failure> {
    let rows = names.len() as f64;
    let mut chart = ChartBuilder::on(cell)
        .caption(panel.pass.name(), ("sans-serif", 16))
        .margin(10)
        .margin_right(20)
        .x_label_area_size(36)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(reach(&panel.points).log_scale(), rows..0.0)?;
    chart
        .configure_mesh()
        .disable_y_axis()
        .disable_y_mesh()
        .x_desc("us a page")
        .x_label_formatter(&|us| format!("{us}"))
        .draw()?;
    let area = chart.plotting_area();
    let style = ("sans-serif", 13).into_text_style(cell);
    let right = style.pos(Pos::new(HPos::Right, VPos::Center));
    let (left, _) = area.get_pixel_range();
    for (row, name) in names.iter().enumerate() {
        let (_, y) = area.map_coordinate(&(1.0, row as f64 + 0.5));
        let (x0, y0) = cell.get_base_pixel();
        let at = (left.start - x0 - 8, y - y0);
        cell.draw(&Text::new(name.clone(), at, right.clone()))?;
    }
    let colours = panel.points.iter().map(|p| p.colour).max().unwrap_or(0) + 1;
    for point in &panel.points {
        mark(area, point, colours)?;
    }
    Ok(())
}

/// A point and its interval, beside those of other numbers of threads.
fn mark(
    area: &DrawingArea<SVGBackend, Cartesian2d<LogCoord<f64>, RangedCoordf64>>,
    point: &Point,
    colours: usize,
) -> Result<(), Failure> {
    let colour = COLOURS[point.colour % COLOURS.len()];
    let place = (point.colour as f64 + 1.0) / (colours as f64 + 1.0);
    let y = point.row as f64 + place;
    let us = point.ns.times(1e-3);
    let interval = vec![(us.low, y), (us.high, y)];
    area.draw(&PathElement::new(interval, colour.stroke_width(2)))?;
    let style = if point.ours {
        colour.filled()
    } else {
        colour.stroke_width(2)
    };
    area.draw(&Circle::new((us.median, y), 4, style))?;
    Ok(())
}

/// Whole powers of ten around the points, in microseconds.
fn reach(points: &[Point]) -> Range<f64> {
    let all = || points.iter().flat_map(|p| [p.ns.low, p.ns.high]);
    let least = all().fold(f64::MAX, f64::min).max(1.0) / 1e3;
    let most = all().fold(1.0, f64::max) / 1e3;
    let low = 10f64.powf(least.log10().floor());
    let high = 10f64.powf(most.log10().ceil());
    low..high.max(10.0 * low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::made_up::{report, series};

    #[test]
    fn every_pass_and_every_arm_that_ran_is_in_the_picture() {
        let picture = drawn(&report(vec![
            series(Arm::LinkedRam, &[10_000, 12_000, 14_000]),
            series(Arm::SwapZram, &[24_000, 23_000, 25_000]),
            series(Arm::SwapFile, &[]),
        ]))
        .unwrap();
        assert!(picture.starts_with("<svg"));
        for pass in Pass::ALL {
            assert!(picture.contains(pass.name()), "{}", pass.name());
        }
        assert!(picture.contains("linked-ram") && picture.contains("swap-zram"));
        assert!(!picture.contains("swap-file"), "it has no figures");
    }

    #[test]
    fn a_report_without_figures_is_an_empty_picture() {
        assert!(drawn(&report(Vec::new())).is_ok());
    }

    #[test]
    fn the_scale_holds_every_point() {
        let point = |low, median, high| Point {
            row: 0,
            colour: 0,
            ours: true,
            ns: Estimate { median, low, high },
        };
        let scale = reach(&[point(1_500.0, 2_000.0, 3_000.0), point(9e3, 5e4, 1.2e5)]);
        assert_eq!((scale.start, scale.end), (1.0, 1000.0));
        let narrow = reach(&[point(1e3, 1e3, 1e3)]);
        assert!(narrow.end > narrow.start);
    }
}
