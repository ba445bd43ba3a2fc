//! `run --image URL` and `mount URL` before the image is there: a helper process serves the state
//! as one file, of which each block is fetched when it is first used ([`store::Lazy`]).
//!
//! ```text
//!  launcher -- reads the head --> starts `directfs store-service` --> FUSE mount in the cache
//!     | opens the file of the mount                                     | GET, checksum, sparse file
//!     +--> programs of the run, or the server of a mount, read that file
//! ```
//!
//! All runs and mounts of a user on one state share the helper: it has the lock on the state's part
//! of the cache, and ends with the last process that has the file. If it is killed, reads of what
//! the kernel does not have fail with EIO, in all programs; the next run starts another one.
//!
//! The image is opened as a discarded one, also to be read only: metadata is in memory before the
//! program starts, and content is read by calls. So a block that does not come is EIO for one read.
//! *Rejected:* mapping the file, where it is SIGBUS, and the names of a directory would depend on
//! which process met it; userfaultfd, which unprivileged users lack.

use super::child;
use super::detach_helper::{detach_from_terminal, open_descriptors};
use crate::asking;
use anyhow::{Context, Result, anyhow, bail};
use fuse::{Content, FILE, MESSAGES, MountError, remove_dead, serve_file};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::{Cache, Lazy, Limits, Part};

/// The hidden command of the helper.
const COMMAND: &str = "store-service";
/// Helpers that end just when their file is to be opened.
const ATTEMPTS: usize = 5;
/// How often a run looks for messages.
const LOOK: Duration = Duration::from_millis(500);
/// How long a helper waits for one that ends.
const HANDOVER: Duration = Duration::from_secs(60);
/// Bytes of messages that are kept.
const MESSAGES_BYTES_MAX: usize = 64 << 10;

/// The file of a state, open.
pub struct LazyFile {
    path: PathBuf,
    /// Keeps the helper.
    _file: File,
    messages: File,
    /// Bytes of messages to others, before the file was opened.
    seen: u64,
}

impl LazyFile {
    /// Opens a state, with a helper that runs already or a new one.
    pub fn open(part: &Part) -> Result<LazyFile> {
        let mount = Cache::of_user().mount_point(part.identity())?;
        for _ in 0..ATTEMPTS {
            if let Ok(file) = wait_for_helper(mount.join(FILE)) {
                return Ok(file);
            }
            start(part)?;
        }
        bail!("processes that serve it end at once")
    }

