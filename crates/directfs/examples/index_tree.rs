//! Imports a directory tree of the machine into an image in memory, and counts words in it.
//!
//!     cargo run --release -p directfs --example index_tree -- [DIRECTORY [WORD]]
//!
//! The index lies in the image beside the copy: a file per word, with one line per file that
//! contains it.

use directfs::{FileSystem, Image};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Longer files are copied and not indexed.
const INDEXED_BYTES_MAX: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let tree = arguments.next().map_or(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), PathBuf::from);
    let word = arguments.next().and_then(|word| word.into_string().ok()).unwrap_or("image".to_owned());
    let image = Image::in_memory(1 << 30)?;
    let fs = image.file_system();

    let begin = Instant::now();
    fs.create_dir_all("tree")?;
    let (files, bytes) = import(&fs, &tree, Path::new("tree"))?;
    println!("{files} files, {bytes} bytes imported in {:.3} s", begin.elapsed().as_secs_f64());

    let begin = Instant::now();
    fs.create_dir_all("index")?;
    let words = index(&fs, Path::new("tree"))?;
    println!("{words} different words indexed in {:.3} s", begin.elapsed().as_secs_f64());

    let entry = Path::new("index").join(&word);
    match fs.exists(&entry)? {
        true => print!("'{word}' occurs in:\n{}", fs.read_to_string(&entry)?),
        false => println!("'{word}' does not occur"),
    }
    let space = fs.space()?;
    println!("{} of {} bytes are free", space.free_bytes, space.total_bytes);
    image.close()?;
    Ok(())
}

/// Copies a tree of the machine into the image; returns the numbers of files and bytes.
fn import(fs: &FileSystem, from: &Path, to: &Path) -> Result<(u64, u64), Box<dyn Error>> {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs.create_dir(&target)?;
            let below = import(fs, &entry.path(), &target)?;
            (files, bytes) = (files + below.0, bytes + below.1);
        } else if kind.is_symlink() {
            fs.symlink(std::fs::read_link(entry.path())?, &target)?;
        } else if kind.is_file() {
            let mut source = std::fs::File::open(entry.path())?;
            bytes += std::io::copy(&mut source, &mut fs.create(&target)?)?;
            files += 1;
        }
    }
    Ok((files, bytes))
}

/// Indexes the files of a directory and of all below; returns the number of different words.
fn index(fs: &FileSystem, tree: &Path) -> Result<usize, Box<dyn Error>> {
    let mut found: BTreeMap<String, BTreeMap<PathBuf, u64>> = BTreeMap::new();
    let mut directories = vec![tree.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs.read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type().is_dir() {
                directories.push(entry.path());
            } else if entry.file_type().is_file() && entry.metadata()?.len() <= INDEXED_BYTES_MAX {
                let content = fs.read(entry.path())?;
                for word in String::from_utf8_lossy(&content).split(|c: char| !c.is_alphanumeric()) {
                    // A name has at most 255 bytes.
                    if (1..=64).contains(&word.len()) {
                        *found.entry(word.to_lowercase()).or_default().entry(entry.path()).or_default() += 1;
                    }
                }
            }
        }
    }
    for (word, files) in &found {
        let mut text = Vec::new();
        for (path, count) in files {
            writeln!(text, "{count:8}  {}", path.display())?;
        }
        fs.write(Path::new("index").join(word), text)?;
    }
    Ok(found.len())
}
