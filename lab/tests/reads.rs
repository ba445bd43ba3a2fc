//! Calls declare exactly the image lines that they read. The emulated delay applies to declared
//! reads, so an undeclared read would be free. The standard systems read and fence as published.
//!
//! Each call is recorded instruction by instruction, which shows what it really accessed.

use crate::common::{Image, mkfs, small_options};
use engine::{AttachOptions, Fs};
use lab::calls::{Calls, System};
use lab::directfs::DirectFs;
use lab::multicore::events::{Code, Event, EventKind, LINE_BYTES, events};
use lab::multicore::record::record;
use lab::nova::Nova;
use lab::physical::PhysicalFs;
use lab::pmfs::Pmfs;
use lab::soupfs::SoupFs;
use lab::squirrelfs::SquirrelFs;
use lab::vfs::{DentryCache, Vfs};
use pmem::{Direct, Mapping, Memory, Region, UserBytes};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const FILES: usize = 16;
/// Calls of each kind.
const CALLS: usize = 5;
const STEPS_MAX: usize = 400_000;
const IMAGE_BYTES: u64 = 32 << 20;

/// Memory that records declared reads and fences by thread, since persisters read, too.
#[derive(Clone, Copy)]
struct Noted;

thread_local! {
    static REPORTED: RefCell<Vec<Range<u64>>> = const { RefCell::new(Vec::new()) };
    static FENCES: Cell<u64> = const { Cell::new(0) };
}

impl Memory for Noted {
    const WATCHED: bool = true;
    fn stored(&self, _: u64, _: &[u8]) {}
    fn streamed(&self, _: u64, _: UserBytes<'_>) {}
    fn flushed(&self, _: u64, _: u64) {}
    fn fenced(&self) {
        FENCES.set(FENCES.get() + 1);
    }
    fn read(&self, offset: u64, length: u64) {
        if length > 0 {
            REPORTED.with_borrow_mut(|said| said.push(offset / LINE_BYTES..(offset + length).div_ceil(LINE_BYTES)));
        }
    }
}

fn take_reported() -> BTreeSet<u64> {
    REPORTED.take().into_iter().flatten().collect()
}

/// The accesses of all calls of a kind.
#[derive(Debug, Default)]
struct Sum {
    /// Lines that a call read and that no call accessed before.
    read: u64,
    /// Those of them that were not declared.
    unsaid: u64,
    /// Declared lines that were not accessed.
    untouched: u64,
}

type Sums = BTreeMap<&'static str, Sum>;

struct Watcher {
    image: Range<u64>,
    code: Code,
    /// Lines accessed since the mount.
    known: BTreeSet<u64>,
    sums: Sums,
}

impl Watcher {
    fn new(image: &Mapping) -> Watcher {
        let start = image.address() as u64;
        let code = Code::new().unwrap();
        Watcher { image: start..start + image.length(), code, known: BTreeSet::new(), sums: BTreeMap::new() }
    }

