//! Bars: rows of a table whose values are compared by length.
//!
//! Rows of one table may differ by a factor of a million. With [`Scale::OfEachRow`] bars compare
//! systems within a row only. A system that is far slower than all others would make their bars
//! invisible. Its bar is cut, and shows so.

use crate::{DIM, INK, Palette, escape, figure, text};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A bar is cut at this multiple of the shortest bar of its row.
const LONGEST: f64 = 10.0;
const BAR_HEIGHT: i32 = 11;
const BAR_STEP: i32 = 14;
const ROW_GAP: i32 = 10;
const LABEL_HEIGHT: i32 = 16;
/// Pixels for the text of a value behind its bar.
const VALUE_WIDTH: i32 = 92;

/// What the lengths of two bars compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Values of one row.
    OfEachRow,
    /// Values of all rows.
    OfAllRows,
}

/// Rows of values of several systems.
#[derive(Debug, Clone)]
pub struct Bars {
    /// What the chart shows, in a sentence.
    pub summary: String,
    /// The systems, in the order of the values.
    pub systems: Vec<String>,
    /// What lengths compare.
    pub scale: Scale,
    /// The rows.
    pub rows: Vec<Row>,
}

/// Values beside those of the bars, on the chart's scale, by row and system as in the chart.
#[derive(Debug, Clone, Default)]
pub struct Marks {
    /// What the values are, for the legend.
    pub name: String,
    /// Values from elsewhere: each is a line across its bar.
    pub values: Vec<Vec<Option<f64>>>,
    /// The least and the greatest of repeated measurements: each is a whisker along its bar.
    pub ranges: Vec<Vec<Option<[f64; 2]>>>,
}

impl Marks {
    fn of_row(&self, row: usize) -> impl Iterator<Item = (usize, f64)> {
        let values = self.values.get(row).into_iter().flatten().enumerate();
        values.filter_map(|(at, value)| Some((at, value.filter(|value| value.is_finite())?)))
    }

    fn ranges_of_row(&self, row: usize) -> impl Iterator<Item = (usize, [f64; 2])> {
        let ranges = self.ranges.get(row).into_iter().flatten().enumerate();
        ranges.filter_map(|(at, range)| Some((at, range.filter(|ends| ends.iter().all(|end| end.is_finite()))?)))
    }
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its label.
    pub label: String,
    /// The length and the text of each system's bar; none where nothing was measured.
    pub values: Vec<Option<(f64, String)>>,
}

/// How one width of the drawing is laid out.
struct Layout {
    class: &'static str,
    width: i32,
    /// Where the bars begin.
    left: i32,
    /// Whether labels lie above their bars instead of beside them.
    labels_above: bool,
}

impl Layout {
    fn height_of(&self, row: &Row) -> i32 {
        let label_height = if self.labels_above { LABEL_HEIGHT } else { 0 };
        row.values.len() as i32 * BAR_STEP + ROW_GAP + label_height
    }

    /// Where a value lies, if `longest` fills the row.
    fn at(&self, value: f64, longest: f64) -> i32 {
        let space = self.width - self.left - VALUE_WIDTH;
        let share = if longest > 0.0 { (value / longest).clamp(0.0, 1.0) } else { 0.0 };
        self.left + (share * f64::from(space)).round() as i32
    }
}

const LAYOUTS: [Layout; 2] = [
    Layout { class: "wide", width: 820, left: 290, labels_above: false },
    Layout { class: "narrow", width: 340, left: 2, labels_above: true },
];

/// A picture in a page of another width, where it may be scaled.
const PICTURE: Layout = Layout { class: "", width: 400, left: 4, labels_above: true };

impl Bars {
    /// The chart as an element of a page. Systems without any value are not in the legend.
    pub fn html(&self, palette: &Palette) -> String {
        self.marked(palette, &Marks::default())
    }

    /// The chart with further values as marks. Needs [`Scale::OfAllRows`].
    pub fn marked(&self, palette: &Palette, marks: &Marks) -> String {
        let measured = |at: usize| self.rows.iter().any(|row| row.value(at).is_some());
        let systems = self.systems.iter().enumerate().filter(|(at, _)| measured(*at));
        let mut legend = palette.legend(systems.map(|(_, system)| system.as_str()));
        if (0..self.rows.len()).any(|row| marks.of_row(row).next().is_some()) {
            legend += &format!("<div class=legend><span>| {}</span></div>", escape(&marks.name));
        }
        let drawings: String = LAYOUTS.iter().map(|layout| self.draw(layout, palette, marks)).collect();
        figure(&self.summary, &legend, &drawings)
    }

