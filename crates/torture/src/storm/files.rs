//! The calls of a storm on a real file system: through the engine in this process, or by system
//! calls.

use super::work::{Call, Names, Seen};
use crate::test_thread::TestThread;
use engine::format::FileKind;
use engine::{Changes, Error, RenameFlags};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

/// A way to make calls; errors are errno values.
pub trait Files {
    /// Makes a call in a directory of the root.
    fn call(&self, directory: &str, call: &Call) -> Result<(), i32>;
    /// The content of a directory of the root.
    fn see(&self, directory: &str) -> Result<Names, i32>;
    /// Creates a directory in the root unless it exists.
    fn prepare(&self, directory: &str) -> Result<(), i32>;
}

/// Calls of the engine.
pub struct ByLibrary<'h, 'f>(pub &'h TestThread<'f>);

impl Files for ByLibrary<'_, '_> {
    fn call(&self, directory: &str, call: &Call) -> Result<(), i32> {
        let thread = self.0;
        let at = |name: &str| format!("/{directory}/{name}");
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        let done = match call {
            Call::Create(name) => thread.create(&at(name)),
            Call::Write(name, offset, bytes) => {
                thread.with(&at(name), |node| thread.thread.files().write(node, *offset, bytes)).and_then(|count| {
                    // There is room, and the write is one call.
                    if count == bytes.len() { Ok(()) } else { Err(Error::NoSpace) }
                })
            }
            Call::Truncate(name, length) => thread.truncate(&at(name), *length),
            Call::Mode(name, mode) => thread.with(&at(name), |node| {
                let changes = Changes { permissions: Some(*mode), ..Changes::default() };
                thread.thread.change(node, |_| Ok(changes)).map(drop)
            }),
            Call::Link(name, other) => thread.link(&at(name), &at(other)),
            Call::Rename(name, other) => thread.rename(&at(name), &at(other)),
            Call::Exchange(name, other) => thread.rename_with(&at(name), &at(other), exchange),
            Call::Unlink(name) => thread.unlink(&at(name)),
            Call::MakeDirectory(name) => thread.mkdir(&at(name)),
            Call::RemoveDirectory(name) => thread.rmdir(&at(name)),
        };
        done.map_err(Error::errno)
    }

    fn see(&self, directory: &str) -> Result<Names, i32> {
        let thread = self.0;
        let seen = thread.with(&format!("/{directory}"), |node| {
            let mut names = Vec::new();
            thread.thread.read_directory(node, 0, &mut Default::default(), &mut |entry| {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                true
            })?;
            names.into_iter().map(|name| Ok((name.clone(), self.look(node, &name)?))).collect()
        });
        seen.map_err(Error::errno)
    }

    fn prepare(&self, directory: &str) -> Result<(), i32> {
        match self.0.mkdir(&format!("/{directory}")) {
            Ok(()) | Err(Error::Exists) => Ok(()),
            Err(error) => Err(error.errno()),
        }
    }
}

impl ByLibrary<'_, '_> {
    fn look(&self, directory: engine::Node, name: &str) -> engine::Result<Seen> {
        let thread = &self.0.thread;
        let node = thread.lookup(directory, name.as_bytes())?;
        let seen = thread.stat(node).and_then(|stat| {
            if stat.kind == FileKind::Directory {
                return Ok(Seen { kind: stat.kind, mode: 0, links: 0, bytes: Vec::new() });
            }
            let mut bytes = vec![0; stat.size_bytes as usize];
            let count = thread.files().read(node, 0, &mut bytes)?;
            bytes.truncate(count);
            Ok(Seen { kind: stat.kind, mode: stat.mode & 0o7777, links: stat.links, bytes })
        });
        thread.release(node, 1);
        seen
    }
}

/// System calls on paths below a directory.
pub struct BySystem(pub PathBuf);

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl Files for BySystem {
    fn call(&self, directory: &str, call: &Call) -> Result<(), i32> {
        let at = |name: &str| self.0.join(directory).join(name);
        let open = |name: &str| fs::File::options().write(true).open(at(name));
        let done = match call {
            Call::Create(name) => fs::File::options().write(true).create_new(true).mode(0o644).open(at(name)).map(drop),
            Call::Write(name, offset, bytes) => open(name).and_then(|file| write(&file, *offset, bytes)),
            Call::Truncate(name, length) => open(name).and_then(|file| file.set_len(*length)),
            Call::Mode(name, mode) => fs::set_permissions(at(name), fs::Permissions::from_mode(*mode)),
            Call::Link(name, other) => fs::hard_link(at(name), at(other)),
            Call::Rename(name, other) => fs::rename(at(name), at(other)),
            Call::Exchange(name, other) => exchange(at(name), at(other)),
            Call::Unlink(name) => fs::remove_file(at(name)),
            Call::MakeDirectory(name) => fs::DirBuilder::new().mode(0o755).create(at(name)),
            Call::RemoveDirectory(name) => fs::remove_dir(at(name)),
        };
        done.map_err(|error| number(&error))
    }

    fn see(&self, directory: &str) -> Result<Names, i32> {
        let look = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            let stat = fs::symlink_metadata(entry.path())?;
            let seen = match stat.is_dir() {
                true => Seen { kind: FileKind::Directory, mode: 0, links: 0, bytes: Vec::new() },
                false => Seen {
                    kind: FileKind::Regular,
                    mode: stat.mode() & 0o7777,
                    links: stat.nlink() as u32,
                    bytes: fs::read(entry.path())?,
                },
            };
            Ok((entry.file_name().to_string_lossy().into_owned(), seen))
        };
        let seen = fs::read_dir(self.0.join(directory)).and_then(|entries| entries.map(look).collect());
        seen.map_err(|error: io::Error| number(&error))
    }

    fn prepare(&self, directory: &str) -> Result<(), i32> {
        match fs::create_dir(self.0.join(directory)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(number(&error)),
            _ => Ok(()),
        }
    }
}

/// There is room, so a short write was interrupted by an error, which the next write returns. (The
/// kernel may pass a write on in pieces, and the server may die between two of them.)
fn write(file: &fs::File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let count = file.write_at(bytes, offset)?;
    if count == bytes.len() {
        return Ok(());
    }
    let rest = file.write_at(&bytes[count..], offset + count as u64);
    Err(rest.err().unwrap_or_else(|| io::Error::from_raw_os_error(libc::EIO)))
}

fn exchange(one: PathBuf, two: PathBuf) -> io::Result<()> {
    let [one, two] = [one, two].map(|path| std::ffi::CString::new(path.as_os_str().as_bytes()));
    let (one, two) = (one?, two?);
    let here = libc::AT_FDCWD;
    // SAFETY: two strings that end in zero.
    let done = unsafe { libc::renameat2(here, one.as_ptr(), here, two.as_ptr(), libc::RENAME_EXCHANGE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
