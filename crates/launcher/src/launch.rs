//! Starts a program with the library in it.
//!
//! Invariant: a program into which the library cannot be loaded is refused here, with the reason,
//! and not started.

use crate::cache::{Cache, Refused};
use crate::elf::{BadElf, Elf};
use hook::handoff::{self, HandoffRecord};
use hook::loading::{early, elf_dependencies};
use hook::process::programs::{HEAD_BYTES, ProgramKind, gather, kind_of};
use hook::process::{apparmor, environment, exec};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Why a program is not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No directory for the library and its tables.
    #[error("no directory for the preload library is safe and permits code to run:\n{0}")]
    NoCache(Refused),
    /// Files of the user cannot be distinguished from those of others.
    #[error(
        "user {0} is not mapped into this user namespace, so its files cannot be told from those of other users; map it (unshare --map-current-user)"
    )]
    NoName(u32),
    /// No such program.
    #[error("{path}: command not found", path = .0.display())]
    NotFound(PathBuf),
    /// Something cannot be read.
    #[error("{path}: {1}", path = .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// A library of the system that is not an ELF library.
    #[error("{path}: not an x86-64 library with a build-id, or damaged; use `directfs mount`", path = .0.display())]
    BadLibrary(PathBuf),
    /// Neither a program for this machine nor a script.
    #[error("{path}: neither an x86-64 program nor a script", path = .0.display())]
    NotProgram(PathBuf),
    /// No loader, so no preload library.
    #[error("{path}: a static program, which cannot load the preload library; use `directfs mount`", path = .0.display())]
    Static(PathBuf),
    /// Of another C library (such as musl), which loads libraries differently.
    #[error("{path}: a program for a C library other than glibc, which is not supported; use `directfs mount`", path = .0.display())]
    OtherLibrary(PathBuf),
    /// In Go, which makes system calls and threads by itself.
    #[error("{path}: a program with inline system calls, which is not supported; use `directfs mount`", path = .0.display())]
    Own(PathBuf),
    /// The loader ignores preload libraries there.
    #[error("{path}: a set-user-ID or set-group-ID program, which cannot load the preload library, but its arguments, environment or working directory are in the mount; use `directfs mount`", path = .0.display())]
    Privileged(PathBuf),
    /// A mandatory access control keeps the library out.
    #[error("{path}: the AppArmor profile {profile} does not let this program map the preload library; add the rule `{library} mr,` to the profile, or use `directfs mount`", path = .program.display(), library = .library.display())]
    Confined {
        /// The program.
        program: PathBuf,
        /// The profile that it would get.
        profile: String,
        /// The library.
        library: PathBuf,
    },
    /// Scripts that start scripts, beyond the limit.
    #[error("{path}: too many interpreters", path = .0.display())]
    TooManyInterpreters(PathBuf),
    /// A library that could be served only in part.
    #[error("{path}: {1} system calls cannot be intercepted, so programs would see only part of the file system; use `directfs mount`", path = .0.display())]
    Unsafe(PathBuf, u32),
}

/// The kernel's limit.
const INTERPRETERS_MAX: usize = 5;
/// The variable that names a program's file for a profile: see [`hook::profile`].
pub const PROFILE_VARIABLE: &str = "DIRECTFS_PROFILE";

/// The file system of a launched program, beside the environment of [`command`].
#[derive(Debug)]
pub struct Serving<'a> {
    /// Descriptors and lengths.
    pub handoff: HandoffRecord,
    /// The mount directory.
    pub mount: &'a Path,
    /// The working directory, as a path below the mount that begins with a slash; `None` if it is
    /// not in the mount.
    pub start: Option<&'a Path>,
    /// The binary that runs programs into which nothing can be loaded.
    pub binary: Option<&'a Path>,
}

