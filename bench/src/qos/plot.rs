//! Figures 7, 8 and 9 in the paper's layout: on the left the bandwidth over time, on the
//! right the schedule, at the paper's two time scales and a finer one. "Each filled box shows a transaction carried out
//! by a given client", darkest for the smallest guarantee; "the solid lines between the
//! transactions" are lax time; "the small arrows in each colour represent the point at
//! which the relevant client received a new allocation" (section 7.2.1).

use super::schedule::{Client, Interval};
use crate::plot::{self, Area, Curve};
use crate::prelude::*;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Pixels.
const SIZE: (u32, u32) = (1200, 760);
const TITLE: u32 = 44;
const LEFT: u32 = 480;

/// The paper's two time scales, in seconds, and one more: transactions of today's disks are
/// hundreds of times shorter, and are distinct in the last only.
const SCALES: [f64; 3] = [4.0, 1.0, 0.02];

/// From the smallest guarantee to the largest, as the paper has them.
pub const GREYS: [RGBColor; 4] = [
    RGBColor(40, 40, 40),
    RGBColor(110, 110, 110),
    RGBColor(175, 175, 175),
    RGBColor(215, 215, 215),
];

type Plot<'a> = DrawingArea<SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure<'a> {
    /// What is shown.
    pub title: String,
    /// On the left: each client's bandwidth, in seconds and megabits a second.
    pub curves: Vec<Curve>,
    /// On the right, from the smallest guarantee to the largest.
    pub clients: &'a [Client],
    /// Where the sample begins.
    pub from: Duration,
}

/// The figure, as the text of an SVG file.
pub fn drawn(figure: &Figure<'_>) -> Result<String> {
    plot::draw(SIZE, TITLE, |title, body| {
        plot::write(title, &figure.title, (20, 14), 18)?;
        let (left, right) = body.split_horizontally(LEFT);
        bandwidth(&left, figure)?;
        let parts = right.split_evenly((SCALES.len(), 1));
        let mut scales = parts.iter().zip(SCALES);
        scales.try_for_each(|(part, seconds)| schedule(part, figure, seconds))
    })
}

