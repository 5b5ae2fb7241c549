//! A report as a picture: for each pass the time a page of every arm, with its interval.
//! Points on a logarithmic scale: the arms are apart by factors, and a bar would begin
//! nowhere.

use super::arm::Arm;
use super::pass::Pass;
use super::series::{AllSeries, Series, threads_in_words};
use crate::plot::{self, Area};
use crate::prelude::*;
use crate::statistics::Estimate;
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

/// A series and its time a page.
type Point<'a> = (&'a Series, Estimate);

/// The picture, as the text of an SVG file, with a title of two lines.
pub fn drawn(all: &AllSeries, title: [&str; 2]) -> Result<String> {
    let ran = |arm: &&Arm| all.0.iter().any(|s| s.arm == **arm && !s.runs.is_empty());
    let arms: Vec<Arm> = Arm::value_variants().iter().filter(ran).copied().collect();
    let panel = |pass: &Pass| (*pass, points(all, *pass));
    let panels: Vec<_> = Pass::value_variants().iter().map(panel).collect();
    let panels: Vec<_> = panels
        .iter()
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let rows = (panels.len() as u32).div_ceil(COLUMNS).max(1);
    let line = LINE + MORE * all.threads().len() as u32;
    let size = (WIDTH, TITLE + rows * (arms.len() as u32 * line + MARGINS));
    plot::draw(size, TITLE, |head, body| {
        entitle(head, all, title)?;
        let cells = body.split_evenly((rows as usize, COLUMNS as usize));
        let mut panels = cells.iter().zip(&panels);
        panels.try_for_each(|(cell, (pass, points))| draw(cell, *pass, points, all, &arms))
    })
}

fn points(all: &AllSeries, pass: Pass) -> Vec<Point<'_>> {
    all.0
        .iter()
        .filter_map(|series| Some((series, series.time(pass)?)))
        .collect()
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

fn draw(cell: &Area, pass: Pass, points: &[Point], all: &AllSeries, arms: &[Arm]) -> Result<()> {
    let rows = arms.len() as f64;
    let mut chart = ChartBuilder::on(cell)
        .caption(pass.name(), ("sans-serif", 16))
        .margin(10)
        .margin_right(20)
        .x_label_area_size(36)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(reach(points).log_scale(), rows..0.0)?;
    let mut mesh = chart.configure_mesh();
    let mesh = mesh.disable_y_axis().disable_y_mesh().x_desc("us a page");
    mesh.x_label_formatter(&|us| format!("{us}")).draw()?;
    let area = chart.plotting_area();
    let style = ("sans-serif", 13).into_text_style(cell);
    let right = style.pos(Pos::new(HPos::Right, VPos::Center));
    let (left, _) = area.get_pixel_range();
    for (row, arm) in arms.iter().enumerate() {
        let (_, y) = area.map_coordinate(&(1.0, row as f64 + 0.5));
        let (x0, y0) = cell.get_base_pixel();
        let at = (left.start - x0 - 8, y - y0);
        cell.draw(&Text::new(arm.name(), at, right.clone()))?;
    }
    let threads = all.threads();
    let rank = |series: &Series| {
        threads
            .iter()
            .position(|n| *n == series.threads)
            .unwrap_or(0)
    };
    let ranks = points
        .iter()
        .map(|(series, _)| rank(series))
        .max()
        .unwrap_or(0)
        + 1;
    for (series, ns) in points {
        // A point and its interval, beside those of other numbers of threads.
        let (rank, row) = (rank(series), arms.iter().position(|arm| *arm == series.arm));
        let place = (rank as f64 + 1.0) / (ranks as f64 + 1.0);
        let (us, y) = (ns.times(1e-3), row.unwrap_or(0) as f64 + place);
        let colour = COLOURS[rank % COLOURS.len()];
        let line = colour.stroke_width(2);
        area.draw(&PathElement::new([(us.low, y), (us.high, y)], line))?;
        let style = if series.arm.ours() {
            colour.filled()
        } else {
            line
        };
        area.draw(&Circle::new((us.median, y), 4, style))?;
    }
    Ok(())
}

/// Whole powers of ten around the points, in microseconds.
fn reach(points: &[Point]) -> Range<f64> {
    let ends = || points.iter().flat_map(|(_, ns)| [ns.low, ns.high]);
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
        let series = series(Arm::LinkedRam, &[]);
        let point = |low, median, high| (&series, Estimate { median, low, high });
        let scale = reach(&[point(1_500.0, 2_000.0, 3_000.0), point(9e3, 5e4, 1.2e5)]);
        assert_eq!((scale.start, scale.end), (1.0, 1000.0));
        let narrow = reach(&[point(1e3, 1e3, 1e3)]);
        assert!(narrow.end > narrow.start);
    }
}
