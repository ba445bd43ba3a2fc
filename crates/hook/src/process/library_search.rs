//! What the libraries of a program of the mount need before the loader has found them.
//!
//! The loader reserves static thread-local storage before it knows the libraries, because an audit
//! module is there (see [`early`]). So their needs are added up here: libraries are looked for in
//! the lists of paths that are built into the program, and others are taken for the system's.
//!
//! [`early`]: crate::loading::early

use crate::abi::sys;
use crate::context::PATH_ROOM_BYTES;
use crate::loading::{early, elf_dependencies};
use crate::paths::{self, Directory, PathOwner};
use crate::process::programs::HEAD_BYTES;
use crate::process::session::Session;
use crate::server::Server;
use posix::path::{LastLink, Outcome, PathBuffer};

/// Room for the names of all libraries, each with a zero byte.
const NAMES_BYTES: usize = 4096;
/// What a library of the system needs at most, and what libraries that are loaded later get.
const USUAL_BYTES: u64 = 512;

/// A search for libraries.
pub struct LibrarySearch<'s> {
    server: &'static Server,
    session: &'s Session<'s>,
    walk: &'s mut PathBuffer,
    host: &'s mut [u8; PATH_ROOM_BYTES],
    /// The directory of the program.
    origin: &'s [u8],
    /// Lists of paths, in which colons separate the paths.
    lists: [u8; early::OWN_PATHS_BYTES_MAX],
    lists_bytes: usize,
    names: [u8; NAMES_BYTES],
    names_bytes: usize,
    /// Whether something did not fit, or was not read.
    is_partial: bool,
}

impl<'s> LibrarySearch<'s> {
    /// For the program with this path and the list of the environment. `walk` and `host` are
    /// overwritten.
    pub fn new(
        server: &'static Server,
        session: &'s Session<'s>,
        walk: &'s mut PathBuffer,
        host: &'s mut [u8; PATH_ROOM_BYTES],
        program: &'s [u8],
        environment: &[u8],
    ) -> Self {
        let origin = &program[..program.iter().rposition(|&byte| byte == b'/').unwrap_or(0)];
        let (lists, names) = ([0; early::OWN_PATHS_BYTES_MAX], [0; NAMES_BYTES]);
        let (lists_bytes, names_bytes, is_partial) = (0, 0, false);
        let mut search =
            LibrarySearch { server, session, walk, host, origin, lists, lists_bytes, names, names_bytes, is_partial };
        search.add_list(environment);
        search
    }

    fn add_list(&mut self, list: &[u8]) {
        let room = &mut self.lists[self.lists_bytes..];
        let expanded = early::expand_origin(list, self.origin, room).or_else(|| {
            room.get_mut(..list.len())?.copy_from_slice(list);
            Some(list.len())
        });
        match expanded.filter(|length| self.lists_bytes + length < self.lists.len()) {
            Some(length) => {
                self.lists[self.lists_bytes + length] = b':';
                self.lists_bytes += length + 1;
            }
            None => self.is_partial = true,
        }
    }

    fn add_name(&mut self, name: &[u8]) {
        if self.names[..self.names_bytes].split(|&byte| byte == 0).any(|known| known == name) {
            return;
        }
        match self.names.get_mut(self.names_bytes..self.names_bytes + name.len() + 1) {
            Some(room) => {
                room[..name.len()].copy_from_slice(name);
                room[name.len()] = 0;
                self.names_bytes += name.len() + 1;
            }
            None => self.is_partial = true,
        }
    }

    /// Bytes of static thread-local storage that the libraries of a program need.
    pub fn static_storage_bytes(mut self, head: &[u8], read: elf_dependencies::Read<'_>) -> u64 {
        self.add_strings(head, read, true);
        let (mut sum_bytes, mut next) = (USUAL_BYTES, 0);
        while let Some(length) = self.names[next..self.names_bytes].iter().position(|&byte| byte == 0) {
            sum_bytes += self.add_library(next..next + length).unwrap_or(USUAL_BYTES);
            next += length + 1;
        }
        if self.is_partial { sum_bytes.max(early::usual_static_storage_bytes(true)) } else { sum_bytes }
    }

    /// Adds what a library needs itself to the names; returns the bytes of its storage. `None`: it
    /// is not in the lists.
    fn add_library(&mut self, name: core::ops::Range<usize>) -> Option<u64> {
        let mut path = [0u8; PATH_ROOM_BYTES];
        let mut at = 0;
        loop {
            let list = &self.lists[at..self.lists_bytes];
            let directory = list.split(|&byte| byte == b':').next().filter(|_| !list.is_empty())?;
            at += directory.len() + 1;
            let length = directory.len() + 1 + name.len();
            if length >= path.len() || directory.is_empty() {
                continue;
            }
            path[..directory.len()].copy_from_slice(directory);
            path[directory.len()] = b'/';
            path[directory.len() + 1..length].copy_from_slice(&self.names[name.clone()]);
            path[length] = 0;
            if let Some(bytes) = self.add_file(&mut path, length) {
                return Some(bytes);
            }
        }
    }

    /// `add_library` for a path. `None`: there is no such file.
    fn add_file(&mut self, path: &mut [u8; PATH_ROOM_BYTES], length: usize) -> Option<u64> {
        let mut head = [0u8; HEAD_BYTES];
        let owner = paths::locate(self.server, self.session, Directory::Working, path, length, self.host).ok()?;
        let PathOwner::Directfs { walk_start, offset, end, retained } = owner else {
            let file = sys::open(&path[..=length], libc::O_RDONLY).ok()?;
            let mut read = |offset: u64, into: &mut [u8]| file.read_at(offset, into).unwrap_or(0);
            let bytes = read(0, &mut head);
            return Some(self.add_strings(&head[..bytes], &mut read, false));
        };
        let caller = self.session.caller;
        let outcome = caller.paths().resolve(&walk_start, &path[offset..end], LastLink::Follow, self.walk);
        if let Some(node) = retained {
            caller.thread.release(node, 1);
        }
        let Ok(Outcome::Inside(found)) = outcome else { return None };
        let mut read =
            |offset: u64, into: &mut [u8]| caller.thread.files().read(found.node(), offset, into).unwrap_or(0);
        let bytes = read(0, &mut head);
        Some(self.add_strings(&head[..bytes], &mut read, false))
    }

    /// Adds what a file needs to the names, and its lists if it is the program; returns the bytes
    /// of its storage.
    fn add_strings(&mut self, head: &[u8], read: elf_dependencies::Read<'_>, is_program: bool) -> u64 {
        elf_dependencies::any_string(head, read, &mut |string, is_list| {
            match is_list {
                true if is_program => self.add_list(string),
                true => {}
                false => self.add_name(string),
            }
            false
        });
        elf_dependencies::thread_storage_bytes(head).unwrap_or_else(|| {
            self.is_partial = true;
            0
        })
    }
}