    fn draw(&self, layout: &Layout, palette: &Palette, marks: &Marks) -> String {
        let height = self.rows.iter().map(|row| layout.height_of(row)).sum::<i32>().max(1);
        let mut drawing = String::new();
        {
            let root = SVGBackend::with_string(&mut drawing, (layout.width as u32, height as u32)).into_drawing_area();
            self.draw_rows(&root, layout, palette, marks, 2);
            let _ = root.present();
        }
        drawing.replacen("<svg ", &format!("<svg class=\"{}\" ", layout.class), 1)
    }

    /// The chart as a picture of its own, with its legend, on paper that is dark on dark screens.
    pub fn picture(&self, palette: &Palette) -> String {
        const LEGEND_TOP: i32 = 22;
        let layout = &PICTURE;
        let (places, legend_lines) = self.legend_places(layout);
        let head_height = LEGEND_TOP + legend_lines * LABEL_HEIGHT + 6;
        let height = head_height + self.rows.iter().map(|row| layout.height_of(row)).sum::<i32>();
        let mut drawing = String::new();
        {
            let root = SVGBackend::with_string(&mut drawing, (layout.width as u32, height as u32)).into_drawing_area();
            // Writing to a string cannot fail.
            let _ = root.fill(&WHITE);
            let style = |colour| text(12, colour).pos(Pos::new(HPos::Left, VPos::Center));
            let _ = root.draw(&Text::new(self.summary.clone(), (layout.left, 10), style(&DIM)));
            for (system, (x, line)) in self.systems.iter().zip(places) {
                let y = LEGEND_TOP + line * LABEL_HEIGHT;
                let square = [(x, y), (x + BAR_HEIGHT, y + BAR_HEIGHT)];
                let _ = root.draw(&Rectangle::new(square, palette.colour(system).filled()));
                let _ = root.draw(&Text::new(system.clone(), (x + BAR_HEIGHT + 5, y + 6), style(&INK)));
            }
            self.draw_rows(&root, layout, palette, &Marks::default(), head_height);
            let _ = root.present();
        }
        let head = format!("<svg role=\"img\" aria-label=\"{}\" ", escape(&self.summary));
        let drawing = drawing.replacen("<svg ", &head, 1);
        drawing.replacen(">\n", &format!(">\n<style>{}</style>\n", palette.dark()), 1)
    }

    /// Where each system stands in the legend of a picture: its place from the left, and its line;
    /// and the number of lines.
    fn legend_places(&self, layout: &Layout) -> (Vec<(i32, i32)>, i32) {
        let (mut x, mut line) = (layout.left, 0);
        let mut places = Vec::new();
        for system in &self.systems {
            let width = BAR_HEIGHT + 24 + 7 * system.chars().count() as i32;
            if x + width > layout.width && x > layout.left {
                (x, line) = (layout.left, line + 1);
            }
            places.push((x, line));
            x += width;
        }
        (places, line + 1)
    }

    fn draw_rows<B: DrawingBackend>(
        &self,
        root: &DrawingArea<B, plotters::coord::Shift>,
        layout: &Layout,
        palette: &Palette,
        marks: &Marks,
        mut top: i32,
    ) {
        let marked = (0..self.rows.len()).flat_map(|row| marks.of_row(row)).map(|(_, value)| value);
        let ends = (0..self.rows.len()).flat_map(|row| marks.ranges_of_row(row)).map(|(_, [_, most])| most);
        let of_all = self.rows.iter().flat_map(Row::lengths).chain(marked).chain(ends).fold(0.0, f64::max);
        for (index, row) in self.rows.iter().enumerate() {
            let longest = if self.scale == Scale::OfAllRows { of_all } else { row.longest() };
            // Writing to a string cannot fail.
            let ends = marks.ranges_of_row(index).fold(vec![0.0; row.values.len()], |mut ends, (at, [_, most])| {
                ends[at] = most;
                ends
            });
            let _ = row.draw(root, layout, (top, longest), &ends, |at| palette.colour(&self.systems[at]));
            let _ = row.mark(root, layout, (top, longest), marks.of_row(index));
            let _ = row.whiskers(root, layout, (top, longest), marks.ranges_of_row(index));
            top += layout.height_of(row);
        }
    }
}

impl Row {
    fn value(&self, at: usize) -> Option<&(f64, String)> {
        self.values.get(at)?.as_ref().filter(|value| value.0.is_finite())
    }

    fn lengths(&self) -> impl Iterator<Item = f64> {
        (0..self.values.len()).filter_map(|at| self.value(at)).map(|value| value.0.max(0.0))
    }

    /// The length that fills the row.
    fn longest(&self) -> f64 {
        let shortest = self.lengths().filter(|&length| length > 0.0).fold(f64::INFINITY, f64::min);
        self.lengths().fold(0.0, f64::max).min(shortest * LONGEST)
    }

