//! What shows that an image has changed, without a look at its content.
//!
//! A commit writes the file of an image on a disk, which changes the file's times. An image in
//! memory or on DAX changes by stores, of which its file shows nothing. But the first process that
//! opens it for writing stores another epoch in the superblock. So as long as no process has it
//! open for writing, an equal superblock means that nothing has changed.
//!
//! The clock of file times moves in steps. A file may change after it was copied, and keep its
//! time. So a stamp is *settled* only [`STEP`] after it was first seen: what changes later gets
//! another time. A state that was taken before that is compared once more.

use image::{ImageError, users};
use pmem::Backing;
use rustix::fs::{AtFlags, OFlags, StatxAttributes, StatxFlags, statx};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than a step of the clock of file times; some file systems count in units of 2 s.
const STEP: Duration = Duration::from_millis(2500);
/// Bytes of the superblock.
const SUPERBLOCK: usize = 4096;

/// File, times, size, and superblock of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    superblock: Vec<u8>,
}

impl Stamp {
    /// The stamp of an image; `None`: it may change without another stamp. Also returns whether a
    /// process may be changing the image.
    fn of(path: &Path) -> io::Result<(Option<Stamp>, bool)> {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok((None, true));
        }
        let is_written = users(&file)?.writing;
        if is_written && !is_committed_by_writes(&file) {
            return Ok((None, true));
        }
        let mut superblock = vec![0; SUPERBLOCK];
        let read = file.read_at(&mut superblock, 0)?;
        superblock.truncate(read);
        let stamp = Stamp {
            file: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            superblock,
        };
        Ok((Some(stamp), is_written))
    }
}

/// Whether the image is on a disk: changes reach its file by writes.
fn is_committed_by_writes(file: &File) -> bool {
    let examined = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    let is_dax = examined.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::DAX));
    !is_dax && matches!(Backing::of_file(file), Backing::File { .. })
}

/// Follows an image: whether it has changed since the state that was taken last.
#[derive(Debug, Default)]
pub struct Follower {
    /// The last stamp, and when it was seen first.
    seen: Option<(Stamp, Instant)>,
    /// The stamp before the state that was taken last, and whether it was settled.
    taken: Option<(Stamp, bool)>,
}

/// What was seen of an image before a state of it is taken.
#[derive(Debug)]
pub struct Seen {
    stamp: Option<(Stamp, bool)>,
    /// Whether the image may have changed since the last state.
    pub is_changed: bool,
    /// Whether a process may be changing it.
    pub is_written: bool,
}

impl Follower {
    /// Looks at an image.
    pub fn look(&mut self, path: &Path) -> Result<Seen, ImageError> {
        let examined = Stamp::of(path);
        let (stamp, is_written) =
            examined.map_err(|source| ImageError::File { action: "examine", path: path.to_owned(), source })?;
        let now = Instant::now();
        let since = self.seen.take().filter(|(seen, _)| Some(seen) == stamp.as_ref()).map_or(now, |(_, since)| since);
        self.seen = stamp.clone().map(|stamp| (stamp, since));
        let stamp = stamp.map(|stamp| (stamp, now - since >= STEP));
        let is_changed = match (&stamp, &self.taken) {
            (Some((stamp, is_settled)), Some((taken, was_settled))) => stamp != taken || (*is_settled && !was_settled),
            _ => true,
        };
        Ok(Seen { stamp, is_changed, is_written })
    }

    /// A state that was taken after this look is in the store.
    pub fn took(&mut self, seen: Seen) {
        self.taken = seen.stamp;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{Image, MakeOptions, OpenImage, make};

    /// Looks until the image counts as changed, with no change: the stamp is settled then.
    fn take_until_settled(follower: &mut Follower, path: &Path) {
        let seen = follower.look(path).unwrap();
        assert!(seen.is_changed && !seen.is_written);
        follower.took(seen);
        let end = Instant::now() + Duration::from_secs(300);
        loop {
            let seen = follower.look(path).unwrap();
            if seen.is_changed {
                follower.took(seen);
                return;
            }
            assert!(Instant::now() < end, "it is never compared once more");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn an_image_is_read_again_after_a_use_and_once_more_when_its_time_is_settled() {
        for directory in [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()] {
            let path = directory.path().join("image");
            make(&path, &MakeOptions { length: 16 << 20, sparse: true, ..MakeOptions::default() }).unwrap();
            let mut follower = Follower::default();
            for _ in 0..2 {
                take_until_settled(&mut follower, &path);
                assert!((0..3).all(|_| !follower.look(&path).unwrap().is_changed));
                Image::open(&path, &OpenImage::default()).unwrap().close().unwrap();
            }
        }
    }

    #[test]
    fn an_image_in_memory_that_is_in_use_is_read_each_time() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("image");
        make(&path, &MakeOptions { length: 16 << 20, sparse: true, ..MakeOptions::default() }).unwrap();
        let mut follower = Follower::default();
        let image = Image::open(&path, &OpenImage::default()).unwrap();
        for _ in 0..3 {
            let seen = follower.look(&path).unwrap();
            assert!(seen.is_changed && seen.is_written);
            follower.took(seen);
        }
        drop(image);
    }

    #[test]
    fn what_is_no_file_is_an_error_or_read_each_time() {
        let mut follower = Follower::default();
        assert!(follower.look(Path::new("/no/such/image")).is_err());
        assert!(follower.look(Path::new("/dev/null")).unwrap().is_changed);
    }
}
