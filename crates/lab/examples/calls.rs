//! What each call costs on each system, one thread, in one directory: a first look, not an experiment. `cargo run --release -p lab --example calls [FILES]`
//!
//! Cold: names and attributes are in no cache (the file system was just mounted). Warm: as they were left.

use engine::{AttachOptions, Fs};
use lab::calls::{Calls, System};
use lab::directfs::DirectFs;
use lab::front::{Front, FrontOptions, Names};
use lab::nova::Nova;
use lab::physical::{MkfsOptions, PhysicalFs};
use lab::pmfs::Pmfs;
use pmem::{Direct, Mapping, Region};
use std::sync::Arc;
use std::time::Instant;

const CALLS: [&str; 9] = ["create", "stat", "hot", "rename", "unlink", "mkdir", "rmdir", "cold stat", "cold unlink"];

fn each(files: usize, call: &mut dyn FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..files).for_each(call);
    start.elapsed().as_nanos() as f64 / files as f64
}

struct Paths {
    one: Vec<Vec<u8>>,
    two: Vec<Vec<u8>>,
    order: Vec<usize>,
}

impl Paths {
    fn new(files: usize) -> Paths {
        let named = |letter: char| (0..files).map(|index| format!("/dir/{letter}{index:07}").into_bytes()).collect();
        let mut order: Vec<usize> = (0..files).collect();
        let mut state = 1u64;
        for index in (1..files).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            order.swap(index, (state >> 33) as usize % (index + 1));
        }
        Paths { one: named('f'), two: named('g'), order }
    }
}

fn warm(calls: &impl Calls, paths: &Paths) -> Vec<f64> {
    let files = paths.one.len();
    let at = |index: usize| paths.order[index];
    vec![
        each(files, &mut |index| calls.create(&paths.one[index], 0o644).unwrap()),
        each(files, &mut |index| {
            calls.stat(&paths.one[at(index)]).unwrap();
        }),
        each(200_000, &mut |index| {
            calls.stat(&paths.one[index % 16]).unwrap();
        }),
        each(files, &mut |index| calls.rename(&paths.one[at(index)], &paths.two[at(index)], 0).unwrap()),
        each(files, &mut |index| calls.unlink(&paths.two[at(index)]).unwrap()),
        each(files, &mut |index| calls.mkdir(&paths.one[index], 0o755).unwrap()),
        each(files, &mut |index| calls.rmdir(&paths.one[at(index)]).unwrap()),
    ]
}

fn cold_stat(calls: &impl Calls, paths: &Paths) -> f64 {
    each(paths.one.len(), &mut |index| {
        calls.stat(&paths.one[paths.order[index]]).unwrap();
    })
}

fn cold_unlink(calls: &impl Calls, paths: &Paths) -> f64 {
    each(paths.one.len(), &mut |index| calls.unlink(&paths.one[paths.order[index]]).unwrap())
}

fn measure<P: PhysicalFs<Memory = Direct>, N: Names<P>>(name: &str, paths: &Paths, quick: bool) {
    let files = paths.one.len();
    let mapping = Arc::new(Mapping::anonymous((files as u64 * 3000).max(64 << 20) + (256 << 20)).unwrap());
    mapping.populate_write(0..mapping.length()).unwrap();
    let region = || mapping.region(Direct).unwrap();
    P::mkfs(&region(), &MkfsOptions::default()).unwrap();
    let limit = (files as u32 * 2).max(1 << 16);
    let options =
        FrontOptions { inode_quick_path: quick, files_max: limit, names_max: limit, ..FrontOptions::default() };
    let mount = || {
        let front = Front::<P, N>::mount(region(), options).unwrap();
        front.touch(files as u32 + 1000);
        front
    };
    let front = mount();
    front.mkdir(b"/dir", 0o755).unwrap();
    warm(&front, paths);
    let mut ns = warm(&front, paths);
    (0..files).for_each(|index| front.create(&paths.one[index], 0o644).unwrap());
    front.unmount().unwrap();
    let front = mount();
    ns.push(cold_stat(&front, paths));
    front.unmount().unwrap();
    let front = mount();
    ns.push(cold_unlink(&front, paths));
    front.unmount().unwrap();
    report(name, &ns);
}