    /// Opens the file of a helper that runs.
    pub fn of_helper(path: PathBuf) -> std::io::Result<LazyFile> {
        let file = File::open(&path)?;
        let messages = File::open(path.with_file_name(MESSAGES))?;
        let seen = read_from(&messages, 0).map_or(0, |bytes| bytes.len() as u64);
        Ok(LazyFile { path, _file: file, messages, seen })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Passes on what the helper says, until the value is dropped. Call it after signals are
    /// blocked.
    pub fn show_messages(&self, url: &str, say: impl Fn(&str) + Send + 'static) -> Option<Shown> {
        let (file, mut seen) = (self.messages.try_clone().ok()?, self.seen);
        let (url, mount) = (url.to_owned(), self.path.parent().unwrap_or(Path::new("/")).to_owned());
        let (stop, stopped) = channel::<()>();
        let show = move || {
            loop {
                let has_ended = stopped.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
                match read_from(&file, seen) {
                    Ok(bytes) => {
                        seen += bytes.len() as u64;
                        String::from_utf8_lossy(&bytes).lines().for_each(&say);
                    }
                    Err(error) => {
                        say(&format!(
                            "{url}: the process that fetches the image has ended ({error}); reads of what is not in memory \
                             fail with EIO: start the command again, or mount again"
                        ));
                        return remove_mount(&mount);
                    }
                }
                if has_ended {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("directfs-messages".to_owned()).spawn(show).ok()?;
        Some(Shown { _stop: stop, thread: Some(thread) })
    }
}

/// Messages are shown until this is dropped.
pub struct Shown {
    _stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        // The end of the channel wakes the thread.
        drop(std::mem::replace(&mut self._stop, channel().0));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read_from(file: &File, mut at: u64) -> std::io::Result<Vec<u8>> {
    let mut found = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        match file.read_at(&mut bytes, at)? {
            0 => return Ok(found),
            count => {
                found.extend_from_slice(&bytes[..count]);
                at += count as u64;
            }
        }
    }
}

/// Opens the file of a helper. One that is stopped is reported, and waited for. (Another process
/// that only tries, as in `asking`, would be the last one that has the file, and end the helper.)
fn wait_for_helper(path: PathBuf) -> std::io::Result<LazyFile> {
    let (send, received) = channel();
    let opened_there = path.clone();
    let open = move || drop(send.send(LazyFile::of_helper(opened_there)));
    let Ok(thread) = std::thread::Builder::new().name("directfs-open".to_owned()).spawn(open) else {
        // Under a limit of processes. It waits without a word.
        return LazyFile::of_helper(path);
    };
    let opened = received.recv_timeout(asking::PATIENCE).or_else(|_| {
        eprintln!(
            "directfs: waiting: the process that fetches the image for all runs of this state is stopped or hangs; \
             continue it (pkill -CONT -x directfs-store) or end it (pkill -KILL -x directfs-store)"
        );
        received.recv()
    });
    let _ = thread.join();
    opened.map_err(|_| std::io::ErrorKind::Other)?
}

/// Starts a helper, and waits until its file, or that of another one, can be opened.
fn start(part: &Part) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut helper = command.spawn().context("cannot start a process that fetches the image")?;
    if let Some(mut stdin) = helper.stdin.take() {
        // A helper that has ended says why.
        let _ = stdin.write_all(&serde_json::to_vec(part)?);
    }
    let said = BufReader::new(helper.stdout.take().context("a pipe is missing")?);
    for line in said.lines() {
        let line = line.context("cannot read from the process that fetches the image")?;
        match line.split_once(' ') {
            Some(("say", text)) => eprintln!("directfs: {text}"),
            Some(("failed", text)) => {
                let _ = helper.wait();
                return Err(anyhow!("{text}"));
            }
            _ if line == "ready" => return Ok(()),
            _ => break,
        }
    }
    let status = helper.wait().context("cannot wait for the process that fetches the image")?;
    bail!("the process that fetches the image ended with {status}")
}

/// The state behind the file of a helper.
struct Served {
    lazy: Lazy,
    messages: Arc<Mutex<Vec<u8>>>,
}

impl Content for Served {
    fn size(&self) -> u64 {
        self.lazy.size()
    }

    fn content_bytes(&self) -> u64 {
        self.lazy.content_bytes()
    }

    fn number(&self) -> u64 {
        self.lazy.number()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        self.lazy.read(offset, into).is_ok()
    }

    fn next_content(&self, at: u64) -> Option<Range<u64>> {
        self.lazy.next_content(at)
    }

    fn messages(&self) -> Vec<u8> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The starter's end of the pipe; messages go there until the file is ready.
struct Starter(Mutex<Option<File>>);

impl Starter {
    fn say(&self, line: &str) -> bool {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // The starter may have been killed.
            Some(pipe) => writeln!(pipe, "{}", line.replace('\n', " ")).is_ok(),
            None => false,
        }
    }

    fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Removes the mount of a helper that was killed, which would stay until the next use of its state.
/// A helper that has the state's lock does so itself, and mounts in the same place.
fn remove_mount(mount: &Path) {
    let identity = mount.file_name().and_then(OsStr::to_str);
    if let Some(Ok(Some(_locked))) = identity.map(|identity| Cache::of_user().part(identity)) {
        let _ = remove_dead(mount).map(|()| std::fs::remove_dir(mount));
    }
}

/// Is the helper.
pub fn serve() -> Result<()> {
    let foreign = open_descriptors();
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let part: Part = serde_json::from_slice(&text).context("started by `directfs run` and `mount` only")?;
    let pipe = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    // It outlives the run that starts it.
    detach_from_terminal(&foreign);
    let _ = rustix::thread::set_name(c"directfs-store");
    // Before other threads: a signal ends the mount, not one of them.
    let _blocked = child::Signals::block();
    let starter = Arc::new(Starter(Mutex::new(Some(pipe))));
    let result = serve_part(part, &starter);
    if let Err(error) = &result {
        starter.say(&format!("failed {error:#}"));
    }
    result
}

fn serve_part(part: Part, starter: &Arc<Starter>) -> Result<()> {
    let cache = Cache::of_user();
    let mount = cache.mount_point(part.identity())?;
    let begun = Instant::now();
    let file = loop {
        match cache.part(part.identity())? {
            Some(file) => break file,
            None if File::open(mount.join(FILE)).is_ok() => {
                starter.say("ready");
                return Ok(());
            }
            // The other helper starts, or ends.
            None if begun.elapsed() < HANDOVER => std::thread::sleep(Duration::from_millis(10)),
            None => bail!("another process has {} locked, and does not serve it", mount.display()),
        }
    };
    // The helper before has removed it while it had the lock.
    cache.mount_point(part.identity())?;
    let messages = Arc::new(Mutex::new(Vec::new()));
    let (kept, heard) = (Arc::clone(&messages), Arc::clone(starter));
    let say = move |text: &str| {
        if !heard.say(&format!("say {text}")) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() < MESSAGES_BYTES_MAX {
                kept.extend_from_slice(text.replace('\n', " ").as_bytes());
                kept.push(b'\n');
            }
        }
    };
    let lazy = Lazy::open(part, cache, file, Limits::default(), Box::new(say))?;
    let served = Arc::new(Served { lazy, messages });
    let ready = || {
        starter.say("ready");
        starter.end();
    };
    let result = serve_file(Arc::clone(&served), "directfs-store", &mount, ready);
    let _ = std::fs::remove_dir(&mount);
    if let Ok(served) = Arc::try_unwrap(served) {
        served.lazy.close();
    }
    result.map_err(|error: MountError| error.into())
}
