//! What this machine keeps of stores: `~/.cache/directfs/store`, or below XDG_CACHE_HOME; for root
//! without HOME `/var/cache/directfs/store`.
//!
//! ```text
//! indexes/SHA256   indexes of layers: a push of an unchanged image reads the head
//! pending/SHA256   layers that a push uploaded before it was killed
//! seen/SHA256      the newest state that was seen at a location
//! images/SHA256    states of images that runs use, by their content
//! parts/SHA256     states of which blocks are fetched when they are used ([`crate::Lazy`])
//! replicas/SHA256  figures of the replication of an image, by its path
//! mounts/SHA256    where a process serves such a state as a file
//! ```
//!
//! Invariants
//! - A file has its name when it is whole (rename), so a killed process leaves at most a file that
//!   begins with `.`, which [`Cache::trim`] removes after a day.
//! - The directory belongs to this user, and no other user may write it; else there is no cache.
//!   An index is verified as one from the store is. An image was verified when it was fetched; its
//!   name is that of its content, and one of another size is fetched again. Without a cache
//!   everything but runs of URLs works, with more requests.
//! - A part belongs to the process that has a lock on it (flock). Its blocks are verified when they
//!   are used.

use crate::error::StoreError;
use crate::head::{Layer, hex, random_hex};
use crate::layer::Index;
use crate::objects::check_tail;
use image::users;
use ring::digest::{SHA256, digest};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes of the cache, unless DIRECTFS_CACHE_BYTES says otherwise.
const BYTES_MAX: u64 = 20 << 30;
/// What a killed process left is removed after this time.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// The cache; without a directory it is empty and stays so.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: Option<PathBuf>,
}

/// Layers that are in the store, and that no head names yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The prefix's lineage; none: it had no head.
    pub lineage: Option<String>,
    /// Removals of objects when the layers were uploaded: later ones may have taken them.
    pub sweeps: u64,
    /// The layers, oldest first.
    pub layers: Vec<Layer>,
}

impl Cache {
    /// The cache of this user. Services of root have no HOME.
    pub fn of_user() -> Cache {
        let base = std::env::var_os("XDG_CACHE_HOME").filter(|path| Path::new(path).is_absolute()).map(PathBuf::from);
        let home = || Some(PathBuf::from(std::env::var_os("HOME").filter(|home| !home.is_empty())?).join(".cache"));
        let service = || rustix::process::geteuid().is_root().then(|| PathBuf::from("/var/cache"));
        Cache { directory: base.or_else(home).or_else(service).map(|base| base.join("directfs/store")) }
    }

    /// A cache in a directory.
    pub fn in_directory(directory: &Path) -> Cache {
        Cache { directory: Some(directory.to_owned()) }
    }

    /// No cache.
    pub fn none() -> Cache {
        Cache { directory: None }
    }

    fn path(&self, kind: &str, name: &str) -> Option<PathBuf> {
        let directory = self.directory.as_ref()?;
        is_private(directory).then(|| directory.join(kind).join(name))
    }

    fn read(&self, kind: &str, name: &str) -> Option<Vec<u8>> {
        let path = self.path(kind, name)?;
        let bytes = std::fs::read(&path).ok()?;
        touch(&path);
        Some(bytes)
    }

    /// Keeps bytes; what cannot be kept is fetched again.
    fn write(&self, kind: &str, name: &str, bytes: &[u8]) {
        let Some(path) = self.path(kind, name) else { return };
        let temporary = path.with_file_name(format!(".{}", random_hex()));
        let written = private_directory(&path)
            .and_then(|()| std::fs::write(&temporary, bytes))
            .and_then(|()| std::fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
    }

    /// The index of a layer.
    pub fn index(&self, layer: &Layer) -> Option<Index> {
        check_tail(layer, &self.read("indexes", &layer.sha256)?).ok()
    }

    /// Keeps the index of a layer: its last bytes.
    pub fn keep_index(&self, layer: &Layer, tail: &[u8]) {
        self.write("indexes", &layer.sha256, tail);
    }

    /// What an interrupted push to a location left.
    pub fn pending(&self, shown: &str) -> Option<Pending> {
        serde_json::from_slice(&self.read("pending", &key(shown.as_bytes()))?).ok()
    }

    /// Keeps what a push has uploaded; `None`: nothing is pending.
    pub fn keep_pending(&self, shown: &str, pending: Option<&Pending>) {
        let name = key(shown.as_bytes());
        match pending.map(serde_json::to_vec) {
            Some(Ok(bytes)) => self.write("pending", &name, &bytes),
            _ => {
                if let Some(path) = self.path("pending", &name) {
                    let _ = std::fs::remove_file(path);
                }
            }
        }
    }

    /// Notes the newest state of a location, by the prefix's lineage. Returns the generation that
    /// was seen before if that is higher.
    pub fn note(&self, shown: &str, lineage: &str, generation: u64) -> Option<u64> {
        let name = key(shown.as_bytes());
        let before = self.read("seen", &name).and_then(|bytes| serde_json::from_slice::<(String, u64)>(&bytes).ok());
        match before.filter(|(of, _)| of == lineage) {
            Some((_, seen)) if seen > generation => return Some(seen),
            Some((_, seen)) if seen == generation => {}
            _ => self.write("seen", &name, &serde_json::to_vec(&(lineage, generation)).unwrap_or_default()),
        }
        None
    }

    /// The place of a state of an image with this identity and size, in a directory that exists,
    /// and whether the state is there; it counts as used now. What is there and is no such file is
    /// removed. `None`: there is no cache.
    pub fn image(&self, identity: &str, size: u64) -> Option<(PathBuf, bool)> {
        let path = self.path("images", identity)?;
        private_directory(&path).ok()?;
        match path.symlink_metadata() {
            Ok(found) if found.is_file() && found.len() == size => {
                touch(&path);
                Some((path, true))
            }
            Ok(found) if found.is_dir() => std::fs::remove_dir_all(&path).is_ok().then_some((path, false)),
            Ok(_) => std::fs::remove_file(&path).is_ok().then_some((path, false)),
            Err(_) => Some((path, false)),
        }
    }

    /// The file with what was fetched of a state, with its lock. `None`: another process has it.
    pub fn part(&self, identity: &str) -> Result<Option<File>, StoreError> {
        let path = self.path("parts", identity).ok_or(StoreError::NoCache)?;
        let local = |source| StoreError::Local { action: "open", path: path.clone(), source };
        private_directory(&path).map_err(local)?;
        loop {
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let mut options = File::options();
            options.read(true).write(true).create(true).mode(0o600).custom_flags(flags.bits().cast_signed());
            let file = options.open(&path).map_err(local)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                result => result.map_err(|errno| local(errno.into()))?,
            }
            let found = file.metadata().map_err(local)?;
            if !found.is_file() {
                return Err(local(io::ErrorKind::InvalidData.into()));
            }
            // Otherwise it was removed, or renamed, before the lock was taken.
            if path.symlink_metadata().is_ok_and(|there| (there.dev(), there.ino()) == (found.dev(), found.ino())) {
                touch(&path);
                return Ok(Some(file));
            }
        }
    }

