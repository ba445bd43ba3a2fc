//! Starting programs: a new program gets the library too, whatever environment the call passes.
//!
//! A program that lies in the mount is copied to memory and run from there. A script is passed to
//! its interpreter here, if the kernel could not find the script or the interpreter, and so is a
//! program of a registered format ([`registered_formats`]).
//!
//! Static programs, those of another C library, and those in Go are loaded by this library as a
//! program of its own ([`program_loader`](crate::loading)), which is started in their place.
//! So are all programs of a process whose effective ids are not its real ones (seteuid): the kernel
//! has their loader ignore the environment, which names the library. And so are programs with their
//! interpreter in the mount, which gets that in memory, too.
//!
//! The library cannot be in some programs: those that change the user, those of a user without
//! access to it, and unreadable static ones. They would not see the mount, and would silently work
//! on another directory. If any of their arguments names the mount, the launcher's helper starts
//! them, or the call is refused with a message. It also starts those that arrange their memory by
//! themselves (valgrind), where it can. Paths that another such program determines itself are not
//! seen. Such a program inherits nothing of the library: neither descriptors nor entries of the
//! environment. Its process slot ends with the exec, because the lock of its number does.
//!
//! This file finds out what is to be started; `exec_start` starts it. Nothing of the program's own
//! is changed meanwhile. The new program continues in `loading::start`.

use crate::abi::entry::{Frame, Verdict, done};
use crate::abi::sys::{self, Fd};
use crate::abi::user_memory;
use crate::call::{Call, native_with};
use crate::calls::names::{PathArguments, at, path};
use crate::context::{COPY_BYTES, Inside, PATH_ROOM_BYTES};
use crate::descriptors::marks;
use crate::loading::{armed_threads, early, elf_dependencies};
use crate::paths::{self, Directory, PathOwner};
use crate::proc_links;
use crate::process::environment::{self, FewThings, ListedString, is_directfs, special_entries, strings};
use crate::process::exec_files::{
    HostFile, copy_to_memfd, find_obstacle, full_path, is_executable, is_privileged, library_paths, missing, named_by,
    read_head, starts_securely,
};
use crate::process::exec_start::{
    BEFORE_MAX, EarlyLoad, ExecStart, INTERPRETERS_MAX, LOADER_ENTRIES_MAX, LOADER_PREFIX, LeadingArguments,
    SCRATCH_BYTES, Target,
};
use crate::process::library_search::LibrarySearch;
use crate::process::programs::{HEAD_BYTES, ProgramKind, arranges_memory, gather, interpreter, kind_of};
use crate::process::session::Session;
use crate::process::{identity, other_libc, registered_formats, user_namespace};
use crate::server::Server;
use crate::{LOADER_ENDING, handoff};
use core::ops::Range;
use libc::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use posix::path::{LINKS_FOLLOWED_MAX, LastLink, Outcome};
use posix::{Errno, NodeRef, Result};
use tables::process::Program;

/// Why the library cannot serve a program that the kernel gives other rights.
const PRIVILEGED: &[u8] = b"a set-user-ID or set-group-ID program, or one with capabilities";
/// Why the library cannot serve a program whose C library's loader would not heed the environment.
const SECURE: &[u8] = b"a program whose effective user or group is not its real one";
/// Size of their strings. The rest of the buffer is for the strings of the environment.
const ARENA_BYTES: usize = COPY_BYTES - SCRATCH_BYTES;

/// execve(path, arguments, environment).
pub fn execve(call: &mut Call<'_>) -> Result<Verdict> {
    run(call, path(0), 1, 0)
}

/// execveat(directory, path, arguments, environment, flags).
pub fn execveat(call: &mut Call<'_>) -> Result<Verdict> {
    let flags = call.frame.r8 as i32;
    if flags & !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_EXECVE_CHECK) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & AT_EXECVE_CHECK != 0 {
        return check(call, flags);
    }
    run(call, at(0), 2, flags)
}

/// For the launcher: whether the kernel gives a program other rights than this process has.
pub fn has_other_rights(program: &core::ffi::CStr) -> bool {
    is_privileged(&Target { number: libc::SYS_execve, arguments: [program.as_ptr() as u64, 0, 0, 0, 0, 0], lists: 1 })
}

/// Linux 6.14: only checks whether the program could be started.
const AT_EXECVE_CHECK: i32 = 0x10000;