    /// Draws a line across the bar of each mark.
    fn mark<B: DrawingBackend>(
        &self,
        root: &DrawingArea<B, plotters::coord::Shift>,
        layout: &Layout,
        (top, longest): (i32, f64),
        marks: impl Iterator<Item = (usize, f64)>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let top = if layout.labels_above { top + LABEL_HEIGHT } else { top };
        for (at, value) in marks {
            let (x, y) = (layout.at(value, longest), top + at as i32 * BAR_STEP);
            root.draw(&PathElement::new(vec![(x, y - 1), (x, y + BAR_HEIGHT + 1)], INK.stroke_width(2)))?;
        }
        Ok(())
    }

    /// Draws a thin line with two ends along the bar of each range.
    fn whiskers<B: DrawingBackend>(
        &self,
        root: &DrawingArea<B, plotters::coord::Shift>,
        layout: &Layout,
        (top, longest): (i32, f64),
        ranges: impl Iterator<Item = (usize, [f64; 2])>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let top = if layout.labels_above { top + LABEL_HEIGHT } else { top };
        for (at, ends) in ranges {
            let middle = top + at as i32 * BAR_STEP + BAR_HEIGHT / 2;
            let [low, high] = ends.map(|end| layout.at(end, longest));
            root.draw(&PathElement::new(vec![(low, middle), (high, middle)], INK.stroke_width(1)))?;
            for x in [low, high] {
                root.draw(&PathElement::new(vec![(x, middle - 3), (x, middle + 3)], INK.stroke_width(1)))?;
            }
        }
        Ok(())
    }

    fn draw<B: DrawingBackend>(
        &self,
        root: &DrawingArea<B, plotters::coord::Shift>,
        layout: &Layout,
        (mut top, longest): (i32, f64),
        whisker_ends: &[f64],
        colour: impl Fn(usize) -> RGBColor,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        if layout.labels_above {
            let style = text(12, &INK).pos(Pos::new(HPos::Left, VPos::Top));
            root.draw(&Text::new(self.label.clone(), (layout.left, top), style))?;
            top += LABEL_HEIGHT;
        } else {
            let middle = top + self.values.len() as i32 * BAR_STEP / 2;
            let style = text(12, &INK).pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(self.label.clone(), (layout.left - 8, middle), style))?;
        }
        for (at, end) in whisker_ends.iter().enumerate() {
            let Some((length, words)) = self.value(at) else { continue };
            let y = top + at as i32 * BAR_STEP;
            let right = layout.at(*length, longest).max(layout.left + 1);
            root.draw(&Rectangle::new([(layout.left, y), (right, y + BAR_HEIGHT)], colour(at).filled()))?;
            if *length > longest {
                for x in [right - 18, right - 13] {
                    let cut = PathElement::new(vec![(x, y + BAR_HEIGHT), (x + 5, y)], WHITE.stroke_width(2));
                    root.draw(&cut)?;
                }
            }
            let style = text(11, &DIM).pos(Pos::new(HPos::Left, VPos::Center));
            let after = layout.at(*end, longest).max(right);
            root.draw(&Text::new(words.clone(), (after + 5, y + BAR_HEIGHT / 2), style))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: Vec<Option<(f64, String)>>) -> Bars {
        let systems = ["ours", "theirs", "a disk"].map(str::to_owned).to_vec();
        Bars {
            summary: "a test".into(),
            systems,
            scale: Scale::OfEachRow,
            rows: vec![Row { label: "a & b".into(), values }],
        }
    }

