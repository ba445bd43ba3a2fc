//! The commands of the documents work as they are written. The tests that a document names beside
//! its promises exist.

use crate::support::documents::{Place, faults, missing, sections};
use std::fs;
use std::path::Path;

/// Performs the commands of a document, of which it has at least this number.
fn check(name: &str, commands_min: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join(name);
    let text = fs::read_to_string(path).unwrap();
    let commands: usize = sections(&text).iter().map(|section| section.steps.len()).sum();
    assert!(commands >= commands_min, "{name} has {commands} commands");
    let faults = faults(name, &text, &Place::Here);
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn the_commands_of_the_readme_work_as_written() {
    check("README.md", 3);
}

#[test]
fn the_commands_of_the_recipes_work_as_written() {
    check("docs/recipes.md", 40);
}

#[test]
fn the_commands_of_the_guide_work_as_written() {
    check("docs/guide.md", 10);
}

#[test]
fn each_block_of_the_recipes_is_performed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/recipes.md");
    let text = fs::read_to_string(path).unwrap();
    assert!(!text.lines().any(|line| line.starts_with("    ")), "a block that is not of the kind console");
    assert!(text.lines().filter(|line| line.starts_with("```")).all(|line| ["```", "```console"].contains(&line)));
}

/// Adds the text of all sources below a directory.
fn add_sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn each_test_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut sources = String::new();
    add_sources(&root.join("crates"), &mut sources);
    let mut named = 0;
    for document in ["docs/threat-model.md", "docs/testing.md", "docs/guide.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let is_test = |name: &&str| {
            name.matches('_').count() > 2
                && !name.contains(|c: char| !c.is_ascii_lowercase() && c != '_' && !c.is_ascii_digit())
        };
        for name in text.split('`').filter(is_test) {
            assert!(sources.contains(&format!("fn {name}(")), "{document} names {name}, which does not exist");
            named += 1;
        }
    }
    assert!(named > 40, "{named} names");
}

#[test]
fn a_document_that_is_wrong_is_found_by_its_line() {
    let wrong = [
        ("```console\n$ true\n$ false\n$ true\n```", "x:3: `false` ends with 1"),
        ("```console\n$ exit 0\n$ true\n```", "x:2: `exit 0` ends with the shell's end"),
        ("```console\n$ echo one\ntwo\n```", "x:2: `echo one` prints\none\nand not\ntwo"),
        ("```console\n$ echo one two\none ... three\n```", "x:2: `echo one two` prints"),
        ("```console\n$ directfs info nowhere.img\n```", "x:2: `directfs info nowhere.img` ends with 1"),
    ];
    for (text, fault) in wrong {
        let faults = faults("x", text, &Place::Here);
        assert!(faults.len() == 1 && faults[0].starts_with(fault), "{text}: {faults:?}");
    }
    let right = "# One\n```console\n$ x=1; cd /\n$ for a in $x 2; do\n> echo $a >&2\n> done\n1\n2\n$ pwd\n/\n$ echo a b c\na ... c\n```\n\
        ```\n$ false\n```\n    $ false\n";
    assert_eq!(faults("x", right, &Place::Here), Vec::<String>::new());
    let needy = "# Two\n<!-- needs: no-such-program-42 -->\n```console\n$ false\n```\n";
    let needy = sections(needy).into_iter().find(|section| !section.steps.is_empty()).unwrap();
    assert!(missing(&needy, &Place::Here).is_some(), "it is skipped");
}