    /// The directory in which a process serves a state, which exists.
    pub fn mount_point(&self, identity: &str) -> Result<PathBuf, StoreError> {
        let path = self.path("mounts", identity).ok_or(StoreError::NoCache)?;
        // A dead mount is there, and no directory can be made.
        let made = private_directory(&path.join("image"));
        match made {
            Err(source) if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) => {
                Err(StoreError::Local { action: "make", path, source })
            }
            _ => Ok(path),
        }
    }

    /// A part is whole and on its disk: from now on it counts as a fetched state.
    pub(crate) fn keep_whole(&self, identity: &str) {
        if let (Some(part), Some(image)) = (self.path("parts", identity), self.path("images", identity)) {
            let _ = private_directory(&image).and_then(|()| std::fs::rename(part, image));
        }
    }

    /// The file with figures of the replication of an image, in a directory that exists.
    pub fn replica_figures(&self, image: &Path) -> Option<PathBuf> {
        let image = image.canonicalize().ok()?;
        let path = self.path("replicas", &key(image.as_os_str().as_encoded_bytes()))?;
        private_directory(&path).ok().map(|()| path)
    }

    /// Bytes that the cache may have.
    pub(crate) fn limit() -> u64 {
        std::env::var("DIRECTFS_CACHE_BYTES").ok().and_then(|text| text.parse().ok()).unwrap_or(BYTES_MAX)
    }

    /// Removes what was not used for longest, until the cache fits its limit. The newest file
    /// stays, and so do files with locks. A run whose image goes keeps the file that it has open.
    pub fn trim(&self) {
        let Some(directory) = &self.directory else { return };
        trim_to(directory, Cache::limit());
    }
}

fn trim_to(directory: &Path, limit: u64) {
    let mut files = Vec::new();
    for kind in ["indexes", "pending", "seen", "images", "parts", "replicas"] {
        let entries = std::fs::read_dir(directory.join(kind));
        for entry in entries.into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let is_left = entry.file_name().as_encoded_bytes().starts_with(b".");
            if is_left && used.elapsed().is_ok_and(|age| age > LEFT) {
                let _ = std::fs::remove_file(entry.path());
            } else if !is_left {
                files.push((used, metadata.blocks() * 512, entry.path()));
            }
        }
    }
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    files.sort();
    files.pop();
    for (_, bytes, path) in files {
        if total <= limit {
            return;
        }
        // Nothing locks an index. The lock on a part lasts until it is removed.
        let Ok(file) = File::open(&path) else { continue };
        let is_part = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        let is_used = is_part || users(&file).is_ok_and(|users| !users.none());
        if !is_used && std::fs::remove_file(&path).is_ok() {
            total -= bytes;
        }
    }
}

/// Whether a directory belongs to this user alone, and only root and this user can put
/// another one in its place; an absent one is made. The owner of a HOME that is not this user's
/// could put images into it.
fn is_private(directory: &Path) -> bool {
    if !directory.exists() && private_directory(&directory.join("images")).is_err() {
        return false;
    }
    let user = rustix::process::geteuid().as_raw();
    let is_ours = |found: &Metadata| found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0;
    // In a directory with the sticky bit others cannot rename what is this user's.
    let is_safe = |found: &Metadata| {
        [0, user].contains(&found.uid()) && (found.mode() & 0o002 == 0 || found.mode() & 0o1000 != 0)
    };
    directory.canonicalize().is_ok_and(|place| {
        place.metadata().is_ok_and(|found| is_ours(&found))
            && place.ancestors().skip(1).all(|above| above.metadata().is_ok_and(|found| is_safe(&found)))
    })
}

/// Makes the directory of a file, for this user alone.
fn private_directory(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path.parent().unwrap_or(Path::new(".")))
}

/// Marks a file as used now.
fn touch(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = file.set_modified(SystemTime::now());
    }
}

fn key(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}
