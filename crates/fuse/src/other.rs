//! Mounts of file systems other than DirectFS images.

use crate::error::MountError;
use crate::messages::warn;
use crate::mounting;
use crate::options::MountOptions;
use crate::server::Event;
use crate::signals::Signals;
use rustix::fd::OwnedFd;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::mpsc::channel;

/// Serves a file system other than a DirectFS image until it is unmounted, or until SIGINT, SIGTERM
/// or SIGHUP. `connect` makes the first exchange with the kernel through the device of the mount;
/// what it returns serves requests until the mount has ended. `ready` is called with the path once
/// the mount answers. Call this before other threads are started.
pub fn serve_other<S: FnOnce() -> io::Result<()> + Send + 'static>(
    source: &OsStr,
    mount_point: &Path,
    options: &MountOptions,
    connect: impl FnOnce(OwnedFd) -> io::Result<S>,
    ready: impl FnOnce(&Path),
) -> Result<(), MountError> {
    let signals = Signals::block();
    let path = mounting::check_mount_point(mount_point)?;
    let mount = mounting::mount(source, &path, options)?;
    let connected = mount.device.try_clone().and_then(connect);
    let serve = connected.map_err(|source| {
        let _ = mount.end();
        MountError::Refused { path: path.clone(), source }
    })?;
    let (sender, events) = channel();
    let report = sender.clone();
    let broken = |source| MountError::Session { path: path.clone(), source };
    // Without a server, accesses to a remaining mount would wait forever.
    let end = |_: &io::Error| drop(mount.end());
    let session = std::thread::Builder::new().name("directfs-mount".to_owned()).spawn(move || {
        let result = serve();
        let _ = report.send(Event::Ended);
        result
    });
    let session = session.inspect_err(end).map_err(broken)?;
    let watch = signals.watch(sender).inspect_err(end).map_err(broken)?;
    ready(&path);
    while let Ok(Event::Signal) = events.recv() {
        if let Err(error) = mount.end() {
            warn(format_args!("{error}"));
        }
    }
    drop(watch);
    let result = session.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
    let _ = mount.end();
    result.map_err(broken)
}
