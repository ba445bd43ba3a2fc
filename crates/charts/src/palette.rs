//! Colours by system.

use crate::escape;
use plotters::style::RGBColor;
use std::fmt::Write;

/// Pairs of colours, for light and for dark screens, that most readers can distinguish.
const COLOURS: [(u32, u32); 9] = [
    (0x0b6e4f, 0x4cc38a),
    (0xc8553d, 0xff8b6b),
    (0x3d5a80, 0x86a9d6),
    (0x9a6fb0, 0xc9a4dd),
    (0xb08900, 0xe2bd4a),
    (0x2a9d9d, 0x6fd6d6),
    (0x8c5a3c, 0xc99b7d),
    (0xc2477f, 0xf08ab8),
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
        let mut dark = String::new();
        for (light, dim) in COLOURS.iter().take(self.systems.len()) {
            let _ = write!(
                dark,
                "svg [fill=\"#{light:06X}\"]{{fill:#{dim:06x}}}svg [stroke=\"#{light:06X}\"]{{stroke:#{dim:06x}}}"
            );
        }
        format!(
            "figure{{margin:.6em 0}}figure>svg{{display:block;max-width:100%;height:auto}}figure>svg.narrow{{display:none}}\
             .legend{{font-size:13px;margin:.3em 0}}.legend span{{white-space:nowrap;margin-right:1.2em}}.legend svg{{width:11px;height:11px;margin-right:.4em}}\
             @media(max-width:46em){{figure>svg.wide{{display:none}}figure>svg.narrow{{display:block}}}}\
             @media(prefers-color-scheme:dark){{{dark}svg [fill=\"#222222\"]{{fill:#ddd}}svg [stroke=\"#222222\"]{{stroke:#ddd}}svg [fill=\"#767676\"]{{fill:#999}}svg [stroke=\"#D9D9D9\"]{{stroke:#333}}svg [stroke=\"#FFFFFF\"]{{stroke:#181818}}}}\n"
        )
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
