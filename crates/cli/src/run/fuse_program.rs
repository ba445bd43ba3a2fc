//! Programs that the preload library cannot be in: those of 32 bits, unreadable static ones, those
//! of a user without access to it, and all others that it loads itself where the kernel cannot
//! redirect their calls.
//!
//! They see the image through a FUSE mount that is private to them and their children.
//!
//! The preload library executes this program in their place. It enters a mount namespace, leaves a
//! server outside of it, reopens through the mount what was open in the image, and executes the
//! program. The server ends with the namespace, that is, with the last program in it.
//!
//! Invariants:
//!
//! - A program runs only if its mount, its working directory and all its descriptors are what they
//!   were inside. Otherwise a message gives the reason.
//! - Nothing of this is visible outside of the namespace.
//!
//! Where the mount directory does not exist, a directory with everything of its parent bound into
//! it covers the parent (below `/` and `/tmp` the host has it meanwhile). *Rejected:* refusing such
//! programs; always making the directory on the host (paths that bypass the library would find it
//! empty, and work there).

use super::{EXIT_NOT_FOUND, EXIT_NOT_RUN, Failure, child, detach_helper, namespace};
use anyhow::{Context, Result, bail};
use engine::format::FileKind;
use engine::{Node, Thread};
use fuse::{Cache, Inherited, MountError, MountOptions};
use hook::handoff::HandoffRecord;
use image::{HandedOff, Image, OpenImage};
use pmem::Direct;
use posix::{Caller, Credentials};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tables::process::{Fork, Process, Processes};

/// Entries of the environment for the library alone.
const LIBRARY_VARIABLES: [&str; 11] = [
    "DIRECTFS_HIDE",
    "DIRECTFS_FILL",
    "DIRECTFS_EARLY",
    "DIRECTFS_RUN",
    "DIRECTFS_IMAGE",
    "DIRECTFS_START",
    "DIRECTFS_PROCESS",
    "DIRECTFS_BINARY",
    "DIRECTFS_COUNTS",
    "DIRECTFS_PROGRAM",
    launcher::launch::PROFILE_VARIABLE,
];

/// Becomes the program. `words`: its path, then its arguments from argument 0 on. `entries`: those
/// of the environment that only the program's loader must see.
pub fn run(words: &[OsString], entries: &[OsString]) -> Failure {
    let [path, name, arguments @ ..] = words else {
        return anyhow::anyhow!("no program is named").into();
    };
    let mask = signal_mask();
    if let Some(error) = restart_without_library() {
        return error.into();
    }
    let shown = Path::new(path).display().to_string();
    match enter() {
        Ok(()) => {}
        Err(error) => {
            let error = error.context(format!(
                "{shown} was not run: it cannot load the preload library (it is of 32 bits, cannot be read, is for another C library, or its user cannot read the library), \
                 and the image cannot be mounted for it"
            ));
            return Failure { exit_code: EXIT_NOT_RUN, error };
        }
    }
    // Without a slash the path would be searched in `PATH`.
    let path = if path.as_bytes().contains(&b'/') { PathBuf::from(path) } else { Path::new(".").join(path) };
    let mut command = Command::new(path);
    command.arg0(name).args(arguments);
    for (name, value) in entries.iter().filter_map(|entry| loader_entry(entry)) {
        command.env(name, value);
    }
    LIBRARY_VARIABLES.iter().for_each(|entry| {
        command.env_remove(entry);
    });
    set_signal_mask(&mut command, mask);
    child::keep_closed(&mut command);
    let error = command.exec();
    let exit_code = if error.kind() == std::io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_RUN };
    Failure { exit_code, error: anyhow::Error::from(error).context(format!("cannot run {shown}")) }
}

/// Name and value of an entry, without the preload library at the head of a list. `None`: nothing
/// is left of it.
fn loader_entry(entry: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let equals = entry.as_bytes().iter().position(|&byte| byte == b'=')?;
    let (name, value) = (&entry.as_bytes()[..equals], &entry.as_bytes()[equals + 1..]);
    let library = std::env::var_os("DIRECTFS_RUN").unwrap_or_default();
    let value = match value.strip_prefix(library.as_bytes()) {
        Some(b"") => return None,
        Some([b':' | b' ', rest @ ..]) if !library.is_empty() => rest,
        _ => value,
    };
    Some((OsStr::from_bytes(name), OsStr::from_bytes(value)))
}

