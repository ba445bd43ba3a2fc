//! The file system calls of programs, on a tree of sources.
//!
//! The tree is synthetic: directories of twelve files, as the DirectFS paper says of Linux's
//! sources, with eight subdirectories each. The programs consist of their file system calls only;
//! their own work (compressing) is left out:
//!
//! - `du` reads directories and stats each name once, `ls -lR` three times (stat, lstat,
//!   lgetxattr).
//! - `find -name` stats directories only.
//! - `rm -r` stats each name before it removes it (in ByVFS's Table 1 more than half of its lookups
//!   hit).
//! - `cp -r` and `tar` create and write files.
//! - `gzip` reads all files and writes one.

use super::Size;
use super::loops::{Random, Watch};
use super::machine::{Machine, Plan, Result};
use crate::calls::Calls;

const FILES_PER_DIRECTORY: u64 = 12;
const FAN: u64 = 8;
const MEAN_BYTES: u64 = 12 << 10;
pub(super) static CONTENT: [u8; 64 << 10] = [0x5a; 64 << 10];

pub(super) fn directories(size: Size) -> u64 {
    size.pick(4, 40, 1200)
}

pub(super) fn plan(size: Size) -> Plan {
    let files = directories(size) * (FILES_PER_DIRECTORY + 1);
    Plan { content_bytes: files * MEAN_BYTES * 3, ..Plan::of_files(files * 2 + 1000) }
}

/// The paths of a tree.
pub(super) struct Tree {
    pub directories: Vec<Vec<u8>>,
    pub files: Vec<(Vec<u8>, usize)>,
}

impl Tree {
    pub fn new(root: &str, count: u64) -> Tree {
        let mut random = Random(11);
        let mut directories: Vec<Vec<u8>> = vec![root.as_bytes().to_vec()];
        for number in 1..count {
            let parent = &directories[((number - 1) / FAN) as usize];
            directories.push([parent, format!("/directory{number}").as_bytes()].concat());
        }
        let length = |random: &mut Random| (MEAN_BYTES / 2 + random.below(MEAN_BYTES)) as usize;
        let files = directories
            .iter()
            .flat_map(|directory| (0..FILES_PER_DIRECTORY).map(move |number| (directory, number)))
            .map(|(directory, number)| {
                ([directory, format!("/file{number}.c").as_bytes()].concat(), length(&mut random))
            })
            .collect();
        Tree { directories, files }
    }

    fn root(&self) -> &[u8] {
        &self.directories[0]
    }
}

/// Number of calls by path that a program made.
#[derive(Default)]
struct Made(u64);

impl Made {
    fn by_path<T>(&mut self, result: posix::Result<T>) -> Result<T> {
        self.0 += 1;
        Ok(result?)
    }
}

/// The content of a directory: full names, and whether they are directories.
fn list(calls: &dyn Calls, made: &mut Made, directory: &[u8]) -> Result<Vec<(Vec<u8>, bool)>> {
    let mut names = Vec::new();
    let read = calls.read_directory(directory, &mut |name, _| {
        names.push(([directory, b"/", name].concat(), name.starts_with(b"directory")));
    });
    made.by_path(read)?;
    Ok(names)
}

/// A program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    Du,
    Find,
    Ls,
    Rm,
    Cp,
    Tar,
    Gzip,
}

impl Program {
    pub fn run(self, calls: &dyn Calls, tree: &Tree) -> Result<u64> {
        let mut made = Made::default();
        match self {
            Program::Du | Program::Find | Program::Ls => self.look(calls, &mut made, tree.root())?,
            Program::Rm => remove(calls, &mut made, tree.root())?,
            Program::Cp | Program::Tar => self.make(calls, &mut made, tree)?,
            Program::Gzip => compress(calls, &mut made, tree)?,
        }
        Ok(made.0)
    }

    fn look(self, calls: &dyn Calls, made: &mut Made, root: &[u8]) -> Result<()> {
        let mut left = vec![root.to_vec()];
        while let Some(directory) = left.pop() {
            for (path, is_directory) in list(calls, made, &directory)? {
                match self {
                    Program::Find if !is_directory => {}
                    Program::Ls => {
                        made.by_path(calls.stat(&path))?;
                        made.by_path(calls.stat_link(&path))?;
                        made.by_path(calls.stat_link(&path))?;
                    }
                    _ => {
                        made.by_path(calls.stat_link(&path))?;
                    }
                }
                if is_directory {
                    left.push(path);
                }
            }
        }
        Ok(())
    }

    fn make(self, calls: &dyn Calls, made: &mut Made, tree: &Tree) -> Result<()> {
        for directory in &tree.directories {
            if self == Program::Cp {
                // cp first checks whether it exists.
                let _ = made.by_path(calls.stat_link(directory));
            }
            made.by_path(calls.mkdir(directory, 0o755))?;
        }
        for (path, length) in &tree.files {
            if self == Program::Cp {
                let _ = made.by_path(calls.stat_link(path));
            }
            let file = made.by_path(calls.open(path, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o644))?;
            calls.write(file, 0, &CONTENT[..*length])?;
            calls.close(file)?;
        }
        Ok(())
    }
}

fn remove(calls: &dyn Calls, made: &mut Made, root: &[u8]) -> Result<()> {
    // A directory is removed after its content.
    let mut left = vec![(root.to_vec(), false)];
    while let Some((directory, is_empty)) = left.pop() {
        if is_empty {
            made.by_path(calls.rmdir(&directory))?;
            continue;
        }
        let names = list(calls, made, &directory)?;
        left.push((directory, true));
        for (path, is_directory) in names {
            made.by_path(calls.stat_link(&path))?;
            match is_directory {
                true => left.push((path, false)),
                false => made.by_path(calls.unlink(&path))?,
            }
        }
    }
    Ok(())
}

fn compress(calls: &dyn Calls, made: &mut Made, tree: &Tree) -> Result<()> {
    let output = [tree.root(), b".gz"].concat();
    let target = made.by_path(calls.open(&output, libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY, 0o644))?;
    let mut buffer = vec![0; CONTENT.len()];
    for (path, _) in &tree.files {
        let file = made.by_path(calls.open(path, libc::O_RDONLY, 0))?;
        let length = calls.read(file, 0, &mut buffer)?;
        calls.close(file)?;
        // A quarter of the size remains.
        calls.append(target, &buffer[..length / 4])?;
    }
    Ok(calls.close(target)?)
}

/// Milliseconds that a program takes.
pub(super) fn time(machine: &dyn Machine, program: Program, tree: &Tree) -> Result<f64> {
    let mut ms = 0.0;
    machine.with(&mut |calls| {
        let watch = Watch::start();
        program.run(calls, tree)?;
        ms = watch.ns() / 1e6;
        Ok(())
    })?;
    Ok(ms)
}

/// Programs in an order in which each finds the files it needs; with `_c`: repeated, with names in
/// memory.
pub(super) type Step = (&'static str, Program, bool);

/// Programs as in ByVFS, section 4.3.
pub(super) const BYVFS_STEPS: [Step; 5] = [
    ("cp", Program::Cp, true),
    ("du", Program::Du, true),
    ("find", Program::Find, true),
    ("ls", Program::Ls, true),
    ("rm", Program::Rm, true),
];
