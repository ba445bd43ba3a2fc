//! `directfs mount`, in the foreground and in the background, and the helper that mount(8) calls.
//!
//! In the background mode this program starts itself again with `--foreground` and a pipe, waits
//! for one byte on the pipe, or the cause of a failure, and exits. A fork without exec would be
//! incorrect if a thread had been started before it.

use super::mount_replica::{self, MountReplica};
use crate::arguments::{Mount, MountHelper};
use crate::asking::{self, Unanswered};
use crate::run::{Fetched, LazyFile};
use crate::{mounts, units};
use anyhow::{Context, Result, bail};
use console::server::{READY, Start, unmount};
use fuse::{Destination, Ended, MountOptions, Role};
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::io::FdFlags;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Mounts.
pub fn run(arguments: &Mount) -> Result<()> {
    let Some(fd) = arguments.ready_fd else { return mount_or_serve(arguments, None) };
    // Before anything is opened.
    leave_starter(fd);
    let ready = RefCell::new(Some(readiness(fd)));
    let result = mount_or_serve(arguments, Some(&ready));
    if let (Err(error), Some(mut pipe)) = (&result, ready.take()) {
        let _ = write!(pipe, "{}", in_one_line(error));
    }
    result
}

/// An error with its causes. Some errors contain their source in their own text.
fn in_one_line(error: &anyhow::Error) -> String {
    let add = |text: String, cause: String| if text.contains(&cause) { text } else { format!("{text}: {cause}") };
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), add)
}

/// Mounts, or serves a mount. `ready`: the pipe on which the starter of this server waits.
fn mount_or_serve(arguments: &Mount, ready: Option<&RefCell<Option<File>>>) -> Result<()> {
    let lists = with_commits(arguments);
    let mut options = MountOptions::default();
    for list in &lists {
        options.apply(list)?;
    }
    options.read_only |= arguments.read_only;
    let log = log_file(arguments.log.as_deref().or(options.log.as_deref()))?;
    if options.remount {
        return remount(&arguments.directory, &options);
    }
    remove_dead_mount(&arguments.directory)?;
    let image = match (&arguments.fetched_from, &arguments.cached_from) {
        (Some(url), _) => Resolved::of_helper(&arguments.image, url)?,
        (None, Some(url)) => Resolved::Store(Fetched::Cached(arguments.image.clone()), url.clone()),
        (None, None) => Resolved::from_name(&arguments.image)?,
    };
    options.read_only |= image.is_store();
    if ready.is_none() {
        mount_replica::check(&options)?;
    }
    if arguments.foreground {
        return serve(&image, &arguments.directory, options, log.as_deref(), ready);
    }
    let mut server = Start::new(image.path(), &arguments.directory);
    server.options(&lists).read_only(arguments.read_only || image.is_store()).log(log.as_deref());
    image.describe_to(&mut server);
    let server = server.in_background()?;
    if arguments.json {
        let value = json!({
            "image": units::path_text(image.shown()),
            "directory": units::path_text(&arguments.directory),
            "read_only": options.read_only,
            "server": server.id(),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    }
    advise_rings(&options);
    Ok(())
}

/// The path of a log. The server has another directory.
fn log_file(given: Option<&Path>) -> Result<Option<PathBuf>> {
    let absolute = |path: &Path| std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()));
    given.map(absolute).transpose()
}

/// The parameter that lets mounts use io_uring.
const RINGS: &str = "/sys/module/fuse/parameters/enable_uring";

/// Reports on a terminal that one line would make this machine's mounts faster.
fn advise_rings(options: &MountOptions) {
    let is_off = std::fs::read_to_string(RINGS).is_ok_and(|value| value.trim() == "N");
    let would_help = options.cache.is_exclusive() && !options.keep && !options.no_io_uring;
    if is_off && would_help && std::io::stderr().is_terminal() {
        eprintln!(
            "io_uring makes mounts faster, and the kernel leaves it off: `echo Y > {RINGS}` turns it on for later mounts"
        );
    }
}

/// The lists of options, with those for commits in the form of mount(8).
fn with_commits(arguments: &Mount) -> Vec<String> {
    let mut lists = arguments.options.clone();
    if let Some(interval) = arguments.commits.commit_interval {
        lists.push(format!("commit={}", interval.as_secs_f64()));
    }
    if let Some(bytes) = arguments.commits.memory {
        lists.push(format!("memory={bytes}"));
    }
    if arguments.commits.no_commit {
        lists.push("no_commit".to_owned());
    }
    lists
}