impl Serving<'_> {
    /// Sets the entries of the environment, and lets the program inherit the descriptors, which
    /// must be open when the command starts. In this process they stay close-on-exec.
    pub fn apply(&self, command: &mut Command) {
        let handoff = self.handoff;
        let hand_over = move || {
            // SAFETY: changes a flag of a descriptor, in the child alone.
            match handoff.present().all(|fd| unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == 0) {
                true => Ok(()),
                false => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure makes plain system calls, and allocates nothing.
        unsafe { command.pre_exec(hand_over) };
        let mut text = [0; handoff::TEXT_BYTES_MAX];
        let length = self.handoff.write(&mut text);
        command.env("DIRECTFS_IMAGE", OsStr::from_bytes(&text[..length]));
        command.env("DIRECTFS_MOUNT", self.mount);
        command.env_remove("DIRECTFS_PROCESS");
        for (name, value) in [("DIRECTFS_START", self.start), ("DIRECTFS_BINARY", self.binary)] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env_remove("DIRECTFS_EARLY");
        let library = command.get_envs().find(|(name, _)| *name == "DIRECTFS_RUN").and_then(|(_, value)| value);
        let (is_needed, has_paths) = self.is_needed_early(command);
        if let Some(library) = library.map(Path::new).filter(|_| is_needed) {
            let list = list_with(library, "LD_AUDIT");
            command.env("LD_AUDIT", list).env("DIRECTFS_EARLY", "0000000000000000");
            let mut tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
            if !tunables.is_empty() {
                tunables.push(":");
            }
            let ours = early::tunables(early::usual_static_storage_bytes(has_paths));
            let ours = ours.strip_suffix(b"\0").unwrap_or(ours);
            tunables.push(OsStr::from_bytes(ours.strip_prefix(b"GLIBC_TUNABLES=").unwrap_or(ours)));
            command.env("GLIBC_TUNABLES", tunables);
        }
        hide(command);
    }

    /// Whether the loader needs the mount before the program starts; and whether paths to libraries
    /// are built into the program.
    fn is_needed_early(&self, command: &Command) -> (bool, bool) {
        let mount = self.mount.as_os_str().as_bytes();
        let inside = early::ProgramInside { program: false, directory: self.start.is_some() };
        let by_environment = ["LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"].into_iter().any(|name| {
            // The user's own value; the command's value names the library by now.
            std::env::var_os(name).is_some_and(|value| {
                early::entry_leads_in(&[name.as_bytes(), b"=", value.as_bytes()].concat(), mount, inside)
            })
        });
        let mut has_paths = false;
        let mut by_program = || {
            let file = File::open(command.get_program()).ok()?;
            let head = head_of(&file).ok()?;
            let mut read = |offset: u64, into: &mut [u8]| file.read_at(into, offset).unwrap_or(0);
            Some(elf_dependencies::any_path(&head, &mut read, &mut |path| {
                has_paths = true;
                early::leads_in(path, mount, inside)
            }))
        };
        let by_program = by_program().unwrap_or(false);
        (by_environment || by_program, has_paths)
    }
}

/// Hides from the program what is not its own: an even number of entries.
fn hide(command: &mut Command) {
    command.env("DIRECTFS_HIDE", "").env_remove("DIRECTFS_FILL");
    let library = command.get_envs().find(|(name, _)| *name == "DIRECTFS_RUN").and_then(|(_, value)| value);
    let library = library.unwrap_or_default().as_bytes();
    let inherited = std::env::vars_os().filter(|(name, _)| command.get_envs().all(|(set, _)| set != name));
    let set = command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let is_hidden = |(name, value): &(OsString, OsString)| {
        let entry = [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat();
        !environment::is_seen(&entry, library, false)
    };
    if inherited.chain(set).filter(is_hidden).count() % 2 == 1 {
        command.env("DIRECTFS_FILL", "");
    }
}

/// Creates the descriptor that stands behind every open file of the image, at a high number. To
/// poll and epoll it behaves like a regular file. It can be neither read nor written, nor reopened
/// through /proc, also by another process that gets it: so it never passes for an empty file.
///
/// A Landlock rule set and secret memory have these properties, whichever the kernel supports.
/// Otherwise it is a directory that was removed.
///
/// A process makes it before it has a second thread: to enlarge a table of descriptors that threads
/// share, the kernel waits 5 to 15 ms for all processors.
pub fn placeholder() -> io::Result<OwnedFd> {
    const EXECUTE: u64 = 1;
    let attributes = [EXECUTE];
    // SAFETY: the first reads the attribute; both create a descriptor, and change nothing else.
    let made = unsafe {
        match libc::syscall(libc::SYS_landlock_create_ruleset, attributes.as_ptr(), size_of_val(&attributes), 0) {
            ..0 => libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC),
            ruleset => ruleset,
        }
    };
    if made < 0 {
        let scratch = removed_directory()?;
        return high_duplicate(&scratch);
    }
    // SAFETY: a new descriptor without other owners.
    high_duplicate(&unsafe { OwnedFd::from_raw_fd(made as i32) })
}

/// A directory that was removed. Its name cannot be guessed, so no other user can take it first.
fn removed_directory() -> io::Result<OwnedFd> {
    let mut path = std::env::temp_dir().join("directfs-placeholder-XXXXXX").into_os_string().into_vec();
    path.push(0);
    // SAFETY: the path ends with a zero; the function changes the six bytes before it.
    if unsafe { libc::mkdtemp(path.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    path.pop();
    let path = PathBuf::from(OsString::from_vec(path));
    let opened = File::open(&path).map(OwnedFd::from);
    std::fs::remove_dir(&path)?;
    opened
}

/// A duplicate at a high number, for programs to inherit (see [`Serving::apply`]): above the limit
/// on descriptors if possible, so that programs may have as many as without it.
pub fn high_duplicate(fd: &impl AsFd) -> io::Result<OwnedFd> {
    let limit = descriptor_limit()?;
    /// Number of descriptors that the library needs, with some to spare.
    const NEEDED: u64 = 16;
    /// Above a higher limit forks would cost too much: see [`handoff::DESCRIPTORS_FROM`].
    const LIMIT_MAX: u64 = 4096;
    let from = handoff::DESCRIPTORS_FROM as u64;
    let above = limit.rlim_cur.max(from);
    let raised = libc::rlimit { rlim_cur: above + NEEDED, rlim_max: limit.rlim_max.max(above + NEEDED) };
    if limit.rlim_cur <= LIMIT_MAX && set_descriptor_limit(&raised).is_ok() {
        let copy = duplicate_from(fd, above);
        set_descriptor_limit(&limit)?;
        return copy;
    }
    duplicate_from(fd, limit.rlim_cur.saturating_sub(NEEDED).min(from))
}

fn descriptor_limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local structure.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_descriptor_limit(limit: &libc::rlimit) -> io::Result<()> {
    // SAFETY: reads a local structure.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A duplicate at the lowest free number from `lowest` on.
fn duplicate_from(fd: &impl AsFd, lowest: u64) -> io::Result<OwnedFd> {
    // SAFETY: an open descriptor; the new one has no other owners.
    unsafe {
        let copy = libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest as libc::c_int);
        if copy < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(copy)) }
    }
}

/// A command that runs with the library in it; the caller adds arguments, directory and
/// environment.
///
/// `counts`: a file of [`hook::call_counts::BYTES`] with counters of the calls that reach
/// the dispatcher. With it all calls with a route reach the dispatcher.
pub fn command(program: &OsStr, counts: Option<&Path>) -> Result<Command, LaunchError> {
    let path = find(program)?;
    let cache = Cache::open()?;
    prepare(&cache, &path)?;
    refuse_confined(&cache, &path)?;
    let mut command = Command::new(&path);
    command.env("LD_PRELOAD", list_with(cache.library(), "LD_PRELOAD"));
    command.env("DIRECTFS_RUN", cache.library());
    match cache.text_directory() {
        Some(directory) => command.env("DIRECTFS_TEXT", directory),
        None => command.env_remove("DIRECTFS_TEXT"),
    };
    match counts {
        Some(counts) => command.env("DIRECTFS_COUNTS", counts),
        None => command.env_remove("DIRECTFS_COUNTS"),
    };
    command.env_remove(PROFILE_VARIABLE);
    std::os::unix::process::CommandExt::arg0(&mut command, program);
    Ok(command)
}

/// Runs a program to its end.
pub fn launch<A: AsRef<OsStr>>(
    program: &OsStr,
    arguments: impl IntoIterator<Item = A>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    directory: Option<&Path>,
) -> Result<ExitStatus, LaunchError> {
    let mut command = command(program, None)?;
    command.args(arguments).envs(environment);
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    command.status().map_err(|error| LaunchError::Unreadable(program.into(), error))
}

/// A list of the loader's: this library first, then the user's own value.
fn list_with(library: &Path, name: &str) -> OsString {
    let mut list = library.as_os_str().to_os_string();
    if let Some(others) = std::env::var_os(name).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// The file of a command: by PATH unless it contains a slash.
pub fn find(program: &OsStr) -> Result<PathBuf, LaunchError> {
    let missing = || LaunchError::NotFound(program.into());
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return if path.is_file() { Ok(path) } else { Err(missing()) };
    }
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0);
    let places = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    std::env::split_paths(&places).map(|place| place.join(program)).find(is_program).ok_or_else(missing)
}

