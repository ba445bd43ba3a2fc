//! A sequential model of a file system with two directories of a few names.
//!
//! The first directory always exists. The second one begins as name [`SECOND_AT`] of the first and
//! may be moved or removed. File [`Model::file`] is open in all threads, so it may lose all its
//! names. All other files and directories are created by calls; the creator keeps them open to the
//! end, so that a number always refers to the same file.

use engine::Error;
use engine::format::FileKind;

/// Names in each directory.
pub const NAMES: usize = 3;
/// The name of the second directory in the first, when a history begins.
pub const SECOND_AT: usize = 2;

/// A name: directory and name in it.
pub type NameRef = (usize, usize);

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Creates a file or a directory.
    Make(NameRef, FileKind),
    /// Adds a name to the open file.
    Link(NameRef),
    /// Removes a name of a file.
    Unlink(NameRef),
    /// Removes an empty directory.
    Rmdir(NameRef),
    /// Renames.
    Rename(NameRef, NameRef, RenameMode),
    /// Looks a name up.
    Lookup(NameRef),
    /// Reads the link count of the open file.
    Links,
    /// Fills the open file with copies of one byte.
    Write(u8),
    /// Reads the open file.
    Read,
    /// Uses many other files, so that cached ones are evicted.
    Crowd(u64),
}

/// How a rename treats the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// It replaces an existing name.
    Replace,
    /// It refuses an existing name.
    Keep,
    /// It swaps the two.
    Exchange,
}

/// The answer of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Success.
    Done,
    /// Inode number and kind of the file created or found.
    File(u64, FileKind),
    /// Link count.
    Links(u32),
    /// The byte of the file; none if not all bytes are the same.
    Bytes(Option<u8>),
    /// Failure.
    Refused(Error),
}

/// The target of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NamedFile {
    /// Inode number.
    pub number: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Model {
    /// The names of both directories.
    pub names: [[Option<NamedFile>; NAMES]; 2],
    /// The file that all threads have open.
    pub file: u64,
    /// The number of the second directory.
    pub second: u64,
    /// The byte that fills the open file.
    pub byte: u8,
    /// The second directory is removed.
    pub is_gone: bool,
}

type Change = Result<(), Error>;

impl Model {
    /// The state before a history.
    pub fn new(file: u64, second: u64) -> Model {
        let mut names = [[None; NAMES]; 2];
        names[0][0] = Some(NamedFile { number: file, is_directory: false });
        names[0][SECOND_AT] = Some(NamedFile { number: second, is_directory: true });
        Model { names, file, second, byte: 0, is_gone: false }
    }

    fn get(&self, at: NameRef) -> Option<NamedFile> {
        self.names[at.0][at.1]
    }

    fn is_gone(&self, directory: usize) -> bool {
        directory == 1 && self.is_gone
    }

    fn links(&self) -> u32 {
        self.names.iter().flatten().flatten().filter(|entry| entry.number == self.file).count() as u32
    }

    /// Whether a directory has names in it: only the second one can.
    fn is_full(&self, entry: NamedFile) -> bool {
        entry.number == self.second && self.names[1].iter().any(Option::is_some)
    }

    fn remove(&mut self, at: NameRef) {
        if let Some(entry) = self.names[at.0][at.1].take()
            && entry.number == self.second
        {
            self.is_gone = true;
        }
    }

    /// Applies a call if the model gives the same `answer`; returns whether it does.
    pub fn allows(&mut self, what: Action, answer: Answer) -> bool {
        let done = |change: Change| change.map_or_else(Answer::Refused, |()| Answer::Done) == answer;
        match what {
            Action::Make(at, kind) => self.make(at, kind, answer),
            Action::Link(at) => {
                let linked = self.link(at);
                done(linked)
            }
            Action::Unlink(at) => {
                let removed = self.unlink(at);
                done(removed)
            }
            Action::Rmdir(at) => {
                let removed = self.rmdir(at);
                done(removed)
            }
            Action::Rename(from, to, how) => {
                let renamed = self.rename(from, to, how);
                done(renamed)
            }
            Action::Lookup(at) => match self.get(at) {
                _ if self.is_gone(at.0) => answer == Answer::Refused(Error::NotFound),
                None => answer == Answer::Refused(Error::NotFound),
                Some(entry) => answer == Answer::File(entry.number, kind(entry)),
            },
            Action::Links => answer == Answer::Links(self.links()),
            Action::Write(byte) => {
                self.byte = byte;
                answer == Answer::Done
            }
            Action::Read => answer == Answer::Bytes(Some(self.byte)),
            Action::Crowd(_) => answer == Answer::Done,
        }
    }