/// Mounts with the conventions of mount(8).
pub fn help_mount(arguments: &MountHelper) -> Result<()> {
    let lists = if arguments.sloppy { known_options(&arguments.options) } else { arguments.options.clone() };
    let mut options = MountOptions::default();
    for list in &lists {
        options.apply(list)?;
    }
    let image = Resolved::from_name(&arguments.image)?;
    let read_only = image.is_store() || arguments.read_only || (options.read_only && !arguments.writable);
    if arguments.verbose {
        let how = if read_only { "read-only" } else { "read-write" };
        println!("mount.directfs: {} on {} {how}", image.shown().display(), arguments.directory.display());
    }
    if arguments.fake {
        return Ok(());
    }
    if options.remount {
        options.read_only = read_only;
        return remount(&arguments.directory, &options);
    }
    remove_dead_mount(&arguments.directory)?;
    options.read_only = read_only;
    mount_replica::check(&options)?;
    let mut server = Start::new(image.path(), &arguments.directory);
    server.options(&lists).read_only(read_only).log(log_file(options.log.as_deref())?.as_deref());
    image.describe_to(&mut server);
    server.in_background().map(drop)
}

/// Changes the flags of a mount.
fn remount(directory: &Path, options: &MountOptions) -> Result<()> {
    let mount = mounts::at(directory);
    // Flags that cannot be known stay.
    let present = mount.as_ref().map_or(libc::MS_NOSUID | libc::MS_NODEV, |mount| {
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        flag(mount.nosuid, libc::MS_NOSUID) | flag(mount.nodev, libc::MS_NODEV)
    });
    let named = options.named_flags & !options.kernel_flags;
    let privileges = [(libc::MS_NOSUID, "suid"), (libc::MS_NODEV, "dev")];
    let privileges: Vec<_> = privileges.iter().filter(|(flag, _)| named & flag != 0).map(|(_, name)| *name).collect();
    if !privileges.is_empty() {
        // Otherwise the server sets the flags again. One that cannot be asked does not.
        let value = privileges.join(",");
        let _ = asking::set_attribute(directory, fuse::PRIVILEGES_ATTRIBUTE, value.as_bytes(), asking::PATIENCE);
    }
    Ok(fuse::remount(directory, options, present)?)
}

/// Removes a mount of this file system whose server has exited, so that a new one takes its place.
fn remove_dead_mount(directory: &Path) -> Result<()> {
    let found = asking::identity(directory);
    if found == Err(Unanswered::Silent) {
        bail!(
            "{} does not answer within {} s: its server is stopped or hangs; continue or end that process, or detach \
             the mount with `directfs umount --lazy`",
            directory.display(),
            asking::PATIENCE.as_secs()
        );
    }
    let is_dead = found == Err(Unanswered::Refused(rustix::io::Errno::NOTCONN));
    let mount = mounts::at(directory).filter(|mount| is_dead && mount.kind == "fuse.directfs");
    let Some(mount) = mount else { return Ok(()) };
    unmount(&mount.point, true)?;
    eprintln!("removed the mount of {} on {}, whose server had exited", mount.source.display(), mount.point.display());
    Ok(())
}

/// The known options, for `-s`.
fn known_options(lists: &[String]) -> Vec<String> {
    let all = lists.iter().flat_map(|list| list.split(','));
    all.filter(|option| MountOptions::parse(option).is_ok()).map(str::to_owned).collect()
}

/// An image that is to be mounted.
enum Resolved {
    /// A file, by a path that does not depend on the current directory.
    File(PathBuf),
    /// The newest state of the store at a URL.
    Store(Fetched, String),
}

impl Resolved {
    fn from_name(image: &Path) -> Result<Resolved> {
        if let Some(url) = image.to_str().filter(|name| store::is_url(name)) {
            return Ok(Resolved::Store(Fetched::to_read(url)?, url.to_owned()));
        }
        let path = image.canonicalize().with_context(|| {
            format!("cannot find the image {}; check the path, or create one with `directfs mkfs`", image.display())
        })?;
        Ok(Resolved::File(path))
    }

    /// A file of a process that fetches it, which the starter of this server keeps until then.
    fn of_helper(path: &Path, url: &str) -> Result<Resolved> {
        let file = LazyFile::of_helper(path.to_owned())
            .with_context(|| format!("{url}: the process that fetches the image has ended"))?;
        Ok(Resolved::Store(Fetched::Lazy(file, url.to_owned()), url.to_owned()))
    }

    fn path(&self) -> &Path {
        match self {
            Resolved::File(path) => path,
            Resolved::Store(fetched, _) => fetched.path(),
        }
    }

