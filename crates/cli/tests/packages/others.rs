//! The .rpm and the archive, and what all packages share: notices, the list of contained packages,
//! and the service.

use crate::{has, pack, run, skipped, sources, text};
use std::path::Path;
use std::process::Command;

#[test]
fn the_rpms_hold_program_library_and_development_files_apart() {
    if !has("rpmbuild", &["--version"]) {
        return skipped("the .rpm", "it needs rpmbuild");
    }
    let directory = tempfile::tempdir().expect("a scratch directory");
    pack("rpm", directory.path());
    let list = |package: &str| {
        let file = directory.path().join(format!("{package}-{}-1.x86_64.rpm", env!("CARGO_PKG_VERSION")));
        text(&run(Command::new("rpm").args(["-qlp", "--requires"]).arg(file)).expect("rpm").stdout)
    };
    let [program, library, development] = ["directfs", "directfs-libs", "directfs-devel"].map(list);
    for path in ["/usr/bin/directfs\n", "/usr/share/man/man8/mount.directfs.8.gz\n", "/THIRD-PARTY-NOTICES\n"] {
        assert!(program.contains(path), "{path} {program}");
    }
    assert!(library.contains("/usr/lib64/libdirectfs.so.0\n") && !library.contains(".h\n"), "{library}");
    assert!(library.contains("/THIRD-PARTY-NOTICES\n"), "{library}");
    assert!(development.contains("/usr/include/directfs.h\n"), "{development}");
    // The version of glibc is found by rpmbuild.
    assert!(program.contains("libc.so.6(GLIBC_2.34)(64bit)"), "{program}");
    check_with_rpmlint(directory.path());
}

fn check_with_rpmlint(directory: &Path) {
    let mut rpmlint = Command::new("rpmlint");
    let configuration = sources().join("packaging/rpmlint.toml");
    match rpmlint.arg("--config").arg(configuration).arg(directory).output() {
        Err(why) => skipped("the check of the .rpm", &format!("rpmlint is not on this machine: {why}")),
        Ok(output) => {
            let report = text(&output.stdout);
            assert!(report.contains(" 0 errors, 0 warnings"), "{report}{}", text(&output.stderr));
        }
    }
}

#[test]
fn packages_for_a_registry_need_nothing_that_stays_in_the_checkout() {
    let metadata = cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let is_published = |package: &&serde_json::Value| package["publish"].is_null();
    let published: Vec<_> = packages.iter().filter(is_published).collect();
    let names: Vec<_> = published.iter().filter_map(|package| package["name"].as_str()).collect();
    for package in &published {
        let name = package["name"].as_str().expect("a name");
        assert!(name.starts_with("directfs"), "{name}: short names belong to others");
        assert!(package["description"].is_string() && package["license"].is_string(), "{name}");
        for needed in package["dependencies"].as_array().expect("dependencies") {
            // Dependencies of tests without a version are left out of what is packaged.
            if needed["path"].is_string() && needed["kind"] != "dev" {
                let needed_name = needed["name"].as_str().expect("a name");
                assert!(names.contains(&needed_name), "{name} needs {needed_name}, which is not published");
                assert_ne!(needed["req"], "*", "{name} names no version of {needed_name}");
            }
        }
    }
    let launcher = cargo(&["package", "--list", "--allow-dirty", "--offline", "-p", "directfs-launcher"]);
    for part in ["build.rs", "preload/lib.rs", "preload/manifest.toml", "preload/order.ld"] {
        assert!(launcher.lines().any(|line| line == part), "{part} is not in {launcher}");
    }
}

fn cargo(arguments: &[&str]) -> String {
    let output = run(Command::new(env!("CARGO")).args(arguments).current_dir(sources())).expect("cargo");
    text(&output.stdout)
}

#[test]
fn the_archive_works_where_it_is_unpacked() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    pack("tar", directory.path());
    let name = format!("directfs-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let archive = directory.path().join(format!("{name}.tar.gz"));
    run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(directory.path())).expect("tar");
    let root = directory.path().join(&name);
    for path in [
        "share/man/man8/directfs-run.8.gz",
        "share/doc/directfs/THIRD-PARTY-NOTICES",
        "share/doc/directfs/docs/guide.md",
        "share/doc/directfs/docs/decisions/README.md",
    ] {
        assert!(root.join(path).is_file(), "{path}");
    }
    let version = run(Command::new(root.join("bin/directfs")).arg("--version")).expect("the program");
    assert_eq!(text(&version.stdout), format!("directfs {}\n", env!("CARGO_PKG_VERSION")));
}

