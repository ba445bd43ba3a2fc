//! Plots as SVG: grouped bars, or lines. The paper's numbers, if known, are shown next to those
//! measured here on the same scale.

use super::findings::{Plot, Series};
use std::fmt::Write;

/// Colours that most readers can distinguish, on white and on black.
const COLOURS: [&str; 9] =
    ["#4878a8", "#e08a3c", "#59a14f", "#c0504d", "#8b6bb1", "#8c7355", "#d27fae", "#7f7f7f", "#a9a93c"];

const HEIGHT: f64 = 230.0;
const LEFT: f64 = 58.0;
const TOP: f64 = 44.0;
const PANEL_MIN: f64 = 330.0;
const GAP: f64 = 40.0;

/// Escapes text for HTML and SVG.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// Formats a number with a useful number of digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The smallest round number that is not below a value: the end of an axis.
pub fn round_up(value: f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return 1.0;
    }
    let magnitude = 10f64.powf(value.log10().floor());
    // Quarters of these are round, too.
    let steps = [1.0, 1.2, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * magnitude).find(|end| *end >= value * 0.999_999).unwrap_or(10.0 * magnitude)
}

/// The panels of a plot and its dimensions.
struct Extent<'p> {
    panels: Vec<(&'p str, &'p [Series])>,
    panel: f64,
    width: f64,
    legend_top: f64,
    legend_step: f64,
    legend_columns: usize,
    height: f64,
}

impl Extent<'_> {
    fn of(plot: &Plot) -> Extent<'_> {
        let here = (&plot.basis[..], &plot.here[..]);
        let panels = if plot.paper.is_empty() { vec![here] } else { vec![("the paper", &plot.paper[..]), here] };
        let bars = plot.here.len().max(plot.paper.len()).max(1) as f64;
        let wanted = if plot.lines { 60.0 } else { bars * 9.0 + 16.0 } * plot.x_labels.len() as f64;
        let panel = PANEL_MIN.max(wanted);
        let legend_top = TOP + HEIGHT + 58.0;
        let width = (LEFT + panel + GAP) * panels.len() as f64;
        let longest = plot.here.iter().map(|series| series.name.chars().count()).max().unwrap_or(0);
        let legend_step = longest as f64 * 6.2 + 28.0;
        let legend_columns = ((width / legend_step) as usize).max(1);
        let height = legend_top + 18.0 * plot.here.len().div_ceil(legend_columns) as f64 + 8.0;
        Extent { panels, panel, width, legend_top, legend_step, legend_columns, height }
    }
}

/// The plot as one SVG element.
pub fn svg(plot: &Plot) -> String {
    sheet(std::slice::from_ref(plot))
}

/// Plots below each other, as one SVG element.
pub fn sheet(plots: &[Plot]) -> String {
    let extents: Vec<Extent<'_>> = plots.iter().map(Extent::of).collect();
    let width = extents.iter().map(|extent| extent.width).fold(0.0, f64::max);
    let height: f64 = extents.iter().map(|extent| extent.height).sum();
    let titles: Vec<String> = plots.iter().map(|plot| escaped(&plot.title)).collect();
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="sans-serif" font-size="11" role="img" aria-label="{}">"#,
        titles.join("; ")
    );
    let mut top = 0.0;
    for (plot, extent) in plots.iter().zip(&extents) {
        let _ = write!(out, r#"<g transform="translate(0 {top:.0})">"#);
        draw(&mut out, plot, extent);
        out.push_str("</g>");
        top += extent.height;
    }
    out.push_str("</svg>");
    out
}

fn draw(out: &mut String, plot: &Plot, extent: &Extent<'_>) {
    let values = extent.panels.iter().flat_map(|(_, series)| series.iter());
    let end = round_up(values.flat_map(|series| series.values.iter().flatten()).copied().fold(0.0, f64::max));
    let _ = write!(out, r#"<text x="4" y="14" font-size="13" fill="currentColor">{}</text>"#, escaped(&plot.title));
    for (index, (name, series)) in extent.panels.iter().enumerate() {
        let left = LEFT + index as f64 * (LEFT + extent.panel + GAP);
        axes(out, plot, name, left, extent.panel, end);
        match plot.lines {
            true => lines(out, plot, series, left, extent.panel, end),
            false => groups(out, plot, series, left, extent.panel, end),
        }
    }
    legend(out, plot, extent);
}

fn colour(plot: &Plot, name: &str) -> &'static str {
    let index = plot.here.iter().position(|series| series.name == name).unwrap_or(plot.here.len());
    COLOURS[index % COLOURS.len()]
}

