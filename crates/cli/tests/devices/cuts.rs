//! Power cuts: a machine works on an image, and is stopped at random instants. The file behind its
//! NVDIMM is then what a power cut leaves of persistent memory, but for lines that were never
//! flushed: an emulated NVDIMM has those as well. So cuts test the order of stores, and recovery.
//!
//! Each copy is checked on this machine. Oracle: `fsck -n` finds no error, and the directory is
//! exactly what the returned calls leave, with or without the next one. A machine reports a
//! returned call by a byte to a port, before the next call begins.

use crate::disklog::{self, Holder, Log};
use crate::machine::{Machine, Random, compile, program};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Bytes of an image before its length, and its magic.
const LENGTH_AT: u64 = 128;
const MAGIC: &[u8] = b"DIRECTFS";

/// Where the image of a cut lies in the NVDIMM.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// A DAX device.
    Device,
    /// The file `image` of an ext4 file system.
    Ext4,
}

/// How many cuts each test makes.
pub fn count() -> usize {
    std::env::var("DIRECTFS_DEVICE_CUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(3)
}

/// Makes calls on two images on a disk in a machine, in a file and on the disk itself, and checks
/// what power cuts leave of the disk.
pub fn assert_a_disk_loses_nothing(machine: Machine, script: &str) {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let worker = compile("worker");
    machine.run_in(place.path(), script).assert_all_steps();
    let log = Log::read(&place.path().join("log"));
    let mut random = Random::default();
    let phases = log.phases();
    assert_eq!(phases.len(), 2, "{phases:?}");
    for (phase, holder) in phases.iter().zip([Holder::Ext4, Holder::Disk]) {
        let mut violation = |cut| disklog::violation((&log, holder), cut, &mut random, &worker, place.path());
        let mut moments = Random::default();
        for number in 0..count() {
            let cut = log.cut(phase, number, &mut moments);
            assert_eq!(violation(cut), None, "{holder:?}: {cut:?}");
            println!("{holder:?}: {cut:?}, {} calls acknowledged: nothing is lost", log.acknowledged(cut));
        }
        let loss = log.cuts_without_a_flush(phase).find_map(|cut| violation(cut).map(|found| (cut, found)));
        println!("{holder:?}, without one flush: {:?}", loss.expect("a flush that the disk leaves out is found"));
    }
}

/// Cuts the power of a machine that a script prepares, and checks what is left each time.
pub fn assert_nothing_is_lost(machine: Machine, place: Place, script: &str) {
    let mut checked = 0;
    let worker = compile("worker");
    machine.with_nvdimm(64 << 20).cut(script, count(), |cut| {
        let image = cut.nvdimm.with_extension("image");
        extract(&cut.nvdimm, place, &image);
        // It is a mount whose kernel caches no pages.
        let may_split = matches!(place, Place::Ext4);
        assert_eq!(violation(&image, &worker, (cut.calls, 1), may_split), None);
        println!("a cut after {} calls: nothing is lost", cut.calls);
        std::fs::remove_file(image).unwrap();
        checked += 1;
    });
    assert_eq!(checked, count());
}

/// What is wrong with an image after a power cut. It must hold what the first `calls` calls leave,
/// with or without at most `more` more. `may_split`: of a write, also its first pages.
pub fn violation(image: &Path, worker: &Path, (calls, more): (u64, u64), may_split: bool) -> Option<String> {
    let directfs = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_directfs")).args(words).output().expect("directfs starts");
        let said = [output.stdout, output.stderr].concat();
        let is_right = output.status.success();
        (!is_right).then(|| format!("{words:?} after {calls} calls: {}", String::from_utf8_lossy(&said)))
    };
    let (image, [from, more]) = (image.to_str().unwrap(), [calls, more].map(|count| count.to_string()));
    let check = ["run", "--image", image, "--", worker.to_str().unwrap(), "check", "/mnt/directfs/work", &from, &more];
    let split: &[&str] = if may_split { &["split"] } else { &[] };
    directfs(&["fsck", "-n", image])
        .or_else(|| directfs(&[&check, split].concat()))
        .or_else(|| directfs(&["fsck", "-n", image]))
}

/// Copies the image out of the NVDIMM's bytes.
fn extract(nvdimm: &Path, place: Place, image: &Path) {
    let file = std::fs::File::open(nvdimm).unwrap();
    let read = |at: u64, bytes: &mut [u8]| file.read_at(bytes, at).unwrap_or(0) == bytes.len();
    let begins = |at: &u64| {
        let mut bytes = [0; 8];
        match place {
            Place::Device => read(*at, &mut bytes) && bytes == *MAGIC,
            // The magic and the state of an ext4 superblock, 1024 bytes behind its start.
            Place::Ext4 => read(*at + 1080, &mut bytes) && bytes[..2] == [0x53, 0xef],
        }
    };
    let end = file.metadata().unwrap().len();
    let at = (0..end).step_by(4096).find(begins).expect("the NVDIMM holds it");
    match place {
        Place::Device => {
            let mut length = [0; 8];
            assert!(read(at + LENGTH_AT, &mut length));
            let mut bytes = vec![0; u64::from_le_bytes(length).min(end) as usize];
            assert!(read(at, &mut bytes));
            std::fs::write(image, bytes).unwrap();
        }
        Place::Ext4 => {
            let disk = nvdimm.with_extension("ext4");
            let mut bytes = vec![0; (end - at) as usize];
            assert!(read(at, &mut bytes));
            std::fs::write(&disk, bytes).unwrap();
            // Its journal is replayed, as by a mount. 1: it was.
            let e2fsck = program("e2fsck").expect("a part of e2fsprogs");
            let output = Command::new(e2fsck).arg("-p").arg(&disk).output().expect("e2fsck starts");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(matches!(output.status.code(), Some(0 | 1)), "e2fsck: {}: {said}", output.status);
            let dump = format!("dump image {}", image.display());
            let debugfs = program("debugfs").expect("a part of e2fsprogs");
            let output = Command::new(debugfs).args(["-R", &dump]).arg(&disk).output().expect("debugfs starts");
            std::fs::remove_file(disk).unwrap();
            assert!(image.is_file(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
