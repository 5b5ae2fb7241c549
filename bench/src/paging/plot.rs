//! A report as a picture: for each pass the time a page of every arm, with its interval.
//! Points on a logarithmic scale: the arms are apart by factors, and a bar would begin
//! nowhere.

use super::arm::Arm;
use super::pass::Pass;
use super::series::{AllSeries, Series, threads_in_words};
use crate::plot::{self, Area};
use crate::prelude::*;
use crate::statistics::Estimate;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

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

/// The picture, as the text of an SVG file, with a title of two lines.
pub fn drawn(all: &AllSeries, title: [&str; 2]) -> Result<String> {
    let names = names(all);
    let panels = panels(all, &names);
    let rows = (panels.len() as u32).div_ceil(COLUMNS).max(1);
    let line = LINE + MORE * all.threads().len() as u32;
    let panel = names.len() as u32 * line + MARGINS;
    let size = (WIDTH, TITLE + rows * panel);
    plot::draw(size, TITLE, |head, body| {
        entitle(head, all, title)?;
        let cells = body.split_evenly((rows as usize, COLUMNS as usize));
        let mut panels = cells.iter().zip(&panels);
        panels.try_for_each(|(cell, panel)| draw(cell, panel, &names))
    })
}

/// The arms that ran, in their order.
fn names(all: &AllSeries) -> Vec<String> {
    let ran = |arm: &&Arm| {
        let mut with = all.0.iter().filter(|s| s.arm == **arm);
        with.any(|series| !series.runs.is_empty())
    };
    Arm::value_variants()
        .iter()
        .filter(ran)
        .map(|arm| arm.name())
        .collect()
}

fn panels(all: &AllSeries, names: &[String]) -> Vec<Panel> {
    let threads = all.threads();
    let panel = |pass| {
        let point = |series: &Series| {
            Some(Point {
                row: names.iter().position(|n| *n == series.arm.name())?,
                colour: threads.iter().position(|n| *n == series.threads)?,
                ours: series.arm.ours(),
                ns: series.time(pass)?,
            })
        };
        Panel {
            pass,
            points: all.0.iter().filter_map(point).collect(),
        }
    };
    let every = Pass::value_variants().iter().copied().map(panel);
    every.filter(|panel| !panel.points.is_empty()).collect()
}

fn entitle(area: &Area<'_>, all: &AllSeries, [what, how]: [&str; 2]) -> Result<()> {
    plot::write(area, what, (20, 8), 20)?;
    plot::write(area, how, (20, 36), 13)?;
    for ((threads, colour), x) in all.threads().iter().zip(COLOURS).zip((620..).step_by(95)) {
        area.draw(&Circle::new((x, 43), 4, colour.filled()))?;
        plot::write(area, &threads_in_words(*threads), (x + 9, 36), 13)?;
    }
    Ok(())
}

fn draw(cell: &Area, panel: &Panel, names: &[String]) -> Result<()> {
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
) -> Result<()> {
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
    let ends = || points.iter().flat_map(|p| [p.ns.low, p.ns.high]);
    let least = ends().fold(f64::MAX, f64::min).max(1.0) / 1e3;
    let most = ends().fold(1.0, f64::max) / 1e3;
    let low = 10f64.powf(least.log10().floor());
    let high = 10f64.powf(most.log10().ceil());
    low..high.max(10.0 * low)
}

#[cfg(test)]
mod tests {
    use super::super::series::made_up::series;
    use super::*;

    #[test]
    fn every_pass_and_every_arm_that_ran_is_in_the_picture() {
        let picture = drawn(
            &AllSeries(vec![
                series(Arm::LinkedRam, &[10_000, 12_000, 14_000]),
                series(Arm::SwapZram, &[24_000, 23_000, 25_000]),
                series(Arm::SwapFile, &[]),
            ]),
            ["times", "medians"],
        )
        .unwrap();
        assert!(picture.starts_with("<svg"));
        for pass in Pass::value_variants() {
            assert!(picture.contains(&pass.name()), "{}", pass.name());
        }
        assert!(picture.contains("linked-ram") && picture.contains("swap-zram"));
        assert!(!picture.contains("swap-file"), "it has no figures");
    }

    #[test]
    fn a_report_without_figures_is_an_empty_picture() {
        assert!(drawn(&AllSeries(Vec::new()), ["", ""]).is_ok());
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
