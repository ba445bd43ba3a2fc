//! Lines: values by a number, for example by the number of files or of threads.

use crate::{DIM, INK, Palette, RULE, escape, figure, text};
use plotters::prelude::*;

const WIDTH: u32 = 300;
const HEIGHT: u32 = 190;
/// Dashes between two points of a dashed line.
const DASHES: u32 = 8;

/// A plot of one quantity by a number. Positions on the horizontal axis are equidistant, since
/// sizes and numbers of threads grow by factors. The vertical axis begins at zero.
#[derive(Debug, Clone)]
pub struct Lines {
    /// The heading.
    pub title: String,
    /// The lines.
    pub lines: Vec<Line>,
    /// Formats a value of the vertical axis.
    pub format: fn(f64) -> String,
    /// Formats a number of the horizontal axis.
    pub format_place: fn(f64) -> String,
}

/// The line of a system.
#[derive(Debug, Clone)]
pub struct Line {
    /// The system.
    pub system: String,
    /// Points: numbers of the horizontal axis in ascending order, with values.
    pub points: Vec<(f64, f64)>,
    /// The least and the greatest of repeated measurements at some places, drawn as whiskers.
    pub ranges: Vec<(f64, [f64; 2])>,
    /// Whether the line is dashed: values of a model.
    pub is_dashed: bool,
}

impl Line {
    /// A line through points that were measured once.
    pub fn new(system: String, points: Vec<(f64, f64)>) -> Line {
        Line { system, points, ranges: Vec::new(), is_dashed: false }
    }
}

impl Line {
    fn whiskers(&self) -> impl Iterator<Item = (f64, [f64; 2])> {
        self.ranges.iter().copied().filter(|(_, ends)| ends.iter().all(|end| end.is_finite()))
    }
}

impl Lines {
    /// The plot as an element of a page. It is as narrow as the narrowest screen.
    pub fn html(&self, palette: &Palette) -> String {
        let legend = palette.legend(self.lines.iter().map(|line| line.system.as_str()));
        let mut drawing = String::new();
        // Writing to a string cannot fail.
        let _ = self.draw(SVGBackend::with_string(&mut drawing, (WIDTH, HEIGHT)).into_drawing_area(), palette);
        figure(&self.title, &format!("<b>{}</b>{legend}", escape(&self.title)), &drawing)
    }

    fn draw<B: DrawingBackend>(
        &self,
        root: DrawingArea<B, plotters::coord::Shift>,
        palette: &Palette,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let is_finite = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
        let points = || self.lines.iter().flat_map(|line| line.points.iter().filter(is_finite));
        let ends = self.lines.iter().flat_map(Line::whiskers).map(|(_, [_, most])| most);
        let highest = points().map(|point| point.1).chain(ends).fold(f64::MIN_POSITIVE, f64::max);
        let mut places: Vec<f64> = points().map(|point| point.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let place_of = |value: f64| places.iter().position(|&place| place == value).unwrap_or(0) as f64;
        let last = (places.len().max(2) - 1) as f64;
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .x_label_area_size(20)
            .y_label_area_size(58)
            .build_cartesian_2d(-0.15..last + 0.15, 0.0..highest * 1.05)?;
        let label = |at: &f64| match at.fract().abs() < 0.01 {
            true => places.get(at.round() as usize).map_or_else(String::new, |&place| (self.format_place)(place)),
            false => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RULE)
            .axis_style(RULE)
            .x_labels(places.len().max(2))
            .y_labels(4)
            .x_label_formatter(&label)
            .y_label_formatter(&|value| (self.format)(*value))
            .label_style(text(11, &DIM))
            .x_label_style(text(11, &INK))
            .draw()?;
        for line in &self.lines {
            let colour = palette.colour(&line.system);
            let points = line.points.iter().filter(is_finite).map(|point| (place_of(point.0), point.1));
            if line.is_dashed {
                let points: Vec<_> = points.collect();
                chart.draw_series(dashes(&points).map(|dash| PathElement::new(dash, colour.stroke_width(2))))?;
            } else {
                chart.draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?;
            }
            let whisker = |(place, ends): (f64, [f64; 2])| {
                let place = place_of(place);
                PathElement::new(ends.map(|end| (place, end)).to_vec(), colour.stroke_width(1))
            };
            chart.draw_series(line.whiskers().map(whisker))?;
        }
        root.present()
    }
}

/// Every second piece of the line through these points. Plotters' own needs a newer C library than
/// the program does.
fn dashes(points: &[(f64, f64)]) -> impl Iterator<Item = [(f64, f64); 2]> {
    points.windows(2).flat_map(|ends| {
        let at = move |part: f64| {
            let [from, to] = [ends[0], ends[1]];
            (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part)
        };
        (0..DASHES).map(move |dash| [0.0, 0.5].map(|half| at((f64::from(dash) + half) / f64::from(DASHES))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> String {
        drawn(Line::new("ours".into(), points))
    }

    fn drawn(line: Line) -> String {
        let plot = Lines {
            title: "create & close".into(),
            lines: vec![line],
            format: |ns| format!("{ns} ns"),
            format_place: |files| format!("{files} files"),
        };
        plot.html(&Palette::new(["ours"]))
    }

    #[test]
    fn a_line_passes_through_its_points_and_each_place_has_its_label() {
        let page = plot(vec![(10.0, 4.0), (100.0, 2.0), (1000.0, 1.0)]);
        let circles = page.matches("<circle").count();
        assert_eq!(circles, 3, "{page}");
        for place in ["10 files", "100 files", "1000 files"] {
            assert!(page.contains(place), "{place}: {page}");
        }
        assert!(page.contains("create &amp; close"), "{page}");
    }

    #[test]
    fn a_whisker_is_on_the_scale_and_a_model_has_dashes_and_no_points() {
        let line = || Line::new("ours".into(), vec![(1.0, 5.0), (2.0, 5.0)]);
        let measured = drawn(line());
        let with_range = drawn(Line { ranges: vec![(1.0, [4.0, 50.0]), (2.0, [f64::NAN, 1.0])], ..line() });
        let lines = |page: &str| page.matches("<polyline").count();
        assert_eq!(lines(&with_range), lines(&measured) + 1, "{with_range}");
        assert!(with_range.contains("40 ns") && !measured.contains("40 ns"), "the axis has room for it: {with_range}");
        let model = drawn(Line { is_dashed: true, ..line() });
        assert!(!model.contains("<circle") && lines(&model) > lines(&measured) + 5, "{model}");
    }

    #[test]
    fn a_plot_of_nothing_of_one_point_or_of_odd_values_is_a_plot() {
        for points in [vec![], vec![(1.0, 0.0)], vec![(1.0, f64::NAN), (2.0, f64::INFINITY), (3.0, 1.0)]] {
            let page = plot(points);
            assert!(page.contains("<svg") && !page.contains("NaN") && !page.contains(">inf"), "{page}");
        }
    }
}
