//! A mount from beginning to end.

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

/// A mount being served.
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
    /// Mounted by us. The second descriptor of the connection tells whether it still stands.
    Direct { path: PathBuf, device: OwnedFd },
    /// Mounted by fusermount3, for a user.
    Helped { path: PathBuf, unmounter: Mutex<SessionUnmounter> },
}

/// What a server waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Somebody wants it to end.
    Signal,
    /// The session with the kernel is over.
    Ended,
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All is left in order.
    Cleanly(Closed),
    /// Cut short by a second signal, with programs still using the mount: the next one to attach recovers the image.
    Abandoned,
}

impl Stopper {
    /// Takes the mount away. If programs still use it, it is out of sight at once and ends when the last one has closed its files.
    pub fn stop(&self) -> Result<(), MountError> {
        match &*self.mount {
            Mount::Direct { device, .. } if !mounting::is_mounted(device) => Ok(()),
            Mount::Direct { path, .. } => {
                if mounting::unmount(path)? == Unmounted::WhenIdle {
                    warn!(mount = %path.display(), "still in use: the mount ends when the last program has closed its files");
                }
                Ok(())
            }
            Mount::Helped { path, unmounter } => {
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
        let source = options.source.clone().unwrap_or_else(|| image.path().display().to_string());
        let files = Arc::new(Files::new(image, options)?);
        let adapter = Adapter::new(Arc::clone(&files), options.cache);
        let (session, mount) = open_session(adapter, &source, &path, options)?;
        if options.cache.is_alone() {
            let notifier = session.notifier();
            // In the middle of the request, not from a thread of its own: the program must not see set-id bits once its write has returned. It
            // cannot block: an offset below zero leaves the content alone, so no page is waited for, and the request holds the file, so the
            // kernel is not just giving it up.
            files.tell_outdated_by(move |number| {
                let _ = notifier.inval_inode(INodeNo(number), -1, 0);
            });
        }
        let (sender, events) = channel();
        let tell = sender.clone();
        let run = move || {
            let result = serve_to_end(session);
            // Nobody listens if the server was abandoned.
            let _ = tell.send(Event::Ended);
            result
        };
        let session = std::thread::Builder::new()
            .name("directfs-mount".to_owned())
            .spawn(run)
            .map_err(|source| MountError::Session { path: path.clone(), source })?;
        info!(mount = %path.display(), image = %source, "mounted");
        Ok(Server { files, stopper: Stopper { mount: Arc::new(mount) }, session, events, sender, path })
    }

    /// What ends this mount.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the mount is gone (by [`Stopper::stop`] or umount), then leaves the image.
    pub fn wait(self) -> Result<Closed, MountError> {
        let Server { files, stopper, session, path, .. } = self;
        // A panic of a worker becomes an error in the session already.
        let result = session.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
        // With the session gone nobody answers: should the mount still stand, whoever touches it would wait for ever.
        if let Err(error) = stopper.stop() {
            debug!(%error, "the mount was gone already");
        }
        drop(stopper);
        let files = Arc::into_inner(files)
            .ok_or_else(|| MountError::Session { path: path.clone(), source: io::Error::other("a worker is left") })?;
        let closed = files.into_image().close()?;
        info!(mount = %path.display(), ?closed, "unmounted");
        result.map_err(|source| MountError::Session { path, source })?;
        Ok(closed)
    }
}

/// Mounts and shakes hands with the kernel.
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
        // The kernel keeps out whom the mount does not allow.
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
    Ok((session, Mount::Helped { path: path.to_owned(), unmounter }))
}

/// Answers the kernel until the mount has ended.
///
/// The kernel tells that end to a worker that waits for a request with ENODEV, which the session takes for what it is, and to one that it was just
/// giving a request to with ECONNABORTED: the last close of a file sends a request that nobody waits for, and ends the mount.
fn serve_to_end<F: Filesystem>(session: Session<F>) -> io::Result<()> {
    match session.run() {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        result => result,
    }
}

fn can_open_device() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok()
}

/// The options in the words of fusermount3, which adds nosuid and nodev by itself.
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

/// Requests come from as many processors as there are, and some wait inside the engine.
fn threads(options: &MountOptions) -> usize {
    match options.threads {
        0 => std::thread::available_parallelism().map_or(2, NonZero::get).clamp(2, 16),
        given => given,
    }
}

/// Serves an image until it is unmounted, or SIGINT, SIGTERM or SIGHUP comes. `ready` is called once the mount answers.
///
/// The first signal ends the mount cleanly, which takes until no program uses it any more; a second one returns at once and leaves
/// the image to be recovered, as any crash would. Call it before other threads are started: the signals must not be theirs.
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
        alone: options.cache.is_alone(),
        cached_files_max: options.cached_files_max,
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
            warn!("abandoned by a second signal: the image will be recovered when it is next used");
            return Ok(Ended::Abandoned);
        }
        stopping = true;
        if let Err(error) = server.stopper.stop() {
            warn!(%error, "cannot end the mount");
            stopping = false;
        }
    }
    drop(watch);
    server.wait().map(Ended::Cleanly)
}

/// Serves another file system than an image of DirectFS, mounted as one is, until it is unmounted, or SIGINT, SIGTERM or SIGHUP comes. `ready` is called with the
/// path once the mount answers. When this returns, nobody uses `filesystem` any more. Call it before other threads are started.
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
    let tell = sender.clone();
    let session = std::thread::Builder::new().name("directfs-mount".to_owned()).spawn(move || {
        let result = serve_to_end(session);
        let _ = tell.send(Event::Ended);
        result
    });
    let session = session.map_err(broken)?;
    let watch = signals.watch(sender).map_err(broken)?;
    ready(&path);
    while let Ok(Event::Signal) = events.recv() {
        if let Err(error) = stopper.stop() {
            warn!(%error, "cannot end the mount");
        }
    }
    drop(watch);
    let result = session.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
    // Nobody answers any more: should the mount still stand, whoever touches it would wait for ever.
    if let Err(error) = stopper.stop() {
        debug!(%error, "the mount was gone already");
    }
    result.map_err(broken)
}

/// Serves an image on a device whose mount was made by [`crate::mount_device`], until that is gone: unmounted, or its namespace has ended.
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
    // Another descriptor of the device would have to be opened where the mount was made.
    config.clone_fd = false;
    let session = Session::from_fd(Adapter::new(Arc::clone(&files), options.cache), device, SessionACL::All, config);
    session.and_then(serve_to_end).map_err(broken)?;
    if let Some(files) = Arc::into_inner(files) {
        files.into_image().close()?;
    }
    Ok(())
}

/// What messages call a mount that nobody else sees.
fn image_name() -> PathBuf {
    PathBuf::from("the private mount")
}
