//! The picture: for each program a panel of bars, times over that of the program alone. An arm
//! without a time has the reason in its place.

use super::analysis::{Outcome, Part, outcome};
use super::arm::MemoryArm;
use super::fraction::Fraction;
use super::program::KnownProgram;
use crate::plot::{self, Area};
use crate::prelude::*;
use crate::table::digits;
use plotters::prelude::*;

/// Pixels.
const WIDTH: u32 = 1200;
const TITLE: u32 = 64;
const PANEL: u32 = 250;

/// Panels beside each other.
const COLUMNS: usize = 2;

/// Of all the space between two bars' centres, what a bar fills.
const BAR: f64 = 0.8;

/// The picture, as the text of an SVG file.
pub fn drawn(parts: &[Part], machine: &Machine) -> Result<String> {
    let mut programs: Vec<KnownProgram> = parts.iter().map(|part| part.program).collect();
    programs.dedup();
    let rows = programs.len().div_ceil(COLUMNS).max(1);
    let size = (WIDTH, TITLE + PANEL * rows as u32);
    plot::draw(size, TITLE, |title, body| {
        entitle(title, parts, machine)?;
        let cells = body.split_evenly((rows, COLUMNS));
        cells.iter().zip(&programs).try_for_each(|(cell, program)| {
            let of: Vec<&Part> = parts.iter().filter(|p| p.program == *program).collect();
            panel(cell, *program, &of)
        })
    })
}

fn entitle(area: &Area<'_>, parts: &[Part], machine: &Machine) -> Result<()> {
    let what = format!(
        "Time in a part of the memory, over that with all of it: {} x {}, Linux {}",
        machine.processors, machine.processor, machine.kernel
    );
    plot::write(area, &what, (20, 10), 18)?;
    let mut arms: Vec<MemoryArm> = parts.iter().flat_map(drawn_arms).collect();
    arms.sort();
    arms.dedup();
    for (arm, x) in arms.into_iter().zip((20..).step_by(150)) {
        let swatch = [(x, 42), (x + 14, 52)];
        area.draw(&Rectangle::new(swatch, colour(arm).filled()))?;
        plot::write(area, &arm.name(), (x + 20, 40), 13)?;
    }
    Ok(())
}

/// All but what stands for one.
fn drawn_arms(part: &Part) -> Vec<MemoryArm> {
    let arms = part.series.iter().map(|one| one.arm);
    arms.filter(|arm| *arm != MemoryArm::Alone).collect()
}

fn panel(cell: &Area<'_>, program: KnownProgram, parts: &[&Part]) -> Result<()> {
    let heights = parts.iter().flat_map(|part| {
        drawn_arms(part)
            .into_iter()
            .filter_map(|arm| part.of_alone(arm))
    });
    let most = heights.fold(1.0, f64::max) * 1.2;
    let groups = parts.len().max(1) as f64;
    let mut chart = ChartBuilder::on(cell)
        .caption(program.about(), ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(24)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..groups, 0.0..most)?;
    let fractions: Vec<Fraction> = parts.iter().map(|part| part.fraction).collect();
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .disable_x_axis()
        .light_line_style(TRANSPARENT);
    mesh.y_desc("times the time alone").draw()?;
    for (k, fraction) in fractions.iter().enumerate() {
        let at = (k as f64 + 0.4, 0.0);
        // Below the axis, where the chart itself does not draw.
        let (x, y) = chart.backend_coord(&at);
        let (left, top) = cell.get_base_pixel();
        plot::write(cell, &fraction.about(), (x - left, y - top + 6), 13)?;
    }
    for (k, part) in parts.iter().enumerate() {
        let arms = drawn_arms(part);
        let step = 0.9 / arms.len().max(1) as f64;
        for (j, one) in part
            .series
            .iter()
            .filter(|one| one.arm != MemoryArm::Alone)
            .enumerate()
        {
            let left = k as f64 + 0.05 + j as f64 * step;
            let height = part
                .of_alone(one.arm)
                .filter(|_| outcome(one) == Outcome::Finished);
            let top = height.unwrap_or(0.0);
            let bar = [(left, 0.0), (left + step * BAR, top)];
            chart.draw_series([Rectangle::new(bar, colour(one.arm).filled())])?;
            let words = height.map_or_else(|| reason(outcome(one)).into(), digits);
            let upright = ("sans-serif", 11)
                .into_font()
                .transform(FontTransform::Rotate270);
            let style = upright.color(&BLACK.mix(0.8));
            chart.draw_series([Text::new(words, (left, top + most * 0.02), style)])?;
        }
    }
    Ok(())
}

fn reason(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Killed => "killed",
        Outcome::Late => "too long",
        Outcome::Failed => "failed",
        Outcome::Finished | Outcome::Unavailable => "none",
    }
}

/// The same as in the other pictures where an arm is the same, and distinct under colour blindness.
fn colour(arm: MemoryArm) -> RGBColor {
    match arm {
        MemoryArm::Alone => RGBColor(150, 150, 150),
        MemoryArm::AloneMimalloc => RGBColor(190, 190, 190),
        MemoryArm::Zram => RGBColor(213, 94, 0),
        MemoryArm::Swap => RGBColor(204, 121, 167),
        MemoryArm::OursRam => RGBColor(86, 180, 233),
        MemoryArm::OursBoth => RGBColor(0, 114, 178),
        MemoryArm::OursDisk => RGBColor(0, 60, 140),
        MemoryArm::OursContract => RGBColor(0, 158, 115),
    }
}

#[cfg(test)]
mod tests {
    use super::super::analysis::tests::{part, series};
    use super::*;

    #[test]
    fn a_picture_has_a_bar_or_a_reason_for_every_arm() {
        let part = part(vec![
            series(MemoryArm::Alone, &[2], None),
            series(MemoryArm::OursRam, &[5], None),
            series(MemoryArm::Swap, &[], Some(ExperimentError::Killed.into())),
        ]);
        let machine = Machine::now(Path::new("/"));
        let picture = drawn(&[part], &machine).unwrap();
        for words in ["ours-ram", "2.50", "killed", "a quarter"] {
            assert!(picture.contains(words), "{words}");
        }
        assert!(drawn(&[], &machine).is_ok());
    }
}
