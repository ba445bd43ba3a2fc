//! Images on a disk whose working copy has only a part of them at first: what an open reads, and
//! that data are right wherever they are: against a model, in several processes, after deaths,
//! without room, and on a failing disk.

#[path = "../../posix/tests/common/mod.rs"]
mod common;

use common::{on_disk, options_in};
use engine::format::FileKind;
use engine::{AllocateMode, Error, MapMode, NewNode, Node, Thread};
use image::{CommitPolicy, Image, MakeOptions, NewIdentity, OpenImage, make, snapshot};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 64 << 20;
const FILES: usize = 12;
/// Length of each file: no multiple of a page.
const FILE_BYTES: usize = (2 << 20) + 1234;
const PAGE: u64 = 4096;

/// A full image on the disk of the scratch directory.
struct Disk {
    directory: TempDir,
    /// Where working copies are.
    memory: TempDir,
    path: PathBuf,
    options: OpenImage,
}

fn content(file: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at / 7 + at / PAGE as usize * 31 + file * 13) as u8 | 1).collect()
}

impl Disk {
    /// `memory`: the directory of working copies.
    fn new(memory: TempDir) -> Disk {
        let directory = on_disk();
        let path = directory.path().join("image");
        make(&path, &MakeOptions { length: IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
        let options = OpenImage { whole_bytes_max: 0, commits: CommitPolicy::WhenSynced, ..options_in(&memory) };
        let disk = Disk { directory, memory, path, options };
        let image = disk.open();
        assert!(image.storage().is_disk(), "these tests need a scratch directory on a disk");
        inside(&image, |thread, root| {
            for file in 0..FILES {
                let node = thread.create(root, name(file).as_bytes(), &regular()).unwrap();
                thread.files().write(node, 0, &content(file)).unwrap();
                thread.release(node, 1);
            }
        });
        image.close().unwrap();
        disk
    }

    fn in_memory() -> Disk {
        Disk::new(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn open(&self) -> Image {
        Image::open(&self.path, &self.options).unwrap()
    }

    /// As it was opened before data stayed on the disk.
    fn open_whole(&self) -> Image {
        Image::open(&self.path, &OpenImage { whole_bytes_max: u64::MAX, ..self.options.clone() }).unwrap()
    }

    /// What a power failure would leave now.
    fn after_power_failure(&self) -> Image {
        let copy = self.directory.path().join("copy");
        fs::copy(&self.path, &copy).unwrap();
        Image::open(&copy, &OpenImage { whole_bytes_max: u64::MAX, ..self.options.clone() }).unwrap()
    }
}

fn name(file: usize) -> String {
    format!("file {file}")
}

fn regular() -> NewNode<'static> {
    NewNode {
        kind: FileKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        device: 0,
        target: b"",
        extended: &[],
        flags: engine::FileFlags::NONE,
    }
}

fn inside<T>(image: &Image, call: impl FnOnce(&Thread<'_>, Node) -> T) -> T {
    let thread = image.fs().enter().unwrap();
    let root = thread.root().unwrap();
    let result = call(&thread, root);
    thread.release(root, 1);
    result
}

fn with_file<T>(image: &Image, file: usize, call: impl FnOnce(&Thread<'_>, Node) -> T) -> T {
    inside(image, |thread, root| {
        let node = thread.lookup(root, name(file).as_bytes()).unwrap();
        let result = call(thread, node);
        thread.release(node, 1);
        result
    })
}

fn read_all(image: &Image, file: usize) -> Result<Vec<u8>, Error> {
    inside(image, |thread, root| {
        let node = thread.lookup(root, name(file).as_bytes())?;
        let read = || {
            let mut bytes = vec![0; thread.stat(node)?.size_bytes as usize];
            let count = thread.files().read(node, 0, &mut bytes)?;
            assert_eq!(count, bytes.len());
            Ok(bytes)
        };
        let read = read();
        thread.release(node, 1);
        read
    })
}

/// Bytes that the working copy takes.
fn taken(image: &Image) -> u64 {
    image.mapping().file().unwrap().metadata().unwrap().blocks() * 512
}

fn assert_content(image: &Image, model: &[Vec<u8>]) {
    for (file, expected) in model.iter().enumerate() {
        let found = read_all(image, file).unwrap();
        let differs = found.iter().zip(expected).position(|(a, b)| a != b);
        assert!(found == *expected, "file {file}: {} bytes for {}, from {differs:?}", found.len(), expected.len());
    }
}

fn fresh() -> Vec<Vec<u8>> {
    (0..FILES).map(content).collect()
}

/// Runs a process that ends like a killed one, with whatever it has open.
fn killed(run: impl FnOnce()) {
    // SAFETY: the child makes only the calls of this test, in its only thread, and does not return.
    let child = unsafe { libc::fork() };
    if child == 0 {
        run();
        // SAFETY: ends this process at once.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    // SAFETY: waits for a child of this test.
    assert_eq!(unsafe { libc::waitpid(child, &mut 0, 0) }, child);
}

#[test]
fn an_open_loads_no_data_and_a_read_loads_what_it_reads() {
    let disk = Disk::in_memory();
    let image = disk.open();
    assert!(!image.report().unwrap().scanned);
    let before = taken(&image);
    assert!(before < 4 << 20, "{before} bytes of an image with {} of data", FILES * FILE_BYTES);
    let mut bytes = [0; 100];
    with_file(&image, 3, |thread, node| thread.files().read(node, 1 << 20, &mut bytes).unwrap());
    assert_eq!(bytes, content(3)[1 << 20..][..100]);
    let after = taken(&image);
    assert!((before + 1..before + (1 << 20)).contains(&after), "{before}, then {after}");
    assert_content(&image, &fresh());
    assert!(taken(&image) > before + ((FILES - 1) * FILE_BYTES) as u64, "read data are in memory from now on");
    image.close().unwrap();
    assert_content(&disk.open_whole(), &fresh());
}

#[test]
fn a_working_copy_on_the_disk_is_not_filled_by_reads() {
    let disk = Disk::new(on_disk());
    let image = disk.open();
    let before = taken(&image);
    assert_content(&image, &fresh());
    assert!(taken(&image) < before + (1 << 20), "{before}, then {}", taken(&image));
}

/// A small generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

/// One change of a file and of its model.
fn change(thread: &Thread<'_>, nodes: &[Node], model: &mut [Vec<u8>], random: &mut Random) {
    let file = random.below(FILES as u64) as usize;
    let (node, files) = (nodes[file], thread.files());
    let size = model[file].len() as u64;
    let at = random.below(size);
    let length = [1, 100, PAGE, 3 * PAGE, 100 << 10][random.below(5) as usize];
    let length = 1 + random.below(length);
    let end = (at + length).min(size);
    let fill = random.below(255) as u8;
    let zero = |model: &mut Vec<u8>, range: std::ops::Range<u64>| {
        model[range.start as usize..range.end as usize].fill(0);
    };
    match random.below(9) {
        0..=2 => {
            files.write(node, at, &vec![fill; length as usize]).unwrap();
            let model = &mut model[file];
            model.resize(model.len().max((at + length) as usize), 0);
            model[at as usize..(at + length) as usize].fill(fill);
        }
        3 => {
            files.append(node, &vec![fill; length as usize]).unwrap();
            model[file].resize((size + length) as usize, fill);
        }
        4 => {
            let to = if random.below(2) == 0 { size.saturating_sub(length) } else { size + length };
            files.truncate(node, to).unwrap();
            model[file].resize(to as usize, 0);
        }
        5 if at < end => {
            files.allocate(node, AllocateMode::PunchHole, at, end - at).unwrap();
            zero(&mut model[file], at..end);
        }
        6 if at < end => {
            files.allocate(node, AllocateMode::ZeroRange { keep_size: true }, at, end - at).unwrap();
            zero(&mut model[file], at..end);
        }
        7 => {
            let other = random.below(FILES as u64) as usize;
            if other != file {
                files.truncate(nodes[other], 0).unwrap();
                files.share_range((node, 0), (nodes[other], 0), None).unwrap();
                model[other] = model[file].clone();
            }
        }
        _ => {
            let mut bytes = vec![0; length as usize];
            let count = files.read(node, at, &mut bytes).unwrap();
            assert_eq!(bytes[..count], model[file][at as usize..end as usize], "read at {at}");
        }
    }
}

fn with_nodes<T>(image: &Image, call: impl FnOnce(&Thread<'_>, &[Node]) -> T) -> T {
    inside(image, |thread, root| {
        let nodes: Vec<_> = (0..FILES).map(|file| thread.lookup(root, name(file).as_bytes()).unwrap()).collect();
        let result = call(thread, &nodes);
        nodes.iter().for_each(|node| thread.release(*node, 1));
        result
    })
}

fn model_run(disk: &Disk, seed: u64) {
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut model = fresh();
    for round in 0..6 {
        let image = disk.open();
        for _ in 0..3 {
            with_nodes(&image, |thread, nodes| {
                (0..40).for_each(|_| change(thread, nodes, &mut model, &mut random));
            });
            image.sync().unwrap();
            let synced = model.clone();
            with_nodes(&image, |thread, nodes| {
                (0..10).for_each(|_| change(thread, nodes, &mut model, &mut random));
            });
            assert_content(&disk.after_power_failure(), &synced);
        }
        match round % 3 {
            0 => assert_content(&image, &model),
            1 => drop(image.close().unwrap()),
            _ => {}
        }
    }
    assert_content(&disk.open_whole(), &model);
}

#[test]
fn data_are_right_after_changes_power_failures_and_opens() {
    for seed in [0x9e37_79b9, 0x1234_5678_9abc] {
        model_run(&Disk::in_memory(), seed);
    }
}

#[test]
fn data_are_right_in_a_working_copy_on_the_disk() {
    model_run(&Disk::new(on_disk()), 0xdead_beef);
}

#[test]
fn what_a_mapping_shows_is_loaded_before() {
    let disk = Disk::in_memory();
    let image = disk.open();
    with_file(&image, 5, |thread, node| {
        let files = thread.files();
        files.set_mapped(node, true).unwrap();
        let mut bytes = Vec::new();
        files
            .map_extents(node, 0, FILE_BYTES as u64, MapMode::Stores, &mut |extent| {
                let mut part = vec![0; extent.length as usize];
                image.mapping().file().unwrap().read_exact_at(&mut part, extent.address.unwrap()).unwrap();
                bytes.extend(part);
            })
            .unwrap();
        assert!(bytes[..FILE_BYTES] == content(5) && bytes[FILE_BYTES..].iter().all(|byte| *byte == 0));
        files.set_mapped(node, false).unwrap();
    });
    // A mapping of a part: what was not mapped, and marked as if it might have changed, stays.
    with_file(&image, 6, |thread, node| {
        let files = thread.files();
        files.set_mapped(node, true).unwrap();
        files.note_stores(node).unwrap();
        files.map_extents(node, PAGE, PAGE, MapMode::Stores, &mut |_| {}).unwrap();
        files.flush_mapped(node, 0, u64::MAX).unwrap();
        files.write(node, 10 * PAGE + 1, b"in place").unwrap();
        files.set_mapped(node, false).unwrap();
    });
    // Blocks that are cut off or punched stay, as zeros, whether they were loaded or not.
    with_file(&image, 7, |thread, node| {
        let files = thread.files();
        files.set_mapped(node, true).unwrap();
        files.map_extents(node, 0, PAGE, MapMode::Stores, &mut |_| {}).unwrap();
        files.allocate(node, AllocateMode::PunchHole, 20 * PAGE - 1, 9 * PAGE + 2).unwrap();
        files.allocate(node, AllocateMode::ZeroRange { keep_size: true }, 50 * PAGE + 3, 2 * PAGE).unwrap();
        files.truncate(node, 100 * PAGE + 7).unwrap();
        files.truncate(node, 200 * PAGE).unwrap();
        files.set_mapped(node, false).unwrap();
    });
    image.close().unwrap();
    let mut model = fresh();
    model[7].truncate(100 * PAGE as usize + 7);
    model[7].resize(200 * PAGE as usize, 0);
    model[7][20 * PAGE as usize - 1..][..9 * PAGE as usize + 2].fill(0);
    model[7][50 * PAGE as usize + 3..][..2 * PAGE as usize].fill(0);
    model[6][10 * PAGE as usize + 1..][..8].copy_from_slice(b"in place");
    assert_content(&disk.open_whole(), &model);
}

#[test]
fn processes_that_load_and_change_the_same_files_see_the_same() {
    let disk = Disk::in_memory();
    let image = disk.open();
    let slice = FILE_BYTES / 4;
    let children: Vec<_> = (0..4)
        .map(|part| {
            // SAFETY: the child makes only the calls of this test, in its only thread, and does not
            // return.
            let child = unsafe { libc::fork() };
            if child != 0 {
                return child;
            }
            let result = std::panic::catch_unwind(|| {
                let own = disk.open();
                for file in 0..FILES {
                    let expected = content(file);
                    with_file(&own, file, |thread, node| {
                        let mut bytes = [0; 777];
                        for at in (part * slice..(part + 1) * slice - 777).step_by(5000) {
                            let files = thread.files();
                            files.read(node, at as u64, &mut bytes).unwrap();
                            assert_eq!(bytes, expected[at..][..777], "file {file} at {at}");
                            files.write(node, at as u64, &[part as u8; 99]).unwrap();
                            files.read(node, at as u64, &mut bytes).unwrap();
                            assert_eq!(
                                (&bytes[..99], &bytes[99..]),
                                (&[part as u8; 99][..], &expected[at + 99..][..678])
                            );
                        }
                    });
                }
                own.close().unwrap();
            });
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(result.is_err().into()) };
        })
        .collect();
    for child in children {
        let mut status = 0;
        // SAFETY: waits for a child of this test.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
    let mut model = fresh();
    for bytes in &mut model {
        for part in 0..4 {
            for at in (part * slice..(part + 1) * slice - 777).step_by(5000) {
                bytes[at..][..99].fill(part as u8);
            }
        }
    }
    assert_content(&image, &model);
    image.close().unwrap();
    assert_content(&disk.open_whole(), &model);
}

/// A process that loads and changes, killed after some time.
fn killed_soon(disk: &Disk, round: u64) {
    // SAFETY: the child makes only the calls of this test, in its only thread, and does not return.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let own = disk.open();
        let mut random = Random(round + 77);
        loop {
            let file = random.below(FILES as u64) as usize;
            with_file(&own, file, |thread, node| {
                let at = random.below(FILE_BYTES as u64 - 5000);
                let mut bytes = vec![0; 5000];
                let _ = thread.files().read(node, at, &mut bytes);
                // The bytes are equal: the model does not change.
                let _ = thread.files().write(node, at, &content(file)[at as usize..][..200]);
            });
        }
    }
    let delay = libc::timespec { tv_sec: 0, tv_nsec: 3_000_000 + round as i64 * 2_700_000 };
    // SAFETY: waits, then ends and waits for a child of this test.
    unsafe {
        libc::nanosleep(&raw const delay, std::ptr::null_mut());
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &mut 0, 0);
    }
}

#[test]
fn the_death_of_loaders_loses_nothing() {
    let disk = Disk::in_memory();
    // Among others that go on, and alone.
    let image = disk.open();
    (0..8).for_each(|round| killed_soon(&disk, round));
    assert_content(&image, &fresh());
    image.close().unwrap();
    for round in 0..8 {
        killed_soon(&disk, round);
        assert_content(&disk.open(), &fresh());
    }
    assert_content(&disk.open_whole(), &fresh());
}

#[test]
fn a_left_working_copy_is_copied_with_what_it_lacks() {
    let disk = Disk::in_memory();
    let mut model = fresh();
    killed(|| {
        let image = disk.open();
        with_file(&image, 1, |thread, node| thread.files().write(node, PAGE - 3, b"newest").unwrap());
        std::mem::forget(image);
    });
    model[1][PAGE as usize - 3..][..6].copy_from_slice(b"newest");
    let target = disk.directory.path().join("snapshot");
    snapshot(&disk.path, &target, Some(&NewIdentity::default()), &disk.options, &mut |_, _| true).unwrap();
    let copy = Image::open(&target, &OpenImage { whole_bytes_max: u64::MAX, ..disk.options.clone() }).unwrap();
    assert_content(&copy, &model);
    drop(copy);
    let discarding = Image::open_discarding(&disk.path, &disk.options).unwrap();
    assert_content(&discarding, &model);
    drop(discarding);
    assert_content(&disk.open(), &model);
}

#[test]
fn changes_that_are_held_back_may_touch_data_on_the_disk() {
    let disk = Disk::in_memory();
    let mut model = fresh();
    for is_kept in [false, true] {
        let image = Image::open_atomic(&disk.path, &disk.options).unwrap();
        with_file(&image, 2, |thread, node| thread.files().write(node, 5, b"held back").unwrap());
        if is_kept {
            image.close_atomic().unwrap();
            model[2][5..14].copy_from_slice(b"held back");
        } else {
            drop(image);
        }
        assert_content(&disk.open_whole(), &model);
    }
}

#[test]
fn an_image_that_was_not_left_clean_is_recovered_without_its_data() {
    let disk = Disk::in_memory();
    let mut model = fresh();
    for round in 0..3 {
        killed(|| {
            let image = disk.open();
            inside(&image, |thread, root| {
                // Metadata of all kinds, at places that held data.
                thread.unlink(root, name(round).as_bytes(), |_| Ok(())).unwrap();
                for number in 0..300 {
                    let name = format!("{round} {number}");
                    let node = thread.create(root, name.as_bytes(), &regular()).unwrap();
                    thread.files().write(node, 0, name.as_bytes()).unwrap();
                    thread.release(node, 1);
                }
                let node = thread.create(root, name(round).as_bytes(), &regular()).unwrap();
                thread.files().write(node, 3 * PAGE, b"behind a hole").unwrap();
                thread.release(node, 1);
            });
            if round % 2 == 0 {
                image.sync().unwrap();
            }
            std::mem::forget(image);
        });
        model[round] = [vec![0; 3 * PAGE as usize], b"behind a hole".to_vec()].concat();
        let image = disk.open();
        let report = image.report().unwrap();
        assert!(report.scanned && report.damaged == 0, "{report:?}");
        assert!(taken(&image) < 6 << 20, "{} bytes", taken(&image));
        inside(&image, |thread, root| {
            for (round, number) in (0..=round).flat_map(|round| (0..300).map(move |number| (round, number))) {
                let name = format!("{round} {number}");
                let node = thread.lookup(root, name.as_bytes()).unwrap();
                let mut bytes = [0; 20];
                let count = thread.files().read(node, 0, &mut bytes).unwrap();
                assert_eq!(&bytes[..count], name.as_bytes());
                thread.release(node, 1);
            }
        });
        assert_content(&image, &model);
        match round {
            0 => drop(image.close().unwrap()),
            _ => killed(|| std::mem::forget(image)),
        }
    }
    assert_content(&disk.open_whole(), &model);
}

#[test]
fn a_damaged_image_is_used_as_if_it_were_copied_whole() {
    let disk = Disk::in_memory();
    // A clean image whose maps do not match their checksum is scanned.
    let file = File::options().read(true).write(true).open(&disk.path).unwrap();
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 576).unwrap();
    file.write_all_at(&(u64::from_le_bytes(word) ^ 1).to_le_bytes(), 576).unwrap();
    let image = disk.open();
    assert!(image.report().unwrap().scanned);
    assert_content(&image, &fresh());
    image.close().unwrap();
    // An inode without a whole property entry.
    let inodes = engine::format::Geometry::new(IMAGE_BYTES, 0);
    let mut first = [0; 8];
    file.read_exact_at(&mut first, inodes.segment_table_block * PAGE).unwrap();
    let inode = u64::from_le_bytes(first) + 5 * 256;
    file.write_all_at(&[0xff; 128], inode + 64).unwrap();
    file.write_all_at(&(u64::from_le_bytes(word) ^ 1).to_le_bytes(), 576).unwrap();
    let image = disk.open();
    let report = *image.report().unwrap();
    assert!(report.scanned && report.damaged > 0, "{report:?}");
    let whole = (0..FILES).filter(|file| read_all(&image, *file).is_ok_and(|found| found == content(*file))).count();
    assert_eq!(whole, FILES - 1);
    image.close().unwrap();
    // The root directory.
    file.write_all_at(&[0xff; 192], u64::from_le_bytes(first) + 256).unwrap();
    file.write_all_at(&(u64::from_le_bytes(word) ^ 1).to_le_bytes(), 576).unwrap();
    let copy = disk.directory.path().join("copy");
    fs::copy(&disk.path, &copy).unwrap();
    let opened = |path: &Path, whole_bytes_max| {
        let image = Image::open(path, &OpenImage { whole_bytes_max, ..disk.options.clone() }).unwrap();
        let root = image.fs().enter().unwrap().root().map(drop);
        (root, image.report().unwrap().damaged, image.report().unwrap().orphans)
    };
    let found = opened(&disk.path, 0);
    assert_eq!(found.0, Err(Error::NotFound));
    assert_eq!(found, opened(&copy, u64::MAX));
}

#[test]
fn a_base_that_lost_its_end_is_an_error() {
    let disk = Disk::in_memory();
    let image = disk.open();
    File::options().write(true).open(&disk.path).unwrap().set_len(IMAGE_BYTES / 64).unwrap();
    let failed = (0..FILES).filter(|file| read_all(&image, *file) == Err(Error::Disk(libc::EIO))).count();
    assert!(failed > FILES / 2, "{failed} of {FILES} files were behind the end");
    let written = with_file(&image, FILES - 1, |thread, node| thread.files().write(node, 1, b"x"));
    assert_eq!(written, Err(Error::Disk(libc::EIO)));
}

/// Mounts a small file system in memory, seen by this thread alone. `false`: not permitted.
fn mount_small(at: &Path, bytes: u64) -> bool {
    let text = |text: &str| std::ffi::CString::new(text).unwrap();
    let (none, at, kind) = (text("none"), text(at.to_str().unwrap()), text("tmpfs"));
    let (root, size) = (text("/"), text(&format!("size={bytes}")));
    // SAFETY: strings that end; the calls change mounts of this thread's namespace only.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                none.as_ptr(),
                root.as_ptr(),
                kind.as_ptr(),
                libc::MS_REC | libc::MS_PRIVATE,
                none.as_ptr().cast(),
            ) == 0
            && libc::mount(none.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, size.as_ptr().cast()) == 0
    }
}

#[test]
fn without_room_reads_go_on_and_writes_get_enospc() {
    let disk = Disk::in_memory();
    if !mount_small(disk.memory.path(), 2 * IMAGE_BYTES) {
        eprintln!("SKIPPED: this test mounts a file system, which needs root");
        return;
    }
    let image = disk.open();
    assert!(!image.works_on_disk());
    let filler = File::create(disk.memory.path().join("filler")).unwrap();
    let mut at = 0;
    while filler.write_at(&[1; PAGE as usize], at).is_ok() {
        at += PAGE;
    }
    assert_content(&image, &fresh());
    let write = |file| with_file(&image, file, |thread, node| thread.files().append(node, b"more").map(drop));
    assert_eq!(write(4), Err(Error::NoSpace));
    assert_content(&image, &fresh());
    filler.set_len(0).unwrap();
    let mut model = fresh();
    for file in [4, 9] {
        write(file).unwrap();
        model[file].extend(b"more");
    }
    assert_content(&image, &model);
    image.close().unwrap();
    assert_content(&disk.open_whole(), &model);
}

#[test]
fn a_working_copy_that_an_earlier_version_left_is_believed() {
    const READINESS_AT: u64 = 24 + 22 * 8;
    let disk = Disk::in_memory();
    killed(|| {
        // That version left no room for a larger image, as a process with this limit does not.
        let limit = libc::rlimit { rlim_cur: 1 << 40, rlim_max: 1 << 40 };
        // SAFETY: a complete limit, of a child.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        let image = disk.open_whole();
        with_file(&image, 1, |thread, node| thread.files().write(node, 7, b"newest").unwrap());
        std::mem::forget(image);
    });
    // That version had no bits of pages behind the tracking area.
    let directory = fs::read_dir(disk.memory.path()).unwrap().next().unwrap().unwrap().path();
    let working = File::options().read(true).write(true).open(directory.join("working")).unwrap();
    let mut word = [0; 8];
    working.read_exact_at(&mut word, IMAGE_BYTES + READINESS_AT).unwrap();
    assert_eq!(&word, b"DFSWORK2");
    working.write_all_at(b"DFSWORK1", IMAGE_BYTES + READINESS_AT).unwrap();
    working.set_len(working.metadata().unwrap().len() - PAGE).unwrap();
    let mut model = fresh();
    model[1][7..13].copy_from_slice(b"newest");
    assert_content(&disk.open(), &model);
}
