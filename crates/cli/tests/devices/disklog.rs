//! A disk that loses what it has not flushed: QEMU logs all writes and flushes of a virtio disk
//! (driver blklogwrites, the format of dm-log-writes), and from the log come the disks that a power
//! cut could leave. Between the last flush and the cut, each piece of each write is on the disk or
//! not.
//!
//! The machine writes to the end of the disk how many calls have been made durable, each time when
//! the call that does so has returned. So the log itself has the order of both.

use crate::machine::{Random, program};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Bytes of the disk. The worker acknowledges calls in its last mebibyte (`worker.c`).
pub const DISK_BYTES: u64 = 96 << 20;
/// Bytes of the file system.
pub const FILE_SYSTEM_BYTES: u64 = DISK_BYTES - ACKNOWLEDGED_BYTES;
const ACKNOWLEDGED_BYTES: u64 = 1 << 20;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const HEADER_BYTES: usize = 32;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// The most calls between one acknowledgement and the next.
const UNACKNOWLEDGED_MAX: u64 = 16;
/// Sizes of the pieces of a write that are kept or lost as a whole: a page, a sector.
const PIECES: [usize; 2] = [4096, 512];

/// What the disk did, in order.
pub struct Log {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// Entries from the first acknowledgement of calls on an image to the last one.
pub type Phase = Range<usize>;

/// What holds an image on the disk.
#[derive(Debug, Clone, Copy)]
pub enum Holder {
    /// The file `image` of an ext4 file system.
    Ext4,
    /// The disk itself.
    Disk,
}

struct Entry {
    /// Where on the disk it writes.
    at: u64,
    /// What, by its place in the log.
    data: std::ops::Range<usize>,
    flushes: bool,
    is_durable: bool,
}

/// A power cut.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// It comes before this entry.
    at: usize,
    /// Everything before this entry is on the disk.
    durable: usize,
    /// How much of the rest is, in percent of its pieces.
    kept: u64,
    piece_bytes: usize,
}

impl Log {
    pub fn read(file: &Path) -> Log {
        let bytes = std::fs::read(file).unwrap();
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(number(0), MAGIC, "{} is no log", file.display());
        let sector = u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize;
        let (mut entries, mut next) = (Vec::new(), sector);
        for _ in 0..number(16) {
            let [at, sectors, flags] = [0, 8, 16].map(|field| number(next + field));
            let start = next + sector.max(HEADER_BYTES);
            let end = if flags & DISCARD == 0 { start + sectors as usize * sector } else { start };
            let (flushes, is_durable) = (flags & FLUSH != 0, flags & FUA != 0);
            entries.push(Entry { at: at * sector as u64, data: start..end, flushes, is_durable });
            next = end;
        }
        assert_eq!(next, bytes.len(), "QEMU left a gap in {}", file.display());
        Log { bytes, entries }
    }

    /// The calls on each image that the machine used, one after the other. What lies between is
    /// preparation.
    pub fn phases(&self) -> Vec<Phase> {
        let mut phases: Vec<Phase> = Vec::new();
        let mut last = u64::MAX;
        for (at, entry) in self.entries.iter().enumerate() {
            let Some(count) = self.acknowledged_by(entry) else { continue };
            match phases.last_mut() {
                Some(phase) if count >= last => phase.end = at + 1,
                _ => phases.push(at..at + 1),
            }
            last = count;
        }
        phases
    }

    /// A cut at a random moment; every other one comes when a flush is due, where most is at stake.
    pub fn cut(&self, phase: &Phase, number: usize, random: &mut Random) -> Cut {
        let mut at = phase.start + 1 + random.below(phase.len() as u64 - 1) as usize;
        if number.is_multiple_of(2) {
            at += self.entries[at..phase.end].iter().position(|entry| entry.flushes).unwrap_or(0);
        }
        let kept = [0, 10, 50, 90][random.below(4) as usize];
        Cut { at, durable: self.last_flush_before(at), kept, piece_bytes: PIECES[random.below(2) as usize] }
    }

    /// Cuts right after an acknowledgement, by a disk that left out the flush before that one.
    pub fn cuts_without_a_flush(&self, phase: &Phase) -> impl Iterator<Item = Cut> {
        let acknowledged = (phase.start + 1..phase.end).filter(|&at| self.acknowledged_by(&self.entries[at]).is_some());
        acknowledged.map(|at| {
            let durable = self.last_flush_before(self.last_flush_before(at));
            Cut { at: at + 1, durable, kept: 0, piece_bytes: PIECES[0] }
        })
    }

    /// Calls that had been acknowledged.
    pub fn acknowledged(&self, cut: Cut) -> u64 {
        self.entries[..cut.at]
            .iter()
            .rev()
            .find_map(|entry| self.acknowledged_by(entry))
            .expect("it is after the first")
    }

    /// Writes what a power cut leaves of the disk to a file.
    pub fn replay(&self, cut: Cut, random: &mut Random, disk: &Path) {
        let file = File::create(disk).unwrap();
        file.set_len(DISK_BYTES).unwrap();
        for (index, entry) in self.entries[..cut.at].iter().enumerate() {
            let is_durable = index < cut.durable || entry.is_durable;
            for (piece, bytes) in self.bytes[entry.data.clone()].chunks(cut.piece_bytes).enumerate() {
                if is_durable || random.below(100) < cut.kept {
                    file.write_all_at(bytes, entry.at + (piece * cut.piece_bytes) as u64).unwrap();
                }
            }
        }
    }

    fn last_flush_before(&self, at: usize) -> usize {
        self.entries[..at].iter().rposition(|entry| entry.flushes).unwrap_or(0)
    }

    /// The count that an entry acknowledges.
    fn acknowledged_by(&self, entry: &Entry) -> Option<u64> {
        let is_count = entry.at == FILE_SYSTEM_BYTES && !entry.data.is_empty();
        is_count.then(|| String::from_utf8_lossy(&self.bytes[entry.data.clone()]).lines().next()?.parse().ok())?
    }
}

/// What is wrong with the image on a disk after a power cut.
pub fn violation(
    (log, holder): (&Log, Holder),
    cut: Cut,
    random: &mut Random,
    worker: &Path,
    place: &Path,
) -> Option<String> {
    let (disk, image) = (place.join("replayed"), place.join("image"));
    log.replay(cut, random, &disk);
    if let Holder::Disk = holder {
        return crate::cuts::violation(&disk, worker, (log.acknowledged(cut), UNACKNOWLEDGED_MAX), false);
    }
    let run = |command: &mut Command| {
        let output = command.output().expect("the program starts");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    // 1: its journal was replayed.
    let (code, said) = run(Command::new(program("e2fsck").expect("a part of e2fsprogs")).arg("-p").arg(&disk));
    if !matches!(code, Some(0 | 1)) {
        return Some(format!("e2fsck: {code:?}: {said}"));
    }
    let dump = format!("dump image {}", image.display());
    let (_, said) = run(Command::new(program("debugfs").expect("a part of e2fsprogs")).args(["-R", &dump]).arg(&disk));
    if !image.is_file() {
        return Some(format!("debugfs: {said}"));
    }
    let found = crate::cuts::violation(&image, worker, (log.acknowledged(cut), UNACKNOWLEDGED_MAX), false);
    std::fs::remove_file(image).unwrap();
    found
}
