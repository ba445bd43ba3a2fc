//! What is measured: something with one directory in which names are made, found and removed. The engine in this process is one, a
//! directory reached by system calls another; whoever adds a further one (a library, another file system's interface) implements this.

use anyhow::Result;
use std::ffi::CStr;

/// One directory to work in. Each call does what a program would wait for, and nothing else.
pub trait Subject {
    /// Makes an empty file (and closes it).
    fn create(&mut self, name: &CStr) -> Result<()>;
    /// Asks for a file's attributes.
    fn stat(&mut self, name: &CStr) -> Result<()>;
    /// Removes a file.
    fn unlink(&mut self, name: &CStr) -> Result<()>;
    /// Makes a directory.
    fn mkdir(&mut self, name: &CStr) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&mut self, name: &CStr) -> Result<()>;
    /// Gives a file another name.
    fn link(&mut self, name: &CStr, other: &CStr) -> Result<()>;
    /// Renames.
    fn rename(&mut self, name: &CStr, other: &CStr) -> Result<()>;
    /// Reads the whole directory; how many names there are, `.` and `..` not counted.
    fn read_directory(&mut self) -> Result<u64>;
}