fn measure_directfs(paths: &Paths) {
    let files = paths.one.len() as u64;
    let pm = Arc::new(Mapping::anonymous((files * 3000).max(64 << 20) + (256 << 20)).unwrap());
    pm.populate_write(0..pm.length()).unwrap();
    // SAFETY: the mapping lives until the end of this function, as does every region over it.
    let region = || unsafe { Region::new(pm.address(), pm.length(), Direct) };
    let making = engine::MkfsOptions {
        uuid: *b"a first look ...",
        label: [0; 64],
        inodes_max: files * 3 + 4096,
        owner: (0, 0),
        permissions: 0o755,
        now_ns: posix::host::now_ns(),
        zeroed: true,
    };
    engine::mkfs(&region(), &making).unwrap();
    let options = AttachOptions::default();
    let layout = Fs::<Direct>::dram_layout(&region(), &options).unwrap();
    let attach = || {
        let dram = Mapping::anonymous(layout.length).unwrap();
        // SAFETY: as above; the region's mapping is returned beside the file system and outlives it.
        let dram_region = unsafe { Region::new(dram.address(), dram.length(), Direct) };
        let recovery = Fs::attach_first(region(), dram_region, &posix::host::PLATFORM, &options).unwrap();
        recovery.work().unwrap();
        (recovery.finish().unwrap().0, dram)
    };
    let (fs, _dram) = attach();
    let mut ns = {
        let system = DirectFs(&fs);
        let session = system.session().unwrap();
        session.mkdir(b"/dir", 0o755).unwrap();
        warm(&session, paths);
        let ns = warm(&session, paths);
        paths.one.iter().for_each(|path| session.create(path, 0o644).unwrap());
        ns
    };
    fs.detach_last().unwrap();
    {
        let (fs, _dram) = attach();
        ns.push(cold_stat(&DirectFs(&fs).session().unwrap(), paths));
        fs.detach_last().unwrap();
    }
    {
        let (fs, _dram) = attach();
        ns.push(cold_unlink(&DirectFs(&fs).session().unwrap(), paths));
        fs.detach_last().unwrap();
    }
    report("DirectFS", &ns);
}

fn report(name: &str, ns: &[f64]) {
    print!("{name:<24}");
    ns.iter().for_each(|ns| print!("{ns:>12.0}"));
    println!();
}

fn main() {
    let files = std::env::args().nth(1).and_then(|files| files.parse().ok()).unwrap_or(10_000);
    let paths = Paths::new(files);
    print!("{:<24}", format!("ns, {files} files"));
    CALLS.iter().for_each(|call| print!("{call:>12}"));
    println!();
    measure_directfs(&paths);
    measure::<Nova<Direct>, lab::front::DentryCache>("Conventional NOVA", &paths, true);
    measure::<Nova<Direct>, lab::front::ByVfsNames>("ByVFS NOVA", &paths, true);
    measure::<Nova<Direct>, lab::front::Mindex>("Cachelet NOVA", &paths, true);
    measure::<Nova<Direct>, lab::front::Mindex>("Cachelet NOVA, nqp", &paths, false);
    if files <= 20_000 {
        measure::<Pmfs<Direct>, lab::front::DentryCache>("Conventional PMFS", &paths, true);
        measure::<Pmfs<Direct>, lab::front::ByVfsNames>("ByVFS PMFS", &paths, true);
    }
    measure::<Pmfs<Direct>, lab::front::Mindex>("Cachelet PMFS", &paths, true);
    measure::<Pmfs<Direct>, lab::front::Mindex>("Cachelet PMFS, nqp", &paths, false);
}
