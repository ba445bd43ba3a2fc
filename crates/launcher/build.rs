//! Builds the preload library, so that one binary contains everything.
//!
//! The library has no std and no libc, hence another panic strategy and other linker arguments than
//! the rest. So it is a package of its own (`preload`): crate `hook` and a few symbols. Its
//! manifest is written here, because the sources of `hook` lie elsewhere in a checkout than among
//! packages from a registry. Cargo builds it into its own directory, with the same toolchain. The
//! outer build's flags, wrappers and target directory are not passed on, so that every build
//! produces the same library, with the extensions of this build's `hook`. So builds with different
//! profiles may share its directory, which `SHARED_LIBRARY_BUILD` names.

use std::env;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates that the library consists of. The build script of each says where its sources are.
const CRATES: [&str; 6] = ["pmem", "journal", "engine", "tables", "posix", "hook"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let home = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed={}", home.join("preload").display());
    let sources = CRATES.map(|name| PathBuf::from(said_by(name, "sources")));
    for (sources, watched) in sources.iter().flat_map(|sources| [(sources, "src"), (sources, "Cargo.toml")]) {
        println!("cargo:rerun-if-changed={}", sources.join(watched).display());
    }
    let has_extensions = said_by("hook", "extensions") == "true";
    let place = env::var_os("SHARED_LIBRARY_BUILD").map_or_else(|| out.clone(), PathBuf::from);
    // Cargo takes a library that it built with other features for its own.
    let place = if has_extensions { place } else { place.join("core") };
    let _turn = lock(&place);
    let package = Package::write(&home, place.join("preload"), &sources, has_extensions);
    let (library_target, loader_target) = (place.join("preload-target"), place.join("loader-target"));
    let (library, loader) = std::thread::scope(|scope| {
        let loader = scope.spawn(|| package.build(&loader_target, LOADER_ARGUMENTS));
        (package.build(&library_target, &[]), loader.join().expect("the loader is built"))
    });
    let mapped = mapped_bytes(&library);
    assert!(mapped < HUGE_PAGE_BYTES, "processes share no patched code if the library maps {mapped} bytes");
    for (content, name) in [(&library, "libdirectfs_preload.so"), (&loader, "directfs-loader")] {
        let carried = out.join(name);
        std::fs::write(&carried, content).unwrap_or_else(|error| panic!("{}: {error}", carried.display()));
    }
    // The launcher need not compute it at each start.
    let mut hasher = DefaultHasher::new();
    hasher.write(&library);
    hasher.write(&loader);
    println!("cargo:rustc-env=DIRECTFS_LIBRARY_FINGERPRINT={:016x}", hasher.finish());
}

