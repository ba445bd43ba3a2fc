//! Threads, persisters and the scan concurrently.

use super::image::Image;
use super::machine::{Random, bytes, formatted, load, mapping, mount_alone, quiet, region};
use super::model::dump;
use lab::calls::Calls;
use lab::physical::MountOptions;
use lab::soupfs::SoupFs;
use lab::vfs::{Conventional, VfsOptions};
use pmem::{CrashImage, Direct, Grain, Memory, Recorder};
use std::collections::BTreeMap;
use std::sync::Arc;

const THREADS: u64 = 3;

/// Three persisters that run all the time.
fn busy() -> VfsOptions {
    let mount = MountOptions { persist_period_ms: 1, shards: 12, ..MountOptions::default() };
    VfsOptions { mount, ..quiet() }
}

/// A thread's expectation: its own names in shared directories, with their content.
type Own = BTreeMap<Vec<u8>, Vec<u8>>;

const SHARED: [&str; 3] = ["/", "/p/", "/p/q/"];

/// Random calls on names that no other thread uses, in directories that all use.
fn work<M: Memory>(fs: &Conventional<SoupFs<M>>, thread: u64, random: &mut Random, own: &mut Own, calls: u64) {
    for call in 0..calls {
        let name = |number: u64| format!("{}{thread}-{}", SHARED[number as usize % 3], number % 20).into_bytes();
        let (one, two) = (name(random.next() % 60), name(random.next() % 60));
        match random.below(10) {
            0..4 if !own.contains_key(&one) => {
                fs.create(&one, 0o600).expect("created");
                own.insert(one, Vec::new());
            }
            4..6 if own.contains_key(&one) => {
                let content = vec![call as u8; random.below(6000) as usize];
                let file = fs.open(&one, libc::O_RDWR | libc::O_TRUNC, 0).expect("opened");
                fs.write(file, 0, &content).expect("written");
                if call % 16 == 0 {
                    fs.sync_file(file).expect("synced");
                }
                fs.close(file).expect("closed");
                own.insert(one, content);
            }
            6..8 if own.contains_key(&one) && one != two => {
                Calls::rename(fs, &one, &two, 0).expect("renamed");
                let content = own.remove(&one).expect("it was there");
                own.insert(two, content);
            }
            8 if own.contains_key(&one) => {
                fs.unlink(&one).expect("removed");
                own.remove(&one);
            }
            9 => {
                let directory = format!("/p/{thread}d{}", call % 3).into_bytes();
                if fs.mkdir(&directory, 0o700).is_err() {
                    let moved = format!("/p/q/{thread}d").into_bytes();
                    Calls::rename(fs, &directory, &moved, 0).expect("moved");
                    fs.rmdir(&moved).expect("removed");
                }
            }
            _ => {}
        }
    }
}

fn work_all<M: Memory>(fs: &Conventional<SoupFs<M>>, seed: u64, own: &mut [Own], calls: u64) {
    std::thread::scope(|scope| {
        for (thread, own) in (0..).zip(own) {
            scope.spawn(move || work(fs, thread, &mut Random(seed * 100 + thread), own, calls));
        }
    });
}

#[test]
fn threads_and_persisters_leave_what_each_thread_did() {
    for seed in 0..6 {
        let mapping = formatted(8 << 20);
        let mut own = vec![Own::new(); THREADS as usize];
        for round in 0..3 {
            let fs = Conventional::<SoupFs<Direct>>::mount(region(&mapping, Direct), busy()).expect("mounted");
            if round == 0 {
                fs.mkdir(b"/p", 0o755).expect("made");
                fs.mkdir(b"/p/q", 0o755).expect("made");
            }
            work_all(&fs, seed * 10 + round, &mut own, 1500);
            fs.unmount().expect("unmounted");
            let tree = dump(&mount_alone(&mapping)).expect("a tree");
            let files = tree.files.values().filter(|file| file.kind == engine::format::FileKind::Regular).count();
            assert_eq!(files, own.iter().map(Own::len).sum::<usize>(), "seed {seed}");
            for (path, content) in own.iter().flatten() {
                let id = tree.find(path).unwrap_or_else(|| panic!("seed {seed}: {path:?} is lost"));
                assert_eq!(tree.files[&id].content, *content, "seed {seed}: {path:?}");
            }
            let fs = mount_alone(&mapping);
            lab::physical::PhysicalFs::unmount(&fs).expect("unmounted");
            let image = bytes(&mapping);
            assert!(Image(&image).marked().into_iter().eq(Image(&image).reachable().lines.into_keys()), "seed {seed}");
        }
    }
}