fn axes(out: &mut String, plot: &Plot, name: &str, left: f64, panel: f64, end: f64) {
    let _ = write!(out, r#"<text x="{left:.1}" y="{:.1}" fill="currentColor">{}</text>"#, TOP - 10.0, escaped(name));
    for step in 0..=4 {
        let value = end * step as f64 / 4.0;
        let y = TOP + HEIGHT * (1.0 - step as f64 / 4.0);
        let _ = write!(
            out,
            r#"<line x1="{left:.1}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}" stroke="currentColor" stroke-opacity="0.2"/><text x="{:.1}" y="{:.1}" text-anchor="end" fill="currentColor">{}</text>"#,
            left + panel,
            left - 5.0,
            y + 4.0,
            number(value)
        );
    }
    let middle = TOP + HEIGHT / 2.0;
    let _ = write!(
        out,
        r#"<text x="{0:.1}" y="{middle:.1}" transform="rotate(-90 {0:.1} {middle:.1})" text-anchor="middle" fill="currentColor">{1}</text>"#,
        left - 42.0,
        escaped(&plot.unit)
    );
    let step = panel / plot.x_labels.len().max(1) as f64;
    for (index, label) in plot.x_labels.iter().enumerate() {
        let (x, y) = (left + (index as f64 + 0.5) * step, TOP + HEIGHT + 14.0);
        let tilt = if label.len() as f64 * 6.5 > step {
            format!(r#" transform="rotate(-30 {x:.1} {y:.1})""#)
        } else {
            String::new()
        };
        let anchor = if tilt.is_empty() { "middle" } else { "end" };
        let _ = write!(
            out,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="currentColor"{tilt}>{}</text>"#,
            escaped(label)
        );
    }
}

fn groups(out: &mut String, plot: &Plot, series: &[Series], left: f64, panel: f64, end: f64) {
    let step = panel / plot.x_labels.len().max(1) as f64;
    let bar = (step - 8.0) / series.len().max(1) as f64;
    for (label, name) in plot.x_labels.iter().enumerate() {
        for (index, series) in series.iter().enumerate() {
            let Some(value) = series.values.get(label).copied().flatten() else { continue };
            let height = HEIGHT * (value / end).clamp(0.0, 1.0);
            let _ = write!(
                out,
                r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{height:.1}" fill="{}"><title>{}: {}, {} {}</title></rect>"#,
                left + label as f64 * step + 4.0 + index as f64 * bar,
                TOP + HEIGHT - height,
                (bar - 1.0).max(1.0),
                colour(plot, &series.name),
                escaped(name),
                escaped(&series.name),
                number(value),
                escaped(&plot.unit)
            );
        }
    }
}

fn lines(out: &mut String, plot: &Plot, series: &[Series], left: f64, panel: f64, end: f64) {
    let step = panel / plot.x_labels.len().max(1) as f64;
    for series in series {
        let paint = colour(plot, &series.name);
        let known = series.values.iter().enumerate().filter_map(|(label, value)| Some((label, (*value)?)));
        let points: Vec<(f64, f64, f64)> = known
            .map(|(label, value)| {
                let y = TOP + HEIGHT * (1.0 - (value / end).clamp(0.0, 1.0));
                (left + (label as f64 + 0.5) * step, y, value)
            })
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(out, r#"<polyline fill="none" stroke="{paint}" stroke-width="2" points="{}"/>"#, path.join(" "));
        for (x, y, value) in points {
            let _ = write!(
                out,
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{paint}"><title>{}: {} {}</title></circle>"#,
                escaped(&series.name),
                number(value),
                escaped(&plot.unit)
            );
        }
    }
}

fn legend(out: &mut String, plot: &Plot, extent: &Extent<'_>) {
    for (index, series) in plot.here.iter().enumerate() {
        let (row, column) = (index / extent.legend_columns, index % extent.legend_columns);
        let (x, y) = (8.0 + column as f64 * extent.legend_step, extent.legend_top + row as f64 * 18.0);
        let _ = write!(
            out,
            r#"<rect x="{x:.1}" y="{:.1}" width="10" height="10" fill="{}"/><text x="{:.1}" y="{:.1}" fill="currentColor">{}</text>"#,
            y - 9.0,
            colour(plot, &series.name),
            x + 14.0,
            y,
            escaped(&series.name)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::MEASURED;
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number_that_takes_the_greatest_value_in() {
        for (value, end) in [(0.0, 1.0), (1.0, 1.0), (1.2, 1.2), (99.0, 100.0), (101.0, 120.0), (0.034, 0.04)] {
            assert!((round_up(value) - end).abs() < 1e-9, "{value}: {}", round_up(value));
        }
        assert_eq!(round_up(f64::NAN), 1.0);
    }

    #[test]
    fn names_cannot_break_out_of_the_picture() {
        let plot = Plot {
            title: "<script>".to_owned(),
            unit: "µs".to_owned(),
            x_labels: vec!["a&b".to_owned()],
            lines: false,
            basis: MEASURED.to_owned(),
            here: vec![Series { name: "\"><b>".to_owned(), values: vec![Some(1.0)] }],
            paper: Vec::new(),
        };
        let svg = svg(&plot);
        assert!(!svg.contains("<script>") && !svg.contains("<b>") && svg.contains("a&amp;b"), "{svg}");
    }
}