/// Makes a directory, in which one build is at work until the file is closed.
fn lock(place: &Path) -> File {
    std::fs::create_dir_all(place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    let path = place.join("preload.lock");
    let turn = File::create(&path).and_then(|file| file.lock().map(|()| file));
    turn.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the build script of a crate says about it.
fn said_by(name: &str, what: &str) -> String {
    let variable = format!("DEP_DIRECTFS_{}_{}", name.to_uppercase(), what.to_uppercase());
    env::var(&variable).unwrap_or_else(|error| panic!("{variable}: {error}"))
}

/// Arguments for both.
const LIBRARY_ARGUMENTS: &[&str] = &[
    // Its constructor precedes all others, so that their calls are seen.
    "-C",
    "link-arg=-Wl,-z,initfirst",
    "-C",
    "link-arg=-Wl,-z,now",
    "-C",
    "link-arg=-Wl,--eh-frame-hdr",
    "-C",
    "link-arg=-Wl,-z,defs",
    // Relocated words begin a page, so that they lie on as few as possible.
    "-C",
    "link-arg=-Wl,-z,separate-loadable-segments",
    // Constants lie with the code: a start maps one segment less.
    "-C",
    "link-arg=-Wl,--no-rosegment",
    // Unwinding (thread cancellation) passes through the library's frames.
    "-C",
    "force-unwind-tables=yes",
];

/// Arguments for the library as a program that loads others.
const LOADER_ARGUMENTS: &[&str] = &["-C", "link-arg=-Wl,-e,directfs_loader"];

/// The kernel places a mapping of this size at random distances from others, and shared code fits
/// one distance only: see src/hook/loading/shared_text.rs.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A number in a library.
fn field(library: &[u8], at: usize, bytes: usize) -> u64 {
    library[at..at + bytes].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Where the program headers of a kind lie in a library.
fn program_headers(library: &[u8], kind: u64) -> impl Iterator<Item = usize> {
    let (table, entry_bytes, entries) = (field(library, 0x20, 8), field(library, 0x36, 2), field(library, 0x38, 2));
    (0..entries)
        .map(move |index| (table + index * entry_bytes) as usize)
        .filter(move |at| field(library, *at, 4) == kind)
}

/// How much memory the loader maps for a library in one piece: up to the end of its last segment.
fn mapped_bytes(library: &[u8]) -> u64 {
    const LOAD: u64 = 1;
    let loaded = program_headers(library, LOAD);
    loaded
        .map(|at| field(library, at + 0x10, 8) + field(library, at + 0x28, 8))
        .max()
        .expect("the library has segments")
}

/// Sorts the table in which unwinders search for functions. Some versions of the linker put those
/// that lie before the table, as `order.ld` wants, behind all others, as if their negative
/// distances were large. Then unwinders find no function of the library.
fn sort_unwind_table(library: &mut [u8]) {
    const EH_FRAME_HEADER: u64 = 0x6474_e550;
    let header = program_headers(library, EH_FRAME_HEADER).next().expect("the library has a table of functions");
    let at = field(library, header + 8, 8) as usize;
    // The version, then how the three parts are written: the table in pairs of signed distances.
    assert_eq!(library[at..at + 4], [1, 0x1b, 3, 0x3b], "an unknown table of functions");
    let pairs = field(library, at + 8, 4) as usize;
    let (pairs, _) = library[at + 12..at + 12 + 8 * pairs].as_chunks_mut::<8>();
    pairs.sort_unstable_by_key(|[a, b, c, d, ..]| i32::from_le_bytes([*a, *b, *c, *d]));
}

/// The package of the library: its directory, whether its lock file names every version, and
/// whether the library has extensions.
struct Package {
    directory: PathBuf,
    is_locked: bool,
    has_extensions: bool,
}

impl Package {
    fn write(home: &Path, directory: PathBuf, sources: &[PathBuf; CRATES.len()], has_extensions: bool) -> Package {
        // Cargo adds this file to what it packages.
        let is_packaged = home.join("Cargo.toml.orig").exists();
        let quoted = |path: &Path| format!("{:?}", path.to_str().expect("paths of sources are UTF-8"));
        let [.., hook] = sources;
        let mut manifest = format!(
            include_str!("preload/manifest.toml"),
            version = env::var("CARGO_PKG_VERSION").expect("cargo sets it"),
            library = quoted(&home.join("preload/lib.rs")),
            hook = quoted(hook),
        );
        if is_packaged {
            // Packaged manifests name crates of the registry. The sources are here already.
            manifest.push_str("\n[patch.crates-io]\n");
            for (name, sources) in CRATES.iter().zip(sources) {
                manifest.push_str(&format!("directfs-{name} = {{ path = {} }}\n", quoted(sources)));
            }
        }
        std::fs::create_dir_all(&directory).expect("the output directory can be written");
        write_if_changed(&directory.join("Cargo.toml"), manifest.as_bytes());
        if !is_packaged {
            let lock = std::fs::read(home.join("preload/Cargo.lock")).expect("the lock file is in the checkout");
            write_if_changed(&directory.join("Cargo.lock"), &lock);
        }
        Package { directory, is_locked: !is_packaged, has_extensions }
    }

    fn build(&self, target: &Path, loader: &[&str]) -> Vec<u8> {
        let home = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
        let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
        cargo.current_dir(&self.directory);
        // Without a lock file, only the versions that the outer build uses are there.
        let versions = if self.is_locked { "--locked" } else { "--offline" };
        cargo.args(["rustc", "--release", versions, "--quiet", "--target-dir"]).arg(target);
        if !loader.is_empty() {
            cargo.args(["--features", "loader"]);
        }
        if self.has_extensions {
            cargo.args(["--features", "extensions"]);
        }
        cargo.args(["--", "-C", "link-arg=-nostdlib", "-C", "link-arg=-nostartfiles"]);
        cargo.args(LIBRARY_ARGUMENTS).arg("-C").arg(format!("link-arg=-Wl,-T,{home}/preload/order.ld"));
        cargo.args(loader);
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            // Incremental code generation inlines less: calls take up to 5 % more instructions.
            let outer =
                ["CARGO_FEATURE_", "CARGO_CFG_", "CARGO_PROFILE_", "CARGO_BUILD_", "CARGO_INCREMENTAL", "RUSTC_W"];
            if outer.iter().any(|prefix| name.starts_with(prefix)) || name.contains("RUSTFLAGS") {
                cargo.env_remove(name);
            }
        }
        cargo.env_remove("CARGO_TARGET_DIR");
        let status = cargo.status().expect("cargo starts");
        assert!(status.success(), "the build of the preload library failed: {status}");
        let built = target.join("release/libdirectfs_preload.so");
        let mut library = std::fs::read(&built).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        sort_unwind_table(&mut library);
        library
    }
}

/// Cargo builds again what is newer than its results.
fn write_if_changed(path: &Path, content: &[u8]) {
    if std::fs::read(path).ok().as_deref() != Some(content) {
        std::fs::write(path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}
