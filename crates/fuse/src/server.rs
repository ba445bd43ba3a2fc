//! The lifetime of a mount, from mounting to closing the image.

use crate::adapter::Adapter;
use crate::error::MountError;
use crate::files::Files;
use crate::inherited::Inherited;
use crate::keeper::{self, Kept};
use crate::messages::{inform, warn};
use crate::mounting::{self, Mounted};
use crate::options::MountOptions;
use crate::privileges::Guard;
use crate::session::{Clones, Connection};
use crate::signals::Signals;
use image::{Closed, Image, OpenImage};
use rustix::fd::OwnedFd;
use std::ffi::OsString;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A mount that is being served.
pub struct Server {
    files: Arc<Files>,
    stopper: Stopper,
    session: JoinHandle<io::Result<()>>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    path: PathBuf,
    /// Keeps flags of the mount.
    guard: Option<Guard>,
    /// Capabilities of FUSE that the session has enabled.
    pub(crate) capabilities: u64,
}

/// Ends a mount, from any thread and any number of times.
#[derive(Clone)]
pub struct Stopper {
    mount: Arc<Mounted>,
}

/// The events that a server waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request to end.
    Signal,
    /// The session with the kernel has ended.
    Ended,
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The image is closed.
    Cleanly(Closed),
    /// Interrupted by a second signal while programs still used the mount: the next attach recovers
    /// the image.
    Unclean,
}

/// The process that calls back when the mount answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The one that serves.
    Server,
    /// The one that starts another server when one dies.
    Keeper,
}

impl Stopper {
    /// Unmounts. A mount in use is hidden immediately and ends when the last program closes its
    /// files.
    pub fn stop(&self) -> Result<(), MountError> {
        self.mount.stop()
    }
}

impl Server {
    /// Mounts an image and begins to serve it.
    pub fn start(image: Image, mount_point: &Path, options: &MountOptions) -> Result<Server, MountError> {
        let path = mounting::check_mount_point(mount_point)?;
        let mut options = options.clone();
        options.distrust(image.is_writable_by_others());
        let source = options.source.clone().map_or_else(|| image.path().as_os_str().to_owned(), OsString::from);
        let files = Files::new(image, &options)?;
        let mount = mounting::mount(&source, &path, &options)?;
        Server::begin(files, mount, &options, None)
    }

    /// Begins to serve a mount, which may have a keeper.
    pub(crate) fn begin(
        files: Files,
        mount: Mounted,
        options: &MountOptions,
        kept: Option<&Kept>,
    ) -> Result<Server, MountError> {
        let capabilities = kept.and_then(|kept| kept.capabilities);
        let (path, files) = (mount.path.clone(), Arc::new(files));
        let stopper = Stopper { mount: Arc::new(mount) };
        let refused = |source| {
            let _ = stopper.stop();
            MountError::Refused { path: path.clone(), source }
        };
        let mut adapter = Adapter::new(Arc::clone(&files), options, kept.map(|kept| kept.renames));
        let device = stopper.mount.device.try_clone().map_err(refused)?;
        let mut connection = match capabilities {
            None => {
                // A lock may wait, and is then answered by another thread; requests of a dead
                // server that came through io_uring cannot be sent again.
                let may_use_rings = options.cache.is_exclusive() && kept.is_none() && !options.no_io_uring;
                Connection::establish(device, &adapter, may_use_rings).map_err(refused)?
            }
            Some(capabilities) => {
                adapter = adapter.resume(capabilities);
                Connection::resume(device, capabilities)
            }
        };
        if options.cache.is_exclusive() {
            // The invalidation happens within the request, not in a separate thread: once its write
            // has returned, the program must not see set-id bits. It cannot block. It leaves the
            // content alone, so no page is waited for; and the request holds the file, so the
            // kernel is not evicting it.
            files.report_outdated_by(connection.invalidator());
            files.list_again_by(connection.lister().lists());
        } else {
            adapter.drop_pages_by(connection.page_dropper());
        }
        let enabled = connection.capabilities;
        connection.answered = kept.map(|kept| kept.answered);
        // Workers that read the keeper's device leave their requests to a successor. Where the
        // kernel cannot send them again, they end with the worker's own device.
        let clones = match kept {
            None => Clones::AllButFirst,
            Some(_) if connection.can_resend() => Clones::None,
            Some(_) => Clones::All,
        };
        let (sender, events) = channel();
        let report = sender.clone();
        let (threads, adapter) = (threads(options), Arc::new(adapter));
        let run = move || {
            let resent = if capabilities.is_some() && connection.can_resend() { connection.resend() } else { Ok(()) };
            let result = resent.and_then(|()| connection.serve(threads, clones, &adapter));
            adapter.finish();
            // There is no receiver if the server gave up after a second signal.
            let _ = report.send(Event::Ended);
            result
        };
        let session = std::thread::Builder::new().name("directfs-mount".to_owned()).spawn(run).map_err(|source| {
            let _ = stopper.stop();
            MountError::Thread { path: path.clone(), source }
        })?;
        let guard = Guard::start(&path, options.distrusted_flags(), Arc::clone(files.permitted()));
        Ok(Server { files, stopper, session, events, sender, path, guard, capabilities: enabled })
    }