fn check(call: &mut Call<'_>, flags: i32) -> Result<Verdict> {
    let mut arguments = call.arguments();
    let mut planner = Planner::new(call, at(0), 2, flags)?;
    if let File::Directfs(held) = planner.open(0)? {
        read_head(&planner.session.caller, held.node(), &mut [])?;
        return Ok(done(0));
    }
    // A path that was rewritten lies in the thread's buffer.
    (arguments[0], arguments[1], _) = named_by(&planner.target);
    Ok(native_with(call.frame, arguments))
}

/// Starts a program with the library in its environment, and changes nothing else. Its buffer is
/// not to enlarge the dispatcher's frame, which may be on a small stack for signals.
#[cold]
#[inline(never)]
pub fn inject(frame: &Frame, which: usize) -> Verdict {
    let target = Target { number: i64::from(frame.number as u32), arguments: frame.arguments(), lists: which - 1 };
    ExecStart {
        target,
        before: &[],
        skip: 0,
        process: None,
        meeting: None,
        ids: None,
        has: None,
        program: None,
        name: None,
        loaded_program: None,
        early_load: None,
        has_library: can_reach(environment::RUN),
        is_helper: false,
    }
    .run(&mut [0; SCRATCH_BYTES])
}

/// A file to be run.
enum File<'t> {
    Directfs(NodeRef<'t, 'static>),
    /// The path in the thread's buffer, or the directory if that path is empty.
    Host,
}

fn run(call: &mut Call<'_>, by: PathArguments, lists: usize, flags: i32) -> Result<Verdict> {
    let arguments = call.arguments();
    user_memory::check_list(arguments[lists])?;
    user_memory::check_list(arguments[lists + 1])?;
    let plan = plan(call, by, lists, flags)?;
    let process = call.begin()?.session.process;
    let running = process.program();
    process.set_program(plan.runs);
    let is_outside = plan.program.is_none() && plan.runs.is_none();
    let has = (is_outside && process.has_no_files()).then(|| match process.directory() {
        None => FewThings::Nothing,
        Some(_) => FewThings::Directory,
    });
    let ids = user_namespace::current().map(|_| call.context.identity().at_entry());
    // The new program enters by itself; if the exec fails, the next call does.
    call.context.leave();
    let before = &plan.before[plan.start..];
    let ExecPlan { target, process, program, loaded_program, early_load: early, .. } = plan;
    let ExecPlan { has_library, is_helper, skip, .. } = plan;
    let early = Some(early).filter(|_| has_library && !is_helper && loaded_program.is_none());
    let meeting = call.context.child_description();
    let verdict = ExecStart {
        target,
        before,
        skip,
        process: Some(process),
        meeting,
        ids,
        has,
        program,
        name: plan.name,
        loaded_program,
        early_load: early,
        has_library,
        is_helper,
    }
    .run(call.context.copy_after(ARENA_BYTES));
    if let Ok(inside) = call.begin() {
        inside.session.process.set_program(running);
    }
    for opened in plan.opened.into_iter().flatten() {
        // SAFETY: a descriptor created for this call, without other users.
        unsafe { sys::call(libc::SYS_close, [opened as u64, 0, 0, 0, 0, 0]) };
    }
    Ok(verdict)
}

/// How a program is started. The strings lie in the thread's context.
struct ExecPlan {
    target: Target,
    before: [*const u8; BEFORE_MAX],
    start: usize,
    skip: usize,
    process: u32,
    program: Option<*const u8>,
    /// The entry with the path by which it is started, which the kernel does not get.
    name: Option<*const u8>,
    /// The program, if it is a file of the image.
    runs: Option<Program>,
    /// The entry for the library as a program that loads this one.
    loaded_program: Option<*const u8>,
    /// Descriptors for the program alone.
    opened: [Option<i32>; 2],
    early_load: EarlyLoad,
    /// Whether the program loads the library.
    has_library: bool,
    /// Whether the helper is started in the program's place.
    is_helper: bool,
}

