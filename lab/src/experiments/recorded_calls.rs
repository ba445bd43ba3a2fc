//! A session whose calls are recorded: programs and applications in virtual time.

use super::machine::Result;
use crate::calls::{Calls, Handle};
use crate::virtual_time::Recorder;
use engine::Attributes;
use posix::Errno;
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;

/// What records calls one by one.
pub trait Records {
    /// Makes and records a call whose arguments are near.
    fn record<T>(&mut self, arguments: &[Range<*const u8>], call: impl FnOnce() -> T) -> io::Result<T>;
}

impl Records for Recorder {
    fn record<T>(&mut self, arguments: &[Range<*const u8>], call: impl FnOnce() -> T) -> io::Result<T> {
        self.call(arguments, call)
    }
}

/// Records the calls to a session while it is switched on.
pub struct RecordedCalls<'c, R> {
    calls: &'c dyn Calls,
    recorder: RefCell<&'c mut R>,
    is_on: Cell<bool>,
    failure: RefCell<Option<io::Error>>,
}

impl<'c, R: Records> RecordedCalls<'c, R> {
    /// Switched on.
    pub fn new(calls: &'c dyn Calls, recorder: &'c mut R) -> RecordedCalls<'c, R> {
        let (recorder, is_on, failure) = (RefCell::new(recorder), Cell::new(true), RefCell::new(None));
        RecordedCalls { calls, recorder, is_on, failure }
    }

    /// Whether the following calls are recorded.
    pub fn switch(&self, is_on: bool) {
        self.is_on.set(is_on);
    }

    /// Runs `work` with the calls of this session, and reports failed recordings.
    pub fn run<T>(&self, work: impl FnOnce(&dyn Calls) -> Result<T>) -> Result<T> {
        let done = work(self);
        match self.failure.take() {
            Some(failure) => Err(failure.into()),
            None => done,
        }
    }

    /// Makes a call whose arguments are near.
    fn call<T>(
        &self,
        arguments: &[Range<*const u8>],
        call: impl FnOnce(&dyn Calls) -> posix::Result<T>,
    ) -> posix::Result<T> {
        if !self.is_on.get() {
            return call(self.calls);
        }
        let recorded = self.recorder.borrow_mut().record(arguments, || call(self.calls));
        recorded.unwrap_or_else(|failure| {
            self.failure.replace(Some(failure));
            self.is_on.set(false);
            Err(Errno::EIO)
        })
    }
}

impl<R: Records> Calls for RecordedCalls<'_, R> {
    fn open(&self, path: &[u8], flags: i32, mode: u32) -> posix::Result<Handle> {
        self.call(&[path.as_ptr_range()], |calls| calls.open(path, flags, mode))
    }
    fn close(&self, file: Handle) -> posix::Result<()> {
        self.call(&[], |calls| calls.close(file))
    }
    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> posix::Result<usize> {
        self.call(&[into.as_ptr_range()], |calls| calls.read(file, offset, into))
    }
    fn write(&self, file: Handle, offset: u64, bytes: &[u8]) -> posix::Result<usize> {
        self.call(&[bytes.as_ptr_range()], |calls| calls.write(file, offset, bytes))
    }
    fn append(&self, file: Handle, bytes: &[u8]) -> posix::Result<usize> {
        self.call(&[bytes.as_ptr_range()], |calls| calls.append(file, bytes))
    }
    fn truncate(&self, file: Handle, length: u64) -> posix::Result<()> {
        self.call(&[], |calls| calls.truncate(file, length))
    }
    fn sync_file(&self, file: Handle) -> posix::Result<()> {
        self.call(&[], |calls| calls.sync_file(file))
    }
    fn sync(&self) -> posix::Result<()> {
        self.call(&[], |calls| calls.sync())
    }
    fn stat(&self, path: &[u8]) -> posix::Result<Attributes> {
        self.call(&[path.as_ptr_range()], |calls| calls.stat(path))
    }
    fn stat_link(&self, path: &[u8]) -> posix::Result<Attributes> {
        self.call(&[path.as_ptr_range()], |calls| calls.stat_link(path))
    }
    fn access(&self, path: &[u8], mode: u32) -> posix::Result<()> {
        self.call(&[path.as_ptr_range()], |calls| calls.access(path, mode))
    }
    fn mkdir(&self, path: &[u8], mode: u32) -> posix::Result<()> {
        self.call(&[path.as_ptr_range()], |calls| calls.mkdir(path, mode))
    }
    fn unlink(&self, path: &[u8]) -> posix::Result<()> {
        self.call(&[path.as_ptr_range()], |calls| calls.unlink(path))
    }
    fn rmdir(&self, path: &[u8]) -> posix::Result<()> {
        self.call(&[path.as_ptr_range()], |calls| calls.rmdir(path))
    }
    fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> posix::Result<()> {
        self.call(&[from.as_ptr_range(), to.as_ptr_range()], |calls| calls.rename(from, to, flags))
    }
    fn link(&self, from: &[u8], to: &[u8]) -> posix::Result<()> {
        self.call(&[from.as_ptr_range(), to.as_ptr_range()], |calls| calls.link(from, to))
    }
    fn symlink(&self, target: &[u8], path: &[u8]) -> posix::Result<()> {
        self.call(&[target.as_ptr_range(), path.as_ptr_range()], |calls| calls.symlink(target, path))
    }
    fn read_link(&self, path: &[u8]) -> posix::Result<Vec<u8>> {
        self.call(&[path.as_ptr_range()], |calls| calls.read_link(path))
    }
    fn chmod(&self, path: &[u8], mode: u32) -> posix::Result<()> {
        self.call(&[path.as_ptr_range()], |calls| calls.chmod(path, mode))
    }
    fn read_directory(&self, path: &[u8], visit: &mut dyn FnMut(&[u8], u64)) -> posix::Result<()> {
        self.call(&[path.as_ptr_range()], |calls| calls.read_directory(path, visit))
    }
    fn path_of(&self, directory: &[u8]) -> posix::Result<Vec<u8>> {
        self.call(&[directory.as_ptr_range()], |calls| calls.path_of(directory))
    }
    fn drop_caches(&self) -> posix::Result<()> {
        self.call(&[], |calls| calls.drop_caches())
    }
}