fn notices(kind: &str) -> String {
    text(&run(Command::new(sources().join("packaging/notices")).arg(kind)).expect("packaging/notices").stdout)
}

#[test]
fn notices_and_list_name_what_is_linked_and_no_more() {
    let text = notices("text");
    for name in ["clap ", "libc ", "rustix ", "pyo3 ", "iced-x86 "] {
        assert!(text.contains(&format!("\n{name}")), "{name}");
    }
    // Only tests use these.
    assert!(!text.contains("\nproptest ") && !text.contains("\ncbindgen "));
    assert!(text.matches("Permission is hereby granted").count() > 10);
    let list: serde_json::Value = serde_json::from_str(&notices("sbom")).expect("JSON");
    assert_eq!((&list["bomFormat"], &list["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = list["components"].as_array().expect("components");
    let libc = components.iter().find(|component| component["name"] == "libc").expect("libc");
    assert!(libc["purl"].as_str().is_some_and(|purl| purl.starts_with("pkg:cargo/libc@")), "{libc}");
    assert_eq!(libc["hashes"][0]["alg"], "SHA-256");
}

#[test]
fn the_services_are_hardened() {
    if !has("systemd-analyze", &["--version"]) {
        return skipped("the services", "they need systemd-analyze");
    }
    for unit in ["directfs@.service", "directfs-replicate@.service", "directfs-stats@.service"] {
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--offline=true", "--no-pager", "--threshold=50"]);
        let report = run(analyze.arg(sources().join("packaging").join(unit)));
        assert!(report.is_ok(), "{unit}: {report:?}");
    }
}

#[test]
fn alerts_and_board_ask_for_figures_that_exist() {
    let read = |path: &str| std::fs::read_to_string(sources().join(path)).expect(path);
    let writers = ["cli/src/statistics/prometheus.rs", "cli/src/commands/replicate.rs"];
    let known: String = writers.iter().map(|path| read(&format!("crates/{path}"))).collect();
    let board = read("packaging/monitoring/board.json");
    let parsed: serde_json::Value = serde_json::from_str(&board).expect("JSON");
    assert_eq!(parsed["panels"].as_array().map(Vec::len), Some(8));
    let mut asked = 0;
    for text in [board, read("packaging/monitoring/alerts.yml")] {
        for (at, _) in text.match_indices("directfs_") {
            let name = text[at..].split(|c: char| !c.is_ascii_lowercase() && c != '_').next().expect("a name");
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(known.contains(&format!("\"{name}\"")), "no figure is named {name}");
            asked += 1;
        }
    }
    assert!(asked > 10, "{asked}");
}

/// Runs the generator on one file of a service, and returns what it wrote.
fn generated(root: &Path, settings: &str) -> Option<String> {
    let script = std::fs::read_to_string(sources().join("packaging/generator")).expect("the generator");
    let (configured, out) = (root.join("etc"), root.join("out"));
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir_all(&configured).expect("a directory");
    std::fs::create_dir_all(&out).expect("a directory");
    std::fs::write(configured.join("mail.conf"), settings).expect("a file");
    let script = script.replace("/etc/directfs/*.conf", &format!("{}/*.conf", configured.display()));
    run(Command::new("sh").args(["-eu", "-c", &script, "generator"]).arg(&out)).expect("the generator");
    std::fs::read_to_string(out.join("directfs@mail.service.d/mounts.conf")).ok()
}

#[test]
fn a_service_waits_for_the_file_systems_of_its_image_and_directory() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let plain = "# IMAGE=/no\nIMAGE=/data/mail.img\nDIRECTORY=\"/srv/a b/mail\"\n";
    let expected = "[Unit]\nRequiresMountsFor=\"/data/mail.img\"\nRequiresMountsFor=\"/srv/a b\"\n";
    assert_eq!(generated(directory.path(), plain).as_deref(), Some(expected));
    // A line of another kind of quoting, or a specifier, must not become part of a unit.
    assert_eq!(generated(directory.path(), "IMAGE=/data/%i\nDIRECTORY=/srv/mail\n"), None);
    assert_eq!(generated(directory.path(), "IMAGE=\n"), Some("[Unit]\n".to_owned()));
}