/// Ensures that no AppArmor profile of the program keeps the library out of it. For a script the
/// kernel looks at the script's path.
fn refuse_confined(cache: &Cache, program: &Path) -> Result<(), LaunchError> {
    if !apparmor::is_enabled() {
        return Ok(());
    }
    let resolved =
        |path: &Path| std::fs::canonicalize(path).map_err(|error| LaunchError::Unreadable(path.to_path_buf(), error));
    let (file, library) = (resolved(program)?, resolved(cache.library())?);
    let (file, library_path) = (file.as_os_str().as_bytes(), library.as_os_str().as_bytes());
    match apparmor::POLICY.find_obstacle(file, Some(library_path)) {
        Some(profile) => {
            let profile = String::from_utf8_lossy(profile.as_bytes()).into_owned();
            Err(LaunchError::Confined { program: program.to_path_buf(), profile, library })
        }
        None => Ok(()),
    }
}

/// Ensures that the libraries that perform a program's system calls have tables.
fn prepare(cache: &Cache, program: &Path) -> Result<(), LaunchError> {
    let loader = loader_of(program)?;
    let is_glibc = loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux-x86-64.so"));
    if !is_glibc {
        return Err(LaunchError::OtherLibrary(program.to_path_buf()));
    }
    let loader = std::fs::canonicalize(&loader).map_err(|error| match error.kind() {
        // It may lie in the mount.
        io::ErrorKind::NotFound => LaunchError::OtherLibrary(program.to_path_buf()),
        _ => LaunchError::Unreadable(loader, error),
    })?;
    prepare_one(cache, &loader)?;
    // The C library lies beside its loader, except in distributions that keep the loader's name
    // apart.
    let beside = loader.parent().into_iter().map(Path::to_path_buf);
    let usual =
        ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"].map(PathBuf::from);
    let place = beside.chain(usual).find(|place| place.join("libc.so.6").is_file());
    let place = place.ok_or_else(|| LaunchError::NotFound("libc.so.6".into()))?;
    prepare_one(cache, &place.join("libc.so.6"))?;
    // It performed its own calls until glibc 2.33; since then it is empty, but old programs still
    // load it.
    let threads = place.join("libpthread.so.0");
    if threads.is_file() { prepare_one(cache, &threads) } else { Ok(()) }
}