/// Has a program start with the signals blocked that are blocked now, as outside of `run`.
pub fn keep_signal_mask(command: &mut Command) {
    set_signal_mask(command, signal_mask());
}

fn set_signal_mask(command: &mut Command, mask: libc::sigset_t) {
    // SAFETY: a plain system call on a value of the closure's own.
    unsafe {
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
            Ok(())
        });
    }
}

fn signal_mask() -> libc::sigset_t {
    // SAFETY: a set that the call fills.
    unsafe {
        let mut mask = MaybeUninit::zeroed().assume_init();
        libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        mask
    }
}

/// If the library is in this process, executes this program again without it, because what follows
/// needs the kernel's view. Returns an error, or none if there is no library.
fn restart_without_library() -> Option<anyhow::Error> {
    let library = std::env::var_os("DIRECTFS_RUN")?;
    let preloads = std::env::var_os("LD_PRELOAD")?;
    let without_us = |list: &OsString| -> Option<Vec<u8>> {
        let others = list.as_bytes().strip_prefix(library.as_bytes())?;
        Some(others.strip_prefix(b":").unwrap_or(others).to_vec())
    };
    let others = without_us(&preloads)?;
    let audits = std::env::var_os("LD_AUDIT").map(|list| without_us(&list).unwrap_or_else(|| list.into_vec()));
    let string = |bytes: Vec<u8>| CString::new(bytes).expect("arguments and environment have no zeros");
    let entry = |(name, value): (OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    let kept = std::env::vars_os().filter(|(name, _)| name != "LD_PRELOAD" && name != "LD_AUDIT");
    let list = |name: &[u8], value: Vec<u8>| (!value.is_empty()).then(|| [name, b"=", &value].concat());
    let lists = list(b"LD_PRELOAD", others).into_iter().chain(audits.and_then(|audits| list(b"LD_AUDIT", audits)));
    let environment: Vec<CString> = kept.map(entry).chain(lists).map(string).collect();
    let arguments: Vec<CString> = std::env::args_os().map(|word| string(word.into_vec())).collect();
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let own = match std::env::current_exe() {
        Ok(own) => string(own.into_os_string().into_vec()),
        Err(error) => return Some(anyhow::Error::from(error).context("cannot find this program's own file")),
    };
    const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
    // The kernel must not redirect calls to the library either. SAFETY: switches the redirection
    // off for this thread; does nothing where it is off.
    unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) };
    let handoff = std::env::var_os("DIRECTFS_IMAGE").and_then(|text| HandoffRecord::parse(text.as_bytes()));
    for fd in handoff.into_iter().flat_map(HandoffRecord::present) {
        // SAFETY: lets this program inherit a descriptor that was handed down for it.
        unsafe { native_call(libc::SYS_fcntl, [fd as usize, libc::F_SETFD as usize, 0]) };
    }
    let (arguments, environment) = (pointers(&arguments), pointers(&environment));
    let lists = [own.as_ptr() as usize, arguments.as_ptr() as usize, environment.as_ptr() as usize];
    // SAFETY: strings and lists that outlive the call.
    let error = std::io::Error::from_raw_os_error(-unsafe { native_call(libc::SYS_execve, lists) } as i32);
    Some(anyhow::Error::from(error).context("cannot restart without the preload library"))
}