fn bandwidth(area: &Area<'_>, figure: &Figure<'_>) -> Result<()> {
    let axes = ["time (s)", "sustained bandwidth (Mbit/s)"];
    let mut chart = plot::curves(area, "", axes, 1.35, &figure.curves)?;
    let mut labels = chart.configure_series_labels();
    let labels = labels.position(SeriesLabelPosition::UpperRight);
    labels
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

fn schedule(area: &Area<'_>, figure: &Figure<'_>, seconds: f64) -> Result<()> {
    let rows = figure.clients.len().max(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(32)
        .y_label_area_size(10)
        .build_cartesian_2d(0.0..seconds, 0.0..rows)?;
    let mut mesh = chart.configure_mesh();
    let mesh = mesh.disable_mesh().disable_y_axis();
    mesh.x_desc(format!("schedule over {seconds} s")).draw()?;
    let plot = chart.plotting_area();
    let pixel = seconds / f64::from(plot.dim_in_pixel().0.max(1));
    let window = Window {
        from: figure.from,
        seconds,
        pixel,
    };
    for (row, client) in figure.clients.iter().enumerate() {
        let grey = GREYS[row.min(GREYS.len() - 1)];
        // The largest guarantee on top.
        lane(plot, &window, client, row as f64, grey)?;
    }
    Ok(())
}

/// What part of the trace is shown, and how finely.
struct Window {
    from: Duration,
    seconds: f64,
    /// Seconds of a pixel.
    pixel: f64,
}

impl Window {
    /// What is seen of spans: those less than a pixel apart are one, since nothing would be
    /// seen between them.
    fn of(&self, spans: &[Interval]) -> Vec<(f64, f64)> {
        let mut seen: Vec<(f64, f64)> = Vec::new();
        for span in spans {
            let (from, to) = (self.at(span.from), self.at(span.to));
            if to < 0.0 || from > self.seconds {
                continue;
            }
            let (from, to) = (from.max(0.0), to.min(self.seconds));
            match seen.last_mut() {
                Some(last) if from - last.1 < self.pixel => last.1 = last.1.max(to),
                _ => seen.push((from, to)),
            }
        }
        seen
    }

    fn at(&self, time: Duration) -> f64 {
        time.as_secs_f64() - self.from.as_secs_f64()
    }
}

fn lane(plot: &Plot<'_>, window: &Window, client: &Client, row: f64, grey: RGBColor) -> Result<()> {
    for (from, to) in window.of(&client.lax) {
        let line = [(from, row + 0.5), (to, row + 0.5)];
        plot.draw(&PathElement::new(line, grey.stroke_width(1)))?;
    }
    for (from, to) in window.of(&client.transactions) {
        let to = to.max(from + window.pixel / 2.0);
        let box_ = [(from, row + 0.32), (to, row + 0.68)];
        plot.draw(&Rectangle::new(box_, grey.filled()))?;
    }
    let allocations = client.allocations.iter().map(|at| window.at(*at));
    for at in allocations.filter(|at| (0.0..=window.seconds).contains(at)) {
        let (half, shaft, tip) = (window.pixel * 3.0, row + 0.14, row + 0.28);
        let head = vec![(at - half, shaft), (at + half, shaft), (at, tip)];
        plot.draw(&PathElement::new([(at, row + 0.02), (at, shaft)], grey))?;
        plot.draw(&Polygon::new(head, grey.filled()))?;
    }
    let place = plot.map_coordinate(&(0.0, row + 0.92));
    let (x, y) = plot.get_base_pixel();
    let at = (place.0 - x + 2, place.1 - y);
    plot::write(&plot.strip_coord_spec(), &client.name, at, 11)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::schedule::DiskShare;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn client(name: &str) -> Client {
        let span = |from, to| Interval {
            from: ms(from),
            to: ms(to),
            charged: ms(to - from),
        };
        Client {
            name: name.into(),
            contract: DiskShare {
                slice: ms(25),
                period: ms(250),
                laxity: ms(10),
            },
            transactions: (0..200).map(|k| span(20 * k, 20 * k + 8)).collect(),
            lax: (0..200).map(|k| span(20 * k + 8, 20 * k + 12)).collect(),
            allocations: (0..16).map(|k| ms(250 * k)).collect(),
        }
    }

    #[test]
    fn a_figure_has_every_client_on_both_sides_and_at_every_time_scale() {
        let clients = [client("ten"), client("twenty")];
        let curve = |name: &str, grey: usize| Curve {
            name: name.into(),
            colour: GREYS[grey],
            dashed: grey == 1,
            points: vec![(5.0, 2.0), (10.0, 3.0)],
        };
        let picture = drawn(&Figure {
            title: "Paging in".into(),
            curves: vec![curve("10 %", 0), curve("20 %", 1)],
            clients: &clients,
            from: ms(0),
        })
        .unwrap();
        for words in [
            "Paging in",
            "10 %",
            "schedule over 4 s",
            "schedule over 1 s",
        ] {
            assert!(picture.contains(words), "{words}");
        }
        assert_eq!(picture.matches("twenty").count(), 3);
        assert!(picture.contains("polygon"), "arrows");
    }

    #[test]
    fn what_no_pixel_shows_is_not_drawn() {
        let window = Window {
            from: ms(0),
            seconds: 4.0,
            pixel: 0.05,
        };
        let spans = client("a").transactions;
        assert_eq!(window.of(&spans).len(), 1);
        let finer = Window {
            pixel: 0.001,
            seconds: 1.0,
            ..window
        };
        assert_eq!(finer.of(&spans).len(), 51);
    }

    #[test]
    fn a_figure_of_nothing_can_be_drawn() {
        let empty = Figure {
            title: String::new(),
            curves: Vec::new(),
            clients: &[],
            from: ms(0),
        };
        assert!(drawn(&empty).is_ok());
    }
}
