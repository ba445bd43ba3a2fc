//! The chart of README.md shows figures of docs/performance.md, and no others.

use charts::{Bars, Palette, Row, Scale};
use std::collections::BTreeMap;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const CHART: &str = "docs/work.svg";
/// The systems, as the chart and as the table name them.
const SYSTEMS: [(&str, &str); 3] = [("directfs run", "run"), ("tmpfs", "tmpfs"), ("ext4", "ext4")];
/// The work that the chart shows: what gains, what is level and what loses.
const WORK: [&str; 7] =
    ["tar -xf", "git clone", "checkout", "pip install", "mvn package", "npm ci", "sh, like configure"];

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Seconds of each work by system, from the table below the heading "Work".
fn seconds() -> BTreeMap<String, Vec<String>> {
    let page = read("docs/performance.md");
    let section = page.split_once("\n### Work\n").expect("the heading").1.split("\n#").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let mut rows = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    assert_eq!(rows.next().expect("headings")[1..], SYSTEMS.map(|system| system.1));
    let mut found = BTreeMap::new();
    for row in rows.filter(|row| !row[0].starts_with('-')) {
        let cells: Vec<Vec<&str>> = row.iter().map(|cell| cell.split("; ").collect()).collect();
        for (at, work) in cells[0].iter().enumerate() {
            let of_work = cells[1..].iter().map(|cell| cell[at].to_owned()).collect();
            found.insert((*work).to_owned(), of_work);
        }
    }
    found
}

fn chart() -> String {
    let seconds = seconds();
    let value = |text: &String| Some((text.parse().expect("seconds"), format!("{text} s")));
    let row = |work: &str| {
        let values = seconds.get(work).unwrap_or_else(|| panic!("{work}: {seconds:?}"));
        let label = if work == "checkout" { "git checkout" } else { work };
        Row { label: label.into(), values: values.iter().map(value).collect() }
    };
    let systems = SYSTEMS.map(|system| system.0);
    let bars = Bars {
        summary: "Seconds that programs take; a shorter bar is faster".into(),
        systems: systems.map(str::to_owned).to_vec(),
        scale: Scale::OfEachRow,
        rows: WORK.map(row).to_vec(),
    };
    bars.picture(&Palette::new(systems))
}

#[test]
fn the_chart_of_the_readme_has_the_figures_of_the_page_on_performance() {
    let made = chart();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(Path::new(ROOT).join(CHART), &made).expect("writes the chart");
    }
    let message = "is old: `UPDATE=1 cargo test -p directfs-charts --test readme` makes it again";
    assert!(read(CHART) == made, "{CHART} {message}");
    assert!(read("README.md").contains(CHART), "README.md does not show {CHART}");
}

#[test]
fn the_chart_can_be_read_on_light_and_dark_screens() {
    let made = chart();
    for part in ["tar -xf", "0.04 s", "6.9 s", "directfs run", "prefers-color-scheme:dark", "role=\"img\""] {
        assert!(made.contains(part), "{part}: {made}");
    }
    // The paper has a colour of its own, so that letters differ from it on any page.
    let dark = made.split_once("<style>").and_then(|(_, rest)| rest.split("</style>").next()).expect("a style");
    assert!(made.contains("fill=\"#FFFFFF\"") && dark.contains("svg [fill=\"#FFFFFF\"]{fill:#181818}"), "{dark}");
    assert!(dark.contains("svg [fill=\"#222222\"]{fill:#dddddd}"), "{dark}");
}