fn plan(call: &mut Call<'_>, by: PathArguments, lists: usize, flags: i32) -> Result<ExecPlan> {
    let mut planner = Planner::new(call, by, lists, flags)?;
    for depth in 0..=INTERPRETERS_MAX {
        let file = planner.open(depth)?;
        let mut head = [0u8; HEAD_BYTES];
        let (kind, early_load) = planner.inspect(&file, &mut head)?;
        if let ProgramKind::Script(interpreter, argument) = kind {
            planner.enter_interpreter(depth, &head, interpreter, argument)?;
            continue;
        }
        if kind == ProgramKind::Unknown && planner.enter_registered(depth, &file, &mut head)? {
            continue;
        }
        let is_host = matches!(file, File::Host);
        if kind == ProgramKind::Unknown
            && is_host
            && let Some(error) = missing(&planner.target)
        {
            return Err(error);
        }
        let is_privileged = is_host && is_privileged(&planner.target);
        let is_secure = kind == ProgramKind::Dynamic && starts_securely();
        let has_own = kind.has_headers() && planner.has_interpreter_inside(&head);
        let wants_loader = (kind.needs_loader() || is_secure || has_own) && !is_privileged;
        let loads = wants_loader && planner.can_load(&file, &head, has_own);
        if is_host && !is_privileged {
            planner.refuse_confined(loads)?;
        }
        if loads {
            let interpreter = if has_own { Some(planner.open_interpreter(&head)?) } else { None };
            return planner.plan_loader(file, early_load, interpreter);
        }
        let unfit = if is_privileged { PRIVILEGED } else { planner.unfit_reason(&kind, is_secure) };
        // Such a program is a tool that runs another one, whose paths are in that one's file.
        let runs_another =
            !is_privileged && kind == ProgramKind::Static && arranges_memory(&head) && has_private_mounts();
        if !unfit.is_empty() && (runs_another || planner.mentions_mount()) {
            return planner.plan_helper(unfit, early_load);
        }
        planner.has_library = unfit.is_empty();
        return planner.plan_program(file, &head, early_load);
    }
    Err(Errno::ELOOP)
}

/// State of a plan: the file found so far, its arguments, and the thread's buffers.
struct Planner<'c> {
    server: &'static Server,
    session: Session<'c>,
    walk: &'c mut posix::path::PathBuffer,
    path: &'c mut [u8; PATH_ROOM_BYTES],
    second: &'c mut [u8; PATH_ROOM_BYTES],
    host: &'c mut [u8; PATH_ROOM_BYTES],
    /// For the content of a program that is copied to memory.
    buffer: &'c mut [u8],
    original: [u64; 6],
    lists: usize,
    flags: i32,
    before: LeadingArguments<'c>,
    /// Start of the path in `path[..length]`.
    directory: Directory,
    length: usize,
    /// Whether the call names the descriptor itself.
    is_empty: bool,
    target: Target,
    /// The point from which the kernel can continue alone.
    anchor: Option<(Target, usize)>,
    has_library: bool,
    /// The path of the call, if it is a script's.
    script: Option<*const u8>,
}