#[test]
fn crashes_while_threads_and_persisters_work_leave_a_whole_image() {
    for seed in 0..3 {
        let mapping_of_run = formatted(1 << 20);
        let recorder = Arc::new(Recorder::new());
        let fs = Conventional::<SoupFs<Arc<Recorder>>>::mount(region(&mapping_of_run, Arc::clone(&recorder)), busy());
        let fs = fs.expect("mounted");
        fs.mkdir(b"/p", 0o755).expect("made");
        fs.mkdir(b"/p/q", 0o755).expect("made");
        fs.sync().expect("synced");
        let initial = bytes(&mapping_of_run);
        recorder.start();
        let mut own = vec![Own::new(); THREADS as usize];
        work_all(&fs, seed, &mut own, 400);
        fs.sync().expect("synced");
        recorder.stop();
        drop(fs);
        let log = recorder.take();
        let mut crash = CrashImage::new(initial, &log);
        let machine = mapping(1 << 20);
        let mut states = 0;
        while crash.advance() {
            if !(crash.fences() + seed).is_multiple_of(23) {
                continue;
            }
            let mut image = crash.durable().to_vec();
            for state in crash.states(Grain::Word, 2, 6, seed) {
                state.apply(&mut image);
                let reachable = Image(&image).reachable();
                assert!(reachable.shared.is_empty(), "seed {seed}, {}: {:x?}", state.id(), reachable.shared);
                let table = Image(&image).marked();
                assert!(reachable.lines.keys().all(|line| table.contains(line)), "seed {seed}, {}", state.id());
                load(&machine, &image);
                let fs = mount_alone(&machine);
                dump(&fs).unwrap_or_else(|error| panic!("seed {seed}, {}: {error}", state.id()));
                let report = fs.scan().expect("scanned").expect("something to scan");
                assert!(report.missing_links.is_empty(), "seed {seed}, {}: {report:?}", state.id());
                state.undo(&mut image);
                states += 1;
            }
        }
        println!("seed {seed}: {} fences, {states} states", crash.fences());
        assert!(states > 20);
        load(&machine, crash.durable());
        let tree = dump(&mount_alone(&machine)).expect("a tree");
        for (path, content) in own.iter().flatten() {
            let id = tree.find(path).unwrap_or_else(|| panic!("seed {seed}: {path:?} was synced and is lost"));
            assert_eq!(tree.files[&id].content, *content, "seed {seed}: {path:?}");
        }
    }
}

#[test]
fn the_scan_takes_nothing_that_is_in_use_while_threads_and_persisters_go_on() {
    for seed in 0..6 {
        let mapping = formatted(8 << 20);
        let mut own = vec![Own::new(); THREADS as usize];
        let fs = Conventional::<SoupFs<Direct>>::mount(region(&mapping, Direct), busy()).expect("mounted");
        fs.mkdir(b"/p", 0o755).expect("made");
        fs.mkdir(b"/p/q", 0o755).expect("made");
        work_all(&fs, seed, &mut own, 800);
        fs.sync().expect("synced");
        drop(fs);
        for round in 1..4 {
            // After each crash the scan's thread, the persisters and the calls start together.
            let fs = Conventional::<SoupFs<Direct>>::mount(region(&mapping, Direct), busy()).expect("mounted");
            work_all(&fs, seed + 10 * round, &mut own, 800);
            fs.sync().expect("synced");
            if round < 3 {
                drop(fs);
            } else {
                fs.unmount().expect("unmounted");
            }
        }
        let tree = dump(&mount_alone(&mapping)).expect("a tree");
        for (path, content) in own.iter().flatten() {
            let id = tree.find(path).unwrap_or_else(|| panic!("seed {seed}: {path:?} is lost"));
            assert_eq!(tree.files[&id].content, *content, "seed {seed}: {path:?}");
        }
        let fs = mount_alone(&mapping);
        lab::physical::PhysicalFs::unmount(&fs).expect("unmounted");
        let image = bytes(&mapping);
        let reachable = Image(&image).reachable();
        assert!(reachable.shared.is_empty(), "seed {seed}");
        assert!(Image(&image).marked().into_iter().eq(reachable.lines.into_keys()), "seed {seed}: the table is exact");
    }
}
