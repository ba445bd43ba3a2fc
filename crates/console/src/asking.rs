//! Requests to a file system whose server may be stopped, hung or hostile, each with a limit.
//!
//! A thread whose request a FUSE server has taken cannot be killed before the answer, nor can its
//! process end. So a child of this process performs the call. After the limit the child is killed
//! and left to init: it holds none of this process's descriptors, for whose end others may wait.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{PipeReader, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for an answer that a server has at hand.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of an answer: those of an extended attribute.
const ANSWER_BYTES_MAX: usize = 1 << 16;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The call failed.
    Refused(Errno),
    /// The limit has passed.
    Silent,
}

/// What a file system answered.
pub type Answer<T> = Result<T, Unanswered>;

/// The use of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All blocks.
    pub blocks: u64,
    /// Unused blocks.
    pub blocks_free: u64,
    /// All inodes.
    pub inodes: u64,
    /// Unused inodes.
    pub inodes_free: u64,
}

/// The use of the file system at a mount point.
pub fn space(point: &Path) -> Answer<Space> {
    let point = c_string(point)?;
    let answer = ask(PATIENCE, |into| {
        let found = rustix::fs::statvfs(&*point)?;
        let words = [found.f_blocks, found.f_bfree, found.f_files, found.f_ffree];
        let bytes = words.len() * size_of::<u64>();
        for (place, word) in into[..bytes].chunks_exact_mut(size_of::<u64>()).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(bytes)
    })?;
    let [blocks, blocks_free, inodes, inodes_free] = words(&answer)?;
    Ok(Space { blocks, blocks_free, inodes, inodes_free })
}

/// Device and inode number of a file.
pub fn identity(path: &Path) -> Answer<(u64, u64)> {
    let path = c_string(path)?;
    let answer = ask(PATIENCE, |into| {
        let found = rustix::fs::stat(&*path)?;
        into[..8].copy_from_slice(&found.st_dev.to_ne_bytes());
        into[8..16].copy_from_slice(&found.st_ino.to_ne_bytes());
        Ok(16)
    })?;
    let [device, inode] = words(&answer)?;
    Ok((device, inode))
}

/// An extended attribute.
pub fn attribute(path: &Path, name: &str) -> Answer<Vec<u8>> {
    attribute_within(path, name, PATIENCE)
}

/// An extended attribute, within this time.
pub fn attribute_within(path: &Path, name: &str, limit: Duration) -> Answer<Vec<u8>> {
    let (path, name) = (c_string(path)?, c_string(Path::new(name))?);
    ask(limit, |into| rustix::fs::getxattr(&*path, &*name, into))
}

/// Sets an extended attribute, which may be an order to the server that takes long.
pub fn set_attribute(path: &Path, name: &str, value: &[u8], limit: Duration) -> Answer<()> {
    let (path, name) = (c_string(path)?, c_string(Path::new(name))?);
    ask(limit, |_| rustix::fs::setxattr(&*path, &*name, value, XattrFlags::empty()).map(|()| 0)).map(drop)
}

/// A path without links.
pub fn real_path(path: &Path) -> Answer<PathBuf> {
    let path = c_string(path)?;
    let found = ask(PATIENCE, |into| {
        // SAFETY: a string that ends in zero, and room for the longest path (PATH_MAX).
        let real = unsafe { libc::realpath(path.as_ptr(), into.as_mut_ptr().cast()) };
        match real.is_null() {
            true => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
            false => Ok(into.iter().position(|&byte| byte == 0).unwrap_or(0)),
        }
    })?;
    Ok(PathBuf::from(OsString::from_vec(found)))
}

/// Where a symbolic link leads.
pub fn link_target(path: &Path) -> Answer<PathBuf> {
    let path = c_string(path)?;
    let found = ask(PATIENCE, |into| {
        // SAFETY: a string that ends in zero, and room of the given length.
        let length = unsafe { libc::readlink(path.as_ptr(), into.as_mut_ptr().cast(), into.len()) };
        let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
        usize::try_from(length).map_err(|_| failed())
    })?;
    Ok(PathBuf::from(OsString::from_vec(found)))
}

/// Unmounts. Of a detached mount this may still write what programs have changed.
pub fn unmount(point: &Path, flags: rustix::mount::UnmountFlags, limit: Duration) -> Answer<()> {
    let point = c_string(point)?;
    ask(limit, |_| rustix::mount::unmount(&*point, flags).map(|()| 0)).map(drop)
}

fn c_string(path: &Path) -> Answer<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Unanswered::Refused(Errno::INVAL))
}

fn words<const COUNT: usize>(answer: &[u8]) -> Answer<[u64; COUNT]> {
    let mut words = [0; COUNT];
    for (word, bytes) in words.iter_mut().zip(answer.chunks_exact(size_of::<u64>())) {
        *word = u64::from_ne_bytes(bytes.try_into().map_err(|_| Unanswered::Refused(Errno::IO))?);
    }
    Ok(words)
}

