//! Charts of measurements for a page that stands alone: no scripts, no fonts, no network.
//!
//! A page makes one [`Palette`] from all systems that it shows. Each [`Bars`] and [`Lines`] takes
//! its colours from there. So a system has one colour on the whole page, whatever its place in a
//! chart, and a legend cannot name another one. [`Palette::style`] gives the page's style sheet the
//! colours for dark screens. A [`Heat`] map colours values, not systems.
//!
//! Invariants
//! - Text is escaped: no name of a system or row ends its element.
//! - A value that is not finite is left out.
//! - Texts keep their size on a narrow screen. So bars exist in two widths, and the style sheet
//!   shows one of them.

mod bars;
mod heat;
mod lines;
mod palette;

pub use bars::{Bars, Marks, Row, Scale};
pub use heat::Heat;
pub use lines::{Line, Lines};
pub use palette::Palette;

use plotters::style::{IntoFont, RGBColor, TextStyle};

/// The colours of text, of less important text, and of rules. The style sheet replaces them.
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const DIM: RGBColor = RGBColor(0x76, 0x76, 0x76);
const RULE: RGBColor = RGBColor(0xd9, 0xd9, 0xd9);

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Text of a size in the pixels of a style sheet, of which plotters draws 1 / 1.24.
fn text(size: u32, colour: &RGBColor) -> TextStyle<'static> {
    ("system-ui, sans-serif", f64::from(size) * 1.24).into_font().color(colour)
}

/// A chart with its legend, as one element that a screen reader reads as the sentence `summary`.
fn figure(summary: &str, legend: &str, drawings: &str) -> String {
    format!("<figure role=group aria-label=\"{}\">{legend}{drawings}</figure>\n", escape(summary))
}