    fn call(&mut self, name: &'static str, call: impl FnOnce() -> posix::Result<()>) {
        take_reported();
        let (steps, done) = record(STEPS_MAX, call).unwrap();
        let steps = steps.expect("the buffer holds all steps");
        done.unwrap();
        let said = take_reported();
        let sum = self.sums.entry(name).or_default();
        let mut touched = BTreeSet::new();
        for Event { kind, address, .. } in events(&steps, &mut self.code).unwrap() {
            if matches!(kind, EventKind::Work | EventKind::Fence | EventKind::Flush) || !self.image.contains(&address) {
                continue;
            }
            let line = (address - self.image.start) / LINE_BYTES;
            touched.insert(line);
            if self.known.insert(line) && kind == EventKind::Load {
                sum.read += 1;
                sum.unsaid += u64::from(!said.contains(&line));
            }
        }
        sum.untouched += said.difference(&touched).count() as u64;
    }
}

fn path(index: usize) -> Vec<u8> {
    format!("/directory/file{index:04}").into_bytes()
}

/// Each call finds the caches as after a mount, except for the directory.
fn watch(watcher: &mut Watcher, calls: &dyn Calls) {
    watcher.call("first look", || calls.stat(&path(0)).map(drop));
    for index in 1..1 + CALLS {
        watcher.call("stat", || calls.stat(&path(index)).map(drop));
        watcher.call("stat again", || calls.stat(&path(index)).map(drop));
        watcher.call("unlink", || calls.unlink(&path(index + CALLS)));
    }
}

fn make(calls: &dyn Calls) {
    calls.mkdir(b"/directory", 0o755).unwrap();
    (0..FILES).for_each(|index| calls.create(&path(index), 0o644).unwrap());
    calls.sync().unwrap();
}

fn vfs_reads<P: PhysicalFs<Memory = Noted>>() -> Sums {
    let image = Image::new(IMAGE_BYTES);
    mkfs::<P, _>(&image, Noted);
    let mount = || Vfs::<P, DentryCache>::mount(image.region(Noted), small_options()).unwrap();
    let vfs = mount();
    make(&vfs);
    vfs.unmount().unwrap();
    let vfs = mount();
    let mut watcher = Watcher::new(&image.0);
    watch(&mut watcher, &vfs);
    vfs.unmount().unwrap();
    watcher.sums
}

fn directfs_reads() -> Sums {
    let image = Mapping::anonymous(IMAGE_BYTES).unwrap();
    // SAFETY: the mapping lives until the end of this function, as does every region over it.
    let region = || unsafe { Region::new(image.address(), image.length(), Noted) };
    let making = engine::MkfsOptions {
        uuid: *b"what is read ...",
        label: [0; 64],
        inodes_max: 4096,
        owner: (0, 0),
        permissions: 0o755,
        now_ns: tables::host::now_ns(),
        zeroed: true,
    };
    engine::mkfs(&region(), &making).unwrap();
    let options = AttachOptions::default();
    let layout = Fs::<Noted>::dram_layout(&region(), &options).unwrap();
    let attach = || {
        let dram = Mapping::anonymous(layout.length).unwrap();
        // SAFETY: as above; the mapping is returned with the file system and outlives it.
        let dram_region = unsafe { Region::new(dram.address(), dram.length(), Direct) };
        let recovery =
            Fs::attach_first(region(), dram_region, &tables::host::PLATFORM, engine::Liveness::alone(), &options)
                .unwrap();
        recovery.work().unwrap();
        (recovery.finish().unwrap().0, dram)
    };
    let (fs, _dram) = attach();
    make(&DirectFs(&fs).session().unwrap());
    fs.detach_last().unwrap();
    let (fs, _dram) = attach();
    let mut watcher = Watcher::new(&image);
    watch(&mut watcher, &DirectFs(&fs).session().unwrap());
    fs.detach_last().unwrap();
    watcher.sums
}

fn assert_reported(system: &str, sums: &Sums) {
    for call in ["stat", "unlink"] {
        let sum = &sums[call];
        assert!(sum.read >= CALLS as u64, "{system}, {call}: nothing was read, so nothing was tested: {sum:?}");
        // One undeclared line may be shared by all calls: a journal's head.
        assert!(sum.unsaid <= 1 && sum.untouched == 0, "{system}, {call}: {sum:?}");
    }
    assert_eq!(sums["stat again"].read, 0, "{system}: a repeated stat reads new lines");
    assert!(sums["first look"].unsaid * 5 <= sums["first look"].read, "{system}: {:?}", sums["first look"]);
}

#[test]
fn directfs_reports_what_it_reads() {
    assert_reported("DirectFS", &directfs_reads());
}

#[test]
fn nova_reports_what_it_reads() {
    assert_reported("NOVA", &vfs_reads::<Nova<Noted>>());
}

#[test]
fn pmfs_reports_what_it_reads() {
    assert_reported("PMFS", &vfs_reads::<Pmfs<Noted>>());
}

#[test]
fn soupfs_reports_what_it_reads() {
    assert_reported("SoupFS", &vfs_reads::<SoupFs<Noted>>());
}

#[test]
fn squirrelfs_reports_what_it_reads() {
    assert_reported("SquirrelFS", &vfs_reads::<SquirrelFs<Noted>>());
}

/// The fences of a call of each kind: the fewest of some calls, since one of them may add a page.
fn fences<P: PhysicalFs<Memory = Noted>>() -> BTreeMap<&'static str, u64> {
    let image = Image::new(IMAGE_BYTES);
    mkfs::<P, _>(&image, Noted);
    let vfs = Vfs::<P, DentryCache>::mount(image.region(Noted), small_options()).unwrap();
    vfs.mkdir(b"/directory", 0o755).unwrap();
    vfs.create(b"/directory/first", 0o644).unwrap();
    let fewest = |call: &dyn Fn(&[u8]) -> posix::Result<()>| {
        let each = (0..CALLS).map(|index| {
            FENCES.set(0);
            call(&path(index)).unwrap();
            FENCES.get()
        });
        each.min().unwrap()
    };
    let counts = BTreeMap::from([
        ("create", fewest(&|path| vfs.create(path, 0o644))),
        ("chmod", fewest(&|path| vfs.chmod(path, 0o600))),
        ("unlink", fewest(&|path| vfs.unlink(path))),
        ("mkdir", fewest(&|path| vfs.mkdir(path, 0o755))),
        ("rmdir", fewest(&|path| vfs.rmdir(path))),
    ]);
    vfs.unmount().unwrap();
    counts
}

