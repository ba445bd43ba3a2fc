//! Mounts of file systems other than DirectFS images, which use the crate `fuser`.

use crate::error::MountError;
use crate::messages::warn;
use crate::mounting;
use crate::options::MountOptions;
use crate::server::{Event, threads};
use crate::signals::Signals;
use fuser::{Config, Filesystem, MountOption, Session, SessionACL, SessionUnmounter};
use rustix::fd::OwnedFd;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

/// What ends a mount.
enum Stopper {
    /// Mounted directly. The second descriptor of the connection shows whether the mount still
    /// exists.
    Direct { path: PathBuf, device: OwnedFd },
    /// Mounted by fusermount3 for a user.
    ByHelper { path: PathBuf, unmounter: SessionUnmounter },
}

impl Stopper {
    fn stop(&mut self) -> Result<(), MountError> {
        match self {
            Stopper::Direct { device, .. } if !mounting::is_mounted(&*device) => Ok(()),
            Stopper::Direct { path, .. } => mounting::unmount(path),
            Stopper::ByHelper { path, unmounter } => {
                unmounter.unmount().map_err(|source| MountError::Unmount { path: path.clone(), source })
            }
        }
    }
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
    let (session, mut stopper) = open_session(filesystem, source, &path, options)?;
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
            warn(format_args!("{error}"));
        }
    }
    drop(watch);
    let result = session.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
    // Without a server, accesses to a remaining mount would wait forever.
    let _ = stopper.stop();
    result.map_err(broken)
}

/// Mounts and initialises the session with the kernel.
fn open_session<F: Filesystem>(
    filesystem: F,
    source: &str,
    path: &Path,
    options: &MountOptions,
) -> Result<(Session<F>, Stopper), MountError> {
    let refused = |source| MountError::Refused { path: path.to_owned(), source };
    let mut config = Config::default();
    config.n_threads = Some(threads(options));
    config.clone_fd = true;
    if let Some(device) = mounting::mount_directly(source.as_ref(), path, options)? {
        // The kernel enforces which users have access.
        let session = device
            .try_clone()
            .and_then(|mine| Ok((Session::from_fd(filesystem, device, SessionACL::All, config)?, mine)));
        return match session {
            Ok((session, device)) => Ok((session, Stopper::Direct { path: path.to_owned(), device })),
            Err(source) => {
                let _ = mounting::unmount(path);
                Err(refused(source))
            }
        };
    }
    config.clone_fd = mounting::open_device().is_ok();
    config.acl = if options.allow_other == Some(true) { SessionACL::All } else { SessionACL::Owner };
    config.mount_options = vec![
        MountOption::FSName(source.to_owned()),
        MountOption::Subtype("directfs".to_owned()),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    let mut session = Session::new(filesystem, path, &config).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => MountError::Device { source },
        _ => refused(source),
    })?;
    let unmounter = session.unmount_callable();
    Ok((session, Stopper::ByHelper { path: path.to_owned(), unmounter }))
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
