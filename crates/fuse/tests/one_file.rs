//! A mount of one file whose bytes come from elsewhere.

use super::common::{can_mount, scratch};
use fuse::{Content, FILE, MESSAGES, remove_dead, serve_file};
use rustix::fs::{SeekFrom, seek, statvfs};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 3 * MIB + 5;
/// The part of the file that is no hole.
const CONTENT: Range<u64> = MIB..2 * MIB;

struct Given(Mutex<Vec<u8>>);

fn byte_at(offset: u64) -> u8 {
    if CONTENT.contains(&offset) { (offset % 251) as u8 } else { 0 }
}

impl Content for Given {
    fn size(&self) -> u64 {
        SIZE
    }

    fn content_bytes(&self) -> u64 {
        MIB
    }

    fn number(&self) -> u64 {
        1234
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        into.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = byte_at(at));
        // The end cannot be read.
        offset + into.len() as u64 <= 3 * MIB
    }

    fn next_content(&self, at: u64) -> Option<Range<u64>> {
        (at < CONTENT.end).then_some(at.max(CONTENT.start)..CONTENT.end)
    }

    fn messages(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

fn assert_is_content(file: &File) {
    let facts = file.metadata().unwrap();
    assert_eq!((facts.len(), facts.ino(), facts.blocks() * 512), (SIZE, 1234 | 1 << 62, MIB));
    assert_eq!(facts.mode(), libc::S_IFREG | 0o444);
    let mut bytes = vec![1; 300_000];
    for offset in [0, 1, MIB - 100_000, 2 * MIB - 7] {
        file.read_exact_at(&mut bytes, offset).unwrap();
        assert!(bytes.iter().zip(offset..).all(|(byte, at)| *byte == byte_at(at)), "from {offset}");
    }
    assert_eq!(file.read_at(&mut bytes, SIZE).unwrap(), 0);
    assert_eq!(file.read_at(&mut bytes, SIZE - 1).unwrap_err().raw_os_error(), Some(libc::EIO));
}

fn assert_has_holes(file: &File) {
    assert_eq!(seek(file, SeekFrom::Data(0)), Ok(MIB));
    assert_eq!(seek(file, SeekFrom::Data(MIB + 9)), Ok(MIB + 9));
    assert_eq!(seek(file, SeekFrom::Hole(MIB)), Ok(2 * MIB));
    assert_eq!(seek(file, SeekFrom::Hole(9)), Ok(9));
    assert_eq!(seek(file, SeekFrom::Data(2 * MIB)), Err(rustix::io::Errno::NXIO));
    assert_eq!(seek(file, SeekFrom::Hole(SIZE)), Err(rustix::io::Errno::NXIO));
}

#[test]
fn a_file_is_served_until_its_last_user_closes_it() {
    if !can_mount("a_file_is_served_until_its_last_user_closes_it") {
        return;
    }
    let directory = scratch();
    let place = directory.path();
    let content = Arc::new(Given(Mutex::new(b"one\n".to_vec())));
    let (ready, wait) = channel();
    std::thread::scope(|scope| {
        let given = Arc::clone(&content);
        let server = scope.spawn(move || serve_file(given, "given", place, || ready.send(()).unwrap()));
        wait.recv().unwrap();
        let file = File::open(place.join(FILE)).unwrap();
        assert_is_content(&file);
        assert_has_holes(&file);

        let messages = File::open(place.join(MESSAGES)).unwrap();
        let mut text = [0; 16];
        assert_eq!((messages.read_at(&mut text, 0).unwrap(), &text[..4]), (4, &b"one\n"[..]));
        content.0.lock().unwrap().extend_from_slice(b"two\n");
        assert_eq!((messages.read_at(&mut text, 4).unwrap(), &text[..4]), (4, &b"two\n"[..]));

        assert_eq!(fs::metadata(place.join("other")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(File::create(place.join("other")).unwrap_err().raw_os_error(), Some(libc::EROFS));
        assert!(statvfs(place).is_ok());
        remove_dead(place).unwrap();
        drop(messages);
        assert!(file.metadata().is_ok(), "the other file keeps the mount");
        drop(file);
        server.join().unwrap().unwrap();
    });
    assert_eq!(fs::read_dir(place).unwrap().count(), 0, "the mount has ended");
}
