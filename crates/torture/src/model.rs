//! Random calls against a small model of POSIX: names, hard links, open files without names, data
//! with holes, and permissions. Clean detaches and crashes of all processes come between the calls.
//!
//! The model follows the Linux documentation, not the code. Calls refer to directories by their
//! rank among the existing ones, so that any subsequence is a valid sequence: a failing sequence is
//! shrunk to few calls.

mod content;
mod flags;
mod world;

pub use content::Content;
pub use world::World;

use libc::{EACCES, EEXIST, EINVAL, EISDIR, ELOOP, ENODATA, ENOENT, ENOTDIR, ENOTEMPTY, EOPNOTSUPP, EPERM};
use std::collections::BTreeMap;

/// Maximum number of files; beyond it names are removed instead of created.
const NODES_MAX: usize = 70;
/// Open files.
pub(crate) const SLOTS: usize = 8;
/// The possible names in a directory: some fit into one line, others are long.
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", LONG, LONGER];
const LONG: &str = "a-name-that-does-not-fit-into-the-first-line-of-its-dentry";
const LONGER: &str = "one-of-the-names-that-need-five-lines-and-so-the-most-that-there-can-be-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
    xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
const ATTRIBUTES: [&str; 3] = ["user.a", "user.b", "user.color"];

/// A name in the directory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Rank, modulo the number of directories.
    pub directory: u8,
    /// Index into the names.
    pub name: u8,
}

impl At {
    /// The name.
    pub fn name(self) -> &'static str {
        NAMES[self.name as usize % NAMES.len()]
    }
}

/// A call or an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ModelCall {
    Create { user: u8, at: At, mode: u32 },
    Mkdir { user: u8, at: At, mode: u32 },
    Fifo { user: u8, at: At },
    Symlink { user: u8, at: At, length: u16 },
    Link { user: u8, from: At, to: At },
    Unlink { user: u8, at: At },
    Rmdir { user: u8, at: At },
    Rename { user: u8, from: At, to: At, flags: u32 },
    Chmod { user: u8, at: At, mode: u32 },
    Chown { at: At, uid: u32, gid: u32 },
    Open { user: u8, at: At, slot: u8 },
    Close { slot: u8 },
    Write { slot: u8, offset: u32, length: u16, byte: u8 },
    Append { slot: u8, length: u16, byte: u8 },
    Truncate { slot: u8, length: u32 },
    Allocate { slot: u8, mode: i32, offset: u32, length: u32 },
    Read { slot: u8, offset: u32, length: u16 },
    SetAttribute { user: u8, at: At, key: u8, length: u16, flags: i32 },
    RemoveAttribute { user: u8, at: At, key: u8 },
    Stat { at: At },
    Flags { user: u8, at: At, flags: u32 },
    List { directory: u8 },
    Detach,
    Crash,
}

/// Users: root, and two with a common group.
pub(crate) const USERS: [(u32, u32, &[u32]); 3] = [(0, 0, &[]), (1000, 1000, &[50]), (1001, 1001, &[50, 60])];

/// A small deterministic generator (xorshift): a seed reproduces a sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// A sequence of `count` calls.
pub fn sequence(seed: u64, count: usize) -> Vec<ModelCall> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        random.below(2);
    }
    (0..count).map(|_| draw(&mut random)).collect()
}

