//! What `directfs ps` knows about each process, and how it is printed.

use super::kernel;
use crate::terminal::{bold, dim};
use crate::units;
use serde::Serialize;
use std::path::PathBuf;

/// The processes of an image.
#[derive(Serialize)]
pub struct Report {
    #[serde(serialize_with = "units::path_as_text")]
    pub image: PathBuf,
    pub in_use: bool,
    /// Whether the processes share tables that could be read; otherwise only the kernel's view is
    /// known.
    pub shares: bool,
    pub processes: Vec<Process>,
}

/// A process.
#[derive(Serialize, Default)]
pub struct Process {
    /// Its id, in its own PID namespace.
    pub pid: i32,
    pub uid: Option<u32>,
    pub user: Option<String>,
    pub command: Option<String>,
    /// When it began: ns since 1970.
    pub since_ns: Option<u64>,
    /// `program` (under run, or with the library), `mount server`, `mount user`, `attached`.
    pub role: &'static str,
    /// The working directory, if it is in the image.
    pub directory: Option<String>,
    /// The program, if its file is in the image.
    pub program: Option<String>,
    pub threads: Vec<Thread>,
    pub files: Vec<OpenFile>,
    pub mappings: Vec<Mapping>,
    pub locks: Vec<Lock>,
    pub waits: Vec<Wait>,
}

/// A thread inside the image.
#[derive(Serialize)]
pub struct Thread {
    pub tid: u32,
    /// Whether it is in the middle of a call.
    pub inside: bool,
}

/// An open file.
#[derive(Serialize)]
pub struct OpenFile {
    pub fd: u32,
    pub inode: Option<u64>,
    /// The path from the root of the image, if it is known.
    pub path: Option<String>,
    pub flags: String,
    pub position: Option<u64>,
}

/// A mapped file.
#[derive(Serialize)]
pub struct Mapping {
    pub inode: u64,
    pub path: Option<String>,
    pub bytes: u64,
    pub shared: bool,
    pub writable: bool,
}

/// A lock that a process holds.
#[derive(Serialize, Clone)]
pub struct Lock {
    pub inode: Option<u64>,
    pub path: Option<String>,
    /// `flock`, `posix` or `ofd`.
    pub kind: &'static str,
    pub exclusive: bool,
    pub start: u64,
    /// The last byte; none: to the end, however far that moves.
    pub last: Option<u64>,
}

/// What a process waits for.
#[derive(Serialize, Clone)]
pub struct Wait {
    pub tid: Option<u32>,
    /// In words.
    pub reason: String,
    /// The processes that it waits for, as far as known.
    pub held_by: Vec<i32>,
}

impl Process {
    /// A process as /proc shows it.
    pub fn of_pid(pid: i32, role: &'static str) -> Process {
        let facts = kernel::facts(pid);
        let (uid, command, since_ns) = (facts.uid, facts.command, facts.since_ns);
        Process { pid, uid, user: uid.map(kernel::user_name), command, since_ns, role, ..Process::default() }
    }
}

impl Report {
    pub fn print(&self) {
        println!("{}", bold(self.image.display()));
        if self.processes.is_empty() {
            println!("{}", if self.in_use { "used by processes of other users" } else { "used by no process" });
        }
        for process in &self.processes {
            process.print();
        }
    }
}

impl Process {
    fn print(&self) {
        let command = self.command.as_deref().unwrap_or("?");
        let user = self.user.as_deref().unwrap_or("?");
        let since = self.since_ns.map_or(String::new(), |ns| format!(", since {}", units::local_time(ns)));
        let head = bold(format_args!("{} {}", self.pid, harmless(command)));
        println!("{head}  {}", dim(format_args!("{}, user {user}{since}", self.role)));
        if !self.threads.is_empty() {
            let inside = self.threads.iter().filter(|thread| thread.inside).count() as u64;
            let threads = units::counted(self.threads.len() as u64, "thread");
            println!("    {threads}, {} in the middle of a call", units::count(inside));
        }
        for (what, path) in [("working directory", &self.directory), ("program", &self.program)] {
            if let Some(path) = path {
                println!("    {what} {}", harmless(path));
            }
        }
        for file in &self.files {
            println!("    descriptor {:<4} {:<10} {}", file.fd, file.flags, shown(&file.path, file.inode));
        }
        for mapping in &self.mappings {
            let kind = if mapping.shared { "shared" } else { "private" };
            let bytes = units::size(mapping.bytes);
            println!("    mapping {kind} {bytes} of {}", shown(&mapping.path, Some(mapping.inode)));
        }
        for lock in &self.locks {
            println!("    holds {} on {}", lock.words(), shown(&lock.path, lock.inode));
        }
        for wait in &self.waits {
            println!("    {}", wait.sentence());
        }
    }
}

impl Wait {
    /// The wait without its process.
    pub fn sentence(&self) -> String {
        let holders: Vec<String> = self.held_by.iter().map(ToString::to_string).collect();
        let held = if holders.is_empty() { String::new() } else { format!(" (held by {})", holders.join(", ")) };
        let thread = self.tid.map_or(String::new(), |tid| format!("thread {tid} "));
        format!("{thread}waits for {}{held}", harmless(&self.reason))
    }
}

impl Lock {
    /// The lock without its file.
    pub fn words(&self) -> String {
        let mode = if self.exclusive { "exclusive" } else { "shared" };
        let range = match self.last {
            _ if self.kind == "flock" => String::new(),
            None => format!(", bytes {} to the end", self.start),
            Some(last) => format!(", bytes {} to {last}", self.start),
        };
        format!("{} lock, {mode}{range},", self.kind)
    }
}

/// A path, or the inode number of a file whose path is not known.
pub fn shown(path: &Option<String>, inode: Option<u64>) -> String {
    match (path, inode) {
        (Some(path), _) => harmless(path),
        (None, Some(inode)) => format!("inode {inode} (removed, or without a known path)"),
        (None, None) => "a file without a known path".to_owned(),
    }
}

/// Names may be hostile: no control sequence of them may reach a terminal.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