    /// The value of an attribute.
    fn attribute<'s>(element: &'s str, name: &str) -> Option<&'s str> {
        element.split_once(&format!(" {name}=\""))?.1.split('"').next()
    }

    /// What a reader sees: for each name of the legend the width of the bar in its colour.
    fn read_back(page: &str, class: &str) -> Vec<(String, f64)> {
        let legend = page.split("<span>").skip(1).map(|entry| {
            let name = entry.split("</svg>").nth(1).and_then(|rest| rest.split("</span>").next());
            (name.expect("a name").to_owned(), attribute(entry, "fill").expect("a colour").to_owned())
        });
        let drawing = page.split("<svg ").find(|part| part.starts_with(&format!("class=\"{class}\""))).expect(class);
        let bars: Vec<(&str, f64)> = drawing
            .split("<rect")
            .skip(1)
            .map(|bar| (attribute(bar, "fill").unwrap(), attribute(bar, "width").unwrap().parse().unwrap()))
            .collect();
        legend.map(|(name, colour)| (name, bars.iter().find(|bar| bar.0 == colour).map_or(0.0, |bar| bar.1))).collect()
    }

    #[test]
    fn the_legend_names_the_system_whose_value_a_bar_shows_whatever_the_order_of_a_chart() {
        let palette = Palette::new(["ours", "theirs", "a disk", "another disk"]);
        let mut chart = chart(vec![Some((30.0, "30".into())), Some((10.0, "10".into())), Some((20.0, "20".into()))]);
        for _ in 0..3 {
            chart.systems.rotate_left(1);
            chart.rows[0].values.rotate_left(1);
            let page = chart.html(&palette);
            for class in ["wide", "narrow"] {
                let seen = read_back(&page, class);
                let width = |name: &str| seen.iter().find(|entry| entry.0 == name).unwrap().1;
                let near = |seen: f64, expected: f64| (seen - expected).abs() < 0.02;
                assert!(near(width("theirs") / width("ours"), 1.0 / 3.0), "{seen:?}");
                assert!(near(width("a disk") / width("ours"), 2.0 / 3.0), "{seen:?}");
            }
        }
    }

    #[test]
    fn a_bar_that_is_cut_leaves_the_others_visible_and_shows_its_value() {
        let palette = Palette::new(["ours", "theirs", "a disk"]);
        let values = vec![Some((1.0, "1 us".into())), Some((2.0, "2 us".into())), Some((9000.0, "9 ms".into()))];
        let page = chart(values).html(&palette);
        let seen = read_back(&page, "wide");
        assert!(seen[1].1 / seen[0].1 > 1.9 && seen[0].1 > 20.0, "{seen:?}");
        assert!(page.contains("9 ms") && page.contains("<polyline"), "{page}");
    }

    #[test]
    fn a_mark_lies_on_the_scale_of_the_bars_and_may_be_beyond_the_longest() {
        let palette = Palette::new(["ours", "theirs", "a disk"]);
        let mut chart = chart(vec![Some((30.0, "30".into())), Some((10.0, "10".into())), None]);
        chart.scale = Scale::OfAllRows;
        let without = chart.html(&palette);
        assert!(!without.contains("the paper"));
        let marks = |value| Marks {
            name: "the <paper>".into(),
            values: vec![vec![None, Some(value), None]],
            ..Marks::default()
        };
        let seen = read_back(&chart.marked(&palette, &marks(60.0)), "wide");
        assert!((seen[0].1 * 2.0 - 438.0).abs() < 2.0, "the mark at 60 fills the row: {seen:?}");
        let page = chart.marked(&palette, &marks(15.0));
        // Both widths have the mark. It lies half as far as the longest bar reaches.
        assert_eq!(page.matches("<polyline").count(), 2, "{page}");
        assert!(page.contains("points=\"509,") && page.contains("the &lt;paper&gt;"), "{page}");
        assert_eq!(chart.marked(&palette, &marks(f64::NAN)), without);
        // The mark has the colour of text, which is light on dark screens.
        let dark = palette.style();
        assert!(
            page.contains("stroke=\"#222222\"") && dark.contains("svg [stroke=\"#222222\"]{stroke:#dddddd}"),
            "{dark}"
        );
    }

    #[test]
    fn a_whisker_reaches_from_the_least_to_the_greatest_value_beside_the_texts() {
        let palette = Palette::new(["ours", "theirs", "a disk"]);
        let mut chart = chart(vec![Some((20.0, "20".into())), None, None]);
        chart.scale = Scale::OfAllRows;
        let ranges = |ends| Marks { ranges: vec![vec![Some(ends), None, None]], ..Marks::default() };
        let page = chart.marked(&palette, &ranges([10.0, 40.0]));
        // The wide drawing has 438 pixels from 290 on for values up to 40.
        for line in ["points=\"400,7 728,7", "points=\"400,4 400,10", "points=\"728,4 728,10"] {
            assert!(page.contains(line), "{line}: {page}");
        }
        assert!((read_back(&page, "wide")[0].1 - 219.0).abs() < 2.0, "the bar has the scale of the whisker");
        let odd = chart.marked(&palette, &ranges([f64::NAN, 40.0]));
        assert_eq!(odd, chart.html(&palette), "half a range is none");
    }

    #[test]
    fn names_and_odd_values_cannot_break_a_chart() {
        let palette = Palette::new(["\"><b>"]);
        let mut odd = chart(vec![Some((f64::NAN, "-".into())), None, Some((0.0, "<0>".into()))]);
        odd.systems[2] = "\"><b>".into();
        let page = odd.html(&palette);
        assert!(page.contains("a &amp; b") && page.contains("&lt;0&gt;"), "{page}");
        assert!(!page.contains("NaN") && !page.contains("inf\"") && !page.contains("<b>"), "{page}");
    }
}