    fn make(&mut self, at: NameRef, kind: FileKind, answer: Answer) -> bool {
        if self.is_gone(at.0) {
            return answer == Answer::Refused(Error::NotFound);
        }
        if self.get(at).is_some() {
            return answer == Answer::Refused(Error::Exists);
        }
        // The file system chooses the number.
        let Answer::File(number, made) = answer else { return false };
        self.names[at.0][at.1] = Some(NamedFile { number, is_directory: kind == FileKind::Directory });
        made == kind
    }

    fn link(&mut self, at: NameRef) -> Change {
        if self.get(at).is_some() {
            return Err(Error::Exists);
        }
        // A file without a name does not get a new one.
        if self.links() == 0 || self.is_gone(at.0) {
            return Err(Error::NotFound);
        }
        self.names[at.0][at.1] = Some(NamedFile { number: self.file, is_directory: false });
        Ok(())
    }

    fn unlink(&mut self, at: NameRef) -> Change {
        match self.get(at) {
            _ if self.is_gone(at.0) => Err(Error::NotFound),
            None => Err(Error::NotFound),
            Some(NamedFile { is_directory: true, .. }) => Err(Error::IsADirectory),
            Some(_) => {
                self.remove(at);
                Ok(())
            }
        }
    }

    fn rmdir(&mut self, at: NameRef) -> Change {
        match self.get(at) {
            _ if self.is_gone(at.0) => Err(Error::NotFound),
            None => Err(Error::NotFound),
            Some(NamedFile { is_directory: false, .. }) => Err(Error::NotADirectory),
            Some(entry) if self.is_full(entry) => Err(Error::NotEmpty),
            Some(_) => {
                self.remove(at);
                Ok(())
            }
        }
    }

    fn rename(&mut self, from: NameRef, to: NameRef, how: RenameMode) -> Change {
        if self.is_gone(from.0) || self.is_gone(to.0) {
            return Err(Error::NotFound);
        }
        let source = self.get(from).ok_or(Error::NotFound)?;
        let target = self.get(to);
        match (target, how) {
            (Some(_), RenameMode::Keep) => return Err(Error::Exists),
            (None, RenameMode::Exchange) => return Err(Error::NotFound),
            (Some(target), _) if target.number == source.number => return Ok(()),
            _ => {}
        }
        // The check for ancestors comes before that for kinds.
        let is_above = |entry: NamedFile, directory: usize| entry.number == self.second && directory == 1;
        let takes_parent = target.is_some_and(|target| is_above(target, from.0));
        if is_above(source, to.0) || (how == RenameMode::Exchange && takes_parent) {
            return Err(Error::Loop);
        }
        if takes_parent {
            return Err(Error::NotEmpty);
        }
        match target {
            Some(target) if how == RenameMode::Replace && source.is_directory && !target.is_directory => {
                return Err(Error::NotADirectory);
            }
            Some(target) if how == RenameMode::Replace && !source.is_directory && target.is_directory => {
                return Err(Error::IsADirectory);
            }
            _ => {}
        }
        match how {
            RenameMode::Exchange => {
                self.names[from.0][from.1] = target;
                self.names[to.0][to.1] = Some(source);
            }
            RenameMode::Replace | RenameMode::Keep => {
                if target.is_some_and(|target| self.is_full(target)) {
                    return Err(Error::NotEmpty);
                }
                self.remove(to);
                self.names[from.0][from.1] = None;
                self.names[to.0][to.1] = Some(source);
            }
        }
        Ok(())
    }
}

fn kind(entry: NamedFile) -> FileKind {
    if entry.is_directory { FileKind::Directory } else { FileKind::Regular }
}
