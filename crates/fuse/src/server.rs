//! The lifetime of a mount, from mounting to closing the image.

use crate::adapter::Adapter;
use crate::error::MountError;
use crate::files::Files;
use crate::inherited::Inherited;
use crate::mounting::{self, Unmounted};
use crate::options::MountOptions;
use crate::signals::Signals;
use fuser::{Config, Filesystem, INodeNo, MountOption, Session, SessionACL, SessionUnmounter};
use posix::image::{Closed, Image, OpenImage};
use rustix::fd::OwnedFd;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tracing::{debug, info, warn};

/// A mount that is being served.
pub struct Server {
    files: Arc<Files>,
    stopper: Stopper,
    session: JoinHandle<io::Result<()>>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    path: PathBuf,
}

/// Ends a mount, from any thread and any number of times.
#[derive(Clone)]
pub struct Stopper {
    mount: Arc<Mount>,
}

enum Mount {
    /// Mounted directly. The second descriptor of the connection shows whether the mount still
    /// exists.
    Direct { path: PathBuf, device: OwnedFd },
    /// Mounted by fusermount3 for a user.
    ByHelper { path: PathBuf, unmounter: Mutex<SessionUnmounter> },
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

impl Stopper {
    /// Unmounts. A mount in use is hidden immediately and ends when the last program closes its
    /// files.
    pub fn stop(&self) -> Result<(), MountError> {
        match &*self.mount {
            Mount::Direct { device, .. } if !mounting::is_mounted(device) => Ok(()),
            Mount::Direct { path, .. } => {
                if mounting::unmount(path)? == Unmounted::WhenIdle {
                    warn!(mount = %path.display(), "the mount is still in use and ends when the last program closes its files");
                }
                Ok(())
            }
            Mount::ByHelper { path, unmounter } => {
                let mut unmounter = unmounter.lock().unwrap_or_else(PoisonError::into_inner);
                unmounter.unmount().map_err(|source| MountError::Unmount { path: path.clone(), source })
            }
        }
    }
}

impl Server {
    /// Mounts an image and begins to serve it.
    pub fn start(image: Image, mount_point: &Path, options: &MountOptions) -> Result<Server, MountError> {
        let path = mounting::check_mount_point(mount_point)?;
        let mut options = options.clone();
        if image.is_writable_by_others() {
            options.distrust();
        }
        let options = &options;
        let source = options.source.clone().unwrap_or_else(|| image.path().display().to_string());
        let files = Arc::new(Files::new(image, options)?);
        let adapter = Adapter::new(Arc::clone(&files), options.cache);
        let (session, mount) = open_session(adapter, &source, &path, options)?;
        if options.cache.is_exclusive() {
            let notifier = session.notifier();
            // The invalidation happens within the request, not in a separate thread: once its write
            // has returned, the program must not see set-id bits. It cannot block. A negative
            // offset leaves the content alone, so no page is waited for; and the request holds the
            // file, so the kernel is not evicting it.
            files.report_outdated_by(move |number| {
                let _ = notifier.inval_inode(INodeNo(number), -1, 0);
            });
        }
        let (sender, events) = channel();
        let report = sender.clone();
        let run = move || {
            let result = serve_to_end(session);
            // There is no receiver if the server gave up after a second signal.
            let _ = report.send(Event::Ended);
            result
        };
        let session = std::thread::Builder::new()
            .name("directfs-mount".to_owned())
            .spawn(run)
            .map_err(|source| MountError::Session { path: path.clone(), source })?;
        info!(mount = %path.display(), image = %source, "mounted");
        Ok(Server { files, stopper: Stopper { mount: Arc::new(mount) }, session, events, sender, path })
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
        let Server { files, stopper, session, path, .. } = self;
        // A panic of a worker is already an error of the session.
        let result = session.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
        // Without a session, accesses to a remaining mount would wait forever.
        if let Err(error) = stopper.stop() {
            debug!(%error, "the mount had already ended");
        }
        drop(stopper);
        let files = Arc::into_inner(files).ok_or_else(|| MountError::Session {
            path: path.clone(),
            source: io::Error::other("a worker still holds the file system"),
        })?;
        let closed = files.into_image().close()?;
        info!(mount = %path.display(), ?closed, "unmounted");
        result.map_err(|source| MountError::Session { path, source })?;
        Ok(closed)
    }
}

/// Mounts and initialises the session with the kernel.
fn open_session<F: Filesystem>(
    adapter: F,
    source: &str,
    path: &Path,
    options: &MountOptions,
) -> Result<(Session<F>, Mount), MountError> {
    let refused = |source| MountError::Refused { path: path.to_owned(), source };
    let mut config = Config::default();
    config.n_threads = Some(threads(options));
    config.clone_fd = true;
    if let Some(device) = mounting::mount(source, path, options)? {
        // The kernel enforces which users have access.
        let session =
            device.try_clone().and_then(|mine| Ok((Session::from_fd(adapter, device, SessionACL::All, config)?, mine)));
        return match session {
            Ok((session, device)) => Ok((session, Mount::Direct { path: path.to_owned(), device })),
            Err(source) => {
                let _ = mounting::unmount(path);
                Err(refused(source))
            }
        };
    }
    config.clone_fd = can_open_device();
    config.acl = if options.allow_other == Some(true) { SessionACL::All } else { SessionACL::Owner };
    config.mount_options = helper_options(source, options);
    let mut session = Session::new(adapter, path, &config).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => MountError::Device { source },
        _ => refused(source),
    })?;
    let unmounter = Mutex::new(session.unmount_callable());
    Ok((session, Mount::ByHelper { path: path.to_owned(), unmounter }))
}

