//! Programs on a real tree, on mounts and beside them: cp, diff, du, find, rm, tar and git. On a
//! mount of this program the requests to its server are counted.

use super::system::Outcomes;
use super::tree::{self, start};
use crate::bench::task::{Materials, PhaseName, Workers};
use crate::bench::workers::{self, Member, PhaseResult};
use anyhow::{Context, Result};
use std::path::Path;

/// Copies a tree in.
pub const COPY: &str = "cp -r, into it";
/// Compares it with the original.
pub const COMPARE: &str = "diff -r with the original";
/// Reads all attributes.
pub const USAGE: &str = "du -s";
/// Reads all attributes once more.
pub const USAGE_AGAIN: &str = "du -s, again";
/// Reads all names.
pub const FIND: &str = "find -name";
/// Reads all names once more.
pub const FIND_AGAIN: &str = "find -name, again";
/// Removes the tree.
pub const REMOVE: &str = "rm -rf";
/// Unpacks an archive of the tree.
pub const UNPACK: &str = "tar -xf";
/// Clones a repository of the tree.
pub const CLONE: &str = "git clone";
/// Compares the clone with its index.
pub const STATUS: &str = "git status";

/// The programs in their order. `SOURCE`, `ARCHIVE` and `REPOSITORY` stand for the materials.
const PROGRAMS: [(&str, &[&str]); 10] = [
    (COPY, &["cp", "-r", "SOURCE", "tree"]),
    (COMPARE, &["diff", "-r", "--no-dereference", "SOURCE", "tree"]),
    (USAGE, &["du", "-s", "tree"]),
    (USAGE_AGAIN, &["du", "-s", "tree"]),
    (FIND, &["find", "tree", "-name", "test.c"]),
    (FIND_AGAIN, &["find", "tree", "-name", "test.c"]),
    (REMOVE, &["rm", "-rf", "tree"]),
    (UNPACK, &["tar", "-xf", "ARCHIVE", "-C", "unpacked"]),
    (CLONE, &["git", "clone", "--quiet", "--no-hardlinks", "REPOSITORY", "clone"]),
    (STATUS, &["git", "-C", "clone", "status", "--short"]),
];

/// Bytes of the text that a server reports.
const REPORT_BYTES: usize = 4096;

/// Measures with these materials.
pub fn run(materials: &Materials, timer_ns: u64) -> Outcomes {
    tree::read_all(&materials.source)?;
    std::fs::create_dir("unpacked").context("cannot create a directory")?;
    workers::run(Workers::ONE, timer_ns, &|member: &mut Member| {
        for (words, program) in PROGRAMS {
            let Some(program) = program.iter().map(|&word| word_of(word, materials)).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let before = requests();
            member.phase(PhaseName::Once(words.into()), |_| {
                let user_ns = Some(start(&program, &materials.source)?);
                Ok(PhaseResult { calls: 1, user_ns, ..PhaseResult::default() })
            })?;
            // One of the requests is the question itself.
            let made = before.zip(requests()).map(|(before, after)| (after - before).saturating_sub(1));
            member.add_requests(made.map(|made| made as f64 / materials.names.max(1) as f64));
        }
        Ok(())
    })
}

/// A word of a command; none if the machine lacks what it stands for.
fn word_of<'w>(word: &'w str, materials: &'w Materials) -> Option<&'w str> {
    let text = |path: &'w Path| path.to_str();
    match word {
        "ARCHIVE" => text(&materials.archive),
        "REPOSITORY" => materials.repository.as_deref().and_then(text),
        word => Some(word),
    }
}

/// The requests that the server of the current directory has received; none if it is not a mount of
/// this program.
fn requests() -> Option<u64> {
    let mut text = vec![0; REPORT_BYTES];
    let length = rustix::fs::getxattr(".", fuse::REQUESTS_ATTRIBUTE, &mut text).ok()?;
    let sum = text[..length].split(|&byte| byte == b'\n').next()?;
    std::str::from_utf8(sum).ok()?.parse().ok()
}

/// Creates an archive and a repository of a tree in a directory.
pub fn prepare(source: &Path, names: u64, directory: &Path) -> Result<Materials> {
    let archive = directory.join("tree.tar");
    let shown = archive.to_str().context("the directory's path is not UTF-8")?;
    start(&["tar", "-C", "SOURCE", "-cf", shown, "."], source)?;
    let repository = directory.join("repository");
    let path = repository.to_str().context("the directory's path is not UTF-8")?;
    let repository = if tree::has("git") {
        start(&["cp", "-r", "SOURCE", path], source)?;
        start(&["git", "init", "--quiet", path], source)?;
        start(&["git", "-C", path, "add", "--all", "--force"], source)?;
        start(&["git", "-C", path, "commit", "--quiet", "--message", "tree"], source)?;
        Some(repository)
    } else {
        None
    };
    Ok(Materials { source: source.to_owned(), names, archive, repository })
}

/// Files of a generated tree, for machines without a suitable one: its directories have this many
/// files each, with sizes as those of /usr/include are distributed.
pub const GENERATED_FILES: u64 = 8000;
const FILES_PER_DIRECTORY: u64 = 10;
const SIZES: [usize; 10] = [500, 1200, 1800, 2700, 4000, 5800, 9000, 15_000, 27_000, 66_000];
/// Bytes of a generated tree.
pub const GENERATED_BYTES: u64 = GENERATED_FILES / 10 * 160_000;

/// Creates a tree in a new directory.
pub fn generate(root: &Path, files: u64) -> Result<()> {
    for number in 0..files {
        // Directories nest three deep.
        let group = number / FILES_PER_DIRECTORY;
        let directory = root.join(format!("d{}/d{}/d{}", group % 7, group % 63, group));
        if number % FILES_PER_DIRECTORY == 0 {
            std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        }
        let file = directory.join(format!("file-{number}.h"));
        let line = format!("/* line of file {number} */\n");
        let bytes = SIZES[(number % SIZES.len() as u64) as usize];
        let content: Vec<u8> = line.bytes().cycle().take(bytes).collect();
        std::fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_tree_has_all_files_and_the_bytes_that_are_reserved_for_it() {
        let root = tempfile::tempdir().unwrap();
        generate(root.path(), 40).unwrap();
        let (mut files, mut bytes) = (0, 0);
        tree::walk(root.path(), &mut |_, metadata| {
            files += u64::from(metadata.is_file());
            bytes += if metadata.is_file() { metadata.len().next_multiple_of(4096) } else { 0 };
            Ok(())
        })
        .unwrap();
        assert_eq!(files, 40);
        assert!(bytes / 4 * GENERATED_FILES / 10 <= GENERATED_BYTES, "{bytes}");
    }
}
