//! Plots as SVG: grouped bars, and lines over a number. The page's style defines the colours, by
//! the number of the subject.

use std::fmt::Write;

const ROW_HEIGHT: f64 = 14.0;
const LABEL_WIDTH: f64 = 190.0;
const BAR_WIDTH: f64 = 430.0;
const VALUE_WIDTH: f64 = 100.0;

/// A group of bars: a label, and for each subject a length with its text.
pub struct Bars {
    /// The label.
    pub what: String,
    /// Lengths and texts; none where nothing was measured.
    pub values: Vec<Option<(f64, String)>>,
}

/// Bars, one group below the other, on one linear scale. The scale is that of the first two
/// subjects, so that a disk does not make the others invisible. Longer bars are cut, with a mark at
/// the cut.
pub fn bars(groups: &[Bars]) -> String {
    let compared = || groups.iter().flat_map(|group| group.values.iter().take(2).flatten());
    let longest = compared().map(|value| value.0).fold(f64::MIN_POSITIVE, f64::max);
    let mut body = String::new();
    let mut y = 4.0;
    for group in groups {
        let middle = y + group.values.len() as f64 * ROW_HEIGHT / 2.0 + 4.0;
        let _ = write!(
            body,
            r#"<text x="{LABEL_WIDTH}" y="{middle:.1}" dx="-8" text-anchor="end">{}</text>"#,
            escape(&group.what)
        );
        for (subject, value) in group.values.iter().enumerate() {
            if let Some((length, text)) = value {
                let width = (length / longest * BAR_WIDTH).clamp(1.0, BAR_WIDTH);
                let _ = write!(
                    body,
                    r#"<rect class="s{subject}" x="{LABEL_WIDTH}" y="{y:.1}" width="{width:.1}" height="{:.1}"><title>{}: {}</title></rect>"#,
                    ROW_HEIGHT - 2.0,
                    escape(&group.what),
                    escape(text)
                );
                if length > &longest {
                    let (x, bottom) = (LABEL_WIDTH + width - 16.0, y + ROW_HEIGHT);
                    let _ = write!(
                        body,
                        r#"<path class="c" d="M{x:.1} {bottom:.1}l4 -16M{:.1} {bottom:.1}l4 -16"/>"#,
                        x + 5.0
                    );
                }
                let (x, baseline) = (LABEL_WIDTH + width + 4.0, y + ROW_HEIGHT - 4.0);
                let _ = write!(body, r#"<text class="v" x="{x:.1}" y="{baseline:.1}">{}</text>"#, escape(text));
            }
            y += ROW_HEIGHT;
        }
        y += 8.0;
    }
    picture(LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH, y, &body)
}

/// A plot with lines: for each subject points, by x.
pub struct Lines {
    /// Its heading.
    pub title: String,
    /// Points, in ascending order of x.
    pub series: Vec<Vec<(f64, f64)>>,
    /// Formats a y value.
    pub format: fn(f64) -> String,
}

/// A small plot with lines. The x positions are equidistant (sizes and numbers of threads grow by
/// factors), y is linear from zero.
pub fn lines(plot: &Lines) -> String {
    const WIDTH: f64 = 240.0;
    const HEIGHT: f64 = 150.0;
    const LEFT: f64 = 56.0;
    const BOTTOM: f64 = 130.0;
    let points = || plot.series.iter().flatten();
    let highest = points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
    let mut places: Vec<f64> = points().map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let step = (WIDTH - LEFT - 16.0) / (places.len().max(2) - 1) as f64;
    let x = |value: f64| LEFT + places.iter().position(|&place| place == value).unwrap_or(0) as f64 * step;
    let y = |value: f64| BOTTOM - value.max(0.0) / highest * (BOTTOM - 26.0);
    let mut body = format!(r#"<text class="t" x="{LEFT}" y="14">{}</text>"#, escape(&plot.title));
    for level in [0.0, 0.5, 1.0] {
        let (value, at) = (level * highest, y(level * highest));
        let _ = write!(body, r#"<line class="g" x1="{LEFT}" x2="{}" y1="{at:.1}" y2="{at:.1}"/>"#, WIDTH - 16.0);
        let _ = write!(
            body,
            r#"<text class="v" x="{LEFT}" y="{:.1}" dx="-4" text-anchor="end">{}</text>"#,
            at + 3.0,
            escape(&(plot.format)(value))
        );
    }
    for &place in &places {
        let _ = write!(
            body,
            r#"<text class="v" x="{:.1}" y="{}" text-anchor="middle">{}</text>"#,
            x(place),
            HEIGHT - 6.0,
            crate::units::count(place as u64)
        );
    }
    for (subject, series) in plot.series.iter().enumerate() {
        let path: Vec<String> = series.iter().map(|&(at, value)| format!("{:.1},{:.1}", x(at), y(value))).collect();
        let _ = write!(body, r#"<polyline class="l{subject}" points="{}"/>"#, path.join(" "));
        for &(at, value) in series {
            let _ = write!(
                body,
                r#"<circle class="s{subject}" cx="{:.1}" cy="{:.1}" r="3"><title>{}</title></circle>"#,
                x(at),
                y(value),
                escape(&(plot.format)(value))
            );
        }
    }
    picture(WIDTH, HEIGHT, &body)
}

fn picture(width: f64, height: f64, body: &str) -> String {
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0}" width="{width}" height="{height:.0}">{body}</svg>"#
    )
}

/// Escapes text for a page.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_of_the_plot_cannot_break_it() {
        let values = vec![Some((3.0, "3 ns".into())), None, Some((0.0, "<0>".into()))];
        let plot = bars(&[Bars { what: "a & b".into(), values }]);
        assert!(plot.contains("a &amp; b") && plot.contains("&lt;0&gt;") && !plot.contains("NaN"), "{plot}");
        let empty = lines(&Lines { title: "none".into(), series: vec![vec![]], format: |ns| format!("{ns}") });
        assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
        let single =
            lines(&Lines { title: "one".into(), series: vec![vec![(1.0, 0.0)]], format: |ns| format!("{ns}") });
        assert!(!single.contains("NaN") && !single.contains("inf"), "{single}");
    }
}
