//! Orders to the server of a mount that has its image alone: see [`fuse::ORDER_ATTRIBUTE`].
//!
//! A child gives the order, holds the file that is to be filled, and stays until this process has
//! the result. If either is killed, the server stops.

use crate::asking::{self, Answer, Staying, Unanswered};
use crate::{interrupt, mounts, processes};
use anyhow::{Result, anyhow, bail, ensure};
use image::{ImageError, Trimmed, Watch};
use rustix::fs::makedev;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Times between two looks at what the server has done.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LAST: Duration = Duration::from_millis(100);

/// The server of a mount that takes orders.
pub struct Server<'i> {
    image: &'i Path,
    point: PathBuf,
    /// Device number that files of the mount have.
    device: u64,
}

/// The server that has an image alone, if there is one.
pub fn server_of(image: &Path) -> Result<Option<Server<'_>>> {
    let Some(mount) = mounts::of_image(image).into_iter().next() else { return Ok(None) };
    let (point, device) = (mount.point, makedev(mount.device.0, mount.device.1));
    match asking::attribute(&point, fuse::ORDER_ATTRIBUTE) {
        Ok(_) => Ok(Some(Server { image, point, device })),
        Err(Unanswered::Silent) => bail!(processes::silent_servers(image, &point)),
        // It shares the image, reads it only, is dead, or does not know orders.
        Err(Unanswered::Refused(_)) => Ok(None),
    }
}

impl Server<'_> {
    /// Copies the image into an empty file.
    pub fn copy(&self, into: &File, watch: Watch<'_>) -> Result<()> {
        let device = rustix::fs::fstat(into).map_or(0, |found| found.st_dev);
        ensure!(device != self.device, "the copy of an image cannot lie on the image itself; choose another place");
        self.order(&format!("copy {}", into.as_raw_fd()), Some(into), watch).map(drop)
    }

    /// Gives back what the image does not use.
    pub fn trim(&self, watch: Watch<'_>) -> Result<Trimmed> {
        let result = self.order("trim", None, watch)?;
        let mut numbers = result.split(' ').map(str::parse);
        match [numbers.next(), numbers.next(), numbers.next()] {
            [Some(Ok(before_bytes)), Some(Ok(after_bytes)), Some(Ok(is_working_copy))] => {
                Ok(Trimmed { before_bytes, after_bytes, is_working_copy: is_working_copy != 0 })
            }
            _ => bail!("the server of {} is of another version", self.point.display()),
        }
    }

    /// Returns the words of the result.
    fn order(&self, text: &str, file: Option<&File>, watch: Watch<'_>) -> Result<String> {
        let _giver =
            self.answered(Staying::set_attribute(&self.point, fuse::ORDER_ATTRIBUTE, text.as_bytes(), file))?;
        let mut pause = PAUSE_FIRST;
        loop {
            let state = self.answered(asking::attribute(&self.point, fuse::ORDER_ATTRIBUTE))?;
            let state = String::from_utf8_lossy(&state).into_owned();
            let (word, rest) = state.split_once(' ').unwrap_or((&state, ""));
            match word {
                "running" => {}
                "done" => return Ok(rest.to_owned()),
                "failed" => return Err(self.failure(rest.parse().unwrap_or(libc::EIO))),
                _ => bail!("the server of {} ended before it had done this", self.point.display()),
            }
            let (done, total) = rest.split_once(' ').unwrap_or_default();
            if !watch(done.parse().unwrap_or(0), total.parse().unwrap_or(0)) {
                return Err(interrupt::Interrupted.into());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_LAST);
        }
    }

    fn answered<T>(&self, answer: Answer<T>) -> Result<T> {
        answer.map_err(|unanswered| match unanswered {
            Unanswered::Silent => anyhow!(processes::silent_servers(self.image, &self.point)),
            Unanswered::Refused(errno) => self.failure(errno.raw_os_error()),
        })
    }

    fn failure(&self, errno: i32) -> anyhow::Error {
        let (image, point) = (self.image.to_owned(), self.point.display());
        match errno {
            libc::EPERM => anyhow!(
                "only root, the image's owner and the user that mounted it can have the server on {point} do this"
            ),
            libc::EBUSY => anyhow!("the server on {point} is copying or trimming the image for another process"),
            libc::EAGAIN => ImageError::Overtaken { path: image }.into(),
            libc::EHWPOISON => ImageError::LostContent { path: image }.into(),
            libc::ESRCH => anyhow!("the server on {point} does not see this process: it is in another PID namespace"),
            libc::EOPNOTSUPP => anyhow!(
                "the image on {point} is used in place on a disk (no_commit), or its file system knows no holes: \
                 unmount it first"
            ),
            errno => {
                let source = std::io::Error::from_raw_os_error(errno);
                ImageError::File { action: "have the mount's server copy or trim", path: image, source }.into()
            }
        }
    }
}
