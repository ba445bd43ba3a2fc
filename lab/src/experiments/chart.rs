//! Plots of the report, drawn by the crate charts: bars with the paper's values as marks, lines,
//! and heat maps.

use super::findings::{HeatMap, Plot, Range, Series};
use charts::{Bars, Heat, Line, Lines, Marks, Palette, Row, Scale, escape};

/// Subjects with one colour in all plots; the others of a plot follow.
const MAIN: [&str; 4] = ["DirectFS", "NOVA", "PMFS", "SoupFS"];
/// As many colours as the component has, for the rules of dark screens.
const COLOURS: [&str; 9] = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// The gain that has the strongest colour of a heat map, in per cent.
const STRONGEST: f64 = 60.0;

/// Formats a number with a useful number of digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The style rules of all plots.
pub fn style() -> String {
    Palette::new(COLOURS).style()
}

/// A plot as an element of a page.
pub fn html(plot: &Plot) -> String {
    let origin = format!("<p class=\"source\">{}, {}</p>", escape(&plot.unit), escape(&plot.basis));
    if plot.lines {
        return format!("<div class=\"plot\">{}{origin}{}</div>", lines(plot), escape(&in_paper(plot)));
    }
    format!("<div class=\"plot\"><b>{}</b>{}{origin}</div>", escape(&plot.title), bars(plot))
}

/// The paper's values of a plot with lines, which has no room for them.
fn in_paper(plot: &Plot) -> String {
    let at = |(label, value): (&String, &Option<f64>)| Some(format!("{} at {label}", number((*value)?)));
    let of = |series: &Series| {
        let each: Vec<String> = plot.x_labels.iter().zip(&series.values).filter_map(at).collect();
        (!each.is_empty()).then(|| format!("{} {}", series.name, each.join(", ")))
    };
    let each: Vec<String> = plot.paper.iter().filter_map(of).collect();
    if each.is_empty() { String::new() } else { format!("The paper: {}.", each.join("; ")) }
}

/// A heat map as an element of a page.
pub fn heat(map: &HeatMap) -> String {
    let map = Heat {
        title: map.title.clone(),
        axes: map.axes.clone(),
        columns: map.columns.clone(),
        rows: map.rows.clone(),
        strongest: STRONGEST,
        format: |value| format!("{value:.0} %"),
    };
    format!("<div class=\"plot\">{}</div>", map.html())
}

fn of_paper(series: &Series) -> String {
    format!("{}, the paper", series.name)
}

fn palette(plot: &Plot) -> Palette {
    let papers: Vec<String> = plot.paper.iter().map(of_paper).collect();
    let here = plot.here.iter().map(|series| series.name.as_str());
    Palette::new(MAIN.into_iter().chain(here).chain(papers.iter().map(String::as_str)))
}

fn bars(plot: &Plot) -> String {
    let value = |series: &Series, at: usize| series.values.get(at).copied().flatten();
    let row = |(at, label): (usize, &String)| Row {
        label: label.clone(),
        values: plot.here.iter().map(|series| value(series, at).map(|value| (value, number(value)))).collect(),
    };
    let chart = Bars {
        summary: format!("{}, {}", plot.title, plot.unit),
        systems: plot.here.iter().map(|series| series.name.clone()).collect(),
        scale: Scale::OfAllRows,
        rows: plot.x_labels.iter().enumerate().map(row).collect(),
    };
    let paper =
        |name: &str, at: usize| plot.paper.iter().find(|series| series.name == name).and_then(|it| value(it, at));
    let marks = (0..plot.x_labels.len()).map(|at| plot.here.iter().map(|series| paper(&series.name, at)).collect());
    let range = |series: &Series, at: usize| Some(ends(series.ranges.get(at).copied().flatten()?));
    let ranges = (0..plot.x_labels.len()).map(|at| plot.here.iter().map(|series| range(series, at)).collect());
    let (name, values) = ("the paper".to_owned(), marks.collect());
    chart.marked(&palette(plot), &Marks { name, values, ranges: ranges.collect() })
}

fn ends(range: Range) -> [f64; 2] {
    [range.least, range.most]
}

/// A label's number, else its position.
fn place(at: usize, label: &str) -> f64 {
    label.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(at as f64)
}

fn lines(plot: &Plot) -> String {
    let line = |series: &Series, system: String| Line {
        system,
        points: plot
            .x_labels
            .iter()
            .zip(&series.values)
            .enumerate()
            .filter_map(|(at, (label, value))| Some((place(at, label), (*value)?)))
            .collect(),
        ranges: plot
            .x_labels
            .iter()
            .zip(&series.ranges)
            .enumerate()
            .filter_map(|(at, (label, range))| Some((place(at, label), ends((*range)?))))
            .collect(),
        is_dashed: series.is_modelled,
    };
    let here = plot.here.iter().map(|series| line(series, series.name.clone()));
    let chart = Lines {
        title: plot.title.clone(),
        lines: here.chain(plot.paper.iter().map(|series| line(series, of_paper(series)))).collect(),
        format: number,
        format_place: |place| place.to_string(),
    };
    chart.html(&palette(plot))
}

#[cfg(test)]
mod tests {
    use super::super::findings::MEASURED;
    use super::*;

    fn plot(lines: bool) -> Plot {
        let series = |name: &str, value| Series::new(name, vec![Some(value), None]);
        Plot {
            title: "<script>".to_owned(),
            unit: "µs".to_owned(),
            x_labels: vec!["0 a&b".to_owned(), "200 ns".to_owned()],
            lines,
            basis: MEASURED.to_owned(),
            here: vec![series("\"><b>x", 1.0), series("NOVA", 2.5)],
            paper: vec![series("NOVA", 5.0)],
        }
    }

    #[test]
    fn names_cannot_break_out_of_the_picture() {
        for page in [html(&plot(false)), html(&plot(true))] {
            assert!(!page.contains("<script>") && !page.contains("<b>x"), "{page}");
        }
        assert!(html(&plot(false)).contains("a&amp;b"));
    }

    #[test]
    fn the_papers_values_are_marks_of_bars_and_lines_of_their_own() {
        let bars = html(&plot(false));
        assert!(bars.contains("| the paper") && bars.contains("2.50"), "{bars}");
        assert!(!html(&Plot { paper: Vec::new(), ..plot(false) }).contains("the paper"));
        let lines = html(&plot(true));
        assert!(lines.contains("NOVA, the paper") && lines.contains("The paper: NOVA 5.00 at 0 a&amp;b."), "{lines}");
    }

    #[test]
    fn a_subject_has_one_colour_whatever_the_others_of_a_plot_are() {
        let of_nova = |others: &[&str]| {
            let series = |name: &&str| Series::new(name, vec![Some(1.0)]);
            let page = html(&Plot { here: others.iter().map(series).collect(), paper: Vec::new(), ..plot(false) });
            let legend = page.split("<span>").find(|entry| entry.contains(">NOVA<")).expect("its entry");
            legend.split("fill=").nth(1).and_then(|rest| rest.get(..9)).expect("a colour").to_owned()
        };
        assert_eq!(of_nova(&["NOVA"]), of_nova(&["ByVFS", "DirectFS_r", "NOVA"]));
    }
}
