//! Colours by system.

use crate::escape;
use plotters::style::RGBColor;
use std::fmt::Write;

/// Pairs of colours, for light and for dark screens, that most readers can distinguish.
const COLOURS: [(u32, u32); 12] = [
    (0x0b6e4f, 0x4cc38a),
    (0xc8553d, 0xff8b6b),
    (0x3d5a80, 0x86a9d6),
    (0x9a6fb0, 0xc9a4dd),
    (0xb08900, 0xe2bd4a),
    (0x2a9d9d, 0x6fd6d6),
    (0x8c5a3c, 0xc99b7d),
    (0xc2477f, 0xf08ab8),
    (0x6d8b1f, 0xb5d36b),
    (0x4b3f9e, 0xa79ff0),
    (0x9e2033, 0xff7f8e),
    (0x6b6b6b, 0xa8a8a8),
];

/// The systems of a page, each with its colour.
#[derive(Debug, Clone, Default)]
pub struct Palette {
    systems: Vec<String>,
}

impl Palette {
    /// Gives each different name a colour, in the order of the names.
    pub fn new<'n>(names: impl IntoIterator<Item = &'n str>) -> Palette {
        let mut systems: Vec<String> = Vec::new();
        for name in names {
            if !systems.iter().any(|known| known == name) {
                systems.push(name.to_owned());
            }
        }
        Palette { systems }
    }

    /// The style rules that the page needs: the legend, widths, and the colours for dark screens.
    pub fn style(&self) -> String {
        let dark = self.dark();
        format!(
            "figure{{margin:.6em 0}}figure>svg{{display:block;max-width:100%;height:auto}}figure>svg.narrow{{display:none}}\
             .legend{{font-size:13px;margin:.3em 0}}.legend span{{white-space:nowrap;margin-right:1.2em}}.legend svg{{width:11px;height:11px;margin-right:.4em}}\
             @media(max-width:46em){{figure>svg.wide{{display:none}}figure>svg.narrow{{display:block}}}}\
             {dark}\n"
        )
    }

    /// The rules for dark screens. White is the paper, and cuts through bars.
    pub(crate) fn dark(&self) -> String {
        let mut rules = String::new();
        let text = [(0x222222, 0xdddddd), (0x767676, 0x999999), (0xd9d9d9, 0x333333), (0xffffff, 0x181818)];
        for (light, dark) in COLOURS.iter().take(self.systems.len()).chain(&text) {
            let _ = write!(
                rules,
                "svg [fill=\"#{light:06X}\"]{{fill:#{dark:06x}}}svg [stroke=\"#{light:06X}\"]{{stroke:#{dark:06x}}}"
            );
        }
        format!("@media(prefers-color-scheme:dark){{{rules}}}")
    }

    /// The colour of a system; grey for one that the palette does not know.
    pub(crate) fn colour(&self, system: &str) -> RGBColor {
        let place = self.systems.iter().position(|known| known == system);
        let (light, _) = COLOURS[place.map_or(COLOURS.len() - 1, |place| place % COLOURS.len())];
        RGBColor((light >> 16) as u8, (light >> 8) as u8, light as u8)
    }

    /// The legend of some systems.
    pub(crate) fn legend<'n>(&self, systems: impl Iterator<Item = &'n str>) -> String {
        let mut legend = String::from("<div class=legend>");
        for system in systems {
            let RGBColor(red, green, blue) = self.colour(system);
            let _ = write!(
                legend,
                "<span><svg viewBox=\"0 0 1 1\" aria-hidden=true><rect width=\"1\" height=\"1\" fill=\"#{red:02X}{green:02X}{blue:02X}\"/></svg>{}</span>",
                escape(system)
            );
        }
        legend + "</div>"
    }
}