    /// What the user knows it by.
    fn shown(&self) -> &Path {
        match self {
            Resolved::File(path) => path,
            Resolved::Store(_, url) => Path::new(url),
        }
    }

    fn is_store(&self) -> bool {
        matches!(self, Resolved::Store(..))
    }

    fn is_fetched(&self) -> bool {
        matches!(self, Resolved::Store(Fetched::Lazy(..), _))
    }

    /// Describes the image to a server that starts in the background.
    fn describe_to(&self, server: &mut Start) {
        if let Resolved::Store(_, url) = self {
            server.of_store(url, self.is_fetched());
        }
    }
}

/// Serves until the mount ends.
fn serve(
    image: &Resolved,
    directory: &Path,
    mut options: MountOptions,
    log: Option<&Path>,
    ready: Option<&RefCell<Option<File>>>,
) -> Result<()> {
    let is_background = ready.is_some();
    (options.is_fetched, options.is_of_store) = (image.is_fetched(), image.is_store());
    if let (Resolved::Store(_, url), None) = (image, &options.source) {
        options.source = Some(url.clone());
    }
    if is_background {
        // The server was started through /proc/self/exe and would be listed as "exe".
        let _ = rustix::thread::set_name(c"directfs");
    }
    let log = RefCell::new(log.map(open_log).transpose()?);
    if !is_background && let Some(file) = log.take() {
        fuse::send_messages_to(Destination::File(file));
    }
    let (has_left, messages, replica) = (Cell::new(false), RefCell::new(None), RefCell::new(None));
    let announce = |role: Role| {
        match ready {
            Some(ready) => {
                has_left.set(true);
                send_messages_to(log.take());
                // The starter may have exited meanwhile; the mount stays.
                let _ = ready.take().map(|mut pipe| pipe.write_all(&[READY]));
            }
            None if role == Role::Keeper => {}
            None => {
                let (image, directory) = (image.shown().display(), directory.display());
                eprintln!("{image} is mounted on {directory}; Ctrl-C or `directfs umount` ends it");
            }
        }
        // A keeper has no threads.
        if let (Role::Server, Resolved::Store(fetched, _)) = (role, image) {
            let say = |text: &str| fuse::report_error(format_args!("{text}"));
            *messages.borrow_mut() = fetched.show_messages(say);
        }
        if let Some(url) = &options.replicate {
            match MountReplica::start(image.path(), url) {
                Ok(started) => *replica.borrow_mut() = Some(started),
                Err(error) => fuse::report_error(format_args!("{error:#}")),
            }
        }
    };
    let served = fuse::serve(image.path(), directory, &options, announce);
    if let Some(replica) = replica.take() {
        replica.finish();
    }
    if let (Err(error), true) = (&served, has_left.get()) {
        fuse::report_error(format_args!("{error}"));
    }
    match served? {
        Ended::Cleanly(_) => Ok(()),
        Ended::Unclean if is_background => Ok(()),
        Ended::Unclean => bail!("stopped while programs used the mount; the next use recovers the image"),
    }
}

/// Closes what the starter had open, but for the standard files, and leaves its directory: a lock
/// that it held must end with it, and its file systems must remain removable.
fn leave_starter(ready: RawFd) {
    for fd in crate::run::open_descriptors().into_iter().filter(|&fd| fd != ready) {
        // SAFETY: nothing in this process has opened a file that is still open.
        unsafe { libc::close(fd) };
    }
    let _ = std::env::set_current_dir("/");
}

/// The pipe that the starter waits on. Child processes must not inherit it.
fn readiness(fd: i32) -> File {
    // SAFETY: the starter passed this number for this purpose; nothing else in this process uses
    // it.
    let pipe = unsafe { OwnedFd::from_raw_fd(fd) };
    let _ = rustix::io::fcntl_setfd(&pipe, FdFlags::CLOEXEC);
    File::from(pipe)
}

/// The file for messages, which is made if it is absent.
fn open_log(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).mode(0o640).open(path);
    file.with_context(|| format!("cannot write messages to {}; choose another file with --log", path.display()))
}

/// Sends messages to a file, or the log of the machine, from now on. Releases the starter's
/// terminal or pipes: a shell that waits for their end would wait for the mount's end.
fn send_messages_to(log: Option<File>) {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(log.as_ref().unwrap_or(&null));
    }
    fuse::send_messages_to(log.map_or_else(Destination::log_of_the_machine, Destination::File));
    std::panic::set_hook(Box::new(|panic| fuse::report_error(format_args!("{panic}"))));
}
