//! `file:///DIRECTORY`: a store in a directory of this machine, or on a disk that machines share.
//!
//! `object_store` has such a store, without conditional replacement. Here it is performed under a
//! lock on a file beside the object (flock, which NFS version 4 and cluster file systems forward).
//! The lock ends with its process, and the replacement is a rename, so a killed writer leaves the
//! old object or the new one. An object's tag is made of inode, time and size. An inode can be used
//! again, so two replacements are [`APART`] from each other: their times differ.
//!
//! A directory that a push makes is its user's alone. A user that may write the directory may put a
//! link or a pipe in the place of an object. So objects are regular files, and neither they nor
//! `layers` may be links: else a sweep would remove what a link leads to, with the rights of its
//! caller.

use crate::head::is_id;
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The least time between two replacements: several steps of the clocks of file systems.
const APART: Duration = Duration::from_millis(20);

/// What has the place of an object is none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoObject(pub &'static str);

/// A store in a directory.
#[derive(Debug, Clone)]
pub struct Directory(Arc<LocalFileSystem>);

impl Directory {
    /// The store whose paths are those of this machine.
    pub fn new() -> Directory {
        Directory(Arc::new(LocalFileSystem::new().with_fsync(true)))
    }

    /// Makes sure that an object is a regular file or absent, and not behind a link.
    fn check(&self, location: &Path) -> Result<()> {
        let path = self.0.path_to_filesystem(location)?;
        let refused = |what| Err(Error::Generic { store: "directory", source: NoObject(what).into() });
        let is_link = |path: &std::path::Path| path.symlink_metadata().is_ok_and(|found| found.is_symlink());
        if path.parent().is_some_and(|parent| parent.ends_with("layers") && is_link(parent)) {
            return refused("it is behind a link");
        }
        match path.symlink_metadata() {
            Ok(found) if !found.is_file() => refused("it is no regular file"),
            _ => Ok(()),
        }
    }

    /// Makes the directory of a prefix where it is missing, for this user alone: an image has mode
    /// 0600, and what is pushed is not to be read by more users. In a directory that exists,
    /// objects are as readable as the umask makes them.
    fn prepare(&self, location: &Path) -> Result<()> {
        let path = self.0.path_to_filesystem(location)?;
        let Some(parent) = path.parent() else { return Ok(()) };
        // The head lies in the directory of the prefix, a layer in one below.
        let is_layer =
            parent.ends_with("layers") && path.file_name().is_some_and(|name| is_id(&name.to_string_lossy()));
        let Some(prefix) = (if is_layer { parent.parent() } else { Some(parent) }) else { return Ok(()) };
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(prefix);
        made.map_err(|source| Error::Generic { store: "directory", source: source.into() })
    }

    /// Removes an object and its lock, whatever has taken the place of its directory meanwhile. No
    /// two writers contend for what is removed.
    fn remove(&self, location: &Path) -> Result<()> {
        let path = self.0.path_to_filesystem(location)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let removed = rustix::fs::open(parent, flags, Mode::empty()).and_then(|directory| {
            rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
            let mut lock = name.to_owned();
            lock.push(".lock");
            // Few objects have one.
            let _ = rustix::fs::unlinkat(&directory, &lock, AtFlags::empty());
            Ok(())
        });
        match removed {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => {
                Err(Error::NotFound { path: location.to_string(), source: io::Error::from(Errno::NOENT).into() })
            }
            Err(Errno::LOOP | Errno::NOTDIR) => {
                Err(Error::Generic { store: "directory", source: NoObject("it is behind a link").into() })
            }
            Err(errno) => Err(Error::Generic { store: "directory", source: io::Error::from(errno).into() }),
        }
    }

    /// Takes the lock on an object; it ends with the file.
    async fn lock(&self, location: &Path) -> Result<File> {
        let mut path: PathBuf = self.0.path_to_filesystem(location)?;
        path.as_mut_os_string().push(".lock");
        let locked = tokio::task::spawn_blocking(move || {
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let file =
                File::options().create(true).append(true).custom_flags(flags.bits().cast_signed()).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok::<_, io::Error>(file)
        });
        locked.await?.map_err(|source| Error::Generic {
            store: "directory",
            source: match Errno::from_io_error(&source) {
                Some(Errno::LOOP) => NoObject("its lock is a link").into(),
                _ => source.into(),
            },
        })
    }
}

impl std::fmt::Display for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Directory {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut opts: PutOptions) -> Result<PutResult> {
        self.check(location)?;
        self.prepare(location)?;
        let PutMode::Update(expected) = opts.mode else { return self.0.put_opts(location, payload, opts).await };
        let _locked = self.lock(location).await?;
        let found = self.0.head(location).await?;
        if found.e_tag != expected.e_tag {
            return Err(Error::Precondition { path: location.to_string(), source: "the object is another one".into() });
        }
        tokio::time::sleep(APART).await;
        opts.mode = PutMode::Overwrite;
        self.0.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.check(location)?;
        self.prepare(location)?;
        self.0.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(location)?;
        self.0.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let directory = self.clone();
        locations
            .map(move |location| location.and_then(|location| directory.remove(&location).map(|()| location)))
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}
