//! The header and the manual page describe the functions that the library has.

use std::collections::BTreeSet;
use std::path::Path;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(CRATE).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn made_header() -> String {
    let config = cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).expect("cbindgen.toml");
    let mut header = Vec::new();
    // Sources are passed one by one: no dependency need be parsed.
    let sources = ["error", "images", "names", "files", "attributes", "xattrs", "locks", "directories", "handles"];
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(Path::new(CRATE).join(format!("src/{source}.rs")));
    }
    builder.generate().expect("cbindgen reads the sources").write(&mut header);
    let mut header = String::from_utf8(header).expect("text");
    // C++98 has no comma behind the last name of an enumeration.
    header = header.replace(",\n}", "\n}");
    for (mark, part) in [
        ("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR")),
        ("@MINOR@", env!("CARGO_PKG_VERSION_MINOR")),
        ("@PATCH@", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        header = header.replace(mark, part);
    }
    header
}

/// Names of functions, as the header declares them.
fn functions(header: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let text: String = header.split("/*").map(|part| part.rsplit_once("*/").map_or(part, |(_, code)| code)).collect();
    for (at, _) in text.match_indices("directfs_") {
        let name: String = text[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if text[at + name.len()..].starts_with('(') {
            found.insert(name);
        }
    }
    found
}

#[test]
fn the_header_is_that_of_the_sources() {
    let made = made_header();
    let path = Path::new(CRATE).join("include/directfs.h");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &made).expect("writes the header");
    }
    let message = "include/directfs.h is old: `UPDATE=1 cargo test -p directfs-c --test header` makes it again";
    assert!(std::fs::read_to_string(&path).unwrap_or_default() == made, "{message}");
}

#[test]
fn the_header_suits_strict_compilers_of_every_standard() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let program = "#include <directfs.h>\n\
                   #if DIRECTFS_VERSION_MAJOR > 9\n#error\n#endif\n\
                   int main(void) { return directfs_version() == 0; }\n";
    let standards = ["c99", "c11", "c17"].map(|standard| ("cc", "program.c", standard));
    for (compiler, name, standard) in
        standards.into_iter().chain([("c++", "program.cc", "c++98"), ("c++", "program.cc", "c++20")])
    {
        let source = directory.path().join(name);
        std::fs::write(&source, program).expect("writes the program");
        let mut command = std::process::Command::new(compiler);
        command.args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).arg(format!("-std={standard}"));
        let Ok(output) = command.arg("-I").arg(Path::new(CRATE).join("include")).arg(&source).output() else {
            eprintln!("\n*** SKIPPED: the header under {standard}: there is no {compiler} here ***\n");
            continue;
        };
        assert!(output.status.success(), "{standard}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_manual_page_names_every_function() {
    let declared = functions(&read("include/directfs.h"));
    assert!(declared.len() > 60, "{declared:?}");
    let page = read("man/directfs.3");
    assert!(
        page.contains(concat!("\"DirectFS ", env!("CARGO_PKG_VERSION"), "\"")),
        "man/directfs.3 is of another version"
    );
    let missing: Vec<_> = declared.iter().filter(|name| !page.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "man/directfs.3 does not have {missing:?}");
    let named: BTreeSet<String> = functions(&page.replace("\\fB", " ").replace("\\fR", " "));
    let unknown: Vec<_> = named.difference(&declared).collect();
    assert!(unknown.is_empty(), "man/directfs.3 has functions that do not exist: {unknown:?}");
}