/// Has a child perform a call, which takes no lock of this program. The call returns the length of
/// its answer.
fn ask(limit: Duration, call: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> Answer<Vec<u8>> {
    let (answer, child) = start(limit, None, call)?;
    child.end(true);
    Ok(answer)
}

/// A child that has performed a call, and stays with a file that it was given.
pub struct Staying(Child);

impl Staying {
    /// Has a child set an attribute that gives an order, with that file open under its number.
    pub fn set_attribute(path: &Path, name: &str, value: &[u8], file: Option<&File>) -> Answer<Staying> {
        let (path, name) = (c_string(path)?, c_string(Path::new(name))?);
        let kept = file.map(AsRawFd::as_raw_fd);
        let set = |_: &mut [u8]| {
            // Where the kernel restricts it (Yama), the server may take the file of a process that
            // permits it. SAFETY: a number of this process.
            unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
            rustix::fs::setxattr(&*path, &*name, value, XattrFlags::empty()).map(|()| 0)
        };
        start(PATIENCE, kept, set).map(|(_, child)| Staying(child))
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        self.0.end(true);
    }
}

/// A child that has answered, and waits for its end.
struct Child(libc::pid_t);

impl Child {
    /// Kills it. One that has not answered may not end before its server answers.
    fn end(&self, has_answered: bool) {
        // SAFETY: a child that has not been waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        let flags = if has_answered { 0 } else { libc::WNOHANG };
        // SAFETY: a child of this process; its status is not asked for.
        while unsafe { libc::waitpid(self.0, std::ptr::null_mut(), flags) } < 0
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
    }
}

/// Starts a child that performs a call and keeps a file, and waits for the answer.
fn start(
    limit: Duration,
    kept: Option<RawFd>,
    call: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Answer<(Vec<u8>, Child)> {
    let refused = |error: std::io::Error| Unanswered::Refused(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let (mut reader, writer) = std::io::pipe().map_err(refused)?;
    let mut answer = vec![0; ANSWER_BYTES_MAX];
    // SAFETY: the child calls what may be called behind a fork, and the allocator, which the C
    // library prepares for that. It ends by a signal or `_exit`.
    match unsafe { libc::fork() } {
        -1 => Err(refused(std::io::Error::last_os_error())),
        0 => {
            // SAFETY: a number of this process.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            keep_only(kept, writer.as_raw_fd());
            let result = call(&mut answer);
            let head = result.map_or_else(|errno| -errno.raw_os_error(), |length| length as i32).to_ne_bytes();
            // Without the head, or with less than it says, the answer counts as a failure.
            let _ = rustix::io::write(&writer, &head);
            let mut left = &answer[..result.unwrap_or(0)];
            while let Ok(written @ 1..) = rustix::io::write(&writer, left) {
                left = &left[written..];
            }
            drop(writer);
            if result.is_err() {
                // SAFETY: ends this process; what the parent has open is the parent's.
                unsafe { libc::_exit(0) }
            }
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        child => {
            drop(writer);
            let child = Child(child);
            let received = receive(&mut reader, Instant::now() + limit);
            received.inspect_err(|error| child.end(*error != Unanswered::Silent)).map(|answer| (answer, child))
        }
    }
}

/// Closes all descriptors but these.
fn keep_only(kept: Option<RawFd>, writer: RawFd) {
    let (low, high) = kept.map_or((writer, writer), |kept| (kept.min(writer), kept.max(writer)));
    let close = |first: RawFd, end: i64| {
        // SAFETY: closes descriptors of this child, which uses none of them.
        if i64::from(first) < end && unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) } != 0 {
            // Before Linux 5.9: at least those for whose end others usually wait.
            (i64::from(first)..end.min(3)).for_each(|fd| {
                // SAFETY: as above.
                unsafe { libc::close(fd as RawFd) };
            });
        }
    };
    close(0, low.into());
    close(low + 1, high.into());
    close(high + 1, 1 << 32);
}

fn receive(reader: &mut PipeReader, end: Instant) -> Answer<Vec<u8>> {
    let (mut received, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut waiting = [PollFd::new(&*reader, PollFlags::IN)];
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => return Err(Unanswered::Silent),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(Unanswered::Refused(errno)),
            Ok(_) => {}
        }
        match reader.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => received.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Unanswered::Refused(Errno::IO)),
        }
    }
    let (head, answer) = received.split_first_chunk().ok_or(Unanswered::Refused(Errno::IO))?;
    match i32::from_ne_bytes(*head) {
        errno @ ..0 => Err(Unanswered::Refused(Errno::from_raw_os_error(-errno))),
        length if length as usize == answer.len() => Ok(answer.to_owned()),
        _ => Err(Unanswered::Refused(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_refusals_come_back() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, link) = (scratch.path().join("file"), scratch.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert_eq!(link_target(&link), Ok(PathBuf::from("file")));
        assert_eq!(real_path(&link), real_path(&file));
        assert_eq!(identity(&link), identity(&file));
        assert!(space(&file).is_ok_and(|space| space.blocks >= space.blocks_free));
        assert_eq!(link_target(&file), Err(Unanswered::Refused(Errno::INVAL)));
        assert_eq!(identity(&scratch.path().join("none")), Err(Unanswered::Refused(Errno::NOENT)));
    }

    #[test]
    fn a_long_answer_arrives_whole() {
        let answer = ask(Duration::from_secs(600), |into| {
            into.fill(7);
            Ok(into.len())
        });
        assert_eq!(answer.map(|bytes| bytes.len()), Ok(ANSWER_BYTES_MAX));
    }

    #[test]
    fn a_call_that_does_not_return_is_given_up() {
        let asked = ask(Duration::from_millis(1), |_| {
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        });
        assert_eq!(asked, Err(Unanswered::Silent));
    }
}
