//! An image in use: mounted by a server process, or attached by this process.

use super::tree_access::{Attached, Directory, TreeAccess};
use crate::arguments::Through;
use crate::commands::mount::Start;
use crate::commands::umount::unmount;
use anyhow::{Context, Result, ensure};
use posix::image::{Image, OpenImage};
use posix::{Caller, Credentials};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How calls reach the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMethod {
    /// Through the kernel and a server.
    Mount,
    /// Into this process.
    Library,
}

/// An operation on a place of either type.
pub trait Visitor {
    /// Performs the operation.
    fn visit(&mut self, tree_access: &impl TreeAccess) -> Result<()>;
}

/// An image in use.
pub enum Session {
    /// Mounted.
    Mount(Mounted),
    /// Attached by this process.
    Library(Box<Image>),
}

/// A mount and its server.
pub struct Mounted {
    server: Option<Child>,
    point: PathBuf,
}

impl AccessMethod {
    /// The requested front, or the first that works with this image: an accessible device does not
    /// imply permission to mount.
    pub fn choose(through: Through, image: &Path, point: &Path) -> Result<AccessMethod> {
        let device = || std::fs::File::options().read(true).write(true).open("/dev/fuse");
        match through {
            Through::Library => return Ok(AccessMethod::Library),
            Through::Mount => return Ok(AccessMethod::Mount),
            Through::Auto if device().is_err() => return Ok(AccessMethod::Library),
            Through::Auto => {}
        }
        match Mounted::begin(image, point) {
            Ok(mounted) => mounted.end().map(|()| AccessMethod::Mount),
            Err(error) => {
                eprintln!("{error}; using the library instead");
                Ok(AccessMethod::Library)
            }
        }
    }

    /// For display.
    pub fn description(self) -> &'static str {
        match self {
            AccessMethod::Mount => "on a mount",
            AccessMethod::Library => "with the library, in this process",
        }
    }
}

impl Session {
    /// Begins to use an image.
    pub fn begin(access: AccessMethod, image: &Path, point: &Path) -> Result<Session> {
        Ok(match access {
            AccessMethod::Mount => Session::Mount(Mounted::begin(image, point)?),
            AccessMethod::Library => Session::Library(Box::new(open_exclusive(image)?)),
        })
    }

    /// Performs an operation on the image.
    pub fn visit(&self, visitor: &mut impl Visitor) -> Result<()> {
        match self {
            Session::Mount(mounted) => visitor.visit(&Directory::new(&mounted.point)),
            Session::Library(image) => visit_image(image, visitor),
        }
    }

    /// Closes the image cleanly.
    pub fn end(self) -> Result<()> {
        match self {
            Session::Mount(mounted) => mounted.end(),
            Session::Library(image) => Ok(image.close().map(drop)?),
        }
    }
}

/// Attaches an image exclusively: no other process will attach it, so nothing need be shared
/// through /dev/shm.
pub fn open_exclusive(image: &Path) -> Result<Image> {
    Ok(Image::open(image, &OpenImage { exclusive: true, ..OpenImage::default() })?)
}

/// Performs an operation on an image that this process has attached.
pub fn visit_image(image: &Image, visitor: &mut impl Visitor) -> Result<()> {
    let thread = image.fs().enter()?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    visitor.visit(&Attached::new(Caller::new(&thread, Credentials::user(uid, gid, &[])))?)
}

impl Mounted {
    fn begin(image: &Path, point: &Path) -> Result<Mounted> {
        let server = Start::new(image, point).start()?;
        Ok(Mounted { server: Some(server), point: point.to_owned() })
    }

    fn end(mut self) -> Result<()> {
        unmount(&self.point, false)?;
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let status = server.wait().context("cannot wait for the server")?;
        ensure!(status.success(), "the server exited with {status}: the image was not left cleanly");
        Ok(())
    }

    /// Kills the server and removes the dead mount.
    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.kill();
        if crate::mounts::at(&self.point).is_some() {
            // If it fails, the scratch directory cannot be removed and reports it.
            let _ = unmount(&self.point, true);
        }
    }
}

/// A copy in progress in another process, and the process to be killed meanwhile.
pub struct Victim {
    copier: Child,
    server: Option<Mounted>,
}

impl Victim {
    /// Begins to copy a tree into an image that is not in use.
    pub fn begin(access: AccessMethod, tree: &Path, image: &Path, point: &Path) -> Result<Victim> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("copy-tree").arg(tree).stdin(Stdio::null()).stdout(Stdio::piped());
        let server = match access {
            AccessMethod::Mount => {
                command.arg("--directory").arg(point);
                // The copier's errors about the lost mount are expected.
                command.stderr(Stdio::null());
                Some(Mounted::begin(image, point)?)
            }
            AccessMethod::Library => {
                command.arg("--image").arg(image);
                None
            }
        };
        let copier = command.spawn().context("cannot start the copy")?;
        Ok(Victim { copier, server })
    }

    /// The paths of finished entries.
    pub fn output(&mut self) -> Result<std::process::ChildStdout> {
        self.copier.stdout.take().context("its output is a pipe")
    }

    /// Kills the process that writes to the image: the server, or the process that has it attached.
    pub fn kill(&mut self) {
        match &mut self.server {
            Some(server) => server.kill(),
            None => drop(self.copier.kill()),
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The mount first: the copier may be waiting for it.
        self.server = None;
        let _ = self.copier.kill();
        let _ = self.copier.wait();
    }
}
