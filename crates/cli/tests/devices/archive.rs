//! Root file systems for machines: an archive (cpio, format newc) that the kernel unpacks into
//! memory, made of files of this machine.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mode bits of an entry.
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;

/// An archive that grows.
#[derive(Default, Clone)]
pub struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<PathBuf>,
}

impl Archive {
    /// Adds a file with this content, and the directories above it.
    pub fn add(&mut self, name: impl AsRef<Path>, content: &[u8], permissions: u32) {
        let name = name.as_ref();
        if let Some(parent) = name.parent() {
            self.add_directory(parent);
        }
        if self.names.insert(name.to_owned()) {
            self.entry(name, FILE | permissions, content);
        }
    }

    /// Adds a directory, and those above it.
    pub fn add_directory(&mut self, name: impl AsRef<Path>) {
        let above: Vec<&Path> = name.as_ref().ancestors().filter(|name| *name != Path::new("/")).collect();
        for directory in above.into_iter().rev() {
            if directory != Path::new("") && self.names.insert(directory.to_owned()) {
                self.entry(directory, DIRECTORY, &[]);
            }
        }
    }

    /// Adds a program of this machine, with the libraries that it loads.
    pub fn add_program(&mut self, program: &Path, name: &Path) {
        self.add_copy(program, name);
        let listed = Command::new("ldd").arg(program).output().expect("ldd starts");
        for word in String::from_utf8_lossy(&listed.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
            self.add_copy(Path::new(word), Path::new(word));
        }
    }

    /// Adds a copy of a file of this machine.
    pub fn add_copy(&mut self, file: &Path, name: &Path) {
        if !self.names.contains(name) {
            let content = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let permissions = std::fs::metadata(file).unwrap().permissions().mode() & 0o777;
            self.add(name, &content, permissions);
        }
    }

    /// The bytes of the whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &Path, mode: u32, content: &[u8]) {
        let name = name.strip_prefix("/").unwrap_or(name).as_os_str().as_encoded_bytes();
        let number = self.names.len() as u32 + 1;
        // Inode, mode, owner, group, links, time, bytes, device, its minor, of a device node its
        // numbers, bytes of the name, checksum.
        let fields = [number, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend(name);
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
