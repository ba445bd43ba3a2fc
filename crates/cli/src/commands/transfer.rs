//! `directfs export`, `directfs import` and `directfs mkfs --from`.

use crate::arguments::{Export, Import};
use crate::interrupt::{self, Stopped};
use crate::orders;
use crate::output::OutputFailed;
use crate::terminal::{Of, Progress};
use crate::units;
use anyhow::{Context, Result, ensure};
use image::{Image, ImageError, Made, MakeOptions, OpenImage, make_filled, open_copy};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use std::cell::Cell;
use std::io::{self, BufWriter, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use transfer::{Counts, TransferError};

/// Bytes that are written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Shows how much was transferred. Returns whether to go on.
fn show(progress: &mut Progress, files: u64, bytes: u64) -> bool {
    progress.files(files);
    progress.at(bytes);
    interrupt::check().is_ok()
}

/// Input that an interrupt ends, also while none comes.
struct Interruptible<'c, R> {
    input: R,
    /// Bytes that were read.
    read_bytes: &'c Cell<u64>,
}

impl<R: Read + AsFd> Read for Interruptible<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        loop {
            interrupt::check().map_err(std::io::Error::other)?;
            let mut waiting = [PollFd::new(&self.input, PollFlags::IN)];
            match poll(&mut waiting, Some(&TICK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => {
                    let length = self.input.read(into)?;
                    self.read_bytes.set(self.read_bytes.get() + length as u64);
                    return Ok(length);
                }
            }
        }
    }
}

/// How much a directory holds. A thread beside the copy counts it, so that the time that is left
/// can be shown.
struct Total {
    /// 0 until it is known.
    bytes: Arc<AtomicU64>,
    is_wanted: Arc<AtomicBool>,
}

impl Total {
    fn count(directory: Option<&Path>) -> Total {
        let total = Total { bytes: Arc::default(), is_wanted: Arc::new(AtomicBool::new(true)) };
        if let Some(directory) = directory.map(Path::to_owned) {
            let (bytes, is_wanted) = (Arc::clone(&total.bytes), Arc::clone(&total.is_wanted));
            let count = move || {
                let found = transfer::host::content_bytes(&directory, &|| is_wanted.load(Relaxed));
                bytes.store(found.unwrap_or(0), Relaxed);
            };
            // Without a thread the time that is left is not shown.
            let _ = std::thread::Builder::new().name("directfs-total".to_owned()).spawn(count);
        }
        total
    }
}

impl Drop for Total {
    fn drop(&mut self) {
        self.is_wanted.store(false, Relaxed);
    }
}

/// Makes an image with the content of a directory.
pub fn make_from(path: &Path, options: &MakeOptions, source: &Path) -> Result<(Made, Counts)> {
    transfer::host::check_directory(source)?;
    // If it is in the directory, it is not copied into itself.
    let except = std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let mut progress = Progress::quiet("copying", Of::Bytes(0));
    let total = Total::count(progress.is_shown().then_some(source));
    let mut copied = Counts::default();
    let made = make_filled(path, options, &mut |_, _| interrupt::check().is_ok(), |image| -> Result<()> {
        let all = transfer::host::copy_in(image.fs(), source, except, &mut |counts| {
            progress.total(total.bytes.load(Relaxed));
            show(&mut progress, counts.files, counts.bytes)
        });
        all.map(|counts| copied = counts).map_err(|error| match error {
            TransferError::Stopped => interrupt::Interrupted.into(),
            error => error.into(),
        })
    });
    made.map(|made| (made, copied)).map_err(|error| match error.downcast_ref() {
        Some(ImageError::Stopped { .. }) => interrupt::Interrupted.into(),
        _ => error,
    })
}

/// Writes a tree of an image to standard output.
pub fn export(arguments: &Export) -> Result<()> {
    let output = std::io::stdout();
    ensure!(
        !output.is_terminal(),
        "the archive goes to standard output, which is a terminal: redirect it to a file (> FILE) or a pipe"
    );
    interrupt::catch()?;
    let reading = OpenImage { read_only: true, ..OpenImage::default() };
    let image = match orders::server_of(&arguments.image)? {
        Some(server) => open_copy(&arguments.image, |into| server.copy(into, &mut |_, _| interrupt::check().is_ok()))?,
        None => Image::open(&arguments.image, &reading)?,
    };
    let mut progress = Progress::quiet("exporting", Of::Bytes(0));
    let mut output = BufWriter::with_capacity(BUFFER_BYTES, output.lock());
    let path = arguments.path.as_os_str().as_bytes();
    if progress.is_shown() {
        // An error is reported when the tree is read.
        let found = transfer::content_bytes(image.fs(), path, &|| interrupt::check().is_ok());
        progress.total(found.unwrap_or(0));
    }
    let mut incomplete = |name: &[u8]| {
        eprintln!("incomplete: {}: zeros stand for what cannot be read", String::from_utf8_lossy(name).escape_debug());
    };
    let mut watch = |counts: Counts| show(&mut progress, counts.files, counts.bytes);
    let exported = transfer::export(image.fs(), path, &mut output, &mut watch, &mut incomplete);
    drop(progress);
    let counts = exported.map_err(|error| match error {
        TransferError::Stopped => Stopped("interrupted; the archive is not complete").into(),
        TransferError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            OutputFailed { is_reader_gone: true }.into()
        }
        error => anyhow::Error::from(error),
    })?;
    image.close().with_context(|| format!("cannot close {}", arguments.image.display()))?;
    if counts.skipped > 0 {
        eprintln!("left out {}, which archives cannot hold", units::counted(counts.skipped, "socket"));
    }
    ensure!(
        counts.incomplete == 0,
        "the memory or the disk has errors below {} (named above): all else is in the archive; restore these files \
         from a backup",
        units::counted(counts.incomplete, "file")
    );
    Ok(())
}

/// Reads an archive from standard input into an image.
pub fn import(arguments: &Import) -> Result<()> {
    let input = std::io::stdin();
    ensure!(
        !input.is_terminal(),
        "the archive comes from standard input, which is a terminal: redirect it from a file (< FILE) or a pipe"
    );
    interrupt::catch()?;
    let options = OpenImage { commits: arguments.commits.policy(), ..OpenImage::default() };
    let image = Image::open(&arguments.image, &options)?;
    // The length of a pipe is not known.
    let archive = rustix::fs::fstat(&input).map_or(0, |found| found.st_size as u64);
    let (mut progress, read_bytes) = (Progress::quiet("importing", Of::Bytes(archive)), Cell::new(0));
    let path = arguments.to.as_os_str().as_bytes();
    let mut input = Interruptible { input: input.lock(), read_bytes: &read_bytes };
    let mut watch = |counts: Counts| show(&mut progress, counts.files, read_bytes.get());
    let imported = transfer::import(image.fs(), path, &mut input, &mut watch);
    drop(progress);
    let closed = image.close();
    let counts = imported.map_err(|error| match error {
        TransferError::Stopped | TransferError::Input(_) if interrupt::check().is_err() => {
            Stopped("interrupted; nothing was imported").into()
        }
        error => anyhow::Error::from(error).context("nothing was imported"),
    })?;
    closed.with_context(|| format!("cannot close {}", arguments.image.display()))?;
    if arguments.json {
        let value =
            json!({ "image": units::path_text(&arguments.image), "files": counts.files, "bytes": counts.bytes });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        println!("imported {}, {}", units::counted(counts.files, "file"), units::size(counts.bytes));
    }
    Ok(())
}