/// A system call by an instruction of this function's own, which the library has not replaced.
///
/// # Safety
/// The call may be made with these arguments.
unsafe fn native_call(number: libc::c_long, [first, second, third]: [usize; 3]) -> libc::c_long {
    let mut result = number;
    // SAFETY: a system call changes rax, rcx and r11 only; the rest is the caller's promise.
    unsafe {
        std::arch::asm!("syscall", inout("rax") result, in("rdi") first, in("rsi") second, in("rdx") third,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// A file of the image that the program has open.
struct InheritedFile {
    descriptor: u32,
    /// Equal for descriptors that share a file offset.
    description: u32,
    node: Node,
    flags: i32,
    position: u64,
    /// The path of a directory.
    path: Option<PathBuf>,
}

/// Sets up all that the program needs.
fn enter() -> Result<()> {
    let value = |name: &str| {
        std::env::var_os(name).with_context(|| format!("{name} is not set: only `directfs run` starts this command"))
    };
    let handoff = HandoffRecord::parse(value("DIRECTFS_IMAGE")?.as_bytes())
        .context("DIRECTFS_IMAGE comes from another version of directfs; run all programs with one version")?;
    let mount = PathBuf::from(value("DIRECTFS_MOUNT")?);
    let result = named_process();
    // The description of a vfork child had another number in its parent's memory. The library, if
    // it is in this program, has moved it to the usual number. SAFETY: asks only.
    let is_open = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0;
    let meeting = result.and_then(|(_, meeting)| meeting).filter(is_open).unwrap_or(handoff.meeting);
    let handoff = HandoffRecord { meeting, ..handoff };
    let handed_down: Vec<RawFd> = handoff.present().collect();
    for fd in &handed_down {
        // SAFETY: a descriptor handed down for this process, which the program must not inherit.
        unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    let foreign: Vec<RawFd> =
        detach_helper::open_descriptors().into_iter().filter(|fd| !handed_down.contains(fd)).collect();
    // Never freed: this process executes the program, and its server needs the image to the end.
    let image: &'static Image = Box::leak(Box::new(open_handed_off(&handoff, duplicate_contracted(handoff.meeting)?)?));
    if let Some((slot, _)) = result
        && let Some((number, shared)) = Processes::new(image.fs())?.number_of(slot)
    {
        // Continues as the process that executed this program.
        image.fs().processes().set_process_number(number, shared);
    }
    let thread = image.fs().enter().context("cannot enter the file system")?;
    let processes = Processes::new(image.fs())?;
    let process = match processes.resume(&thread, result.map(|(slot, _)| slot))? {
        Some(process) => process,
        None => processes.register(&thread, 0o022)?,
    };
    let open = open_files(&thread, &process, &mount)?;
    let directory = match process.directory() {
        Some(directory) => Some(mount.join(path_of(&thread, directory)?)),
        None => std::env::var_os("DIRECTFS_START")
            .map(|start| mount.join(Path::new(&start).strip_prefix("/").unwrap_or(Path::new("")))),
    };
    let here = std::env::current_dir().ok();

    namespace::enter_user_namespace()?;
    let device = fuse::open_device().map_err(|error| match error {
        MountError::Device { source } => anyhow::anyhow!(
            "cannot open /dev/fuse: {source}; let this user open it, load the module (modprobe fuse), or give the container the device"
        ),
        other => other.into(),
    })?;
    let child = process.prepare_fork(&thread, Fork::default())?;
    drop(thread);
    let server = Server { handoff, image, process: child, device, foreign, open: &open };
    let (device, mut begin) = server.start()?;

    let thread = image.fs().enter().context("cannot enter the file system")?;
    namespace::enter_mount_namespace()?;
    let made = namespace::make_mount_point(&mount)?;
    fuse::mount_device(&device, OsStr::new("directfs"), &mount, &options())?;
    begin.write_all(&made).context("the server of the mount has ended")?;
    drop((begin, device));
    if let Some(directory) = directory.or(here) {
        std::env::set_current_dir(&directory)
            .with_context(|| format!("cannot enter {} through the mount", directory.display()))?;
    }
    reopen(&open, &mount)?;
    process.exit(&thread);
    drop(thread);
    Ok(())
}

/// No caching: programs with the library change the image at the same time.
fn options() -> MountOptions {
    MountOptions { cache: Cache::None, ..MountOptions::default() }
}

/// The slot of the process that executed this program, and the descriptor of its meeting directory
/// if it is not the usual one.
fn named_process() -> Option<(u32, Option<RawFd>)> {
    let text = std::env::var("DIRECTFS_PROCESS").ok()?;
    let mut parts = text.split(',');
    let slot = parts.next()?.parse().ok()?;
    Some((slot, parts.next().and_then(|meeting| meeting.parse().ok())))
}

/// A duplicate of a descriptor of the handoff protocol: the same open file description.
fn duplicate_contracted(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: if it is not open the call says so.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().context("the image was not handed down")
}

/// Opens the image that was handed down. `meeting`: this process's own description of the meeting
/// directory.
fn open_handed_off(handoff: &HandoffRecord, meeting: OwnedFd) -> Result<Image> {
    let options = OpenImage {
        read_only: handoff.read_only,
        cached_files_max: handoff.cached_files_max,
        always_flush: handoff.flushes,
        ..OpenImage::default()
    };
    let handed_off = HandedOff {
        image: duplicate_contracted(handoff.image)?.into(),
        journal: match handoff.journal {
            0 => None,
            journal => Some(duplicate_contracted(journal)?.into()),
        },
        region: duplicate_contracted(handoff.region)?.into(),
        meeting,
    };
    Ok(Image::open_handed_off(handed_off, &options)?)
}

/// The program's open files and directories.
fn open_files(
    thread: &Thread<'static, Direct>,
    process: &Process<'static, Direct>,
    mount: &Path,
) -> Result<Vec<InheritedFile>> {
    let mut descriptors = Vec::new();
    process.descriptors(&mut |fd, descriptor| {
        descriptors.push((fd, descriptor.file));
        true
    });
    let mut open = Vec::new();
    for (descriptor, description) in descriptors {
        let Some(file) = process.file(thread, descriptor) else { continue };
        let path = match file.kind() {
            FileKind::Directory => Some(mount.join(path_of(thread, file.node())?)),
            _ => None,
        };
        let (node, flags, position) = (file.node(), file.flags(), file.position());
        open.push(InheritedFile { descriptor, description, node, flags, position, path });
    }
    Ok(open)
}

/// The path of a directory from the root, without a leading slash.
fn path_of(thread: &Thread<'static, Direct>, directory: Node) -> Result<PathBuf> {
    let caller = Caller::new(thread, Credentials::kernel_checked(0, 0));
    let mut names = Vec::new();
    let mut number = directory.number;
    loop {
        let node = thread.node(number, None)?;
        let parent = thread.parent(node);
        thread.release(node, 1);
        let parent = parent?;
        if parent == number {
            break;
        }
        let above = thread.node(parent, None)?;
        let file = caller.opens().open_node(above, libc::O_RDONLY | libc::O_DIRECTORY);
        thread.release(above, 1);
        let file = file?;
        let mut name = None;
        let listed = caller.read_directory_at(&file, 0, &mut |entry| {
            let is_it = entry.number == number && entry.name != b"." && entry.name != b"..";
            if is_it {
                name = Some(entry.name.to_vec());
            }
            !is_it
        });
        caller.opens().close(&file);
        listed?;
        names.push(name.context("a directory that the program uses was removed")?);
        number = parent;
    }
    Ok(names.iter().rev().map(|name| Path::new(std::ffi::OsStr::from_bytes(name))).collect())
}

/// Replaces placeholders of the library by descriptors of the mount.
fn reopen(open: &[InheritedFile], mount: &Path) -> Result<()> {
    for (index, file) in open.iter().enumerate() {
        let target = file.descriptor as RawFd;
        let failed = || format!("cannot reopen descriptor {target} through the mount");
        // Descriptors that shared a file offset continue to share one.
        let earlier = open[..index].iter().find(|earlier| earlier.description == file.description);
        let opened = match earlier {
            Some(earlier) => duplicate(earlier.descriptor as RawFd),
            None => open_again(file, mount),
        };
        let opened = opened.with_context(failed)?;
        // SAFETY: two open descriptors; the second is the file's placeholder.
        if unsafe { libc::dup2(opened.as_raw_fd(), target) } < 0 {
            return Err(std::io::Error::last_os_error()).with_context(failed);
        }
    }
    Ok(())
}

fn duplicate(fd: RawFd) -> std::io::Result<OwnedFd> {
    // SAFETY: an open descriptor, put there by `reopen`.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}

fn open_again(file: &InheritedFile, mount: &Path) -> std::io::Result<OwnedFd> {
    let name = match &file.path {
        Some(path) => path.clone(),
        None => mount.join(format!("{}{}", fuse::INHERITED_NAME, file.descriptor)),
    };
    let name = CString::new(name.into_os_string().into_vec())?;
    let flags = file.flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY);
    // SAFETY: a terminated path; the new descriptor belongs to this function.
    let opened = unsafe {
        let fd = libc::open(name.as_ptr(), flags | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    if file.path.is_none() && file.position > 0 {
        // SAFETY: an open descriptor.
        unsafe { libc::lseek(opened.as_raw_fd(), file.position as libc::off_t, libc::SEEK_SET) };
    }
    Ok(opened)
}

/// The server of the mount, before its own process exists.
struct Server<'o> {
    handoff: HandoffRecord,
    image: &'static Image,
    /// The slot in which it keeps the program's open file descriptions.
    process: u32,
    device: OwnedFd,
    foreign: Vec<RawFd>,
    open: &'o [InheritedFile],
}

impl Server<'_> {
    /// Starts the server in a process that is not a child of the program. Returns the device, and
    /// the pipe on which the server receives the directories that were created, once it is mounted.
    fn start(self) -> Result<(OwnedFd, File)> {
        let device = self.device.try_clone().context("cannot duplicate a descriptor")?;
        let (begun, begin) = std::io::pipe().context("cannot make a pipe")?;
        let (ready, mut is_ready) = std::io::pipe().context("cannot make a pipe")?;
        let (begun, ready) = (File::from(OwnedFd::from(begun)), File::from(OwnedFd::from(ready)));
        // SAFETY: this process has one thread, so the child may do whatever the parent may.
        match unsafe { libc::fork() } {
            -1 => return Err(std::io::Error::last_os_error()).context("cannot start a server"),
            0 => {
                drop((device, begin));
                // SAFETY: as above.
                let second = unsafe { libc::fork() };
                if second == 0 {
                    drop(ready);
                    let code = self.serve(begun, &mut is_ready);
                    // SAFETY: ends this process.
                    unsafe { libc::_exit(code) };
                }
                drop(is_ready);
                let answer = read_byte(ready);
                // SAFETY: ends this process.
                unsafe { libc::_exit(i32::from(second < 0 || !answer)) };
            }
            pid => {
                drop((is_ready, begun, ready));
                let mut status = 0;
                // SAFETY: waits for the child that was just made.
                unsafe { libc::waitpid(pid, &raw mut status, 0) };
                if status != 0 {
                    bail!("the server of the mount did not start");
                }
            }
        }
        Ok((device, File::from(OwnedFd::from(begin))))
    }

    /// Runs in the process that serves. Returns its exit code.
    fn serve(self, mut begun: File, is_ready: &mut impl Write) -> i32 {
        detach_helper::detach_from_terminal(&self.foreign);
        let Ok(processes) = Processes::new(self.image.fs()) else { return 1 };
        let adopted = processes.adopt(self.process).ok();
        let Some(process) = adopted else { return 1 };
        if is_ready.write_all(b"+").is_err() {
            return 1;
        }
        let mut made = Vec::new();
        // An empty message: the mount failed, and the program has reported why.
        if begun.read_to_end(&mut made).is_err() || made.is_empty() {
            return 1;
        }
        let served = self.serve_mounted(process);
        namespace::remove_made(&made);
        i32::from(served.is_err())
    }

    fn serve_mounted(self, process: Process<'static, Direct>) -> Result<()> {
        let files = self.open.iter().filter(|file| file.path.is_none()).map(|file| (file.descriptor, file.node));
        let (image, moving) = (self.image, process);
        let moved = move |descriptor, position| {
            if let Ok(thread) = image.fs().enter()
                && let Some(file) = moving.file(&thread, descriptor)
            {
                file.set_position(position);
            }
        };
        process.set_threads();
        let inherited = Inherited::new(files, Box::new(moved));
        let meeting = image::own_description(&duplicate_contracted(self.handoff.meeting)?)?;
        fuse::serve_device(open_handed_off(&self.handoff, meeting)?, self.device, &options(), Some(inherited))?;
        let thread = self.image.fs().enter()?;
        process.exit(&thread);
        Ok(())
    }
}

fn read_byte(mut from: File) -> bool {
    matches!(from.read(&mut [0]), Ok(1))
}