/// Serves requests until the mount has ended.
///
/// The kernel reports the end with ENODEV to a worker that waits for a request; the session treats
/// that as the end. A worker that is just receiving a request gets ECONNABORTED: the last close of
/// a file sends a request without a waiter and ends the mount.
fn serve_to_end<F: Filesystem>(session: Session<F>) -> io::Result<()> {
    match session.run() {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        result => result,
    }
}

fn can_open_device() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok()
}

/// The options for fusermount3, which adds nosuid and nodev itself.
fn helper_options(source: &str, options: &MountOptions) -> Vec<MountOption> {
    let mut list = vec![
        MountOption::FSName(source.to_owned()),
        MountOption::Subtype("directfs".to_owned()),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    let flags = [
        (libc::MS_NOEXEC, MountOption::NoExec),
        (libc::MS_NOATIME, MountOption::NoAtime),
        (libc::MS_SYNCHRONOUS, MountOption::Sync),
        (libc::MS_DIRSYNC, MountOption::DirSync),
    ];
    list.extend(flags.into_iter().filter(|(flag, _)| options.kernel_flags & flag != 0).map(|(_, option)| option));
    list
}

/// At least as many as processors: all of them may send requests, and some workers wait inside the
/// engine.
fn threads(options: &MountOptions) -> usize {
    match options.threads {
        0 => std::thread::available_parallelism().map_or(2, NonZero::get).clamp(2, 16),
        given => given,
    }
}

/// Serves an image until it is unmounted, or until SIGINT, SIGTERM or SIGHUP. `ready` is called
/// once the mount answers.
///
/// The first signal ends the mount cleanly, which waits until no program uses it. A second one
/// returns immediately; the image then needs recovery, as after a crash. Call this before other
/// threads are started, because they must not receive the signals.
pub fn serve(
    image: &Path,
    mount_point: &Path,
    options: &MountOptions,
    ready: impl FnOnce(&Server),
) -> Result<Ended, MountError> {
    let signals = Signals::block();
    mounting::check_mount_point(mount_point)?;
    let open = OpenImage {
        read_only: options.read_only,
        exclusive: options.cache.is_exclusive(),
        cached_files_max: options.cached_files_max,
        commits: options.commits,
        ..OpenImage::default()
    };
    let server = Server::start(Image::open(image, &open)?, mount_point, options)?;
    let watch = signals
        .watch(server.sender.clone())
        .map_err(|source| MountError::Session { path: server.path.clone(), source })?;
    ready(&server);
    let mut stopping = false;
    while let Ok(Event::Signal) = server.events.recv() {
        if stopping {
            warn!("stopped by a second signal without closing the image: the next use recovers it");
            return Ok(Ended::Unclean);
        }
        stopping = true;
        if let Err(error) = server.stopper.stop() {
            warn!(%error, "cannot unmount");
            stopping = false;
        }
    }
    drop(watch);
    server.wait().map(Ended::Cleanly)
}

/// Serves a file system other than a DirectFS image until it is unmounted, or until SIGINT, SIGTERM
/// or SIGHUP. `ready` is called with the path once the mount answers. On return nothing uses
/// `filesystem` any more. Call this before other threads are started.
pub fn serve_other<F: Filesystem + Send + 'static>(
    filesystem: F,
    source: &str,
    mount_point: &Path,
    options: &MountOptions,
    ready: impl FnOnce(&Path),
) -> Result<(), MountError> {
    let signals = Signals::block();
    let path = mounting::check_mount_point(mount_point)?;
    let broken = |source| MountError::Session { path: path.clone(), source };
    let (session, mount) = open_session(filesystem, source, &path, options)?;
    let stopper = Stopper { mount: Arc::new(mount) };
    let (sender, events) = channel();
    let report = sender.clone();
    let session = std::thread::Builder::new().name("directfs-mount".to_owned()).spawn(move || {
        let result = serve_to_end(session);
        let _ = report.send(Event::Ended);
        result
    });
    let session = session.map_err(broken)?;
    let watch = signals.watch(sender).map_err(broken)?;
    ready(&path);
    while let Ok(Event::Signal) = events.recv() {
        if let Err(error) = stopper.stop() {
            warn!(%error, "cannot unmount");
        }
    }
    drop(watch);
    let result = session.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
    // Without a server, accesses to a remaining mount would wait forever.
    if let Err(error) = stopper.stop() {
        debug!(%error, "the mount had already ended");
    }
    result.map_err(broken)
}

/// Serves an image on a device that was mounted by [`crate::mount_device`], until the mount has
/// ended or its namespace is gone.
pub fn serve_device(
    image: Image,
    device: OwnedFd,
    options: &MountOptions,
    inherited: Option<Inherited>,
) -> Result<(), MountError> {
    let broken = |source| MountError::Session { path: image_name(), source };
    let files = Arc::new(Files::new(image, options)?.inherit(inherited));
    let mut config = Config::default();
    config.n_threads = Some(threads(options));
    // Another descriptor of the device would have to be opened in the mount's namespace.
    config.clone_fd = false;
    let session = Session::from_fd(Adapter::new(Arc::clone(&files), options.cache), device, SessionACL::All, config);
    session.and_then(serve_to_end).map_err(broken)?;
    if let Some(files) = Arc::into_inner(files) {
        files.into_image().close()?;
    }
    Ok(())
}

/// The name of a private mount in messages.
fn image_name() -> PathBuf {
    PathBuf::from("the private mount")
}