#[test]
fn nova_fences_as_often_as_published() {
    // A new directory's log has a fence of its own; a removal has one that frees the inode.
    let published = [("chmod", 2), ("create", 4), ("mkdir", 5), ("rmdir", 5), ("unlink", 5)];
    assert_eq!(fences::<Nova<Noted>>(), BTreeMap::from(published));
}

#[test]
fn pmfs_fences_each_undo_entry() {
    // One for each entry, the changes and the end; a removal has one that frees the inode.
    let published = [("chmod", 3), ("create", 5), ("mkdir", 5), ("rmdir", 7), ("unlink", 7)];
    assert_eq!(fences::<Pmfs<Noted>>(), BTreeMap::from(published));
}

#[test]
fn squirrelfs_fences_each_step_of_soft_updates() {
    // Times, name, inode, number; mkdir: the link above, too. A removal has three that free the
    // pages and the inode; before them times, number, link and name, and of a directory the link
    // above.
    let published = [("chmod", 2), ("create", 4), ("mkdir", 5), ("rmdir", 7), ("unlink", 7)];
    assert_eq!(fences::<SquirrelFs<Noted>>(), BTreeMap::from(published));
}

/// Times of both directories and of the file, name, pointer, number, old number, pointer, old name;
/// pages and their owner, content, size.
#[test]
fn squirrelfs_renames_with_nine_fences_and_appends_with_four() {
    let image = Image::new(IMAGE_BYTES);
    mkfs::<SquirrelFs<Noted>, _>(&image, Noted);
    let vfs = Vfs::<SquirrelFs<Noted>, DentryCache>::mount(image.region(Noted), small_options()).unwrap();
    make(&vfs);
    let fences = |call: &dyn Fn() -> posix::Result<()>| {
        FENCES.set(0);
        call().unwrap();
        FENCES.get()
    };
    assert_eq!(fences(&|| vfs.rename(&path(0), b"/directory/other", 0)), 9);
    // The replaced name has its entry already.
    assert_eq!(fences(&|| vfs.rename(b"/directory/other", &path(1), 0)), 8 + 3);
    let file = vfs.open(&path(2), libc::O_RDWR, 0).unwrap();
    assert_eq!(fences(&|| vfs.append(file, &[1; 5000]).map(drop)), 4, "with new pages");
    assert_eq!(fences(&|| vfs.write(file, 100, &[2; 5000]).map(drop)), 2, "in place");
    vfs.close(file).unwrap();
    vfs.unmount().unwrap();
}

#[test]
fn listing_a_nova_directory_reads_the_inode_of_each_name() {
    let image = Image::new(IMAGE_BYTES);
    mkfs::<Nova<Noted>, _>(&image, Noted);
    let vfs = Vfs::<Nova<Noted>, DentryCache>::mount(image.region(Noted), small_options()).unwrap();
    make(&vfs);
    vfs.unmount().unwrap();
    let vfs = Vfs::<Nova<Noted>, DentryCache>::mount(image.region(Noted), small_options()).unwrap();
    vfs.stat(b"/directory").unwrap();
    take_reported();
    let mut names = 0;
    vfs.read_directory(b"/directory", &mut |_, _| names += 1).unwrap();
    let lines = take_reported().len();
    // Two entries of the log share a line at least, so names alone are fewer.
    assert!(names >= FILES && lines >= FILES, "{names} names, {lines} lines");
    vfs.unmount().unwrap();
}

#[test]
fn pmfs_searches_from_the_block_of_the_last_name_found() {
    const NAMES: usize = 600;
    let lines_of_a_block = pmem::BLOCK_BYTES / LINE_BYTES;
    let image = Image::new(IMAGE_BYTES);
    mkfs::<Pmfs<Noted>, _>(&image, Noted);
    let vfs = Vfs::<Pmfs<Noted>, DentryCache>::mount(image.region(Noted), small_options()).unwrap();
    vfs.mkdir(b"/directory", 0o755).unwrap();
    (0..NAMES).for_each(|index| vfs.create(&path(index), 0o644).unwrap());
    vfs.unmount().unwrap();
    let vfs = Vfs::<Pmfs<Noted>, DentryCache>::mount(image.region(Noted), small_options()).unwrap();
    let lines = |index| {
        take_reported();
        vfs.stat(&path(index)).unwrap();
        take_reported().len() as u64
    };
    let (first, next) = (lines(NAMES - 1), lines(NAMES - 2));
    assert!(first > 3 * lines_of_a_block, "the directory has several blocks: {first} lines");
    assert!(next < lines_of_a_block + 8, "{next} lines");
    vfs.unmount().unwrap();
}
