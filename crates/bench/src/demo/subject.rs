//! The three places of the demonstration: an image under `directfs run`, a directory of the
//! machine, and a mount of an image. Each has a worker, which is the same program.

use super::scratch::Scratch;
use super::tree::Tree;
use super::worker::{Done, Reply, Request};
use crate::mounted::Mounted;
use crate::mounts::RUN_DIRECTORY;
use crate::worker::Worker;
use anyhow::{Context, Result, bail, ensure};
use image::{Image, OpenImage};
use std::path::PathBuf;
use std::process::Command;

/// What helps a worker that runs out of memory.
const REMEDY: &str = "choose a smaller tree or stop other programs";

/// A place with its worker.
pub struct Subject<'s> {
    /// Its name in the table.
    pub name: String,
    place: Place,
    scratch: &'s Scratch,
    tree: &'s Tree,
    worker: Option<Worker>,
}

enum Place {
    /// An image inside the worker.
    Run,
    /// A directory of the machine.
    Directory,
    /// A mount with its server.
    Mount(Mounted),
}

impl<'s> Subject<'s> {
    /// The image under `run`.
    pub fn run(scratch: &'s Scratch, tree: &'s Tree) -> Result<Subject<'s>> {
        Subject::start("run".into(), Place::Run, scratch, tree)
    }

    /// A directory of the machine.
    pub fn peer(scratch: &'s Scratch, tree: &'s Tree) -> Result<Subject<'s>> {
        let name = crate::mounts::covering(&scratch.peer()).map_or_else(|| "unknown".into(), |mount| mount.kind);
        Subject::start(name, Place::Directory, scratch, tree)
    }

    /// The mount.
    pub fn mount(mounted: Mounted, scratch: &'s Scratch, tree: &'s Tree) -> Result<Subject<'s>> {
        Subject::start("mount".into(), Place::Mount(mounted), scratch, tree)
    }

    fn start(name: String, place: Place, scratch: &'s Scratch, tree: &'s Tree) -> Result<Subject<'s>> {
        let mut subject = Subject { name, place, scratch, tree, worker: None };
        subject.start_worker()?;
        Ok(subject)
    }

    /// Starts a worker after the previous one has ended.
    pub fn start_worker(&mut self) -> Result<()> {
        let mut worker = Worker::start(self.command()?, &Request::End, REMEDY)?;
        match worker.receive(&mut || ())? {
            Reply::Ready => self.worker = Some(worker),
            other => bail!("a worker's first reply was {other:?}"),
        }
        Ok(())
    }

    /// The command that starts a worker.
    fn command(&self) -> Result<Command> {
        let own = std::env::current_exe().context("cannot find this program's file; is /proc mounted?")?;
        let mut command = Command::new(&own);
        let directory = match &self.place {
            Place::Run => {
                command.arg("run").arg("--image").arg(self.scratch.image());
                command.args(["--at", RUN_DIRECTORY, "--"]).arg(&own);
                PathBuf::from(RUN_DIRECTORY)
            }
            Place::Directory => self.scratch.peer(),
            Place::Mount(mounted) => mounted.point.clone(),
        };
        command.arg("demo-worker").arg("--owned").arg(self.scratch.path());
        command.arg("--tree").arg(self.tree.root()).arg("--list").arg(self.scratch.list()).arg(directory);
        Ok(command)
    }

    /// Whether it is a mount.
    pub fn is_mount(&self) -> bool {
        matches!(self.place, Place::Mount(_))
    }

    /// Performs a request; `tick` is called meanwhile.
    pub fn perform(&mut self, request: &Request, tick: &mut dyn FnMut()) -> Result<Done> {
        self.send(request)?;
        match self.receive(tick)? {
            Reply::Done(done) => Ok(done),
            Reply::Failed(said) => bail!("{}: {said}", self.name),
            other => bail!("a worker replied {other:?}"),
        }
    }

    /// Sends a request.
    pub fn send(&mut self, request: &Request) -> Result<()> {
        self.worker.as_mut().context("a running worker")?.send(request)
    }

    /// Waits for a reply.
    pub fn receive(&mut self, tick: &mut dyn FnMut()) -> Result<Reply> {
        self.worker.as_mut().context("a running worker")?.receive(tick)
    }

    /// Kills the worker, and `run` with it; returns the replies that were sent before.
    pub fn kill(&mut self) -> Result<Vec<u8>> {
        self.worker.take().context("a running worker")?.kill()
    }

    /// Ends the worker and leaves the image clean.
    pub fn end(mut self) -> Result<()> {
        self.worker.take().map_or(Ok(()), Worker::end)?;
        match std::mem::replace(&mut self.place, Place::Directory) {
            Place::Mount(mounted) => mounted.end(),
            _ => Ok(()),
        }
    }
}

impl Drop for Subject<'_> {
    fn drop(&mut self) {
        // The worker first: it uses the mount.
        self.worker = None;
        if matches!(self.place, Place::Run) {
            // After a kill, shared memory is left. The last close removes it.
            if let Ok(left) = Image::open(self.scratch.image(), &OpenImage::default()) {
                let _ = left.close();
            }
        }
    }
}

/// An error if `run` is not possible with these directories.
pub fn require_run(tree: &Tree, scratch: &Scratch) -> Result<()> {
    ensure!(
        crate::mounts::surrounding().is_none(),
        "this program already runs under directfs run, which allows one image: start the demonstration outside"
    );
    for (what, path) in [("the tree", tree.root()), ("the scratch directory", scratch.path())] {
        ensure!(
            !path.starts_with(RUN_DIRECTORY),
            "{what} is below {RUN_DIRECTORY}, where programs under run see the image instead; specify another one"
        );
    }
    Ok(())
}