/// The sequence encoded in bytes. Two bytes draw a call, so that a small change of the bytes is a
/// small change of the sequence.
pub fn decode(data: &[u8]) -> Vec<ModelCall> {
    let calls = data.as_chunks::<2>().0.iter().take(2000);
    let draw_from = |bytes: &[u8; 2]| {
        let mut random = Random((u16::from_le_bytes(*bytes) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.below(2);
        draw(&mut random)
    };
    calls.map(draw_from).collect()
}

fn draw(random: &mut Random) -> ModelCall {
    let at =
        |random: &mut Random| At { directory: random.below(64) as u8, name: random.below(NAMES.len() as u64) as u8 };
    let user = if random.below(10) < 6 { 0 } else { 1 + random.below(2) as u8 };
    let slot = random.below(SLOTS as u64) as u8;
    let mode = [0o777, 0o755, 0o700, 0o070, 0o750, 0o1777, 0o555, 0o000][random.below(8) as usize];
    // Most files are small; edges of blocks and of nodes are frequent.
    let place = |random: &mut Random| match random.below(6) {
        0 => random.below(100) as u32,
        1 => random.below(20_000) as u32,
        2 => random.below(300_000) as u32,
        3 => (random.below(60) * 4096) as u32,
        4 => (random.below(3) * (2 << 20) + random.below(5000)) as u32,
        _ => (random.below(20) * 4096 + random.below(3)).saturating_sub(1) as u32,
    };
    let length = |random: &mut Random| match random.below(4) {
        0 => random.below(50) as u16 + 1,
        1 => 4096,
        2 => random.below(16_000) as u16 + 1,
        _ => 8192,
    };
    let byte = random.below(255) as u8 + 1;
    match random.below(1000) {
        0..110 => ModelCall::Create { user, at: at(random), mode: mode & 0o777 },
        110..170 => ModelCall::Mkdir { user, at: at(random), mode },
        170..190 => ModelCall::Fifo { user, at: at(random) },
        190..220 => ModelCall::Symlink { user, at: at(random), length: [1, 20, 48, 49, 700][random.below(5) as usize] },
        220..270 => ModelCall::Link { user, from: at(random), to: at(random) },
        270..340 => ModelCall::Unlink { user, at: at(random) },
        340..390 => ModelCall::Rmdir { user, at: at(random) },
        390..510 => ModelCall::Rename {
            user,
            from: at(random),
            to: at(random),
            flags: [0, 0, 0, 1, 2][random.below(5) as usize],
        },
        510..560 => ModelCall::Chmod { user, at: at(random), mode },
        560..575 => {
            let (uid, gid, _) = USERS[random.below(3) as usize];
            ModelCall::Chown { at: at(random), uid, gid }
        }
        575..650 => ModelCall::Open { user, at: at(random), slot },
        650..670 => ModelCall::Close { slot },
        670..750 => ModelCall::Write { slot, offset: place(random), length: length(random), byte },
        750..780 => ModelCall::Append { slot, length: length(random), byte },
        780..820 => ModelCall::Truncate { slot, length: place(random) },
        820..860 => {
            let mode = [0, 1, 3, 0x10, 0x11, 8, 0x20][random.below(7) as usize];
            let whole = mode == 8 || mode == 0x20;
            let align = |value: u32| if whole { value / 4096 * 4096 } else { value };
            let (offset, length) = (align(place(random)), align(place(random) % 100_000).max(4096));
            ModelCall::Allocate { slot, mode, offset, length }
        }
        860..910 => ModelCall::Read { slot, offset: place(random), length: length(random) },
        910..935 => {
            let flags = random.below(3) as i32;
            ModelCall::SetAttribute { user, at: at(random), key: byte, length: random.below(3000) as u16, flags }
        }
        935..945 => ModelCall::RemoveAttribute { user, at: at(random), key: byte },
        945..965 => ModelCall::Stat { at: at(random) },
        // Most calls clear the flags, so that not all files keep their names.
        965..980 => {
            let flags = [flags::IMMUTABLE, flags::APPEND_ONLY, flags::NO_DUMP, 0][random.below(20).min(3) as usize];
            ModelCall::Flags { user, at: at(random), flags }
        }
        980..996 => ModelCall::List { directory: random.below(64) as u8 },
        996..998 => ModelCall::Detach,
        _ => ModelCall::Crash,
    }
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FileType {
    Directory,
    File,
    Symlink,
    Fifo,
}

/// A file of the model.
#[derive(Debug, Clone)]
pub struct File {
    /// Its kind.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Flags, as FS_*_FL.
    pub flags: u32,
    /// Names; for a directory 2 plus its subdirectories.
    pub links: u32,
    /// Content of a file, target of a link.
    pub content: Content,
    /// Names in a directory.
    pub entries: BTreeMap<&'static str, usize>,
    /// A directory's parent.
    pub parent: usize,
    /// Extended attributes: their values.
    pub attributes: BTreeMap<&'static str, Vec<u8>>,
}

/// The model: files by number. The root is 0.
#[derive(Debug, Clone)]
pub struct Model {
    /// All files that have names or are open.
    pub files: BTreeMap<usize, File>,
    /// Open files.
    pub slots: [Option<usize>; SLOTS],
    next: usize,
}

type Outcome = Result<(), i32>;

impl Default for Model {
    fn default() -> Model {
        let root = File {
            kind: FileType::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            flags: 0,
            links: 2,
            content: Content::default(),
            entries: BTreeMap::new(),
            parent: 0,
            attributes: BTreeMap::new(),
        };
        Model { files: BTreeMap::from([(0, root)]), slots: [None; SLOTS], next: 1 }
    }
}

impl Model {
    /// The directory of a rank.
    pub fn directory(&self, rank: u8) -> usize {
        let reachable: Vec<usize> = self
            .files
            .iter()
            .filter(|(number, file)| file.kind == FileType::Directory && self.is_below_root(**number))
            .map(|(number, _)| *number)
            .collect();
        reachable[rank as usize % reachable.len()]
    }

    fn is_below_root(&self, number: usize) -> bool {
        number == 0 || self.files[&number].links > 0
    }

    /// The names on the path to a directory.
    pub fn path(&self, mut number: usize) -> Vec<&'static str> {
        let mut path = Vec::new();
        while number != 0 {
            let parent = self.files[&number].parent;
            let name = self.files[&parent].entries.iter().find(|(_, child)| **child == number);
            path.push(*name.expect("a directory has a name").0);
            number = parent;
        }
        path.reverse();
        path
    }

    /// The file of a name.
    pub fn find(&self, at: At) -> Option<usize> {
        self.files[&self.directory(at.directory)].entries.get(at.name()).copied()
    }

    fn grants(&self, user: u8, number: usize, want: u32) -> bool {
        let (uid, gid, groups) = USERS[user as usize];
        let file = &self.files[&number];
        let shift = match () {
            () if uid == file.uid => 6,
            () if gid == file.gid || groups.contains(&file.gid) => 3,
            () => 0,
        };
        uid == 0 || (file.mode >> shift) & want == want
    }

    fn sticky(&self, user: u8, directory: usize, file: usize) -> Outcome {
        let uid = USERS[user as usize].0;
        let (directory, file) = (&self.files[&directory], &self.files[&file]);
        let free = directory.mode & 0o1000 == 0 || uid == 0 || uid == directory.uid || uid == file.uid;
        if free { Ok(()) } else { Err(EPERM) }
    }

    /// The directory, if this user may search it.
    fn search(&self, user: u8, at: At) -> Result<usize, i32> {
        let directory = self.directory(at.directory);
        if self.grants(user, directory, 1) { Ok(directory) } else { Err(EACCES) }
    }

    fn may_make(&self, user: u8, at: At) -> Result<usize, i32> {
        let directory = self.search(user, at)?;
        match () {
            () if self.files[&directory].entries.contains_key(at.name()) => Err(EEXIST),
            () => self.may(user, directory, 3).map(|()| directory),
        }
    }

    fn may_remove(&self, user: u8, at: At) -> Result<(usize, usize), i32> {
        let directory = self.search(user, at)?;
        let number = *self.files[&directory].entries.get(at.name()).ok_or(ENOENT)?;
        self.may(user, directory, 3)?;
        self.sticky(user, directory, number)?;
        self.may_go(directory, number)?;
        Ok((directory, number))
    }

    fn make(&mut self, user: u8, at: At, kind: FileType, mode: u32, size: u64) -> Outcome {
        let directory = self.may_make(user, at)?;
        let (uid, gid, _) = USERS[user as usize];
        let number = self.next;
        self.next += 1;
        let mut content = Content::default();
        if kind == FileType::Symlink {
            content.write(0, size, b'x');
        }
        let links = if kind == FileType::Directory { 2 } else { 1 };
        let (entries, attributes) = (BTreeMap::new(), BTreeMap::new());
        let inherits = matches!(kind, FileType::File | FileType::Directory);
        let flags = if inherits { self.files[&directory].flags & flags::NO_DUMP } else { 0 };
        let file = File { kind, mode, uid, gid, flags, links, content, entries, parent: directory, attributes };
        self.files.insert(number, file);
        self.add_name(directory, at.name(), number);
        Ok(())
    }

    fn add_name(&mut self, directory: usize, name: &'static str, number: usize) {
        self.at(directory).entries.insert(name, number);
        if self.files[&number].kind == FileType::Directory {
            self.at(directory).links += 1;
            self.at(number).parent = directory;
        }
    }

    fn at(&mut self, number: usize) -> &mut File {
        self.files.get_mut(&number).expect("a file of the model")
    }

    fn take_name(&mut self, directory: usize, name: &'static str) -> usize {
        let number = self.at(directory).entries.remove(name).expect("a name");
        if self.files[&number].kind == FileType::Directory {
            self.at(directory).links -= 1;
        }
        number
    }

    /// Removes a link; a file without names and users is deleted.
    fn drop_name(&mut self, number: usize) {
        let file = self.at(number);
        file.links = if file.kind == FileType::Directory { 0 } else { file.links - 1 };
        self.collect(number);
    }

    fn collect(&mut self, number: usize) {
        if self.files.get(&number).is_some_and(|file| file.links == 0) && !self.slots.contains(&Some(number)) {
            self.files.remove(&number);
        }
    }

    fn is_ancestor(&self, above: usize, mut below: usize) -> bool {
        loop {
            if below == above {
                return true;
            }
            if below == 0 {
                return false;
            }
            below = self.files[&below].parent;
        }
    }

    fn is_directory(&self, number: usize) -> bool {
        self.files[&number].kind == FileType::Directory
    }

    fn rename(&mut self, user: u8, from: At, to: At, flags: u32) -> Outcome {
        let here = self.search(user, from)?;
        let there = self.search(user, to)?;
        let old = *self.files[&here].entries.get(from.name()).ok_or(ENOENT)?;
        let new = self.files[&there].entries.get(to.name()).copied();
        let exchange = flags == 2;
        match new {
            Some(_) if flags == 1 => return Err(EEXIST),
            None if exchange => return Err(ENOENT),
            _ => {}
        }
        if self.is_directory(old) && self.is_ancestor(old, there) {
            return Err(EINVAL);
        }
        if new.is_some_and(|new| self.is_directory(new) && self.is_ancestor(new, here)) {
            return Err(if exchange { EINVAL } else { ENOTEMPTY });
        }
        if new == Some(old) {
            return Ok(());
        }
        self.may_rename(user, (here, old), (there, new), exchange)?;
        self.take_name(here, from.name());
        if let Some(new) = new {
            self.take_name(there, to.name());
            if exchange {
                self.add_name(here, from.name(), new);
            } else {
                self.drop_name(new);
            }
        }
        self.add_name(there, to.name(), old);
        Ok(())
    }

    fn may_rename(
        &self,
        user: u8,
        (here, old): (usize, usize),
        (there, new): (usize, Option<usize>),
        exchange: bool,
    ) -> Outcome {
        self.may(user, here, 3)?;
        self.may(user, there, 3)?;
        self.sticky(user, here, old)?;
        self.may_go(here, old)?;
        if let Some(new) = new {
            self.sticky(user, there, new)?;
            self.may_go(there, new)?;
            match (self.is_directory(old), self.is_directory(new)) {
                _ if exchange => {}
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                _ => {}
            }
        }
        let moves = here != there;
        if moves && self.is_directory(old) {
            self.may(user, old, 2)?;
        }
        if let Some(new) = new {
            if moves && exchange && self.is_directory(new) {
                self.may(user, new, 2)?;
            }
            if !exchange && !self.files[&new].entries.is_empty() {
                return Err(ENOTEMPTY);
            }
        }
        Ok(())
    }

    fn may_set_attribute(&self, user: u8, at: At) -> Result<usize, i32> {
        let number = self.find(at).ok_or(ENOENT)?;
        let file = &self.files[&number];
        self.has_none(number, flags::KEEPS)?;
        if !matches!(file.kind, FileType::File | FileType::Directory) {
            return Err(EPERM);
        }
        let uid = USERS[user as usize].0;
        if file.kind == FileType::Directory && file.mode & 0o1000 != 0 && uid != 0 && uid != file.uid {
            return Err(EPERM);
        }
        if self.grants(user, number, 2) { Ok(number) } else { Err(EACCES) }
    }

    fn open_file(&mut self, slot: u8) -> Option<&mut File> {
        let number = self.slots[slot as usize]?;
        self.files.get_mut(&number)
    }

    /// Applies a call. `None`: it has no object and is skipped.
    pub fn apply(&mut self, op: &ModelCall) -> Option<Outcome> {
        let full = self.files.len() >= NODES_MAX;
        Some(match *op {
            ModelCall::Create { .. } | ModelCall::Mkdir { .. } | ModelCall::Fifo { .. } | ModelCall::Symlink { .. }
                if full =>
            {
                return None;
            }
            ModelCall::Create { user, at, mode } => self.make(user, at, FileType::File, mode, 0),
            ModelCall::Mkdir { at, .. } if self.path(self.directory(at.directory)).len() > 5 => return None,
            ModelCall::Mkdir { user, at, mode } => self.make(user, at, FileType::Directory, mode, 0),
            ModelCall::Fifo { user, at } => self.make(user, at, FileType::Fifo, 0o644, 0),
            ModelCall::Symlink { user, at, length } => self.make(user, at, FileType::Symlink, 0o777, length as u64),
            ModelCall::Link { user, from, to } => self.link(user, from, to)?,
            ModelCall::Unlink { user, at } => self.may_remove(user, at).and_then(|(directory, number)| {
                if self.is_directory(number) {
                    return Err(EISDIR);
                }
                self.take_name(directory, at.name());
                self.drop_name(number);
                Ok(())
            }),
            ModelCall::Rmdir { user, at } => self.may_remove(user, at).and_then(|(directory, number)| {
                match () {
                    () if !self.is_directory(number) => return Err(ENOTDIR),
                    () if !self.files[&number].entries.is_empty() => return Err(ENOTEMPTY),
                    () => {}
                }
                self.take_name(directory, at.name());
                self.drop_name(number);
                Ok(())
            }),
            ModelCall::Rename { user, from, to, flags } => self.rename(user, from, to, flags),
            ModelCall::Chmod { user, at, mode } => self.chmod(user, at, mode)?,
            ModelCall::Chown { at, uid, gid } => {
                let number = self.find(at)?;
                self.has_none(number, flags::KEEPS).map(|()| (self.at(number).uid, self.at(number).gid) = (uid, gid))
            }
            ModelCall::Flags { user, at, flags } => self.set_flags(user, at, flags)?,
            ModelCall::Open { user, at, slot } => self.open(user, at, slot),
            ModelCall::Close { .. }
            | ModelCall::Write { .. }
            | ModelCall::Append { .. }
            | ModelCall::Truncate { .. }
            | ModelCall::Allocate { .. }
            | ModelCall::Read { .. } => return self.apply_to_open_file(op),
            ModelCall::SetAttribute { user, at, key, length, flags } => {
                self.find(at)?;
                self.set_attribute(user, at, key, length, flags)
            }
            ModelCall::RemoveAttribute { user, at, key } => {
                self.find(at)?;
                let name = ATTRIBUTES[key as usize % ATTRIBUTES.len()];
                self.may_set_attribute(user, at)
                    .and_then(|number| self.at(number).attributes.remove(name).map(drop).ok_or(ENODATA))
            }
            ModelCall::Stat { at } => self.find(at).map(drop).ok_or(ENOENT),
            ModelCall::List { .. } => Ok(()),
            ModelCall::Detach | ModelCall::Crash => {
                // Both ways of ending a process close its open files.
                for slot in 0..SLOTS {
                    if let Some(number) = self.slots[slot].take() {
                        self.collect(number);
                    }
                }
                Ok(())
            }
        })
    }

    /// A call on an open file. `None`: the slot is empty, or the call is of another kind.
    fn apply_to_open_file(&mut self, op: &ModelCall) -> Option<Outcome> {
        Some(match *op {
            ModelCall::Close { slot } => {
                let number = self.slots[slot as usize].take()?;
                self.collect(number);
                Ok(())
            }
            // Files that became append-only after they were opened may still be written anywhere.
            ModelCall::Write { slot, offset, length, byte } => {
                let number = self.slots[slot as usize]?;
                let allowed = self.has_none(number, flags::IMMUTABLE);
                allowed.map(|()| self.at(number).content.write(offset as u64, length as u64, byte))
            }
            ModelCall::Append { slot, length, byte } => {
                let number = self.slots[slot as usize]?;
                let size = self.files[&number].content.size;
                let allowed = self.has_none(number, flags::IMMUTABLE);
                allowed.map(|()| self.at(number).content.write(size, length as u64, byte))
            }
            ModelCall::Truncate { slot, length } => {
                let number = self.slots[slot as usize]?;
                let allowed = self.has_none(number, flags::KEEPS);
                allowed.map(|()| self.at(number).content.truncate(length as u64))
            }
            ModelCall::Allocate { slot, mode, offset, length } => {
                let number = self.slots[slot as usize]?;
                let allowed = self.may_allocate(number, mode);
                allowed.and_then(|()| self.at(number).content.allocate(mode, offset as u64, length as u64))
            }
            ModelCall::Read { slot, .. } => {
                self.open_file(slot)?;
                Ok(())
            }
            _ => return None,
        })
    }

    fn chmod(&mut self, user: u8, at: At, mode: u32) -> Option<Outcome> {
        let number = self.find(at)?;
        let uid = USERS[user as usize].0;
        let file = self.at(number);
        let bits = if file.kind == FileType::Directory { 0o1777 } else { 0o777 };
        Some(match () {
            () if file.kind == FileType::Symlink => Err(EOPNOTSUPP),
            () if file.flags & flags::KEEPS != 0 || uid != 0 && uid != file.uid => Err(EPERM),
            () => {
                file.mode = mode & bits;
                Ok(())
            }
        })
    }

    fn set_attribute(&mut self, user: u8, at: At, key: u8, length: u16, flags: i32) -> Outcome {
        let name = ATTRIBUTES[key as usize % ATTRIBUTES.len()];
        self.may_set_attribute(user, at).and_then(|number| {
            let attributes = &mut self.at(number).attributes;
            match (flags, attributes.contains_key(name)) {
                (1, true) => return Err(EEXIST),
                (2, false) => return Err(ENODATA),
                _ => {}
            }
            attributes.insert(name, vec![key; length as usize]);
            Ok(())
        })
    }

    fn link(&mut self, user: u8, from: At, to: At) -> Option<Outcome> {
        let number = self.find(from)?;
        Some(match self.may_make(user, to) {
            // The error for a directory as source comes after the target directory's own errors.
            Ok(_) if self.is_directory(number) || self.files[&number].flags & flags::KEEPS != 0 => Err(EPERM),
            Ok(directory) => {
                self.add_name(directory, to.name(), number);
                self.at(number).links += 1;
                Ok(())
            }
            Err(errno) => Err(errno),
        })
    }

    fn open(&mut self, user: u8, at: At, slot: u8) -> Outcome {
        let directory = self.search(user, at)?;
        let number = *self.files[&directory].entries.get(at.name()).ok_or(ENOENT)?;
        match self.files[&number].kind {
            FileType::Symlink => return Err(ELOOP),
            FileType::Directory => return Err(EISDIR),
            _ => self.may(user, number, 6)?,
        }
        self.has_none(number, flags::APPEND_ONLY)?;
        // An open pipe is the kernel's.
        if self.files[&number].kind == FileType::Fifo {
            return Ok(());
        }
        if let Some(before) = self.slots[slot as usize].replace(number) {
            self.collect(before);
        }
        Ok(())
    }
}

/// A failing sequence, shrunk as far as possible, with the failure.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed of the whole sequence.
    pub seed: u64,
    /// The remaining calls.
    pub ops: Vec<ModelCall>,
    /// The failure of the last call.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}, shrunk to {} calls:", self.seed, self.ops.len())?;
        for op in &self.ops {
            writeln!(f, "    {op:?}")?;
        }
        write!(f, "{}", self.what)
    }
}