impl<'c> Planner<'c> {
    fn new(call: &'c mut Call<'_>, by: PathArguments, lists: usize, flags: i32) -> Result<Planner<'c>> {
        let original = call.arguments();
        let number = i64::from(call.frame.number as u32);
        let server = call.server;
        let Inside { session, walk, path, host, second, copy } = call.context.begin(server)?;
        let (arena, buffer) = copy.split_at_mut(ARENA_BYTES);
        let before = LeadingArguments::new(arena);
        let length = user_memory::copy_string(original[by.path], &mut path[..user_memory::PATH_BYTES_MAX])?;
        Ok(Planner {
            server,
            session,
            walk,
            path,
            second,
            host,
            buffer,
            original,
            lists,
            flags,
            before,
            directory: by.directory(&original),
            length,
            is_empty: length == 0 && flags & AT_EMPTY_PATH != 0,
            target: Target { number, arguments: original, lists },
            anchor: None,
            // Since its start this process may have changed its user or its root.
            has_library: can_reach(environment::RUN),
            script: None,
        })
    }

    /// Finds the file of the call, or at `depth` that of an interpreter, and sets the target.
    fn open(&mut self, depth: usize) -> Result<File<'c>> {
        if let (0, true, Directory::Descriptor(fd)) = (depth, self.is_empty, self.directory) {
            return Ok(self.open_file(fd)?.unwrap_or(File::Host));
        }
        let last_link = if self.flags & AT_SYMLINK_NOFOLLOW != 0 { LastLink::Stay } else { LastLink::Follow };
        let (file, rewritten) = self.find(last_link)?;
        if rewritten || depth > 0 {
            let kept = self.before.keep(&[&self.path[..self.length]])? as u64;
            self.target = self.execve(kept);
        }
        Ok(file)
    }

    /// The file of the image behind a descriptor.
    fn open_file(&self, fd: u32) -> Result<Option<File<'c>>> {
        let thread = self.session.caller.thread;
        let Some(file) = self.session.process.file(thread, fd) else { return Ok(None) };
        thread.retain(file.node())?;
        Ok(Some(File::Directfs(NodeRef::owned(thread, file.node()))))
    }

    /// An execve of this path with the program's lists.
    fn execve(&self, path: u64) -> Target {
        let arguments = [path, self.original[self.lists], self.original[self.lists + 1], 0, 0, 0];
        Target { number: libc::SYS_execve, arguments, lists: 1 }
    }

    /// Finds the file at the path in `path[..length]`, on either side; returns whether the path had
    /// to be rewritten for that.
    fn find(&mut self, last_link: LastLink) -> Result<(File<'c>, bool)> {
        let session = self.session;
        let mut rewritten = false;
        if last_link == LastLink::Follow
            && let Some(fd) = proc_links::descriptor_of(&self.path[..self.length])
            && let Some(file) = self.open_file(fd)?
        {
            return Ok((file, false));
        }
        let text = &mut *self.second;
        text[..=self.length].copy_from_slice(&self.path[..=self.length]);
        for _ in 0..=LINKS_FOLLOWED_MAX {
            let PathOwner::Directfs { walk_start, offset, end, retained } =
                paths::locate(self.server, &session, self.directory, text, self.length, self.host)?
            else {
                if rewritten {
                    self.path[..=self.length].copy_from_slice(&text[..=self.length]);
                }
                return Ok((File::Host, rewritten));
            };
            let outcome = session.caller.paths().resolve(&walk_start, &text[offset..end], last_link, self.walk);
            if let Some(node) = retained {
                session.caller.thread.release(node, 1);
            }
            match outcome? {
                Outcome::Inside(found) => return Ok((File::Directfs(found), rewritten)),
                Outcome::Left(exit) => {
                    self.length = paths::resume_walk(self.server, exit, self.walk.rest(), text)?;
                }
            }
            (self.directory, rewritten) = (Directory::Working, true);
            self.path[..=self.length].copy_from_slice(&text[..=self.length]);
        }
        Err(Errno::ELOOP)
    }

    /// Reads the first bytes of a file: its kind, and whether the loader needs the mount. Sets the
    /// anchor.
    fn inspect(&mut self, file: &File<'_>, head: &mut [u8; HEAD_BYTES]) -> Result<(ProgramKind, EarlyLoad)> {
        let session = &self.session;
        let directory = session.process.directory().is_some();
        let inside = early::ProgramInside { program: matches!(file, File::Directfs(_)), directory };
        let (mut is_needed, mut has_paths) = (false, false);
        let mut leads_in = |path: &[u8]| {
            has_paths = true;
            early::leads_in(path, self.server.mount(), inside)
        };
        let bytes = match file {
            File::Directfs(held) => {
                self.anchor = None;
                let bytes = read_head(&session.caller, held.node(), head)?;
                let mut read = |offset: u64, into: &mut [u8]| {
                    session.caller.thread.files().read(held.node(), offset, into).unwrap_or(0)
                };
                let bytes = gather(head, bytes, &mut read);
                is_needed = elf_dependencies::any_path(&head[..bytes], &mut read, &mut leads_in);
                bytes
            }
            File::Host => {
                if self.anchor.is_none() {
                    self.anchor = Some((self.target, self.before.start));
                }
                // Without the first bytes the kernel's answer counts.
                let opened = HostFile::new(&self.target);
                let mut bytes = opened.as_ref().map_or(0, |opened| opened.read(0, head));
                if let Some(opened) = opened {
                    let mut read = |offset: u64, into: &mut [u8]| opened.read(offset, into);
                    bytes = gather(head, bytes, &mut read);
                    is_needed = elf_dependencies::any_path(&head[..bytes], &mut read, &mut leads_in);
                }
                bytes
            }
        };
        let kind = other_libc::corrected(kind_of(&head[..bytes]), head);
        let static_storage_bytes = early::usual_static_storage_bytes(has_paths);
        Ok((kind, EarlyLoad { is_needed, static_storage_bytes, inside, library_paths: None }))
    }

    /// Puts a script before the arguments, and its interpreter in the script's place.
    fn enter_interpreter(
        &mut self,
        depth: usize,
        head: &[u8],
        interpreter: Range<usize>,
        argument: Option<Range<usize>>,
    ) -> Result<()> {
        let path = &self.path[..self.length];
        let script = match (depth, self.directory) {
            (0, Directory::Descriptor(fd)) if self.path[0] != b'/' => {
                // The interpreter could not open it, so the kernel does not start it.
                if self.is_closed_by_exec(fd) {
                    return Err(Errno::ENOENT);
                }
                let mut digits = [0u8; 20];
                let count = handoff::write_number(u64::from(fd), &mut digits);
                let slash: &[u8] = if self.is_empty { b"" } else { b"/" };
                self.before.keep(&[b"/dev/fd/", &digits[..count], slash, path])?
            }
            _ => self.before.keep(&[path])?,
        };
        self.script = self.script.or(Some(script));
        // The argument with the interpreter's own name is replaced, as in the kernel.
        self.before.start += usize::from(depth > 0);
        self.before.push_front(script)?;
        if let Some(argument) = argument {
            let argument = self.before.keep(&[&head[argument]])?;
            self.before.push_front(argument)?;
        }
        let name = self.before.keep(&[&head[interpreter.clone()]])?;
        self.before.push_front(name)?;
        self.length = interpreter.len();
        self.path[..self.length].copy_from_slice(&head[interpreter]);
        self.path[self.length] = 0;
        self.directory = Directory::Working;
        Ok(())
    }

    fn is_closed_by_exec(&self, fd: u32) -> bool {
        match self.session.process.descriptor(fd) {
            Some(descriptor) => descriptor.cloexec,
            None => marks::kernel(libc::SYS_fcntl, fd.into(), libc::F_GETFD as u64, 0) == i64::from(libc::FD_CLOEXEC),
        }
    }

    /// Adds what the interpreter needs for a program of a format that is registered with the
    /// kernel. False: it has none.
    #[cold]
    #[inline(never)]
    fn enter_registered(&mut self, depth: usize, file: &File<'_>, head: &mut [u8; HEAD_BYTES]) -> Result<bool> {
        let is_read = head.iter().any(|&byte| byte != 0);
        if !is_read || matches!(file, File::Host) && !is_executable(&self.target) {
            return Ok(false);
        }
        let Some(length) = registered_formats::find_interpreter(head, &self.path[..self.length]) else {
            return Ok(false);
        };
        self.enter_interpreter(depth, head, 0..length, None)?;
        Ok(true)
    }

    /// Why the library cannot serve a program, in words; empty if it can. `is_secure`: its loader
    /// ignores the environment.
    fn unfit_reason(&self, kind: &ProgramKind, is_secure: bool) -> &'static [u8] {
        match kind {
            ProgramKind::Static => b"a static program",
            ProgramKind::Foreign => b"a program for another C library",
            ProgramKind::Own => b"a program with inline system calls",
            ProgramKind::Narrow => b"a 32-bit program",
            _ if !self.has_library => b"a program whose user (or root directory) has no access to the preload library",
            _ if is_secure => SECURE,
            _ => b"",
        }
    }

    /// An AppArmor profile may keep the library out of a program of the host. It is refused if
    /// anything that it is given leads into the mount; otherwise it starts without the library.
    /// `loads`: the program would run in the loader's place, outside of its profile.
    fn refuse_confined(&mut self, loads: bool) -> Result<()> {
        if !self.has_library || !environment::handoff().is_some_and(|handoff| handoff.apparmor) {
            return Ok(());
        }
        // The kernel starts this file, and attaches profiles by its path.
        let target = self.anchor.map_or(self.target, |(target, _)| target);
        let Some(profile) = find_obstacle(&target, loads) else { return Ok(()) };
        if !loads && !self.mentions_mount() {
            self.has_library = false;
            return Ok(());
        }
        let effect: &[u8] = match loads {
            true => b" confines this program, which would run outside of the profile",
            false => b" does not let this program map the preload library (add a rule `mr` for it)",
        };
        let remedy = b" under `directfs run`: not started; use `directfs mount`";
        sys::print(&[&self.path[..self.length], b": the AppArmor profile ", profile.as_bytes(), effect, remedy]);
        Err(Errno::EACCES)
    }

    fn mentions_mount(&self) -> bool {
        mentions_mount(self.server, &self.session, &self.target, &self.before)
    }

    /// Has the launcher's helper start a program that the library cannot serve.
    #[inline(never)]
    fn plan_helper(mut self, unfit: &[u8], early_load: EarlyLoad) -> Result<ExecPlan> {
        let path = &self.path[..self.length];
        let name = self.before.keep(&[path])?;
        // The kernel would take ids of the image for those of the namespace; and a program that
        // changes the user would not do so in the namespace of a private mount.
        let is_apart = user_namespace::current().is_some();
        let keeps_user = unfit != PRIVILEGED && unfit != SECURE;
        let is_usable = |_: &&[u8]| !is_apart && keeps_user && can_reach(handoff::BINARY);
        let Some(binary) = environment::value(handoff::BINARY).filter(is_usable) else {
            let place: &[u8] = if is_apart { b" in a user namespace" } else { b"" };
            let (effect, remedy) =
                (b", which cannot use ", b" under `directfs run`: not started; use `directfs mount`");
            sys::print(&[path, b": ", unfit, place, effect, self.server.mount(), remedy]);
            return Err(Errno::EACCES);
        };
        let skip = usize::from(self.before.start < BEFORE_MAX);
        self.before.push_front(name)?;
        self.before.push_front(c"--".as_ptr().cast())?;
        // The helper gets them for the program, because its own loader must not heed them. SAFETY:
        // the list was read through once.
        let environment = unsafe { special_entries(self.original[self.lists + 1] as *const *const u8) };
        for entry in environment.filter(|entry| entry.starts_with(LOADER_PREFIX)).take(LOADER_ENTRIES_MAX) {
            self.before.push_front(entry.as_ptr())?;
            self.before.push_front(c"--entry".as_ptr().cast())?;
        }
        for word in [c"run-static".as_ptr().cast(), c"directfs".as_ptr().cast()] {
            self.before.push_front(word)?;
        }
        let binary = self.before.keep(&[binary])? as u64;
        let (target, start) = (self.execve(binary), self.before.start);
        Ok(ExecPlan { skip, is_helper: true, ..self.plan(target, start, early_load) })
    }

    /// Starts a program of the host by its path, and one of the image from a copy in memory.
    fn plan_program(mut self, file: File<'c>, head: &[u8], mut early_load: EarlyLoad) -> Result<ExecPlan> {
        let session = self.session;
        let libraries = self.library_paths_of_environment(&mut early_load);
        let held = match file {
            File::Directfs(held) => held,
            File::Host => {
                if early_load.is_needed
                    && let Some(opened) = HostFile::new(&self.target)
                {
                    let name = &self.path[..self.length];
                    early_load.static_storage_bytes = apart(|| {
                        let search = LibrarySearch::new(self.server, &session, self.walk, self.host, name, libraries);
                        search.static_storage_bytes(head, &mut |offset, into| opened.read(offset, into))
                    });
                }
                let (target, start) = self.anchor.unwrap_or((self.target, self.before.start));
                let name = self.script.filter(|_| start < BEFORE_MAX);
                // SAFETY: a string that was stored here.
                let name = name.map(|script| unsafe { core::ffi::CStr::from_ptr(script.cast()) }.to_bytes());
                let name = name.and_then(|name| self.before.keep(&[handoff::NAME, name]).ok());
                return Ok(ExecPlan { name, ..self.plan(target, start, early_load) });
            }
        };
        let runs = Some(Program::of(&session.caller.thread.protection(held.node())?));
        let path = &self.path[..self.length];
        let name = full_path(self.server, &session, self.directory, path, self.host, self.walk, self.second);
        let shown = name.clone().map_or(path, |range| &self.second[range]);
        let copied = copy_to_memfd(&session.caller, held.node(), shown, self.buffer)?;
        let (words, environment) = (self.original[self.lists], self.original[self.lists + 1]);
        let arguments = [copied as u64, c"".as_ptr() as u64, words, environment, AT_EMPTY_PATH as u64, 0];
        let mut program = None;
        if let Some(range) = name {
            let name = &self.second[range];
            if early_load.is_needed {
                early_load.library_paths = library_paths(&session.caller, held.node(), head, name, &mut self.before)?;
                early_load.static_storage_bytes = apart(|| {
                    let search = LibrarySearch::new(self.server, &session, self.walk, self.host, name, libraries);
                    search.static_storage_bytes(head, &mut |offset, into| {
                        session.caller.thread.files().read(held.node(), offset, into).unwrap_or(0)
                    })
                });
            }
            program = Some(self.before.keep(&[handoff::PROGRAM, name])?);
        }
        let name = self.keep_name(program);
        let target = Target { number: libc::SYS_execveat, arguments, lists: 2 };
        let plan = self.plan(target, self.before.start, early_load);
        Ok(ExecPlan { program, name, runs, opened: [Some(copied), None], ..plan })
    }

    /// Stores the entry with the path by which a program of the image is started: a script's, else
    /// that of the call, else `program`, the entry with the file's.
    fn keep_name(&mut self, program: Option<*const u8>) -> Option<*const u8> {
        let text = |string: *const u8| {
            // SAFETY: a string that was stored here.
            unsafe { core::ffi::CStr::from_ptr(string.cast()) }.to_bytes()
        };
        let typed = user_memory::copy_string(self.original[self.lists - 1], &mut self.second[..]).unwrap_or(0);
        let name = match (self.script, typed) {
            (Some(script), _) => text(script),
            (None, 1..) => &self.second[..typed],
            (None, 0) => text(program?).strip_prefix(handoff::PROGRAM)?,
        };
        self.before.keep(&[handoff::NAME, name]).ok()
    }

    /// The environment's list of paths to libraries. Records whether an entry leads into the mount.
    fn library_paths_of_environment(&self, early_load: &mut EarlyLoad) -> &'static [u8] {
        let mut paths: &[u8] = b"";
        // SAFETY: a program passes a list of strings.
        for entry in unsafe { special_entries(self.original[self.lists + 1] as *const *const u8) } {
            early_load.is_needed |= early::entry_leads_in(entry, self.server.mount(), early_load.inside);
            if let Some(list) = entry.strip_prefix(environment::LD_LIBRARY_PATH) {
                paths = list.strip_suffix(b"\0").unwrap_or(list);
            }
        }
        paths
    }

    /// Whether the path of a program's interpreter leads into the mount. The kernel would not find
    /// it: the file is not there before the program has the library.
    fn has_interpreter_inside(&self, head: &[u8]) -> bool {
        interpreter(head).is_some_and(|path| match path.first() {
            Some(b'/') => path.starts_with(self.server.mount()),
            _ => self.session.process.directory().is_some(),
        })
    }

    /// Opens a program's interpreter whose path leads into the mount. The path of the program stays
    /// the one found.
    #[cold]
    #[inline(never)]
    fn open_interpreter(&mut self, head: &[u8]) -> Result<Fd> {
        let (directory, length) = (self.directory, self.length);
        let name = interpreter(head).ok_or(Errno::ENOENT)?;
        // SAFETY: a string that is stored here.
        let kept = unsafe { core::ffi::CStr::from_ptr(self.before.keep(&[&self.path[..length]])?.cast()) };
        self.path.get_mut(..name.len()).ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(name);
        (self.directory, self.length) = (Directory::Working, name.len() - 1);
        let fd = match self.find(LastLink::Follow)?.0 {
            File::Directfs(held) => {
                read_head(&self.session.caller, held.node(), &mut [0; HEAD_BYTES])?;
                let path = &self.path[..self.length];
                // SAFETY: a new descriptor.
                unsafe { Fd::from_raw(copy_to_memfd(&self.session.caller, held.node(), path, self.buffer)?) }
            }
            File::Host => {
                sys::open(&self.path[..=self.length], libc::O_RDONLY).map_err(|error| Errno(-error as i32))?
            }
        };
        (self.directory, self.length) = (directory, length);
        self.path[..=length].copy_from_slice(kept.to_bytes_with_nul());
        Ok(fd)
    }

    /// Whether the program that loads others can run a program. `has_own`: its interpreter lies in
    /// the mount.
    fn can_load(&self, file: &File<'_>, head: &[u8], has_own: bool) -> bool {
        let is_runnable = match file {
            File::Directfs(_) => true,
            File::Host => is_executable(&self.target),
        };
        let is_found = has_own || interpreter(head).is_none_or(|path| sys::open(path, libc::O_RDONLY).is_ok());
        self.has_library && is_runnable && is_found && !arranges_memory(head) && armed_threads::is_supported()
    }

    /// Plans an exec of the loader program. It gets this program, and perhaps its interpreter, as
    /// descriptors, and loads them.
    #[inline(never)]
    fn plan_loader(mut self, file: File<'c>, mut early_load: EarlyLoad, interpreter: Option<Fd>) -> Result<ExecPlan> {
        self.library_paths_of_environment(&mut early_load);
        let session = self.session;
        let path = &self.path[..self.length];
        let (mut program, mut runs) = (None, None);
        let fd = match file {
            File::Directfs(held) => {
                runs = Some(Program::of(&session.caller.thread.protection(held.node())?));
                let copied = copy_to_memfd(&session.caller, held.node(), path, self.buffer)?;
                let name = full_path(self.server, &session, self.directory, path, self.host, self.walk, self.second);
                if let Some(range) = name {
                    program = Some(self.before.keep(&[handoff::PROGRAM, &self.second[range]])?);
                }
                copied
            }
            File::Host => HostFile::new(&self.target).and_then(HostFile::into_descriptor).ok_or(Errno::EACCES)?,
        };
        let interpreter = interpreter.map(Fd::into_raw);
        let mut texts = [[0u8; 20]; 2];
        let mut counts = [0; 2];
        for ((fd, text), count) in [Some(fd), interpreter].iter().zip(&mut texts).zip(&mut counts) {
            if let Some(fd) = *fd {
                marks::set_kernel_cloexec(fd as u32, false);
                *count = handoff::write_number(fd as u64, text);
            }
        }
        // As the kernel, it shows the script's name. SAFETY: a string that was stored here.
        let script = self.script.map(|script| unsafe { core::ffi::CStr::from_ptr(script.cast()) }.to_bytes());
        let name = script.unwrap_or(path);
        let [fd_text, interpreter_text] = [&texts[0][..counts[0]], &texts[1][..counts[1]]];
        let entry = [handoff::LOADED, fd_text, b",", interpreter_text, b",", name];
        let loaded_program = Some(self.before.keep(&entry)?);
        let loader = self.before.keep(&[environment::library(), LOADER_ENDING.as_bytes()])? as u64;
        let plan = self.plan(self.execve(loader), self.before.start, early_load);
        Ok(ExecPlan { program, runs, loaded_program, opened: [Some(fd), interpreter], ..plan })
    }

    /// The plan for a program of the host, with the leading arguments from `start` on.
    fn plan(&self, target: Target, start: usize, early_load: EarlyLoad) -> ExecPlan {
        ExecPlan {
            target,
            before: self.before.list,
            start,
            skip: usize::from(start < BEFORE_MAX),
            process: self.session.process.index(),
            program: None,
            name: None,
            runs: None,
            loaded_program: None,
            opened: [None; 2],
            early_load,
            has_library: self.has_library,
            is_helper: false,
        }
    }
}