fn prepare_one(cache: &Cache, library: &Path) -> Result<(), LaunchError> {
    match cache.prepare(library)?.left_alone {
        0 => Ok(()),
        count => Err(LaunchError::Unsafe(library.to_path_buf(), count)),
    }
}

/// The loader that a program names, or the interpreter of a script.
fn loader_of(program: &Path) -> Result<PathBuf, LaunchError> {
    let mut path = program.to_path_buf();
    for _ in 0..INTERPRETERS_MAX {
        let unreadable = |error| LaunchError::Unreadable(path.clone(), error);
        let bytes = match File::open(&path).and_then(|file| head_of(&file)) {
            Err(_) if has_other_rights(&path) => return Err(LaunchError::Privileged(path)),
            bytes => bytes.map_err(unreadable)?,
        };
        if let Some(rest) = bytes.strip_prefix(b"#!") {
            let line = rest.split(|&byte| byte == b'\n').next().unwrap_or(rest).trim_ascii();
            let interpreter = line.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or(line);
            path = PathBuf::from(OsStr::from_bytes(interpreter));
            continue;
        }
        if has_other_rights(&path) {
            return Err(LaunchError::Privileged(path));
        }
        let odd = |_: BadElf| LaunchError::NotProgram(path.clone());
        let elf = Elf::parse(&bytes).map_err(odd)?;
        let interpreter = elf.interpreter().map_err(odd)?;
        return match interpreter {
            Some(_) if kind_of(&bytes) == ProgramKind::Own => Err(LaunchError::Own(path)),
            Some(loader) => Ok(PathBuf::from(OsStr::from_bytes(loader))),
            None => Err(LaunchError::Static(path)),
        };
    }
    Err(LaunchError::TooManyInterpreters(program.to_path_buf()))
}

/// The first bytes of a program, with all of its headers.
fn head_of(file: &File) -> io::Result<Vec<u8>> {
    let mut head = [0; HEAD_BYTES];
    let bytes = file.read_at(&mut head, 0)?;
    let bytes = gather(&mut head, bytes, &mut |offset, into| file.read_at(into, offset).unwrap_or(0));
    Ok(head[..bytes].to_vec())
}

/// Whether the kernel gives a program other rights than this process has.
fn has_other_rights(program: &Path) -> bool {
    CString::new(program.as_os_str().as_bytes()).is_ok_and(|path| exec::has_other_rights(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_behind_open_files_has_no_name_and_needs_none_that_others_know() {
        let known = std::env::temp_dir().join(format!("directfs-placeholder-{}", std::process::id()));
        std::fs::create_dir(&known).unwrap();
        let placeholder = removed_directory();
        std::fs::remove_dir(&known).unwrap();
        let link = format!("/proc/self/fd/{}", placeholder.as_ref().unwrap().as_raw_fd());
        assert!(std::fs::read_link(&link).unwrap().to_str().unwrap().ends_with(" (deleted)"));
        assert_eq!(std::fs::read_dir(link).unwrap().count(), 0);
    }
}