/// Counts of what was run.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Counts {
    /// Calls.
    pub calls: u64,
    /// Calls that were correctly refused.
    pub refused: u64,
    /// Clean detaches.
    pub detaches: u64,
    /// Crashes.
    pub crashes: u64,
    /// Comparisons of the whole tree.
    pub comparisons: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.detaches += other.detaches;
        self.crashes += other.crashes;
        self.comparisons += other.comparisons;
    }
}

/// Runs a sequence of `count` calls, and shrinks it if it fails.
pub fn run(world: &mut World, seed: u64, count: usize) -> Result<Counts, Failure> {
    let mut ops = sequence(seed, count);
    let (at, mut what) = match world.run(&ops) {
        Ok(counts) => return Ok(counts),
        Err(failure) => failure,
    };
    ops.truncate(at + 1);
    shrink(world, &mut ops, &mut what);
    Err(Failure { seed, ops, what })
}

/// Removes calls for as long as the rest still fails.
fn shrink(world: &mut World, ops: &mut Vec<ModelCall>, what: &mut String) {
    let mut budget = 3000;
    let mut part = ops.len() / 2;
    while part > 0 && budget > 0 {
        let mut start = 0;
        let mut shorter = false;
        while start < ops.len() && budget > 0 {
            budget -= 1;
            let mut fewer = ops.clone();
            fewer.drain(start..(start + part).min(ops.len()));
            match world.run(&fewer) {
                Err((at, why)) => {
                    fewer.truncate(at + 1);
                    (*ops, *what, shorter) = (fewer, why, true);
                }
                Ok(_) => start += part,
            }
        }
        part = if shorter { part.min(ops.len() / 2).max(1) } else { part / 2 };
        if ops.len() == 1 {
            break;
        }
    }
}
