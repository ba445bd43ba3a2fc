//! The image of a run: the named one, or a new one in memory.

use super::directory::MountDirectory;
use super::from_store::{Fetched, WorkingImage};
use crate::arguments::Run;
use crate::{mounts, terminal, units};
use anstream::stream::IsTerminal;
use anyhow::{Context, Result, bail, ensure};
use image::{Committer, Image, MakeOptions, OpenImage, memory_available_bytes};
use posix::path::{LastLink, Outcome, PathBuffer, WalkStart};
use posix::{Caller, Capabilities, Credentials};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Smallest default size of an image in memory.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Size of an image in memory if the available memory is unknown.
const MEMORY_BYTES_UNKNOWN: u64 = 1 << 30;

/// What becomes of the changes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// They are in the image as they happen.
    Kept,
    /// They vanish with a new image in memory.
    InMemory,
    /// They are refused.
    Refused,
    /// They are discarded.
    Discarded,
    /// They count as one if the command succeeds.
    Atomic,
    /// They are in an image of the run's own, which is pushed to a store if the command succeeds.
    Pushed,
}

/// Brings an image of a store to this machine, as a file. `None`: it is no such image.
pub fn fetch(arguments: &Run) -> Result<Option<Fetched>> {
    let named = arguments.image.as_deref().and_then(Path::to_str);
    let Some(url) = named.filter(|name| store::is_url(name)) else { return Ok(None) };
    if arguments.atomic {
        return WorkingImage::make(url).map(Fetched::Working).map(Some);
    }
    ensure!(
        arguments.discard || arguments.read_only,
        "{}: a run can use an image of a store with --read-only, --discard or --atomic; to change it step by step: `directfs pull`, run, and `directfs push`",
        store::shown(url)
    );
    Fetched::to_read(url).map(Some)
}

/// Opens the image. `fetched`: the file that has it, if its name is that of a store.
pub fn open(arguments: &Run, fetched: Option<&Fetched>) -> Result<(Image, Changes)> {
    let options = OpenImage {
        always_flush: arguments.always_flush,
        commits: arguments.commits.policy(),
        committer: Committer::Started(super::committer::command),
        memory_bytes_max: arguments.commits.memory,
        copied: terminal::show_copied,
        ..OpenImage::default()
    };
    let _copying = terminal::Copying;
    if let Some(fetched @ Fetched::Working(_)) = fetched {
        return Ok((Image::open(fetched.path(), &options)?, Changes::Pushed));
    }
    if let Some(fetched @ Fetched::Lazy(..)) = fetched {
        // Not copied, however small it is. See `lazy` for --read-only.
        let options = OpenImage { read_only: arguments.read_only, whole_bytes_max: 0, ..options };
        let changes = if arguments.read_only { Changes::Refused } else { Changes::Discarded };
        return Ok((Image::open_discarding(fetched.path(), &options)?, changes));
    }
    if let Some(path) = fetched.map(Fetched::path).or(arguments.image.as_deref()) {
        return Ok(match arguments {
            Run { read_only: true, .. } => {
                let reading = OpenImage { read_only: true, hands_off: true, ..options };
                (Image::open(path, &reading)?, Changes::Refused)
            }
            Run { discard: true, .. } => (Image::open_discarding(path, &options)?, Changes::Discarded),
            Run { atomic: true, .. } => (Image::open_atomic(path, &options)?, Changes::Atomic),
            _ => (Image::open(path, &options)?, Changes::Kept),
        });
    }
    let length = arguments.size.unwrap_or_else(memory_bytes);
    let make = MakeOptions { length, label: "memory".to_owned(), ..MakeOptions::default() };
    Ok((Image::in_memory(&make, &options)?, Changes::InMemory))
}

/// Half of the available memory; the rest is for the programs.
fn memory_bytes() -> u64 {
    memory_available_bytes().map_or(MEMORY_BYTES_UNKNOWN, |bytes| bytes / 2).max(MEMORY_BYTES_MIN)
}

/// Checks that a path below the mount (with a leading slash) is a directory that this user may
/// enter.
pub fn check_directory(image: &Image, path: &Path, mount: &MountDirectory) -> Result<()> {
    let shown = super::directory::normal(&mount.path().join(path.strip_prefix("/").unwrap_or(path)));
    let refused = || format!("cannot start in {}", shown.display());
    let groups = rustix::process::getgroups().unwrap_or_default();
    let groups: Vec<u32> = groups.into_iter().map(|group| group.as_raw()).collect();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let capabilities = if uid == 0 { Capabilities::ALL } else { Capabilities::NONE };
    let credentials = Credentials { uid, gid, groups: &groups, capabilities, namespace: None, checked: false };
    let thread = image.fs().enter().with_context(refused)?;
    let caller = Caller::new(&thread, credentials);
    let root = thread.root().with_context(refused)?;
    let walk_start = WalkStart { root, start: root, can_leave: false };
    let found =
        caller.paths().resolve(&walk_start, path.as_os_str().as_bytes(), LastLink::Follow, &mut PathBuffer::default());
    let result = match found {
        Ok(Outcome::Inside(found)) => caller.paths().check_enter(found.node()).with_context(refused),
        Ok(Outcome::Left(_)) => Err(anyhow::anyhow!("{}: a symbolic link leads out of the mount", refused())),
        Err(error) => Err(error).with_context(refused),
    };
    thread.release(root, 1);
    result
}

/// Reports to the user of a new shell where the image is.
pub fn announce(image: &Image, changes: Changes, mount: &Path) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let size = units::size(image.length());
    let (path, mount) = (image.path().display(), mount.display());
    match changes {
        Changes::InMemory => {
            eprintln!("{size} in memory at {mount}; deleted when the last program of this shell ends");
        }
        Changes::Kept => eprintln!("{path} at {mount} ({size})"),
        Changes::Refused => eprintln!("{path} at {mount} ({size}), read-only"),
        Changes::Discarded => eprintln!("{path} at {mount} ({size}); all changes are discarded"),
        Changes::Atomic | Changes::Pushed => {
            eprintln!("{path} at {mount} ({size}); all changes count if this shell exits with 0, or none");
        }
    }
}

/// Rejects nesting: a program sees one mount.
pub fn refuse_nesting() -> Result<()> {
    if let Some(mount) = mounts::surrounding() {
        bail!(
            "this command runs under `directfs run` already, with an image at {}: a program can use one image; leave that run first",
            Path::new(&mount).display()
        );
    }
    ensure!(cfg!(target_arch = "x86_64"), "`directfs run` works on x86-64 only: use `directfs mount`");
    Ok(())
}