    /// The handle that ends this mount.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the mount has ended (by [`Stopper::stop`] or umount), then closes the image.
    pub fn wait(self) -> Result<Closed, MountError> {
        let Server { files, stopper, session, path, guard, .. } = self;
        // A panic of a worker is already an error of the session.
        let result = session.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
        // Without a session, accesses to a remaining mount would wait forever.
        let _ = stopper.stop();
        drop(stopper);
        drop(guard);
        let files = Arc::into_inner(files).ok_or_else(|| MountError::Session {
            path: path.clone(),
            source: io::Error::other("a worker still holds the file system"),
        })?;
        let closed = files.into_image().close()?;
        inform(format_args!("unmounted from {}, and the image is closed", path.display()));
        result.map_err(|source| MountError::Session { path, source })?;
        Ok(closed)
    }
}

/// The number of workers: at least as many as processors, since all of them may send requests, and
/// some workers wait inside the engine.
pub fn threads(options: &MountOptions) -> usize {
    match options.threads {
        0 => std::thread::available_parallelism().map_or(2, NonZero::get).clamp(2, 16),
        given => given,
    }
}

/// Serves an image until it is unmounted, or until SIGINT, SIGTERM or SIGHUP. `ready` is called
/// once the mount answers; with [`MountOptions::keep`] in both processes.
///
/// The first signal ends the mount cleanly, which waits until no program uses it. A second one
/// returns immediately; the image then needs recovery, as after a crash. Call this before other
/// threads are started, because they must not receive the signals.
pub fn serve(
    image: &Path,
    mount_point: &Path,
    options: &MountOptions,
    ready: impl FnOnce(Role),
) -> Result<Ended, MountError> {
    if options.keep {
        return keeper::serve(image, mount_point, options, ready);
    }
    let signals = Signals::block();
    mounting::check_mount_point(mount_point)?;
    let server = Server::start(open_image(image, options)?, mount_point, options)?;
    server.serve_until_signals(&signals, || ready(Role::Server))
}

/// Opens an image for a mount.
pub(crate) fn open_image(image: &Path, options: &MountOptions) -> Result<Image, MountError> {
    if options.is_fetched {
        // Not copied, however small it is.
        let open = OpenImage { read_only: true, whole_bytes_max: 0, ..OpenImage::default() };
        return Ok(Image::open_discarding(image, &open)?);
    }
    let open = OpenImage {
        read_only: options.read_only,
        exclusive: options.cache.is_exclusive(),
        cached_files_max: options.cached_files_max,
        commits: options.commits,
        memory_bytes_max: options.memory_bytes_max,
        ..OpenImage::default()
    };
    Ok(Image::open(image, &open)?)
}

impl Server {
    /// Serves until the mount has ended, or a second signal arrives.
    pub(crate) fn serve_until_signals(self, signals: &Signals, ready: impl FnOnce()) -> Result<Ended, MountError> {
        let watch = match signals.watch(self.sender.clone()) {
            Ok(watch) => watch,
            Err(source) => {
                let _ = self.stopper.stop();
                let path = self.path.clone();
                // Nothing uses the mount yet, so it ends, and the image is closed cleanly.
                self.wait()?;
                return Err(MountError::Thread { path, source });
            }
        };
        ready();
        inform(format_args!("mounted on {}", self.path.display()));
        let mut stopping = false;
        while let Ok(Event::Signal) = self.events.recv() {
            if stopping {
                warn(format_args!(
                    "the mount on {} was stopped by a second signal without closing the image: the next use recovers it",
                    self.path.display()
                ));
                return Ok(Ended::Unclean);
            }
            stopping = true;
            if let Err(error) = self.stopper.stop() {
                warn(format_args!("{error}"));
                stopping = false;
            }
        }
        drop(watch);
        self.wait().map(Ended::Cleanly)
    }
}

/// Serves an image on a device that was mounted by [`crate::mount_device`], until the mount has
/// ended or its namespace is gone.
pub fn serve_device(
    image: Image,
    device: OwnedFd,
    options: &MountOptions,
    inherited: Option<Inherited>,
) -> Result<(), MountError> {
    let broken = |source| MountError::Session { path: PathBuf::from("the private mount"), source };
    let files = Arc::new(Files::new(image, options)?.inherit(inherited));
    let adapter = Arc::new(Adapter::new(Arc::clone(&files), options, None));
    let connection = Connection::establish(device, &*adapter, false).map_err(broken)?;
    // Another descriptor of the device would have to be opened in the mount's namespace.
    let served = connection.serve(threads(options), Clones::None, &adapter);
    adapter.finish();
    drop(adapter);
    served.map_err(broken)?;
    if let Some(files) = Arc::into_inner(files) {
        files.into_image().close()?;
    }
    Ok(())
}