/// Runs something whose large buffers are not to enlarge the caller's part of the stack: most
/// starts of programs do without, and the child of a fork touches each page for the first time.
#[inline(never)]
fn apart<R>(run: impl FnOnce() -> R) -> R {
    run()
}

/// Whether the helper can give a program a private mount.
#[cold]
fn has_private_mounts() -> bool {
    let is_permitted = || sys::open(b"/dev/fuse\0", libc::O_RDWR).is_ok();
    user_namespace::current().is_none() && can_reach(handoff::BINARY) && is_permitted()
}

/// Whether a program started now, with this process's present ids, has access to a file that an
/// entry of the environment names.
fn can_reach(name: &[u8]) -> bool {
    let kept_from = [libc::EACCES, libc::EPERM, libc::ENOENT, libc::ENOTDIR, libc::ELOOP];
    let Some(path) = environment::string(name) else { return false };
    // Other errors (such as no free number) do not affect the loader.
    let opened = identity::as_after_exec(|| sys::open(path, libc::O_RDONLY));
    !opened.is_err_and(|error| kept_from.contains(&(-error as i32)))
}

/// Whether anything that a program is given leads into the mount.
fn mentions_mount(server: &Server, session: &Session<'_>, target: &Target, before: &LeadingArguments<'_>) -> bool {
    /// A shell's previous directory, which programs do not use as a path.
    const OLD: &[u8] = b"OLDPWD=";
    let mut inherits = false;
    session.process.descriptors(&mut |_, descriptor| {
        inherits |= !descriptor.cloexec;
        !inherits
    });
    let names = |string: &[u8]| string.windows(server.mount().len()).any(|part| part == server.mount());
    let list = |index: usize| target.arguments[index] as *const *const u8;
    let has_list = |index: usize| target.arguments[index] >= user_memory::FIRST_PAGE;
    // SAFETY: strings that were stored here.
    let mut words = before.list[before.start..].iter().map(|&word| unsafe { core::ffi::CStr::from_ptr(word.cast()) });
    // SAFETY: a program passes lists of strings.
    let given = || unsafe {
        (has_list(target.lists) && strings(list(target.lists)).map(ListedString::bytes).any(names))
            || (has_list(target.lists + 1)
                && strings(list(target.lists + 1))
                    .map(ListedString::bytes)
                    .any(|entry| !is_directfs(entry) && !entry.starts_with(OLD) && names(entry)))
    };
    inherits || session.process.directory().is_some() || words.any(|word| names(word.to_bytes())) || given()
}
