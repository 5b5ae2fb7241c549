//! Pictures as SVG: a title, a body of panels, and curves over time.

use crate::prelude::*;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

/// A part of a picture.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A chart of numbers over numbers.
pub type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The text of an SVG file of `size` pixels; `draw` gets the area of the title, so high, and the
/// body.
pub fn draw(
    size: (u32, u32),
    title: u32,
    draw: impl FnOnce(&Area<'_>, &Area<'_>) -> Result<()>,
) -> Result<String> {
    let mut picture = String::new();
    {
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, body) = root.split_vertically(title);
        draw(&title, &body)?;
        root.present()?;
    }
    Ok(picture)
}

/// Writes a picture to a file.
pub fn save(picture: Result<String>, path: &Path) -> Result<()> {
    std::fs::write(path, picture.at("draw", path)?).at("draw", path)
}

/// Writes words at a place, so many pixels high.
pub fn write(area: &Area<'_>, words: &str, at: (i32, i32), size: i32) -> Result<()> {
    Ok(area.draw(&Text::new(words.to_owned(), at, ("sans-serif", size)))?)
}

/// A figure over time.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What it is called.
    pub name: String,
    /// Its colour.
    pub colour: RGBColor,
    /// Whether it is broken: of a run that is shown for comparison.
    pub dashed: bool,
    /// Seconds, and figures.
    pub points: Vec<(f64, f64)>,
}

/// Draws curves over axes with these names, from 0 or below to a little above the highest point.
pub fn curves<'a, 'b>(
    area: &'a Area<'b>,
    caption: &str,
    axes: [&str; 2],
    room: f64,
    curves: &[Curve],
) -> Result<Chart<'a, 'b>> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let most = points().map(|point| point.1).fold(0.1, f64::max) * room;
    let least = points().map(|point| point.1).fold(0.0, f64::min) * room;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..last, least..most)?;
    let mut mesh = chart.configure_mesh();
    let mesh = mesh.disable_x_mesh().light_line_style(TRANSPARENT);
    mesh.x_desc(axes[0]).y_desc(axes[1]).draw()?;
    for curve in curves {
        let (points, colour) = (curve.points.iter().copied(), curve.colour);
        let style = colour.stroke_width(2);
        let drawn = match curve.dashed {
            true => chart.draw_series([DashedPathElement::new(points, 6, 5, style)])?,
            false => chart.draw_series([PathElement::new(points.collect::<Vec<_>>(), style)])?,
        };
        let swatch = move |(x, y)| Rectangle::new([(x, y - 3), (x + 14, y + 3)], colour.filled());
        drawn.label(curve.name.clone()).legend(swatch);
    }
    Ok(chart)
}
