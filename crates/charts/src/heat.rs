//! A heat map: one quantity by two others. A cell has its number, so colours need no scale.

use crate::{INK, escape, figure, text};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const LEFT: i32 = 74;
const CELL: (i32, i32) = (62, 26);
const HEADER: i32 = 20;
/// Letters on cells: these are light on dark screens, too.
const LETTERS: RGBColor = RGBColor(0x11, 0x11, 0x11);
/// Cells of positive values, of zero, and of negative values.
const MORE: RGBColor = RGBColor(0x5f, 0xb0, 0x8a);
const NONE: RGBColor = RGBColor(0xf4, 0xf4, 0xf0);
const LESS: RGBColor = RGBColor(0xe0, 0x7a, 0x62);

/// Values by row and column, of which those above zero are good and those below are bad.
#[derive(Debug, Clone)]
pub struct Heat {
    /// The heading.
    pub title: String,
    /// What the columns and the rows are, in words.
    pub axes: [String; 2],
    /// Labels of the columns.
    pub columns: Vec<String>,
    /// Labels of the rows, with the values of the columns.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
    /// The value of the strongest colour.
    pub strongest: f64,
    /// Formats a value.
    pub format: fn(f64) -> String,
}

impl Heat {
    /// The map as an element of a page.
    pub fn html(&self) -> String {
        let width = LEFT + CELL.0 * self.columns.len() as i32 + 2;
        let height = HEADER + CELL.1 * self.rows.len() as i32 + 2;
        let mut drawing = String::new();
        // Writing to a string cannot fail.
        let _ = self.draw(SVGBackend::with_string(&mut drawing, (width as u32, height as u32)).into_drawing_area());
        let [columns, rows] = &self.axes;
        let words = format!("columns: {columns}; rows: {rows}");
        let legend = format!("<b>{}</b><div class=legend>{}</div>", escape(&self.title), escape(&words));
        figure(&format!("{}; {words}", self.title), &legend, &drawing)
    }

    fn draw<B: DrawingBackend>(
        &self,
        root: DrawingArea<B, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let centred = |colour| text(11, colour).pos(Pos::new(HPos::Center, VPos::Center));
        for (column, label) in self.columns.iter().enumerate() {
            let x = LEFT + column as i32 * CELL.0 + CELL.0 / 2;
            root.draw(&Text::new(label.clone(), (x, HEADER / 2), centred(&INK)))?;
        }
        for (row, (label, values)) in self.rows.iter().enumerate() {
            let top = HEADER + row as i32 * CELL.1;
            let style = text(11, &INK).pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(label.clone(), (LEFT - 6, top + CELL.1 / 2), style))?;
            for (column, value) in values.iter().take(self.columns.len()).enumerate() {
                let Some(value) = value.filter(|value| value.is_finite()) else { continue };
                let left = LEFT + column as i32 * CELL.0;
                let cell = [(left, top), (left + CELL.0 - 1, top + CELL.1 - 1)];
                root.draw(&Rectangle::new(cell, self.colour(value).filled()))?;
                let middle = (left + CELL.0 / 2, top + CELL.1 / 2);
                root.draw(&Text::new((self.format)(value), middle, centred(&LETTERS)))?;
            }
        }
        root.present()
    }

    fn colour(&self, value: f64) -> RGBColor {
        let share = (value.abs() / self.strongest.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        let end = if value < 0.0 { LESS } else { MORE };
        let mix = |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * share).round() as u8;
        RGBColor(mix(NONE.0, end.0), mix(NONE.1, end.1), mix(NONE.2, end.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(values: Vec<Option<f64>>) -> Heat {
        Heat {
            title: "a & b".into(),
            axes: ["reads".into(), "work".into()],
            columns: ["100 ns", "300 ns", "600 ns"].map(str::to_owned).to_vec(),
            rows: vec![("<70 ps>".into(), values)],
            strongest: 50.0,
            format: |value| format!("{value:.0} %"),
        }
    }

    #[test]
    fn a_cell_is_as_strong_as_its_value_and_losses_have_another_colour_than_gains() {
        let map = map(Vec::new());
        assert_eq!([0.0, 50.0, 90.0, -50.0].map(|value| map.colour(value)), [NONE, MORE, MORE, LESS]);
        let green = |value: f64| map.colour(value).1;
        assert!(green(10.0) > green(20.0) && green(20.0) > green(40.0));
    }

    #[test]
    fn each_value_is_written_in_its_cell_and_odd_ones_are_left_out() {
        let page = map(vec![Some(12.4), Some(f64::NAN), None, Some(77.0)]).html();
        assert_eq!(page.matches("<rect").count(), 1, "{page}");
        assert!(page.contains("12 %") && !page.contains("77 %") && !page.contains("NaN"), "{page}");
        assert!(page.contains("a &amp; b") && page.contains("&lt;70 ps&gt;") && page.contains("300 ns"), "{page}");
    }
}
